//! Event sets: what epoll(7) would report of sockets whose bytes travel in rings.
//!
//! The kernel's registration of a socket is ours while a session can receive doorbells ([`crate::state::registration`]). Its events only
//! put the member on the set's *active list* ([`crate::state::registry`]). What is reported to the program is computed from ring and kernel
//! state, by the rules of level, edge and one-shot triggering ([`ready`]). A member leaves a long active list once its writer will ring and
//! it has been idle for a while. Before a thread sleeps on the set it arms the whole list ([`sleep`]).
//!
//! ```text
//!   control  epoll_ctl(2)         wait    epoll_wait(2): collect, spin, sleep
//!                                   |
//!                                 collect -> ready   which members may have an event; which events
//!                                 translate          the kernel's events
//!                                 sleep, nested      arming; sets inside sets and in poll(2)
//! ```

mod collect;
mod control;
mod nested;
mod ready;
mod sleep;
mod translate;
mod wait;

use crate::state::member::{ENDED, READABLE, URGENT, WRITABLE};
pub(crate) use control::control;
pub(crate) use nested::{Polled, polled};
pub(crate) use ready::{kernel_readiness, readiness};
pub(crate) use sleep::note_missed;
pub(crate) use wait::{Waited, after_sleep, left, wait};
