//! Receiving: kernel bytes up to the switch, then the ring, then kernel bytes again.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use madrigal_drivers::shm::layout::{SEALED, fate, state};
use madrigal_drivers::shm::ring::{Span, Trouble};
use madrigal_report::Reason;
use madrigal_sys::{Errno, cpu, raw, time};

use crate::buffers::Buffers;
use crate::outcome::Outcome;
use crate::process::POLICY;
use crate::session::{self, View, phase};
use crate::sock::{self, Sock, flag, mode};
use crate::{plain, upgrade};

/// One receive, whichever function the program called.
pub(crate) struct Receive<'a> {
    pub(crate) fd: c_int,
    pub(crate) buffers: Buffers<'a>,
    pub(crate) flags: c_int,
}

/// Flags that ask the kernel for something no ring has.
const KERNEL_FLAGS: c_int = libc::MSG_OOB | libc::MSG_ERRQUEUE;

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
            && let Some(result) = in_session(&s, op)
        {
            return result.into();
        }
        let nonblocking = plain::nonblocking(&s, op.flags);
        let spin = op.flags & libc::MSG_WAITALL == 0;
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
fn in_session(s: &Sock, op: &Receive<'_>) -> Option<Result<usize, Errno>> {
    let v = session::view(s)?;
    let total = op.buffers.total();
    let whole = op.flags & libc::MSG_WAITALL != 0 && op.flags & libc::MSG_PEEK == 0;
    let mut done = 0;
    let mut deadline = None;
    loop {
        let step = {
            let _lock = s.rlock.lock();
            take(&v, op, done)
        };
        let result = match step {
            Step::Took(n) => {
                v.pay_space(op.fd);
                done += n;
                if done == total || !whole { Some(Ok(done)) } else { None }
            }
            Step::Plain => {
                session::retire(s, op.fd);
                // With part of a MSG_WAITALL in hand the rest is for the next call, as after a signal.
                return if done > 0 { Some(Ok(done)) } else { None };
            }
            Step::End(result) => Some(if done > 0 { Ok(done) } else { result }),
            Step::Empty if plain::nonblocking(s, op.flags) => Some(if done > 0 { Ok(done) } else { Err(Errno::AGAIN) }),
            Step::Empty => match await_data(&v, op.fd, &mut deadline) {
                Ok(()) => None,
                Err(e) => Some(if done > 0 { Ok(done) } else { Err(e) }),
            },
        };
        if result.is_some() {
            return result;
        }
    }
}

enum Step {
    Took(usize),
    Plain,
    Empty,
    End(Result<usize, Errno>),
}

/// Looks and takes what there is. Under the receive lock.
fn take(v: &View<'_>, op: &Receive<'_>, done: usize) -> Step {
    loop {
        match look(v, op.fd) {
            Look::Ring(span) => match take_ring(v, op, done, &span) {
                Err(Trouble::Raced) => {}
                Err(_) => return Step::End(Err(Errno::CONNRESET)),
                Ok(n) => return Step::Took(n),
            },
            Look::Kernel(limit) => match take_kernel(v, op, done, limit) {
                Ok(0) => v.saw_end(),
                Ok(n) => return Step::Took(n),
                Err(Errno::AGAIN | Errno::INTR) => return Step::Empty,
                Err(e) => v.saw_error(e),
            },
            Look::Plain => return Step::Plain,
            Look::Empty => return Step::Empty,
            Look::End(result) => return Step::End(result),
        }
    }
}

fn take_ring(v: &View<'_>, op: &Receive<'_>, done: usize, span: &Span) -> Result<usize, Trouble> {
    let n = if op.flags & libc::MSG_TRUNC != 0 {
        span.len().min(op.buffers.total() - done)
    } else {
        op.buffers.fill(done, span)
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
        phase::RING => look_ring(v, fd),
        phase::READY => look_ready(v, fd),
        phase::DONE => Look::Plain,
        _ if upgrade::ready(v, fd) => {
            help_switch(v, fd);
            look_ready(v, fd)
        }
        _ => Look::Plain,
    }
}

/// The sending side of the same connection switches in receives too: a program may never send again.
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
        let _ = v.check_open(fd, false);
    } else if !v.end_is_known() {
        let _ = v.check_open(fd, true);
    }
    // What the peer published before it ended is read first.
    if View::CONSUMER.stirred(v.inn) {
        return look_ring(v, fd);
    }
    if v.ended() { Look::End(v.ending()) } else { Look::Empty }
}

/// Drained and sealed: the doorbells that are left are taken out, then the kernel carries bytes again.
fn look_sealed(v: &View<'_>, fd: c_int) -> Look {
    let last = v.inn.w.state.load(Ordering::SeqCst) == state::DONE || v.inn.w.ringing.load(Ordering::SeqCst) == 0;
    let _ = v.swallow(fd);
    if last && v.bells_due() == 0 {
        v.s.session.rx.store(phase::DONE, Ordering::SeqCst);
        crate::leave::peer_left(v, fd);
        return Look::Plain;
    }
    if v.ended() { Look::End(v.ending()) } else { Look::Empty }
}

/// The peer wrote nonsense: its stream ends here, as if it had reset the connection.
fn corrupt(v: &View<'_>, fd: c_int) -> Look {
    v.s.set_never(Reason::Corrupt);
    v.inn.w.fate.store(fate::RESET, Ordering::Relaxed);
    v.saw_error(Errno::CONNRESET);
    // The kernel tells the peer.
    let _ = raw::set_sockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &libc::linger { l_onoff: 1, l_linger: 0 });
    Look::End(Err(Errno::CONNRESET))
}

/// Waits until a look is worth it. `EAGAIN` when `SO_RCVTIMEO` passes, `EINTR` when a handler without `SA_RESTART` ran.
fn await_data(v: &View<'_>, fd: c_int, deadline: &mut Option<u64>) -> Result<(), Errno> {
    let in_ring = v.s.session.rx() == phase::RING;
    let mut wait = POLICY.begin(&v.s.rx_wait, in_ring);
    loop {
        v.pay_space(fd);
        if stirred(v, fd) {
            wait.paid();
            return Ok(());
        }
        if v.s.has(flag::CLOSED) {
            return Err(Errno::INTR);
        }
        if !wait.again(|| v.peer_is()) {
            break;
        }
    }
    let since = wait.since();
    v.s.sleepers.fetch_add(1, Ordering::SeqCst);
    let result = if prepare_sleep(v, fd) { Ok(()) } else { sleep(v, fd, since, deadline) };
    v.s.sleepers.fetch_sub(1, Ordering::SeqCst);
    POLICY.slept(&v.s.rx_wait, since);
    result
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
    if let Some(_lock) = v.s.rlock.try_lock() {
        let _ = v.swallow(fd);
    }
    (View::CONSUMER.arm(v.inn) && !waiting_for_seal(v))
        || View::CONSUMER.owes_space(v.inn) && {
            v.ring(fd);
            false
        }
}

/// Sleeps in the kernel until a doorbell, a byte or the end comes. Without a time-out this is a receive that looks at one byte
/// and leaves it: unlike poll(2) the kernel restarts or ends it as the interrupted handler's `SA_RESTART` says.
fn sleep(v: &View<'_>, fd: c_int, since: u64, deadline: &mut Option<u64>) -> Result<(), Errno> {
    if !v.s.has(flag::RCVTIMEO) {
        return match raw::peek(fd, 0) {
            Ok(0) => {
                v.saw_end();
                Ok(())
            }
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(Errno::INTR) => Err(Errno::INTR),
            Err(e) => {
                v.saw_error(e);
                Ok(())
            }
        };
    }
    let end = *deadline.get_or_insert_with(|| since + timeout(fd, libc::SO_RCVTIMEO));
    let left = end.saturating_sub(time::now_ns());
    if left == 0 {
        return Err(Errno::AGAIN);
    }
    let mut poll = [libc::pollfd { fd, events: libc::POLLIN | libc::POLLRDHUP, revents: 0 }];
    // SAFETY: no mask.
    match unsafe { raw::ppoll(&mut poll, Some(time::timespec(left)), core::ptr::null()) } {
        Ok(0) => Err(Errno::AGAIN),
        Ok(_) => v.check_open(fd, true),
        Err(e) => Err(e),
    }
}

/// A socket time-out in nanoseconds; very long when none is set.
pub(crate) fn timeout(fd: c_int, name: c_int) -> u64 {
    let mut tv = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let set = raw::sockopt(fd, libc::SOL_SOCKET, name, &mut tv).is_ok() && (tv.tv_sec, tv.tv_usec) != (0, 0);
    if set { tv.tv_sec as u64 * 1_000_000_000 + tv.tv_usec as u64 * 1000 } else { u64::MAX / 4 }
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
