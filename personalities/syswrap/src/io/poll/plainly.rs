//! Waits without rings: the C library waits, and the sockets count the thread among their sleepers.

use libc::pollfd;
use madrigal_progress::wait::{Peer, Waiter};
use madrigal_sys::{Errno, raw, time};

use super::asleep::{Asleep, Counted, Polled};
use super::memory::MEMORY;
use super::rings::has_ring;
use crate::io::limits::Limits;
use crate::io::plain;
use crate::state::process::POLICY;
use crate::state::sock;
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
    // SYNC: behind the counts, which are SeqCst: a thread that moves a socket from now on finds them.
    if has_ring(fds) {
        asleep.end();
        return Polled::Again;
    }
    Polled::Sleep(asleep)
}

/// Polls by system call, as the policy allows; `Err`: since when, and the C library may sleep.
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

/// The C library's poll(2) is over. True: a socket has moved meanwhile, and the answer may be wrong; poll again.
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
