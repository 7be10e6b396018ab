//! Event sets: what epoll(7) would tell of sockets whose bytes travel in rings.
//!
//! The kernel's registration of a socket is ours while a session can receive doorbells ([`crate::state::registration`]). Whatever it
//! reports only puts the member on the set's *active list* ([`crate::state::registry`]); what the program is told is computed from ring and
//! kernel state, by the rules of level, edge and one-shot triggering ([`ready`]). A member leaves a long active list once its writer will
//! ring and it has had nothing to tell for a while; before a thread sleeps on the set it arms the whole list ([`sleep`]).
//!
//! ```text
//!   control  epoll_ctl(2)         wait    epoll_wait(2): look, spin, sleep
//!                                   |
//!                                 collect -> ready   who may have something to tell; what
//!                                 sleep, nested      arming; sets inside sets and in poll(2)
//! ```

mod collect;
mod control;
mod nested;
mod ready;
mod sleep;
mod told;
mod wait;

use crate::state::member::{ENDED, READABLE, URGENT, WRITABLE};
pub(crate) use control::control;
pub(crate) use nested::{Polled, polled};
pub(crate) use ready::{kernel_readiness, readiness};
pub(crate) use sleep::note_missed;
pub(crate) use wait::{Waited, after_sleep, left, wait};
