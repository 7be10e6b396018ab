//! Receiving: kernel bytes up to the switch, then the ring, then kernel bytes again.

use core::cell::Cell;
use core::ffi::c_int;
use core::sync::atomic::Ordering;

use madrigal_drivers::shm::layout::{SEALED, fate, state};
use madrigal_drivers::shm::ring::{Span, Trouble};
use madrigal_report::Reason;
use madrigal_sys::{Errno, cpu, raw, time};

use crate::buffers::Buffers;
use crate::outcome::Outcome;
use crate::session::{self, View, phase};
use crate::sock::{self, Sock, flag, mode, role};
use crate::{leave, plain, process, upgrade};

mod sleep;
pub(crate) use sleep::{timeout, woken};

/// One receive, whichever function the program called.
pub(crate) struct Receive<'a> {
    fd: c_int,
    buffers: Buffers<'a>,
    flags: c_int,
    /// Bytes received so far (`MSG_WAITALL`).
    done: Cell<usize>,
    /// When `SO_RCVTIMEO` ends the call, once it waits; 0 before.
    deadline: Cell<u64>,
}

impl<'a> Receive<'a> {
    pub(crate) fn new(fd: c_int, buffers: Buffers<'a>, flags: c_int) -> Self {
        Self { fd, buffers, flags, done: Cell::new(0), deadline: Cell::new(0) }
    }

    pub(crate) fn fd(&self) -> c_int {
        self.fd
    }

    /// The end of the call: what it has, or else this.
    pub(crate) fn end(&self, otherwise: Result<usize, Errno>) -> Outcome {
        if self.done.get() > 0 { Outcome::Done(self.done.get()) } else { otherwise.into() }
    }

    fn is_peek(&self) -> bool {
        self.flags & libc::MSG_PEEK != 0
    }

    /// Whether it waits for all it asked for.
    fn is_whole(&self) -> bool {
        self.flags & libc::MSG_WAITALL != 0
    }
}

/// Flags that ask the kernel for something no ring has.
const KERNEL_FLAGS: c_int = libc::MSG_OOB | libc::MSG_ERRQUEUE;
/// How often a copy may be overtaken, by signal handlers and forked children.
const RACES: u32 = 1000;
/// Between looks where no doorbell can tell.
const PEEK_NAP_NS: u64 = 100_000;

/// Receives; `call(extra_flags)` makes the program's own call on the kernel socket.
pub(crate) fn receive(op: &Receive<'_>, call: impl Fn(c_int) -> Result<usize, Errno>) -> Outcome {
    let Some(mut s) = sock::enter(op.fd) else { return Outcome::Pass };
    if op.flags & KERNEL_FLAGS != 0 {
        return Outcome::Pass;
    }
    if op.flags & libc::MSG_PEEK == 0 {
        upgrade::step(&s, op.fd);
    }
    loop {
        if s.mode() == mode::SESSION
            && let Some(outcome) = in_session(&s, op)
        {
            if let Outcome::Await(_) = outcome {
                // Given up in `woken`. A thread cancelled in between never does: the object is lost, nothing else.
                core::mem::forget(s);
            }
            return outcome;
        }
        if op.done.get() > 0 {
            // The session ended while the call waited: the rest is for the next one.
            return op.end(Ok(0));
        }
        if let Some(e) = s.owed_error() {
            return Outcome::Fail(e);
        }
        let nonblocking = plain::nonblocking(&s, op.flags);
        let spin = op.flags & libc::MSG_WAITALL == 0 && !s.has(flag::LOW_WATER);
        match plain::receive(s, op.fd, nonblocking, spin, &call) {
            Ok(outcome) => return outcome,
            Err(back) => s = back,
        }
    }
}

/// What a look at the session gives.
enum Look {
    /// Ring bytes.
    Ring(Span),
    /// At most this many kernel bytes are data.
    Kernel(usize),
    /// The kernel socket carries everything (again).
    Plain,
    /// Nothing yet.
    Empty,
    /// The end, or an error.
    End(Result<usize, Errno>),
}

/// Receives in session mode; `None` when the kernel socket carries everything.
fn in_session(s: &Sock, op: &Receive<'_>) -> Option<Outcome> {
    let v = session::view(s)?;
    let total = op.buffers.total();
    loop {
        let step = {
            let _lock = s.rlock.lock();
            take(&v, op, op.done.get())
        };
        match step {
            Step::Took(n) if op.is_peek() => {
                let enough = n == total || !op.is_whole() || v.ended() || plain::nonblocking(s, op.flags);
                if enough || !await_more(&v, op, n) {
                    return Some(Outcome::Done(n));
                }
            }
            Step::Took(n) => {
                v.pay_space(op.fd);
                s.take_turn(false);
                if process::pace_ns() != 0 {
                    keep_pace(s);
                }
                op.done.set(op.done.get() + n);
                if op.done.get() == total || !op.is_whole() {
                    return Some(op.end(Ok(0)));
                }
            }
            Step::Plain => {
                session::retire(s, op.fd);
                // With part of a MSG_WAITALL in hand the rest is for the next call, as after a signal.
                return if op.done.get() > 0 { Some(op.end(Ok(0))) } else { None };
            }
            Step::End(result) => return Some(op.end(result)),
            Step::Empty if plain::nonblocking(s, op.flags) => return Some(op.end(Err(Errno::AGAIN))),
            Step::Empty => {
                if let Some(outcome) = sleep::await_data(&v, op) {
                    return Some(outcome);
                }
            }
        }
    }
}

/// Lets the time pass that the program needs between its request and the answer.
#[cold]
fn keep_pace(s: &Sock) {
    let end = s.sent_at.load(Ordering::Relaxed) + process::pace_ns();
    while s.role() == role::CLIENT && time::now_ns() < end {
        core::hint::spin_loop();
    }
}

/// Waits until more than `n` bytes can be peeked at; false when that cannot be.
fn await_more(v: &View<'_>, op: &Receive<'_>, n: usize) -> bool {
    let end = time::now_ns() + if v.s.has(flag::RCVTIMEO) { timeout(op.fd, libc::SO_RCVTIMEO) } else { u64::MAX / 4 };
    while v.s.session.rx() == phase::RING && View::CONSUMER.waiting(v.inn) <= n as u64 {
        v.check_open(op.fd, false);
        if v.ended() || v.s.session.producer.is_sealed(v.inn) || time::now_ns() > end || !leave::nap(PEEK_NAP_NS) {
            return false;
        }
    }
    true
}

enum Step {
    Took(usize),
    Plain,
    Empty,
    End(Result<usize, Errno>),
}

/// Looks and takes what there is. Under the receive lock.
fn take(v: &View<'_>, op: &Receive<'_>, done: usize) -> Step {
    for _ in 0..RACES {
        match look(v, op.fd) {
            Look::Ring(span) => match take_ring(v, op, done, &span) {
                Err(Trouble::Raced) => {}
                Err(_) => return Step::End(Err(Errno::CONNRESET)),
                Ok(n) => return Step::Took(n),
            },
            Look::Kernel(limit) => match take_kernel(v, op, done, limit) {
                // Fewer kernel bytes than were announced: the peer died, and what follows them is lost with it.
                Ok(0) if op.buffers.total() > done => {
                    v.saw_end();
                    return Step::End(v.ending());
                }
                Ok(n) => return Step::Took(n),
                Err(Errno::AGAIN | Errno::INTR) => return Step::Empty,
                Err(e) => {
                    v.saw_error(e);
                    return Step::End(v.ending());
                }
            },
            Look::Plain => return Step::Plain,
            Look::Empty => return Step::Empty,
            Look::End(result) => return Step::End(result),
        }
    } // Nobody races us that often but a peer that writes where it has no business.
    spoil(v, op.fd);
    Step::End(Err(Errno::CONNRESET))
}

fn take_ring(v: &View<'_>, op: &Receive<'_>, done: usize, span: &Span) -> Result<usize, Trouble> {
    let n = if op.flags & libc::MSG_TRUNC != 0 {
        span.len().min(op.buffers.total() - done)
    } else {
        op.buffers.fill(done, span, &v.s.session.large_at)
    };
    if op.flags & libc::MSG_PEEK == 0 {
        // Space is paid for by the caller, outside the lock.
        View::CONSUMER.advance(v.inn, span, n)?;
        v.inn.r.cpu.store(cpu::current() + 1, Ordering::Relaxed);
        v.s.count_ring(n, false);
    }
    Ok(n)
}

/// Takes kernel bytes known to be data.
fn take_kernel(v: &View<'_>, op: &Receive<'_>, done: usize, limit: usize) -> Result<usize, Errno> {
    let mut pieces = [libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }; 64];
    let used = op.buffers.rest(done, limit, &mut pieces);
    // SAFETY: an all-zero msghdr is valid; the pieces are parts of the program's buffers.
    let mut msg: libc::msghdr = unsafe { core::mem::zeroed() };
    msg.msg_iov = pieces.as_mut_ptr();
    msg.msg_iovlen = used;
    let flags = op.flags & (libc::MSG_PEEK | libc::MSG_TRUNC) | libc::MSG_DONTWAIT;
    // SAFETY: as above; the program vouches for its buffers.
    let n = unsafe { raw::recvmsg(op.fd, &mut msg, flags) }?;
    if op.flags & libc::MSG_PEEK == 0 {
        v.s.session.pos.fetch_add(n as u64, Ordering::Relaxed);
        v.s.count_kernel(n, false);
    }
    Ok(n)
}

/// Where the next byte is. Under the receive lock.
fn look(v: &View<'_>, fd: c_int) -> Look {
    match v.s.session.rx() {
        phase::RING => {
            help_switch(v, fd);
            look_ring(v, fd)
        }
        phase::READY => look_ready(v, fd),
        phase::DONE => Look::Plain,
        _ if upgrade::ready(v, fd) => {
            help_switch(v, fd);
            look_ready(v, fd)
        }
        _ => Look::Plain,
    }
}

/// The sending side of the same connection switches in receives too: a program may never send again, or only while it is corked.
#[inline]
fn help_switch(v: &View<'_>, fd: c_int) {
    if v.s.session.tx() == phase::KERNEL
        && let Some(guard) = v.s.wlock.try_lock()
        && !guard.nested()
    {
        upgrade::switch(v, fd);
    }
}

fn look_ready(v: &View<'_>, fd: c_int) -> Look {
    help_switch(v, fd);
    // The count first: bytes counted while the writer had not switched are data.
    let waiting = match raw::ioctl_int(fd, libc::FIONREAD) {
        Ok(n) => n as usize,
        Err(e) => return Look::End(Err(e)),
    };
    if v.inn.w.state.load(Ordering::SeqCst) == state::KERNEL {
        if waiting > 0 {
            return Look::Kernel(waiting);
        }
        return look_quiet(v, fd);
    }
    let (pos, end) = (v.s.session.pos.load(Ordering::Relaxed), v.inn.w.n_kernel.load(Ordering::Acquire));
    match end.checked_sub(pos) {
        Some(0) => {
            v.s.session.rx.store(phase::RING, Ordering::SeqCst);
            help_switch(v, fd);
            look_ring(v, fd)
        }
        Some(left) => Look::Kernel(usize::try_from(left).unwrap_or(usize::MAX)),
        None => corrupt(v, fd),
    }
}

/// No byte, and the writer has not switched: the end, a peer that left again, or nothing.
fn look_quiet(v: &View<'_>, fd: c_int) -> Look {
    if v.inn.w.tail.load(Ordering::SeqCst) & SEALED != 0 {
        // Whoever sealed it, the writer will never switch.
        v.s.session.rx.store(phase::DONE, Ordering::SeqCst);
        return Look::Plain;
    }
    if v.ended() {
        return Look::End(v.ending());
    }
    match raw::peek(fd, libc::MSG_DONTWAIT) {
        Ok(0) => v.saw_end(),
        Ok(_) | Err(Errno::AGAIN | Errno::INTR) => return Look::Empty,
        Err(e) => v.saw_error(e),
    }
    Look::End(v.ending())
}

fn look_ring(v: &View<'_>, fd: c_int) -> Look {
    match View::CONSUMER.data(v.inn, &v.mem) {
        Ok(span) if !span.is_empty() => Look::Ring(span),
        Ok(_) => look_drained(v, fd),
        Err(Trouble::Sealed) => look_sealed(v, fd),
        Err(_) => corrupt(v, fd),
    }
}

/// The ring is empty and open: has the kernel socket ended?
fn look_drained(v: &View<'_>, fd: c_int) -> Look {
    if !v.ended() {
        v.check_open(fd, false);
    } else if !v.end_is_known() {
        v.check_open(fd, true);
    }
    // What the peer published before it ended is read first.
    if View::CONSUMER.stirred(v.inn) {
        return look_ring(v, fd);
    }
    if v.ended() { Look::End(v.ending()) } else { Look::Empty }
}

/// Drained and sealed: the doorbells that are left are taken out, then the kernel carries bytes again.
fn look_sealed(v: &View<'_>, fd: c_int) -> Look {
    if crate::leave::has_rung_last(v, fd) {
        v.s.session.rx.store(phase::DONE, Ordering::SeqCst);
        crate::leave::peer_left(v, fd);
        return Look::Plain;
    }
    if v.ended() { Look::End(v.ending()) } else { Look::Empty }
}

fn corrupt(v: &View<'_>, fd: c_int) -> Look {
    spoil(v, fd);
    Look::End(Err(Errno::CONNRESET))
}

/// The peer wrote nonsense: its stream ends here, as if it had reset the connection.
pub(crate) fn spoil(v: &View<'_>, fd: c_int) {
    v.s.set_never(Reason::Corrupt);
    v.inn.w.fate.store(fate::RESET, Ordering::Relaxed);
    v.saw_error(Errno::CONNRESET);
    // The kernel tells the peer.
    let _ = raw::set_sockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &libc::linger { l_onoff: 1, l_linger: 0 });
}

/// Takes out the doorbells in front of whatever the kernel socket holds, if the ring is drained.
pub(crate) fn clear_bells(s: &Sock, fd: c_int) -> Option<usize> {
    let v = session::view(s)?;
    if s.session.rx() == phase::RING && View::CONSUMER.waiting(v.inn) == 0 {
        let _lock = s.rlock.try_lock()?;
        v.swallow_any(fd);
    }
    None
}

/// Bytes a receive would find now: `FIONREAD` across kernel and ring.
pub(crate) fn readable(s: &Sock, fd: c_int) -> Option<usize> {
    let v = session::view(s)?;
    match s.session.rx() {
        phase::RING => Some(View::CONSUMER.waiting(v.inn) as usize),
        phase::READY if v.inn.w.state.load(Ordering::Acquire) != state::KERNEL => {
            let left = v.inn.w.n_kernel.load(Ordering::Acquire).wrapping_sub(s.session.pos.load(Ordering::Relaxed));
            let kernel = raw::ioctl_int(fd, libc::FIONREAD).unwrap_or(0) as u64;
            Some((left.min(kernel) + View::CONSUMER.waiting(v.inn)) as usize)
        }
        _ => None,
    }
}
