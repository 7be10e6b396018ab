//! Sending: into the kernel until the switch, then into the ring, growing it as the traffic earns, then into the kernel again.

mod behind;
mod call;
mod space;

use core::ffi::c_int;

use madrigal_base::sync::Ordering;
use madrigal_report::Reason;
use madrigal_shm_ring::ring::Span;
use madrigal_sys::{Errno, raw};

use super::buffers::Buffers;
use super::{plain, recv};
use crate::lifecycle::earn;
use crate::lifecycle::leave::{Back, finish_sending, leave_for_good};
use crate::outcome::Outcome;
use crate::state::session::{Piece, Put, View, phase};
use crate::state::sock::{Ref, Sock, mode};
use crate::state::socket::{Socket, view};
use crate::state::{registration, teardown};
use behind::{Behind, await_kernel, behind_session};

pub(crate) use behind::{at_kernel, behind_gate, in_order, is_bound, is_over, left, unless_moved, woken};
pub(crate) use call::Send;
pub(crate) use space::longest_sleep;
pub(super) use space::{Waited, await_space};

/// Sends; `call(fd)` makes the program's own call on the kernel socket.
pub(crate) fn send(op: &Send, call: impl Fn(c_int) -> Result<usize, Errno>) -> Outcome {
    let call = || call(op.fd());
    let Some(mut s) = op.at.enter() else { return Outcome::Pass };
    if op.flags & (libc::MSG_OOB | libc::MSG_ZEROCOPY | libc::MSG_FASTOPEN) != 0 {
        let reason = if op.flags & libc::MSG_OOB != 0 {
            s.session.announce_urgent();
            Reason::Urgent
        } else {
            Reason::Option
        };
        leave_for_good(&s, op.fd(), reason, Back::Lazily);
    }
    if op.buffers.total() == 0 {
        // Nothing to carry; it may report an error.
        learn(&s, op.fd());
        let by_kernel = || at_kernel(&s, call).map_or_else(|e| judged(op, Outcome::Fail(e)), Outcome::Done);
        return gone_result(&s, op).unwrap_or_else(by_kernel);
    }
    earn::step(&s, op.fd());
    recv::leave_at_random(&s, op.fd());
    loop {
        flush_deferred(&s, op.fd());
        if s.mode() == mode::SESSION
            && let Some(outcome) = in_session(&s, op)
        {
            flush_deferred(&s, op.fd());
            return outcome;
        }
        if let Some(outcome) = gone_result(&s, op) {
            return outcome;
        }
        let nonblocking = op.nonblocking(&s);
        if s.mode() == mode::SESSION && s.session.tx() == phase::DONE {
            match behind_session(s, op) {
                Behind::Ends(outcome) => return judged(op, outcome),
                Behind::Over(back) => s = back,
            }
        }
        s.session.more.store(u32::from(op.flags & libc::MSG_MORE != 0), Ordering::Relaxed);
        // One that has waited does not begin again in the kernel, which would ask whether the socket is non-blocking by now.
        if op.done() > 0 || (op.at.has_moved() || op.progress.has_waited()) && !nonblocking {
            match send_rest(s, op) {
                Rest::Ends(outcome) => return outcome,
                Rest::Retries(back) => s = back,
            }
            continue;
        }
        match plain::send(s, op.fd(), nonblocking, call) {
            Ok(outcome) => return judged(op, outcome),
            Err(back) => s = back,
        }
    }
}

/// A reset that the kernel reported to a send of a session may come from doorbells only.
fn judged(op: &Send, outcome: Outcome) -> Outcome {
    if !matches!(outcome, Outcome::Fail(Errno::CONNRESET)) {
        return outcome;
    }
    let Some(s) = op.at.enter().filter(|s| s.mode() == mode::SESSION) else { return outcome };
    let Some(v) = view(&s, op.fd()) else { return outcome };
    v.saw_error(Errno::CONNRESET);
    gone_result(&s, op).unwrap_or(outcome)
}

/// The result of a send once the peer has gone. `None`: the kernel knows.
fn gone_result(s: &Sock, op: &Send) -> Option<Outcome> {
    let mut left = op.left();
    if s.session.seems_connected() {
        // What cannot be read is not taken.
        match op.buffers.reach(op.done()) {
            Ok(n) => left = n,
            Err(e) => return Some(op.end(e)),
        }
    }
    let held = op.flags & libc::MSG_MORE != 0 || s.session.corked.load(Ordering::Relaxed) != 0;
    if held && view(s, op.fd()).is_some_and(|v| v.keeps_unsent(left)) {
        op.progress.add(left);
        return Some(Outcome::Done(op.done()));
    }
    let taken = match s.session.send_result(left, op.done() > 0)? {
        Ok(n) => n,
        Err(Errno::PIPE) => return Some(broken(op.flags)),
        Err(e) => return Some(Outcome::Fail(e)),
    };
    if taken > 0 {
        // That it was lost is an event for the waiters for the end.
        registration::wake_sets(s);
    }
    op.progress.add(taken);
    Some(Outcome::Done(op.done()))
}

/// The result of a call that would send `n` bytes from elsewhere, if there are any ([`gone_result`]). `take` takes them, if they are taken.
pub(crate) fn result_elsewhere(
    s: &Sock,
    fd: c_int,
    n: impl FnOnce() -> Option<usize>,
    take: impl FnOnce(usize) -> Result<usize, Errno>,
) -> Option<Outcome> {
    learn(s, fd);
    let n = s.session.is_gone().then(n).flatten().filter(|&n| n > 0)?;
    let result = match s.session.send_result(n, false)? {
        Ok(_) => take(n),
        Err(Errno::PIPE) => return Some(broken(0)),
        Err(e) => Err(e),
    };
    registration::wake_sets(s);
    Some(result.into())
}

/// Finds out the state of the peer if only the kernel knows it.
fn learn(s: &Sock, fd: c_int) {
    if s.mode() == mode::SESSION
        && let Some(v) = view(s, fd)
    {
        v.learn();
    }
}

/// How a send goes on after a part is sent.
enum Rest {
    Ends(Outcome),
    Retries(Ref),
}

/// The session ended behind a part of a request, or the program has closed the descriptor: the kernel takes what it can. The kernel would
/// report to this call an error that is the next call's.
fn send_rest(s: Ref, op: &Send) -> Rest {
    if op.done() > 0 && is_over(&s, op.fd()) {
        return Rest::Ends(Outcome::Done(op.done()));
    }
    let mut pieces = Send::pieces();
    let msg = op.rest(&mut pieces);
    let flags = if op.done() > 0 { op.rest_flags() } else { op.flags };
    // SAFETY: parts of the program's buffers, for which it vouches.
    let call = || unsafe { raw::sendmsg(op.fd(), &msg, flags | libc::MSG_DONTWAIT) };
    let outcome = match plain::send(s, op.fd(), true, call) {
        Ok(outcome) => outcome,
        Err(back) => return Rest::Retries(back),
    };
    let Some(s) = op.at.enter() else { return Rest::Ends(Outcome::Done(op.done())) };
    match outcome {
        Outcome::Done(n) if !op.add(n) && n > 0 => return Rest::Retries(s),
        Outcome::Fail(Errno::AGAIN) if !op.nonblocking(&s) => return Rest::Ends(await_kernel(s, op)),
        Outcome::Fail(e) if op.done() == 0 => return Rest::Ends(judged(op, Outcome::Fail(e))),
        Outcome::Fail(Errno::AGAIN | Errno::INTR | Errno::FAULT) => {}
        // It came in this very moment, and the kernel reports it once.
        Outcome::Fail(e) => s.session.set_pending_error(e),
        _ => {}
    }
    Rest::Ends(Outcome::Done(op.done()))
}

/// Sends in session mode; `None` when the kernel carries everything.
fn in_session(s: &Ref, op: &Send) -> Option<Outcome> {
    let v = view(s, op.fd())?;
    if op.buffers.is_outside() {
        return Some(op.end(Errno::FAULT));
    }
    loop {
        let put = {
            let guard = v.s.wlock.lock();
            if guard.nested() {
                // We are a signal handler on top of a send of the same thread.
                return Some(match s.deferred.keep(|to, limit| op.buffers.copy_to(to, limit)) {
                    Ok(0) => Outcome::Fail(Errno::AGAIN),
                    Ok(n) => Outcome::Done(n),
                    Err(e) => Outcome::Fail(e),
                });
            }
            let whole = op.done() == 0 && !op.nonblocking(s);
            let piece = Piece { left: op.left(), whole, more: op.flags & libc::MSG_MORE != 0 };
            put(&v, piece, |span, from| op.buffers.drain(op.done() + from, span))
        };
        match put {
            Put::Bytes(n, sleeper) => {
                s.count_ring(n, true);
                s.alternate(true);
                v.wake(sleeper);
                if op.add(n) || !s.deferred.is_empty() {
                    return Some(Outcome::Done(op.done()));
                }
            }
            Put::Plain | Put::Over => {
                teardown::mark_due(s);
                return None;
            }
            Put::Broken => {
                v.spoil();
                return Some(if op.done() > 0 { Outcome::Done(op.done()) } else { broken(op.flags) });
            }
            Put::Failed(e) => return Some(op.end(e)),
            Put::Full if op.nonblocking(s) => {
                v.note_full();
                // Leave word, so that the reader rings for the space.
                if !v.want() {
                    return Some(op.end(Errno::AGAIN));
                }
            }
            Put::Full => {
                op.progress.note_wait();
                op.at.pin(s);
                match await_space(&v, &op.progress) {
                    Ok(Waited::Ready) => {}
                    Ok(Waited::Slept) => return Some(Outcome::Again),
                    Ok(Waited::Restarts) => {
                        op.begin_again(s);
                        return Some(Outcome::Again);
                    }
                    Err(e) => return Some(op.end(e)),
                }
            }
        }
    }
}

/// The peer is gone: what a send on such a TCP socket gives.
fn broken(flags: c_int) -> Outcome {
    if flags & libc::MSG_NOSIGNAL == 0 {
        raw::raise(libc::SIGPIPE);
    }
    Outcome::Fail(Errno::PIPE)
}

/// Puts bytes into the ring, making the switch first if it is time, and ends the direction if it is over. Under the send lock.
pub(super) fn put(
    v: &View<'_, Socket<'_>>,
    piece: Piece,
    copy: impl FnMut(&Span, usize) -> Result<usize, Errno>,
) -> Put {
    if !matches!(v.s.rx(), phase::RING | phase::DONE) {
        // A program that only sends does not advance by its receives, and the peer must be able to ring for space.
        advance(v);
    }
    if v.s.tx() == phase::KERNEL && v.switch() {
        v.pay_space();
    }
    if v.is_asked_back() {
        finish_sending(v, Reason::PeerLeft);
        return Put::Plain;
    }
    let piece = Piece { more: piece.more || v.s.corked.load(Ordering::Relaxed) != 0, ..piece };
    match v.put(piece, &v.wire, copy) {
        Put::Over => {
            over(v);
            Put::Plain
        }
        put => put,
    }
}

#[cold]
fn advance(v: &View<'_, Socket<'_>>) {
    if let Some(guard) = v.try_reading()
        && !guard.nested()
    {
        if v.s.rx() == phase::KERNEL {
            v.ready(|| registration::adopt(v.wire.s));
        }
        v.reach_ring();
    }
}

/// The direction is sealed, by the peer or by us, or the reader is gone.
fn over(v: &View<'_, Socket<'_>>) {
    // The kernel may hold a reset that this send must not show.
    v.learn();
    let sealed = v.s.producer.is_sealed(v.out);
    finish_sending(v, if sealed { Reason::PeerLeft } else { Reason::HalfClosed });
}

// --- what a signal handler sent ------------------------------------------------------------------------------------------------

/// Sends what a signal handler left while its thread was sending. What finds no room now goes in front of the next send.
pub(super) fn flush_deferred(s: &Sock, fd: c_int) {
    if !s.deferred.is_empty() {
        flush_now(s, fd);
    }
}

#[cold]
fn flush_now(s: &Sock, fd: c_int) {
    loop {
        // Until they are counted as sent: another handler would send them again.
        let guard = s.session.wlock.lock();
        if guard.nested() {
            return;
        }
        let Some((ptr, n)) = s.deferred.waiting() else { return };
        if !flush_some(s, fd, (ptr, n)) {
            return;
        }
    }
}

/// Sends some of these bytes; false: there is no room. Under the send lock.
fn flush_some(s: &Sock, fd: c_int, (ptr, n): (*mut u8, usize)) -> bool {
    let bytes = Buffers::one(ptr.cast(), n);
    let session = view(s, fd).filter(|_| s.mode() == mode::SESSION);
    match session.map_or(Put::Plain, |v| {
        let piece = Piece { left: n, whole: false, more: false };
        put(&v, piece, |span, from| bytes.drain(from, span))
    }) {
        Put::Bytes(n, sleeper) => {
            s.deferred.sent(n);
            if let Some(v) = session {
                v.wake(sleeper);
            }
        }
        Put::Plain | Put::Over => match behind_gate(s, fd, || {
            // SAFETY: bytes of our own page.
            unsafe { raw::send(fd, ptr.cast(), n, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) }
        }) {
            Err(Errno::AGAIN | Errno::INTR | Errno::BUSY) => return false,
            // On an error the connection is gone, and the program's own calls report it.
            sent => s.deferred.sent(sent.unwrap_or(n)),
        },
        Put::Full => return false,
        Put::Broken | Put::Failed(_) => s.deferred.sent(n),
    }
    true
}
