//! The owner of each thing: one module each, with its states, the transitions, and what is freed when. Nothing here imports what is above
//! it.
//!
//! | module | the life of |
//! |---|---|
//! | [`table`], [`number`] | a descriptor: what it is to us; the word that says so, and the time in which it is closed |
//! | [`use_count`] | an object that several hooks use, and the moment when none does |
//! | [`sock`] | a TCP socket of the program; [`socket`]: as the wire of its session |
//! | [`session`] | a connection's time in a ring |
//! | [`callers`], [`retained`] | a call that has slept on a socket; the socket after its last close meanwhile |
//! | [`teardown`], [`pending_release`] | the end of a session, and of a socket; the slot of an ended session that others of the family still have |
//! | [`sets`], [`registry`] | an event set; its members, and those that may have something to report |
//! | [`member`], [`registration`], [`key`] | a socket in a set, and whether the kernel's registration is ours or the program's |
//! | [`offers`], [`arenas`] | the table where connections meet; the shared memory of a pair of processes |
//! | [`holders`], [`gate`] | what other processes hold of a socket; what may not change while this one forks |
//! | [`defer`], [`routed`] | what a signal handler sent in the middle of a send; where a socket goes through the daemon |
//! | [`process`] | what this process knows of itself: configuration, report, whether anything may move |
//! | [`tools`] | which tools trace this process, and what they do not support |
//! | [`record`] | what `madrigal why` shows of a socket |
//! | [`slab`], [`lock`], [`fork_locks`] | memory outside malloc; exclusion; locks held across a fork |

// Under `shuttle` only what is explored there: the rest needs the C library, and a process to live in.
#[cfg(not(feature = "shuttle"))]
pub(crate) mod arenas;
#[cfg(not(feature = "shuttle"))]
pub(crate) mod callers;
#[cfg(not(feature = "shuttle"))]
pub(crate) mod defer;
#[cfg(all(test, feature = "shuttle"))]
mod explored;
#[cfg(not(feature = "shuttle"))]
pub(crate) mod fork_locks;
pub(crate) mod gate;
pub(crate) mod holders;
pub(crate) mod key;
#[cfg(not(feature = "shuttle"))]
pub(crate) mod load;
pub(crate) mod lock;
pub(crate) mod member;
pub(crate) mod number;
#[cfg(not(feature = "shuttle"))]
pub(crate) mod offers;
#[cfg(not(feature = "shuttle"))]
pub(crate) mod pending_release;
#[cfg(not(feature = "shuttle"))]
pub(crate) mod process;
#[cfg(not(feature = "shuttle"))]
pub(crate) mod record;
pub(crate) mod registration;
pub(crate) mod registry;
pub(crate) mod retained;
#[cfg(not(feature = "shuttle"))]
pub(crate) mod routed;
pub(crate) mod session;
#[cfg(not(feature = "shuttle"))]
pub(crate) mod sets;
#[cfg(not(feature = "shuttle"))]
pub(crate) mod slab;
#[cfg(not(feature = "shuttle"))]
pub(crate) mod sock;
#[cfg(not(feature = "shuttle"))]
pub(crate) mod socket;
#[cfg(not(feature = "shuttle"))]
pub(crate) mod table;
#[cfg(not(feature = "shuttle"))]
pub(crate) mod teardown;
#[cfg(not(feature = "shuttle"))]
pub(crate) mod tools;
pub(crate) mod use_count;
