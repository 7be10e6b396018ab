//! How a poll(2) ends, and what counts a thread that sleeps in the C library's.

use madrigal_sys::Errno;

use super::fds::{self, SMALL};
use crate::state::sock::Parked;

/// How a poll(2) ended. On the stack, where there is nothing to be boxed in: no memory of malloc's.
#[allow(clippy::large_enum_variant)]
pub(crate) enum Polled {
    Done(Result<usize, Errno>),
    /// A point where a thread can be cancelled; then poll again.
    Again,
    /// No ring: the C library waits; then [`after_sleep`](super::after_sleep).
    Sleep(Asleep),
    /// There is no memory to follow it: the call is the C library's.
    Pass,
}

/// The thread polls no longer. Its memory is lost.
pub(crate) fn left(asleep: &Asleep) {
    let Asleep { since, small, large, n } = *asleep;
    Asleep { since, small, large, n }.uncount();
}

/// A thread in the C library's poll(2). Plain memory: a thread that is cancelled leaves that behind.
pub(crate) struct Asleep {
    pub(super) since: u64,
    small: [Counted; SMALL],
    large: *mut Counted,
    n: usize,
}

/// A socket that counts the thread among its sleepers.
#[derive(Clone, Copy)]
pub(super) struct Counted {
    pub(super) sock: Option<Parked>,
    pub(super) events: i16,
}

const UNCOUNTED: Counted = Counted { sock: None, events: 0 };

impl Asleep {
    pub(super) fn new(since: u64, n: usize) -> Option<Self> {
        let large = fds::many(n, UNCOUNTED)?;
        Some(Self { since, small: [UNCOUNTED; SMALL], large, n })
    }

    pub(super) fn counted(&mut self) -> &mut [Counted] {
        fds::either(&mut self.small, self.large, self.n)
    }

    pub(super) fn end(mut self) {
        self.uncount();
        fds::free(self.large, self.n);
    }

    fn uncount(&mut self) {
        for &mut Counted { sock, events } in self.counted() {
            if let Some(s) = sock.and_then(Parked::unpark) {
                s.session.uncount_sleeper(events);
            }
        }
    }
}
