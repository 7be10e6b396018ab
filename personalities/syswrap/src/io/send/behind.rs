//! Sends by the kernel behind the end of a session: at the gate, for the peer may still put its unread bytes back in front of them; and
//! whatever else a socket of a session sends by the kernel.

use core::ffi::c_int;

use madrigal_base::sync::Ordering;
use madrigal_sys::{Errno, raw, time};

use super::call::Send;
use super::space::PATIENCE_NS;
use crate::outcome::{CSleep, Outcome};
use crate::state::session::{HELD_NS, Health, Limit, Passage, View, Wire as _, phase};
use crate::state::sock::{Ref, Sock, mode};
use crate::state::socket::{Socket, sleep_ns, view};
use crate::state::teardown;

/// What goes through the gate at once, behind a session: so long the peer may have to wait.
const THROUGH_GATE: usize = 256 << 10;

/// How a send behind the end of a session goes on.
pub(super) enum Behind {
    Ends(Outcome),
    /// The peer needs nothing of us any more: the kernel socket is an ordinary one.
    Over(Ref),
}

/// Sends by the kernel, at the gate. `EBUSY`: the peer has closed it.
pub(crate) fn behind_gate(s: &Sock, fd: c_int, call: impl Fn() -> Result<usize, Errno>) -> Result<usize, Errno> {
    let Some(v) = view(s, fd).filter(|_| is_bound(s, fd)) else { return call() };
    match v.pass() {
        Passage::Open(_sender) => at_kernel(s, call),
        Passage::Closed => Err(Errno::BUSY),
    }
}

/// Makes a call on the kernel's socket, counted as such.
pub(crate) fn at_kernel(s: &Sock, call: impl FnOnce() -> Result<usize, Errno>) -> Result<usize, Errno> {
    s.session.in_send.fetch_add(1, Ordering::SeqCst);
    let result = call();
    if let Err(e) = result {
        s.session.note_error(e);
    }
    s.session.in_send.fetch_sub(1, Ordering::SeqCst);
    result
}

/// The same for a call that sends bytes. `None`: the session took over in the same moment, and nothing was sent; ask again there.
pub(crate) fn unless_moved(s: &Sock, call: impl FnOnce() -> Result<usize, Errno>) -> Option<Result<usize, Errno>> {
    let mut moved = false;
    // SYNC: SeqCst with `View::switch`: counted first (`at_kernel`), then checked. A byte behind the switch would be taken for a doorbell.
    let result = at_kernel(s, || {
        moved = s.session.sends();
        if moved { Ok(0) } else { call() }
    });
    (!moved).then_some(result)
}

/// Whether the peer may still ask for its unread bytes, behind the end of the session.
pub(crate) fn is_bound(s: &Sock, fd: c_int) -> bool {
    s.mode() == mode::SESSION && view(s, fd).is_some_and(|v| v.is_needed())
}

/// Whether the kernel takes nothing more, ever.
pub(crate) fn is_over(s: &Sock, fd: c_int) -> bool {
    matches!(Socket { s, fd }.health(), Health::Closed | Health::Broken)
}

/// The peer has sealed, and has rung a last time. If this process is killed with a doorbell unread, its kernel resets the connection, and
/// what it has sent and the peer has not read is lost. A thread that sleeps in a receive takes it out itself.
fn take_last_bell(s: &Sock, fd: c_int) {
    let is_sealed = |v: &View<'_, Socket<'_>>| v.is_sealed_in() && v.s.rx() != phase::DONE;
    if let Some(v) = view(s, fd).filter(|v| s.mode() == mode::SESSION && is_sealed(v))
        && v.s.rx_sleepers.load(Ordering::SeqCst) == 0
        && let Some(_lock) = v.try_reading()
    {
        v.finish_receiving();
        teardown::mark_due(s);
    }
}

/// Makes a call by which the kernel sends, behind what the peer may just be putting back into its queue. What is called may wait for room
/// there: the peer makes it.
pub(crate) fn in_order<T>(s: &Sock, fd: c_int, call: impl FnOnce() -> T) -> T {
    take_last_bell(s, fd);
    if let Some(v) = view(s, fd).filter(|_| is_bound(s, fd)) {
        let mut limit = Limit::new(v.wire, HELD_NS);
        loop {
            match v.pass() {
                Passage::Open(_sender) => return call(),
                Passage::Closed if limit.has_passed(v.wire) => break,
                Passage::Closed => _ = sleep_ns(PATIENCE_NS / 5),
            }
        }
    }
    call()
}

/// Behind the end of the session, while the peer may still ask for its unread bytes: the kernel takes a part at a time.
pub(super) fn behind_session(s: Ref, op: &Send) -> Behind {
    let wire = Socket { s: &s, fd: op.fd() };
    let mut limit = Limit::new(wire, HELD_NS);
    take_last_bell(&s, op.fd());
    loop {
        if !is_bound(&s, op.fd()) {
            teardown::mark_due(&s);
            return Behind::Over(s);
        }
        if op.done() > 0 && is_over(&s, op.fd()) {
            return Behind::Ends(Outcome::Done(op.done()));
        }
        let mut pieces = Send::pieces();
        let msg = op.some(THROUGH_GATE, &mut pieces);
        let flags = if op.done() > 0 { op.rest_flags() } else { op.flags };
        // SAFETY: parts of the program's buffers, for which it vouches.
        let call = || unsafe { raw::sendmsg(op.fd(), &msg, flags | libc::MSG_DONTWAIT) };
        let sent = behind_gate(&s, op.fd(), || match view(&s, op.fd()) {
            Some(v) if flags & libc::MSG_OOB != 0 => v.send_urgent(call),
            _ => call(),
        });
        let outcome = match sent {
            Ok(n) => {
                s.count_kernel(n, true);
                if !op.add(n) && n > 0 {
                    continue;
                }
                Some(Outcome::Done(op.done()))
            }
            // What the peer does takes some microseconds. A program that got `EAGAIN` would get no event of its end.
            Err(Errno::BUSY) => {
                sleep_ns(PATIENCE_NS / 5);
                if limit.has_passed(wire) { Some(op.end(Errno::AGAIN)) } else { continue }
            }
            Err(Errno::AGAIN) if op.nonblocking(&s) => Some(op.end(Errno::AGAIN)),
            Err(Errno::AGAIN) => None,
            Err(e) => {
                if op.done() > 0 && e != Errno::FAULT {
                    // What was sent is the result of this call, and the kernel reports an error once.
                    s.session.set_pending_error(e);
                }
                Some(op.end(e))
            }
        };
        return Behind::Ends(match outcome {
            Some(outcome) => outcome,
            None => await_kernel(s, op),
        });
    }
}

/// A sleep until the kernel has room.
pub(super) fn await_kernel(s: Ref, op: &Send) -> Outcome {
    let now = time::now_ns();
    let end = op.progress.deadline(&s, op.fd(), false, now);
    let left = (end != u64::MAX).then(|| end.saturating_sub(now));
    if left == Some(0) {
        return op.end(Errno::AGAIN);
    }
    let restarts = left.is_none() && op.done() == 0;
    // As it wakes, poll(2) looks the number up again: it may be another file's by then, and the waking signal would be lost.
    op.progress.signals.hold();
    op.at.pin(&s);
    Outcome::Await(CSleep {
        sock: s.park(),
        since: now,
        left,
        cut: false,
        restarts,
        mask: op.progress.signals.mask(),
        poll: Some(libc::POLLOUT),
    })
}

/// The thread is asleep no longer.
pub(crate) fn left(asleep: &CSleep) {
    drop(asleep.sock.unpark());
}

/// The thread is back from a sleep until the kernel has room. `Some`: the call ends.
pub(crate) fn woken(op: &Send, asleep: CSleep, result: Result<usize, Errno>) -> Option<Outcome> {
    let s = asleep.sock.unpark()?;
    match result {
        Ok(0) => Some(op.end(Errno::AGAIN)),
        Err(Errno::RESTART) => {
            op.begin_again(&s);
            None
        }
        Err(Errno::INTR) => Some(op.end(Errno::INTR)),
        _ => None,
    }
}
