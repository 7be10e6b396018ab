//! Waiting for space in a ring.

use madrigal_base::sync::Ordering;
use madrigal_sys::signals::as_set;
use madrigal_sys::{Errno, critical, raw, time};

use crate::io::handlers;
use crate::io::progress::Progress;
use crate::lifecycle::leave::relieve;
use crate::state::process::POLICY;
use crate::state::session::{Me, STALL_NS, View, phase};
use crate::state::sock::{Sock, mode};
use crate::state::socket::{Socket, view};

/// How long a full ring is left alone between polls when no doorbell can come.
pub(super) const PATIENCE_NS: u64 = 100_000;
/// The same for sleeps that cost a scan of every member of an event set.
const SLEEP_NS: u64 = 1_000_000;

/// How long a sleep may last on behalf of a sender that found the ring full; `None` for any other. While the peer's kernel bytes are
/// not all read, the doorbell for space may be stuck behind them.
pub(crate) fn longest_sleep(s: &Sock) -> Option<u64> {
    let full = s.mode() == mode::SESSION && view(s, s.fd()).is_some_and(|v| v.was_full());
    full.then(|| if s.session.rx() == phase::RING { STALL_NS } else { SLEEP_NS })
}

/// How a wait for space went.
#[derive(PartialEq, Eq)]
pub(in crate::io) enum Waited {
    Ready,
    Slept,
    /// A signal handler ran behind which the call restarts.
    Restarts,
}

/// Waits for space. `EAGAIN` when `SO_SNDTIMEO` passes, `EINTR` on a signal, unless the call is one to be restarted: as send(2), one
/// that has not sent anything yet and has no time-out.
pub(in crate::io) fn await_space(v: &View<'_, Socket<'_>>, progress: &Progress) -> Result<Waited, Errno> {
    let s = v.wire.s;
    let mut wait = POLICY.begin(&s.tx_wait, true);
    let ready = || v.has_room() || v.s.producer.is_sealed(v.out) || v.ended();
    for attempt in 0..=u32::MAX {
        if ready() {
            wait.paid();
            return Ok(Waited::Ready);
        }
        if s.is_closed() {
            return Err(Errno::BADF);
        }
        // A signal that waits ends the call now. To ask is a system call.
        if attempt.is_multiple_of(16) && progress.signals.has_some() || !wait.again(|| v.reader_is()) {
            break;
        }
    }
    // It sleeps many times, and any handler ends it.
    progress.signals.hold();
    let since = wait.since();
    let end = progress.deadline(s, v.wire.fd, false, since);
    v.note_wait();
    v.s.tx_sleepers.fetch_add(1, Ordering::SeqCst);
    let result = sleep_for_space(v, end, progress);
    v.s.tx_sleepers.fetch_sub(1, Ordering::SeqCst);
    POLICY.slept(&s.tx_wait, since);
    match result {
        Err(Errno::RESTART) => {
            progress.begin_again(s);
            Ok(Waited::Restarts)
        }
        result => result.map(|()| Waited::Slept),
    }
}

fn sleep_for_space(v: &View<'_, Socket<'_>>, end: u64, progress: &Progress) -> Result<(), Errno> {
    // Old doorbells go first: one that comes after the request below must be found by the sleep.
    let wakeable = v.s.rx() == phase::RING && v.try_reading().is_some_and(|_lock| v.swallow(Me::Writer));
    if v.want() || v.s.producer.is_sealed(v.out) {
        return Ok(());
    }
    let now = time::now_ns();
    if now >= end {
        return Err(Errno::AGAIN);
    }
    if v.is_stalled() {
        // The lock is ours to take: we are outside it.
        relieve(v.wire.s, v.wire.fd);
        return Ok(());
    }
    // Kernel bytes not read yet, or a doorbell left for another thread, would make POLLIN true for ever.
    let events = if wakeable { libc::POLLIN | libc::POLLRDHUP } else { libc::POLLRDHUP };
    let patience = if wakeable { STALL_NS } else { PATIENCE_NS };
    let (left, mask) = (Some(time::timespec(patience.min(end - now))), progress.signals.mask());
    let reported = if progress.done() == 0 && end == u64::MAX {
        // SAFETY: a mask of `sleep`'s own.
        let sleep = |poll: &mut [libc::pollfd; 2], left, mask| unsafe { raw::ppoll(poll, left, mask) };
        critical::outside(|| handlers::sleep((v.wire.fd, events), left, mask, sleep))?
    } else {
        let mut poll = [libc::pollfd { fd: v.wire.fd, events, revents: 0 }];
        let mask = mask.map(as_set);
        let mask = mask.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
        // SAFETY: a mask of our own.
        critical::outside(|| unsafe { raw::ppoll(&mut poll, left, mask) })?;
        poll[0].revents as u16 as usize
    };
    if reported & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) as usize != 0 {
        v.learn();
    }
    Ok(())
}
