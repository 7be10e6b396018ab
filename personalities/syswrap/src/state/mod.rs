//! Who owns what: one module for each thing, with its states, who moves them, and what is freed when. Nothing here imports what is
//! above it.
//!
//! | module | the life of |
//! |---|---|
//! | [`table`], [`number`] | a descriptor: what it is to us; the word that says so, and the time in which it is closed |
//! | [`hold`] | an object that several hooks look at, and the moment when none does |
//! | [`sock`] | a TCP socket of the program; [`socket`]: as the wire of its session |
//! | [`session`] | a connection's time in a ring |
//! | [`guests`], [`kept`] | a call that has slept on a socket; the socket behind its last close meanwhile |
//! | [`settle`], [`owed`] | its end, and that of a socket; the slot of an ended one that others of the family still have |
//! | [`sets`], [`roll`] | an event set; its members, and those that may have something to tell |
//! | [`member`], [`registration`], [`key`] | a socket in a set, and whose the kernel's registration is |
//! | [`offers`], [`arenas`] | the table where connections meet; the shared memory of a pair of processes |
//! | [`holders`], [`gate`] | what other processes hold of a socket; what may not change while this one forks |
//! | [`defer`], [`routed`] | what a signal handler sent in the middle of a send; where a socket goes through the daemon |
//! | [`process`] | what this process knows of itself: configuration, report, whether anything may move |
//! | [`watched`] | which tools watch this process, and what they cannot bear |
//! | [`record`] | what `madrigal why` is told of a socket |
//! | [`slab`], [`lock`], [`still`] | memory outside malloc; exclusion; locks held across a fork |

// Under `shuttle` only what is explored there: the rest needs the C library, and a process to live in.
#[cfg(not(feature = "shuttle"))]
pub(crate) mod arenas;
#[cfg(not(feature = "shuttle"))]
pub(crate) mod defer;
#[cfg(all(test, feature = "shuttle"))]
mod explored;
pub(crate) mod gate;
#[cfg(not(feature = "shuttle"))]
pub(crate) mod guests;
pub(crate) mod hold;
pub(crate) mod holders;
pub(crate) mod kept;
pub(crate) mod key;
#[cfg(not(feature = "shuttle"))]
pub(crate) mod load;
pub(crate) mod lock;
pub(crate) mod member;
pub(crate) mod number;
#[cfg(not(feature = "shuttle"))]
pub(crate) mod offers;
#[cfg(not(feature = "shuttle"))]
pub(crate) mod owed;
#[cfg(not(feature = "shuttle"))]
pub(crate) mod process;
#[cfg(not(feature = "shuttle"))]
pub(crate) mod record;
pub(crate) mod registration;
pub(crate) mod roll;
#[cfg(not(feature = "shuttle"))]
pub(crate) mod routed;
pub(crate) mod session;
#[cfg(not(feature = "shuttle"))]
pub(crate) mod sets;
#[cfg(not(feature = "shuttle"))]
pub(crate) mod settle;
#[cfg(not(feature = "shuttle"))]
pub(crate) mod slab;
#[cfg(not(feature = "shuttle"))]
pub(crate) mod sock;
#[cfg(not(feature = "shuttle"))]
pub(crate) mod socket;
#[cfg(not(feature = "shuttle"))]
pub(crate) mod still;
#[cfg(not(feature = "shuttle"))]
pub(crate) mod table;
#[cfg(not(feature = "shuttle"))]
pub(crate) mod watched;
