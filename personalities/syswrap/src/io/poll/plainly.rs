//! Waits without rings: the C library waits, and the sockets count the thread among their sleepers.

use libc::pollfd;
use madrigal_progress::wait::{Peer, Waiter};
use madrigal_sys::{Errno, raw, time};

use super::fds::{self, SMALL};
use super::{Limits, MEMORY, Polled, has_ring};
use crate::io::plain;
use crate::state::process::POLICY;
use crate::state::sock::{self, Parked};
use crate::state::table::{self, Kind};

/// poll(2) where no ring is among the descriptors.
pub(super) fn wait(fds: &mut [pollfd], limits: Limits<'_>, waiter: &Waiter) -> Polled {
    let since = match spin(fds, limits, waiter) {
        Ok(done) => return Polled::Done(done),
        Err(since) => since,
    };
    let Some(mut asleep) = Asleep::new(since, fds.len()) else { return Polled::Pass };
    for (p, counted) in fds.iter().zip(asleep.counted()) {
        if let Some(s) = sock::enter(p.fd) {
            s.session.count_sleeper(p.events);
            *counted = Counted { sock: Some(s.park()), events: p.events };
        }
    }
    // SYNC: behind the counts, which are SeqCst: whoever moves a socket from now on finds them.
    if has_ring(fds) {
        asleep.end();
        return Polled::Again;
    }
    Polled::Sleep(asleep)
}

/// Looks again by system call, as the policy allows; `Err`: since when, and the C library may sleep.
fn spin(fds: &mut [pollfd], limits: Limits<'_>, waiter: &Waiter) -> Result<Result<usize, Errno>, u64> {
    if limits.at_once() || !limits.signals.mask().is_null() {
        return Err(0);
    }
    let mut wait = POLICY.begin(waiter, false);
    while wait.again(|| first_sender(fds)) {
        // SAFETY: no mask.
        match unsafe { raw::ppoll(fds, Some(time::timespec(0)), core::ptr::null()) } {
            Ok(0) if limits.left() == Some(0) => return Ok(Ok(0)),
            Ok(0) => {}
            done => {
                wait.paid();
                return Ok(done);
            }
        }
    }
    Err(wait.since())
}

fn first_sender(fds: &[pollfd]) -> Peer {
    let tcp = fds.iter().find(|p| table::get(p.fd).is_some_and(|w| w.kind() == Kind::Socket));
    tcp.map_or(Peer::Unknown, |p| plain::sender_of(p.fd))
}

/// The C library's poll(2) is over. True: a socket has moved meanwhile, and what it told may not be so; poll again.
pub(crate) fn after_sleep(asleep: Asleep, fds: &[pollfd]) -> bool {
    let saved = crate::outcome::errno();
    if asleep.since != 0 {
        MEMORY.with(|memory| POLICY.slept(&memory.waiter, asleep.since));
    }
    asleep.end();
    let moved = has_ring(fds);
    crate::outcome::restore_errno(saved);
    moved
}

/// The thread polls no longer. Its memory is lost.
pub(crate) fn left(asleep: &Asleep) {
    let Asleep { since, small, large, n } = *asleep;
    Asleep { since, small, large, n }.uncount();
}

/// A thread in the C library's poll(2). Plain memory: a thread that is cancelled leaves that behind.
pub(crate) struct Asleep {
    since: u64,
    small: [Counted; SMALL],
    large: *mut Counted,
    n: usize,
}

/// A socket that counts the thread among its sleepers.
#[derive(Clone, Copy)]
struct Counted {
    sock: Option<Parked>,
    events: i16,
}

const UNCOUNTED: Counted = Counted { sock: None, events: 0 };

impl Asleep {
    fn new(since: u64, n: usize) -> Option<Self> {
        let large = fds::many(n, UNCOUNTED)?;
        Some(Self { since, small: [UNCOUNTED; SMALL], large, n })
    }

    fn counted(&mut self) -> &mut [Counted] {
        fds::either(&mut self.small, self.large, self.n)
    }

    fn end(mut self) {
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
