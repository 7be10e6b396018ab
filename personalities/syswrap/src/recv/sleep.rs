//! The wait of a receive that found nothing: looking on as the policy allows, arming the ring, and what a wake-up says.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use madrigal_drivers::shm::layout::state;
use madrigal_sys::{Errno, raw, time};

use super::{PEEK_NAP_NS, Receive};
use crate::outcome::{Nap, Outcome};
use crate::process::POLICY;
use crate::session::{self, Me, View, phase};
use crate::sock::{self, flag};
use crate::{leave, near};

/// Waits until a look is worth it (`None`), or says how the call sleeps or ends.
pub(super) fn await_data(v: &View<'_>, op: &Receive<'_>) -> Option<Outcome> {
    let in_ring = v.s.session.rx() == phase::RING;
    let mut wait = POLICY.begin(&v.s.rx_wait, in_ring);
    loop {
        v.pay_space(op.fd);
        if stirred(v, op.fd) {
            wait.paid();
            return None;
        }
        if v.s.has(flag::CLOSED) {
            return Some(op.end(Err(Errno::INTR)));
        }
        if !wait.again(|| v.writer_is()) {
            break;
        }
    }
    let since = wait.since();
    let mut left = 0;
    if v.s.has(flag::RCVTIMEO) {
        if op.deadline.get() == 0 {
            op.deadline.set(since + timeout(op.fd, libc::SO_RCVTIMEO));
        }
        left = op.deadline.get().saturating_sub(time::now_ns());
        if left == 0 {
            return Some(op.end(Err(Errno::AGAIN)));
        }
    }
    near::join(v);
    v.s.sleepers.fetch_add(1, Ordering::SeqCst);
    if prepare_sleep(v, op.fd) {
        v.s.sleepers.fetch_sub(1, Ordering::SeqCst);
        return None;
    }
    Some(Outcome::Await(Nap { sock: v.s.index(), since, left }))
}

/// The thread is back from its sleep: a receive that looks at one byte and leaves it, or, where a time-out is set, a poll(2).
/// Unlike poll(2) the kernel restarts or ends the former as the interrupted handler's `SA_RESTART` says. `Some`: the call ends.
pub(crate) fn woken(op: &Receive<'_>, nap: Nap, result: Result<usize, Errno>) -> Option<Outcome> {
    let s = sock::by_index(nap.sock)?;
    s.sleepers.fetch_sub(1, Ordering::SeqCst);
    POLICY.slept(&s.rx_wait, nap.since);
    let ended = result == Ok(0);
    let outcome = match result {
        Ok(0) if nap.left > 0 => Some(op.end(Err(Errno::AGAIN))),
        Err(Errno::INTR) => Some(op.end(Err(Errno::INTR))),
        Err(Errno::AGAIN) if nap.left == 0 => None,
        Ok(1..) if nap.left == 0 => {
            if let Some(v) = session::view(&s) {
                v.check_strays(op.fd);
            }
            None
        }
        Ok(_) | Err(Errno::AGAIN) => {
            if let Some(v) = session::view(&s) {
                if ended {
                    v.saw_end()
                } else {
                    v.check_open(op.fd, true);
                    v.check_strays(op.fd);
                }
            }
            None
        }
        Err(e) => {
            if let Some(v) = session::view(&s) {
                v.saw_error(e);
            }
            None
        }
    };
    s.unhold();
    outcome
}

/// Whether there may be something to take.
fn stirred(v: &View<'_>, fd: c_int) -> bool {
    match v.s.session.rx() {
        phase::RING => View::CONSUMER.stirred(v.inn) && !waiting_for_seal(v),
        phase::READY => {
            v.inn.w.state.load(Ordering::Acquire) != state::KERNEL
                || raw::peek(fd, libc::MSG_DONTWAIT) != Err(Errno::AGAIN)
        }
        _ => true,
    }
}

/// Sealed and drained, but doorbells are still on their way: only the kernel can tell more.
fn waiting_for_seal(v: &View<'_>) -> bool {
    View::CONSUMER.waiting(v.inn) == 0 && v.bells_due() > 0
}

/// Takes old doorbells out and puts the token back; true if there is something to look at instead of sleeping.
fn prepare_sleep(v: &View<'_>, fd: c_int) -> bool {
    if v.s.session.rx() != phase::RING {
        return v.s.session.rx() != phase::READY;
    }
    if let Some(_lock) = v.s.rlock.try_lock()
        && !v.swallow(fd, Me::Reader)
    {
        // The doorbell is for another thread, which is about to run.
        return leave::nap(PEEK_NAP_NS);
    }
    (View::CONSUMER.arm(v.inn) && !waiting_for_seal(v))
        || View::CONSUMER.owes_space(v.inn) && {
            v.ring(fd);
            false
        }
}

/// A socket time-out in nanoseconds; very long when none is set.
pub(crate) fn timeout(fd: c_int, name: c_int) -> u64 {
    let mut tv = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let set = raw::sockopt(fd, libc::SOL_SOCKET, name, &mut tv).is_ok() && (tv.tv_sec, tv.tv_usec) != (0, 0);
    if set { tv.tv_sec as u64 * 1_000_000_000 + tv.tv_usec as u64 * 1000 } else { u64::MAX / 4 }
}
