//! How connections come into rings and out of them, and what ends with a descriptor or a process.
//!
//! | module | what begins or ends |
//! |---|---|
//! | [`earn`] | a session: the offer of the connecting end, the answer of the accepting one |
//! | [`leave`] | a session, because something does not go by a ring |
//! | [`reconnect`] | the same, of a peer that is gone |
//! | [`queue`] | what is taken out of the kernel meanwhile |
//! | [`close`] | a descriptor, and with the last one a socket |
//! | [`fork`] | a process: fork, exec, spawn, exit |

pub(crate) mod close;
pub(crate) mod earn;
pub(crate) mod fork;
pub(crate) mod leave;
mod queue;
mod reconnect;
