//! The wait of a receive that found nothing: polls as the policy allows, arming the ring, and what a wake-up means.

use madrigal_base::sync::Ordering;
use madrigal_shm_ring::layout::state;
use madrigal_sys::{Errno, tcp, time};

use super::call::Receive;
use crate::io::affinity;
use crate::io::epoll::kernel_readiness;
use crate::outcome::{CSleep, Outcome};
use crate::state::process::POLICY;
use crate::state::session::{Me, View, Wire as _, phase};
use crate::state::sock::{Ref, flag};
use crate::state::socket::{Socket, sleep_ns, view};

/// Between polls where no doorbell can come.
pub(super) const PEEK_SLEEP_NS: u64 = 100_000;

/// How a receive in session mode goes on.
pub(super) enum Step {
    Ends(Outcome),
    Sleeps(Sleep),
}

/// A sleep that is about to begin.
pub(super) struct Sleep {
    since: u64,
    left: Option<u64>,
    cut: bool,
    restarts: bool,
    mask: Option<u64>,
    poll: Option<i16>,
}

impl Sleep {
    /// The thread sleeps on this socket.
    pub(super) fn of(self, s: Ref, op: &Receive) -> Outcome {
        op.at.pin(&s);
        let Self { since, left, cut, restarts, mask, poll } = self;
        Outcome::Await(CSleep { sock: s.park(), since, left, cut, restarts, mask, poll })
    }
}

/// Waits until a receive is worth a try (`None`), or returns how the call sleeps or ends.
pub(super) fn await_data(v: &View<'_, Socket<'_>>, op: &Receive) -> Option<Step> {
    let s = v.wire.s;
    let mut wait = POLICY.begin(&s.rx_wait, v.s.rx() == phase::RING);
    for attempt in 0..=u32::MAX {
        v.pay_space();
        if has_arrived(v) {
            wait.paid();
            return None;
        }
        if s.is_closed() {
            return Some(Step::Ends(op.end(Err(Errno::INTR))));
        }
        // A signal that waits ends the call now. To ask is a system call.
        if attempt.is_multiple_of(16) && op.progress.signals.has_some() || !wait.again(|| v.writer_is()) {
            break;
        }
    }
    op.hold_signals(s);
    let since = wait.since();
    let end = op.progress.deadline(s, op.fd(), true, since);
    let left = (end != u64::MAX).then(|| end.saturating_sub(time::now_ns()));
    if left == Some(0) {
        return Some(Step::Ends(op.end(Err(Errno::AGAIN))));
    }
    affinity::join(v);
    v.s.rx_sleepers.fetch_add(1, Ordering::SeqCst);
    // Behind the arming: a seal that comes later rings.
    let urgent = if prepare_sleep(v) { None } else { urgent_to_come(v, op) };
    let Some(urgent) = urgent else {
        v.s.rx_sleepers.fetch_sub(1, Ordering::SeqCst);
        return None;
    };
    let held = v.held_for().filter(|held| left.is_none_or(|left| *held < left));
    let restarts = left.is_none() && op.done() == 0;
    let (left, cut) = (held.or(left), held.is_some());
    // A receive on a socket that was made non-blocking meanwhile would return at once; and one that has got a part, or asks for nothing,
    // ends with any signal handler, as one on a socket that was given a time-out meanwhile.
    let mask = op.progress.signals.mask();
    let otherwise = s.has(flag::NONBLOCK | flag::RCVTIMEO) || op.done() > 0 || op.buffers.total() == 0;
    let polls = mask.is_some() || left.is_some() || otherwise;
    let poll = (polls || urgent != 0).then_some(libc::POLLIN | libc::POLLRDHUP | urgent);
    Some(Step::Sleeps(Sleep { since, left, cut, restarts, mask, poll }))
}

/// `POLLPRI`, if an urgent byte may come with no doorbell before it: a receive that sleeps passes over it, or ends there, and only poll(2)
/// reports it. `None`: one has come already, from a peer that has sealed, or it ends this call; so check again.
fn urgent_to_come(v: &View<'_, Socket<'_>>, op: &Receive) -> Option<i16> {
    let (in_ring, sealed) = (v.s.rx() == phase::RING, v.is_sealed_in());
    if in_ring && !sealed || op.is_peek() {
        return Some(0);
    }
    match kernel_readiness(op.fd(), libc::EPOLLPRI as u32) {
        0 => Some(libc::POLLPRI),
        _ if in_ring => {
            // The writer has rung for the last time, and is about to publish that; or it is dead, and never will.
            sleep_ns(PEEK_SLEEP_NS);
            if let Some(_lock) = v.try_reading()
                && v.s.rx() == phase::RING
            {
                v.check_open(true);
            }
            None
        }
        _ if op.done() > 0 && tcp::at_mark(op.fd()) => None,
        _ => (!sealed).then_some(0),
    }
}

/// A sleep until the kernel has more, of a call that has got a part or waits all the same. `Err`: an urgent byte has come since the call
/// found nothing, and it is to try again.
pub(super) fn until_more(s: Ref, op: &Receive) -> Result<Outcome, Ref> {
    let since = time::now_ns();
    let end = op.progress.deadline(&s, op.fd(), true, since);
    let left = (end != u64::MAX).then(|| end.saturating_sub(since));
    if left == Some(0) {
        return Ok(op.end(Err(Errno::AGAIN)));
    }
    // An urgent byte ends a receive that has got a part. A receive with nothing passes over it. A peek and a receive of 0 bytes do not:
    // these sleep on beside it, and it would end every sleep.
    let has_urgent = kernel_readiness(op.fd(), libc::EPOLLPRI as u32) != 0;
    if op.done() > 0 && tcp::at_mark(op.fd()) {
        return Ok(op.end(Ok(0)));
    }
    if has_urgent && op.passes_over_urgent() {
        return Err(s);
    }
    let urgent = libc::POLLPRI * i16::from(!has_urgent);
    // As it wakes, poll(2) looks the number up again: it may be another file's by then, and the waking signal would be lost.
    op.progress.signals.hold();
    s.session.rx_sleepers.fetch_add(1, Ordering::SeqCst);
    let restarts = left.is_none() && op.done() == 0;
    let mask = op.progress.signals.mask();
    Ok(Sleep { since, left, cut: false, restarts, mask, poll: Some(libc::POLLIN | libc::POLLRDHUP | urgent) }.of(s, op))
}

/// The thread is asleep no longer.
pub(crate) fn left(asleep: &CSleep) {
    if let Some(s) = asleep.sock.unpark() {
        s.session.rx_sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The thread is back from its sleep: a receive that peeks at one byte or, if a time-out is set, a poll(2). Unlike poll(2), the kernel
/// restarts or ends the former by the interrupted handler's `SA_RESTART`. `Some`: the call ends.
pub(crate) fn woken(op: &Receive, asleep: CSleep, result: Result<usize, Errno>) -> Option<Outcome> {
    let s = asleep.sock.unpark()?;
    s.session.rx_sleepers.fetch_sub(1, Ordering::SeqCst);
    POLICY.slept(&s.rx_wait, asleep.since);
    op.at.find(&s);
    if result == Err(Errno::AGAIN) {
        s.learn_nonblocking();
    }
    if op.buffers.total() == 0 && !matches!(result, Ok(1..)) {
        // Whatever ended the sleep but a byte, which may be a doorbell, there is nothing to take (tcp_recvmsg of no bytes).
        return Some(Outcome::Done(0));
    }
    match (result, asleep.poll) {
        (Ok(0), Some(_)) if asleep.cut => {}
        // The kernel began its receive again, by a number that is closed.
        (Err(Errno::RESTART | Errno::BADF), _) => op.begin_again(&s),
        // The time is over.
        (Ok(0), Some(_)) => return Some(op.end(Err(Errno::AGAIN))),
        (Err(Errno::INTR), _) => return Some(op.end(Err(Errno::INTR))),
        // A signal handler ran, and the kernel restarted the receive. Meanwhile the socket was made non-blocking, or given a time-out.
        (Err(Errno::AGAIN), None) if s.has(flag::NONBLOCK | flag::RCVTIMEO) => {
            return Some(op.end(Err(Errno::AGAIN)));
        }
        (Err(Errno::AGAIN), None) => {}
        (result, polled) => {
            let Some(v) = view(&s, op.fd()) else {
                // The session is over. No other call gets the error that ended the sleep.
                if let Err(e) = result {
                    s.session.set_pending_if_broken(e);
                }
                return None;
            };
            match result {
                Ok(0) => v.saw_end(),
                Ok(_) => {
                    if polled.is_some()
                        && let Some(_lock) = v.try_reading()
                        && v.s.rx() == phase::RING
                    {
                        v.check_open(true);
                    }
                    v.check_strays();
                }
                Err(e) => v.saw_error(e),
            }
        }
    }
    None
}

/// Whether there may be something to take.
fn has_arrived(v: &View<'_, Socket<'_>>) -> bool {
    match v.s.rx() {
        phase::RING => View::<Socket<'_>>::CONSUMER.stirred(v.inn) && !waits_for_last_bell(v),
        phase::READY => v.inn.w.state.load(Ordering::Acquire) != state::KERNEL || has_come(v),
        _ => true,
    }
}

/// Whether the kernel has a byte, the end, or an error, which it reports once.
fn has_come(v: &View<'_, Socket<'_>>) -> bool {
    match v.wire.peek() {
        Err(Errno::AGAIN) => return false,
        Err(e) => v.saw_error(e),
        Ok(_) => {}
    }
    true
}

/// Sealed and drained, but the writer is just about to ring once more: only the kernel can report when.
fn waits_for_last_bell(v: &View<'_, Socket<'_>>) -> bool {
    View::<Socket<'_>>::CONSUMER.waiting(v.inn) == 0 && (!v.has_rung_last() || v.bells_due() > 0)
}

/// Takes old doorbells out and puts the token back; true if there is something to receive instead of sleeping.
fn prepare_sleep(v: &View<'_, Socket<'_>>) -> bool {
    if v.s.rx() != phase::RING {
        return v.s.rx() != phase::READY;
    }
    if let Some(_lock) = v.try_reading()
        && !v.swallow(Me::Reader)
    {
        // The doorbell is for another thread, which is about to run.
        return sleep_ns(PEEK_SLEEP_NS);
    }
    if View::<Socket<'_>>::CONSUMER.arm(v.inn) && !waits_for_last_bell(v) {
        return true;
    }
    v.pay_space();
    false
}
