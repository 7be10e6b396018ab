//! What the program's calls on its sockets do: bytes in and out, and waits.
//!
//! | module | calls |
//! |---|---|
//! | [`send`], [`recv`], [`file`](mod@file) | data calls: through the session while there is one |
//! | [`quick`] | the short way of those that find bytes, or room, in the ring |
//! | [`plain`] | on the kernel socket, polling by the wait policy before they sleep |
//! | [`poll`], [`epoll`] | waits over sets that mix ring sockets with anything else |
//! | [`limits`] | how long a wait may last, and the signals that may end it |
//! | [`handlers`] | what a signal handler means for a call of the program's that it interrupts |
//! | [`file_wait`] | their sleeps in poll(2), whatever becomes of the descriptor's number |
//! | [`buffers`], [`progress`], [`affinity`] | the program's memory; how far a call is; which processor a pair of processes shares |

pub(crate) mod affinity;
pub(crate) mod buffers;
pub(crate) mod epoll;
pub(crate) mod file;
pub(crate) mod file_wait;
pub(crate) mod handlers;
pub(crate) mod limits;
pub(crate) mod plain;
pub(crate) mod poll;
pub(crate) mod progress;
pub(crate) mod quick;
pub(crate) mod recv;
pub(crate) mod send;
pub(crate) mod target;
