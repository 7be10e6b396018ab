//! Receiving: kernel bytes up to the switch, then the ring, then kernel bytes again; a call takes from all of them.

use core::ffi::c_int;

use madrigal_report::Reason;
use madrigal_sys::{Errno, raw, tcp};

use super::epoll::kernel_readiness;
use super::plain::{self, Wait};
use crate::lifecycle::earn;
use crate::lifecycle::leave::{Back, leave};
use crate::outcome::Outcome;
use crate::state::session::{Health, Me, Source, Took, View, Wire, phase};
use crate::state::sock::{self, Ref, Sock, flag, mode};
use crate::state::socket::{Socket, view};
use crate::state::{process, registration, teardown};

mod call;
mod copier;
mod peek;
mod sleep;

pub(crate) use call::Receive;
pub(crate) use copier::keep_error;
use copier::{Copier, before_mark};
pub(crate) use peek::readable;
use sleep::Step;
pub(crate) use sleep::{left, woken};

/// Flags that ask the kernel for something no ring has.
const KERNEL_FLAGS: c_int = libc::MSG_OOB | libc::MSG_ERRQUEUE;

/// Receives; `call(fd, extra_flags)` makes the program's own call on the kernel socket.
pub(crate) fn receive(op: &Receive, call: impl Fn(c_int, c_int) -> Result<usize, Errno>) -> Outcome {
    let call = |extra| call(op.fd(), extra);
    let Some(mut s) = op.at.enter() else { return op.passed() };
    if op.flags & KERNEL_FLAGS != 0 {
        return Outcome::Pass;
    }
    if !op.is_peek() {
        earn::step(&s, op.fd());
        leave_at_random(&s, op.fd());
    }
    loop {
        if op.seen.get() > 0 {
            return peek::continue_peek(&s, op);
        }
        if s.mode() == mode::SESSION
            && let Some(outcome) = in_session(&s, op)
        {
            return match outcome {
                Step::Ends(outcome) => outcome,
                Step::Sleeps(asleep) => asleep.of(s, op),
            };
        }
        if op.is_woken_for_nothing() && has_come(&s, op.fd()) {
            return Outcome::Done(0);
        }
        if op.done() == 0 && s.session.has_pending_error() {
            match rest_before_error(s, op, call) {
                Ok(outcome) => return outcome,
                Err(back) => {
                    s = back;
                    continue;
                }
            }
        }
        let nonblocking = op.nonblocking(&s);
        if op.done() > 0 && (nonblocking || !op.is_whole()) {
            // The session ended while the call waited, or has given all it has.
            return op.end(Ok(0));
        }
        // One that has got a part would not end at the urgent mark in the kernel, which does not know of that part.
        let held = op.progress.signals.holds() && !op.is_peek();
        let waits_on = op.done() > 0 || held || op.at.has_moved();
        if !nonblocking && (waits_on || op.progress.is_to_wait_on(&s)) {
            match wait_on(s, op) {
                Waited::Ends(outcome) => return outcome,
                Waited::Retries(back) => s = back,
            }
            continue;
        }
        let wait = match () {
            () if nonblocking => Wait::No,
            () if op.is_whole() || s.has(flag::LOW_WATER) => Wait::Whole,
            () => Wait::Polling,
        };
        match plain::receive(s, op.fd(), wait, call) {
            Ok(outcome) => return judged(op.fd(), outcome),
            Err(back) => s = back,
        }
    }
}

/// Whether bytes, the end or an error have come. A receive may also have been woken by the doorbell of a seal, which means only that the
/// kernel carries everything again.
#[cold]
fn has_come(s: &Sock, fd: c_int) -> bool {
    s.session.has_pending_error() || kernel_readiness(fd, (libc::EPOLLIN | libc::EPOLLRDHUP) as u32) != 0
}

/// How a receive goes on by the kernel if it has got a part, or holds signals back, or its socket was made non-blocking meanwhile.
enum Waited {
    Ends(Outcome),
    Retries(Ref),
}

/// Such a receive waits on, as it began.
#[cold]
fn wait_on(s: Ref, op: &Receive) -> Waited {
    if op.done() > 0 && tcp::at_mark(op.fd()) {
        return Waited::Ends(op.end(Ok(0)));
    }
    let rest = |_| {
        let most = if op.done() > 0 { before_mark(op.fd())? } else { usize::MAX };
        let mut pieces = Receive::pieces();
        let mut msg = op.rest(most, &mut pieces);
        // SAFETY: parts of the program's buffers, for which it vouches.
        unsafe { raw::recvmsg(op.fd(), &mut msg, op.rest_flags() | libc::MSG_DONTWAIT) }
    };
    let outcome = match plain::receive(s, op.fd(), Wait::No, rest) {
        Ok(outcome) => outcome,
        Err(back) => return Waited::Retries(back),
    };
    let Some(s) = op.at.enter() else { return Waited::Ends(op.end(Err(Errno::BADF))) };
    Waited::Ends(match outcome {
        Outcome::Fail(Errno::AGAIN) => match sleep::until_more(s, op) {
            Ok(outcome) => outcome,
            Err(back) => return Waited::Retries(back),
        },
        Outcome::Done(n) if op.is_peek() => judged(op.fd(), op.peeked(n, &s)),
        Outcome::Done(n) if op.add(n) => judged(op.fd(), op.end(Ok(0))),
        Outcome::Done(_) => return Waited::Retries(s),
        Outcome::Fail(e) if op.done() > 0 => {
            keep_error(op.fd(), e);
            op.end(Ok(0))
        }
        other => judged(op.fd(), other),
    })
}

/// A reset, or an end, that the kernel reported to a receive of a session may be another than the peer meant.
pub(crate) fn judged(fd: c_int, outcome: Outcome) -> Outcome {
    if !matches!(outcome, Outcome::Fail(Errno::CONNRESET) | Outcome::Done(0)) {
        return outcome;
    }
    let Some(s) = sock::enter(fd).filter(|s| s.mode() == mode::SESSION) else { return outcome };
    let Some(v) = view(&s, fd) else { return outcome };
    match outcome {
        // A receive of 0 bytes returns 0 also when bytes are there, and when a handler ends it.
        Outcome::Done(_) if !is_at_end(&v) => return outcome,
        Outcome::Done(_) => v.judge_end(),
        _ => v.saw_error(Errno::CONNRESET),
    }
    v.ending().into()
}

/// Whether the kernel's queue is empty, and no more comes.
fn is_at_end(v: &View<'_, Socket<'_>>) -> bool {
    v.wire.queued() == Ok(0) && v.wire.health() != Health::Open
}

/// The bytes that came before an error, and then the error.
#[cold]
fn rest_before_error(s: Ref, op: &Receive, call: impl Fn(c_int) -> Result<usize, Errno>) -> Result<Outcome, Ref> {
    let outcome = plain::receive(s, op.fd(), Wait::No, |extra| call(extra | libc::MSG_DONTWAIT))?;
    let Some(s) = op.at.enter() else { return Ok(outcome) };
    let nothing = matches!(outcome, Outcome::Done(0) | Outcome::Fail(Errno::AGAIN | Errno::NOTCONN));
    // A receive of 0 bytes does not show whether there are bytes.
    let nothing = nothing && (op.buffers.total() > 0 || raw::ioctl_int(op.fd(), libc::FIONREAD) == Ok(0));
    let error = if nothing { s.session.take_pending_error() } else { None };
    Ok(error.map_or(outcome, Outcome::Fail))
}

/// For tests: leaves a session at random.
#[inline]
pub(crate) fn leave_at_random(s: &Sock, fd: c_int) {
    if s.mode() == mode::SESSION && process::leaves_at_random() {
        leave(s, fd, Reason::Tested, Back::Lazily);
        s.earn_again();
    }
}

/// Receives in session mode; `None` when the kernel socket carries everything.
fn in_session(s: &Ref, op: &Receive) -> Option<Step> {
    let v = view(s, op.fd())?;
    if op.buffers.is_outside() {
        return Some(Step::Ends(op.end(Err(Errno::FAULT))));
    }
    let total = op.buffers.total();
    loop {
        let took = {
            let _lock = v.reading();
            match () {
                () if total == 0 => is_there(&v),
                () if op.is_peek() => peek::peek(&v, op),
                () => v.take(total - op.done(), &Copier { v, op }, || registration::adopt(&**s)),
            }
        };
        teardown::mark_due(s);
        match took {
            Took::Plain | Took::Empty if op.done() > 0 && is_at_mark(&v) => return Some(Step::Ends(op.end(Ok(0)))),
            Took::Bytes(n) if op.is_peek() => return Some(Step::Ends(op.peeked(n, s))),
            Took::Bytes(n) => {
                v.pay_space();
                s.alternate(false);
                op.progress.add(n);
                if op.done() == total || !op.is_whole() || n == 0 {
                    return Some(Step::Ends(op.end(Ok(0))));
                }
            }
            Took::Plain => return None,
            // An error is the next call's.
            Took::End if op.is_woken_for_nothing() => return Some(Step::Ends(Outcome::Done(0))),
            Took::End if op.done() > 0 => return Some(Step::Ends(op.end(Ok(0)))),
            Took::End => return Some(Step::Ends(op.end(v.ending()))),
            Took::Failed(e) => return Some(Step::Ends(op.end(Err(e)))),
            Took::Empty if op.nonblocking(s) => return Some(Step::Ends(op.end(Err(Errno::AGAIN)))),
            Took::Empty => {
                op.progress.note_wait();
                if let Some(step) = sleep::await_data(&v, op) {
                    return Some(step);
                }
            }
        }
    }
}

/// Whether the next byte comes by the kernel, behind the urgent mark: a receive that has got something ends there.
fn is_at_mark(v: &View<'_, Socket<'_>>) -> bool {
    v.s.rx() != phase::RING && tcp::at_mark(v.wire.fd)
}

/// What a receive of no bytes waits for, as any other does.
fn is_there(v: &View<'_, Socket<'_>>) -> Took {
    match v.source(|| registration::adopt(v.wire.s)) {
        Source::Kernel(_) | Source::Ring(_) => Took::Bytes(0),
        Source::Plain => Took::Plain,
        Source::Empty => Took::Empty,
        Source::End => Took::End,
    }
}

/// What recvmmsg(2) reports before it receives: an error of the socket's.
pub(crate) fn error_first(fd: c_int) -> Option<Errno> {
    let s = sock::enter(fd)?;
    if let Some(v) = view(&s, fd).filter(|_| s.mode() == mode::SESSION) {
        v.learn();
        v.fetch_error();
        return s.session.take_so_error();
    }
    let e = Socket { s: &s, fd }.take_error().or_else(|| s.session.take_so_error())?;
    s.session.note_error(e);
    Some(e)
}

/// Takes out the doorbells in front of whatever the kernel socket holds, if the ring is drained: the urgent mark lies behind them.
pub(crate) fn clear_bells(s: &Sock, fd: c_int) {
    if let Some(v) = view(s, fd).filter(|v| v.s.receives())
        && let Some(_lock) = v.try_reading()
    {
        if v.is_sealed_in() {
            v.finish_receiving();
        } else if v.s.rx() == phase::RING {
            v.swallow(Me::Awake);
        }
    }
}
