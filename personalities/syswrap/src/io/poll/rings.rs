//! Which descriptors of a poll(2) are ours, and which may be in rings.

use core::ffi::c_int;

use libc::{POLLIN, POLLOUT, POLLRDNORM, POLLWRNORM, pollfd};
use madrigal_base::sync::Ordering;

use crate::io::epoll;
use crate::state::session::Session;
use crate::state::sock::{self, Sock, mode};
use crate::state::table::{self, Kind};

/// The two names of each wish (poll(2)); some programs use only the second.
pub(super) const READABLE: i16 = POLLIN | POLLRDNORM;
pub(super) const WRITABLE: i16 = POLLOUT | POLLWRNORM;

/// Whether the waits of `fd` are ours.
#[inline]
pub(super) fn is_ours(fd: c_int) -> bool {
    table::get(fd).is_some_and(|w| matches!(w.kind(), Kind::Socket | Kind::EventSet))
}

/// Whether what the kernel reports of one of them may differ from what the program gets.
pub(super) fn has_ring(fds: &[pollfd]) -> bool {
    fds.iter().any(|p| match table::get(p.fd).map(|w| w.kind()) {
        Some(Kind::Socket) => sock::enter(p.fd).is_some_and(|s| is_in_ring(&s)),
        Some(Kind::EventSet) => asks_set(p) && epoll::polled(p.fd).is_some(),
        _ => false,
    })
}

/// Whether the events of an event set are asked for: it is readable then, and never anything else.
pub(super) fn asks_set(p: &pollfd) -> bool {
    p.events & READABLE != 0
}

pub(super) fn is_in_ring(s: &Sock) -> bool {
    // To its very end: a peer that has not yet taken the last doorbell out may leave a reset that TCP would not show.
    s.mode() == mode::SESSION || s.session.has_pending_error()
}

impl Session {
    /// A thread sleeps in a poll(2) until one of these events.
    pub(super) fn count_sleeper(&self, events: i16) {
        if events & READABLE != 0 {
            self.rx_sleepers.fetch_add(1, Ordering::SeqCst);
        }
        if events & WRITABLE != 0 {
            self.tx_sleepers.fetch_add(1, Ordering::SeqCst);
        }
    }

    pub(super) fn uncount_sleeper(&self, events: i16) {
        if events & READABLE != 0 {
            self.rx_sleepers.fetch_sub(1, Ordering::SeqCst);
        }
        if events & WRITABLE != 0 {
            self.tx_sleepers.fetch_sub(1, Ordering::SeqCst);
        }
    }
}
