//! Sending: into the kernel until the switch, then into the ring, growing it as the traffic earns, then into the kernel again.

use core::cell::Cell;
use core::ffi::c_int;
use core::sync::atomic::Ordering;

use madrigal_drivers::shm::arena::{LARGEST, UNIT};
use madrigal_drivers::shm::layout::{fate, want};
use madrigal_drivers::shm::ring::{CHUNK, Sleeper, Span, Trouble};
use madrigal_report::Reason;
use madrigal_sys::{Errno, cpu, raw, time};

use crate::buffers::Buffers;
use crate::outcome::Outcome;
use crate::process::POLICY;
use crate::session::{self, Me, View, phase};
use crate::sock::{self, Sock, flag, mode};
use crate::{leave, plain, process, recv, upgrade};

/// One send, whichever function the program called.
pub(crate) struct Send<'a> {
    fd: c_int,
    buffers: Buffers<'a>,
    flags: c_int,
    progress: Progress,
}

/// How far a call is that may wait several times.
#[derive(Default)]
struct Progress {
    done: Cell<usize>,
    /// When `SO_SNDTIMEO` ends the call, once it waits; 0 before.
    deadline: Cell<u64>,
}

impl<'a> Send<'a> {
    pub(crate) fn new(fd: c_int, buffers: Buffers<'a>, flags: c_int) -> Self {
        Self { fd, buffers, flags, progress: Progress::default() }
    }

    /// The end of the call: what it has sent, or else this.
    fn end(&self, otherwise: Outcome) -> Outcome {
        let done = self.progress.done.get();
        if done > 0 { Outcome::Done(done) } else { otherwise }
    }
}

/// A sender whose reader takes nothing for this long goes back to TCP, which has megabytes of buffers of its own.
pub(crate) const STALL_NS: u64 = 50_000_000;
/// How long a full ring is left alone between looks when no doorbell can come.
const PATIENCE_NS: u64 = 100_000;
/// The same for sleeps that cost a look at every member of an event set.
const NAP_NS: u64 = 1_000_000;
/// Sends that found the ring full before it grows to the largest size.
const FULLS_TO_GROW: u32 = 4;

/// Sends; `call(buffers)` makes the program's own call on the kernel socket, or one for the rest of its buffers.
pub(crate) fn send(op: &Send<'_>, call: impl Fn() -> Result<usize, Errno>) -> Outcome {
    let Some(mut s) = sock::enter(op.fd) else { return Outcome::Pass };
    if op.flags & (libc::MSG_OOB | libc::MSG_ZEROCOPY | libc::MSG_FASTOPEN) != 0 {
        let reason = if op.flags & libc::MSG_OOB != 0 { Reason::Urgent } else { Reason::Option };
        leave::leave_for_good(&s, op.fd, reason, false);
        return Outcome::Pass;
    }
    upgrade::step(&s, op.fd);
    if !s.deferred.is_empty() {
        send_deferred(&s, op.fd);
    }
    loop {
        if s.mode() == mode::SESSION
            && let Some(outcome) = in_session(&s, op)
        {
            return outcome;
        }
        if op.progress.done.get() > 0 {
            // The session ended while the call waited.
            return rest_by_kernel(&s, op, op.progress.done.get());
        }
        if let Some(e) = s.owed_error() {
            return Outcome::Fail(e);
        }
        if s.owes_a_send() {
            return Outcome::Done(op.buffers.total());
        }
        let nonblocking = plain::nonblocking(&s, op.flags);
        match plain::send(s, op.fd, nonblocking, &call) {
            Ok(outcome) => return outcome,
            Err(back) => s = back,
        }
    }
}

enum Step {
    /// So many bytes are published now; this reader is to be woken.
    Put(usize, Sleeper),
    Full,
    /// The kernel socket carries bytes (again).
    Plain,
    Broken,
}

/// Sends in session mode; `None` when the kernel carries everything and nothing was sent yet.
fn in_session(s: &Sock, op: &Send<'_>) -> Option<Outcome> {
    let v = session::view(s)?;
    let total = op.buffers.total();
    loop {
        let done = op.progress.done.get();
        let step = {
            let guard = s.wlock.lock();
            if guard.nested() {
                // We are a signal handler on top of a send of the same thread.
                return Some(match s.deferred.keep(&op.buffers) {
                    0 => Outcome::Fail(Errno::AGAIN),
                    n => Outcome::Done(n),
                });
            }
            put(&v, op.fd, total - done, |span, from, limit| op.buffers.drain(done + from, span, limit))
        };
        match step {
            Step::Put(n, sleeper) => {
                s.take_turn(true);
                if process::pace_ns() != 0 {
                    s.sent_at.store(time::now_ns(), Ordering::Relaxed);
                }
                v.wake(op.fd, sleeper);
                op.progress.done.set(done + n);
                if done + n == total || !s.deferred.is_empty() {
                    send_deferred(s, op.fd);
                    return Some(op.end(Outcome::Done(0)));
                }
            }
            Step::Plain => {
                session::retire(s, op.fd);
                return if done > 0 { Some(rest_by_kernel(s, op, done)) } else { None };
            }
            Step::Broken => return Some(op.end(broken(op.flags))),
            Step::Full if plain::nonblocking(s, op.flags) => {
                v.note_full();
                // Leave word, so that the reader rings for the space.
                if !v.s.session.producer.want(v.out, &v.mem, wanted(&v)) {
                    return Some(op.end(Outcome::Fail(Errno::AGAIN)));
                }
            }
            Step::Full => match await_space(&v, op.fd, op.progress.done.get(), &op.progress.deadline) {
                Ok(Waited::Looked) => {}
                Ok(Waited::Slept) => return Some(Outcome::Again),
                Err(e) => return Some(op.end(Outcome::Fail(e))),
            },
        }
    }
}

/// Sends what a signal handler left while its thread was sending. What finds no room now goes in front of the next send.
pub(crate) fn send_deferred(s: &Sock, fd: c_int) {
    while let Some((ptr, n)) = s.deferred.waiting() {
        let piece = [libc::iovec { iov_base: ptr.cast(), iov_len: n }];
        let bytes = Buffers::of(&piece);
        let step = match session::view(s).filter(|_| s.mode() == mode::SESSION) {
            None => Step::Plain,
            Some(v) => {
                let guard = s.wlock.lock();
                if guard.nested() {
                    return;
                }
                put(&v, fd, n, |span, from, limit| bytes.drain(from, span, limit))
            }
        };
        match step {
            Step::Put(n, sleeper) => {
                if let Some(v) = session::view(s) {
                    v.wake(fd, sleeper);
                }
                s.deferred.sent(n);
            }
            // SAFETY: bytes of our own page.
            Step::Plain => match unsafe { raw::send(fd, ptr.cast(), n, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) } {
                Err(Errno::AGAIN | Errno::INTR) => return,
                // On an error the connection is gone, and the program hears of it from its own calls.
                sent => s.deferred.sent(sent.unwrap_or(n)),
            },
            Step::Broken => s.deferred.sent(n),
            Step::Full => return,
        }
    }
}

/// Sends the rest of a request on the kernel socket.
fn rest_by_kernel(s: &Sock, op: &Send<'_>, mut done: usize) -> Outcome {
    let total = op.buffers.total();
    while done < total {
        let mut pieces = [libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }; 64];
        let used = op.buffers.rest(done, total - done, &mut pieces);
        // SAFETY: an all-zero msghdr is valid; the pieces are parts of the program's buffers.
        let mut msg: libc::msghdr = unsafe { core::mem::zeroed() };
        msg.msg_iov = pieces.as_mut_ptr();
        msg.msg_iovlen = used;
        s.in_send.fetch_add(1, Ordering::SeqCst);
        // SAFETY: as above; the program vouches for its buffers.
        let sent = unsafe { raw::sendmsg(op.fd, &msg, op.flags | libc::MSG_NOSIGNAL) };
        s.in_send.fetch_sub(1, Ordering::SeqCst);
        let Ok(n) = sent else { break };
        s.count_kernel(n, true);
        done += n;
        // A blocking send that stops short was interrupted (or timed out), and says so by its count.
        let asked: usize = pieces[..used].iter().map(|piece| piece.iov_len).sum();
        if n < asked || plain::nonblocking(s, op.flags) {
            break;
        }
    }
    Outcome::Done(done)
}

/// The peer is gone: what a send on such a TCP socket gives.
fn broken(flags: c_int) -> Outcome {
    if flags & libc::MSG_NOSIGNAL == 0 {
        raw::raise(libc::SIGPIPE);
    }
    Outcome::Fail(Errno::PIPE)
}

/// Puts up to `left` bytes into the ring; `copy(span, from, limit)` fills the span with up to `limit` bytes, those from `from` on
/// of the `left`. Under the send lock.
fn put(v: &View<'_>, fd: c_int, left: usize, mut copy: impl FnMut(&Span, usize, usize) -> usize) -> Step {
    match v.s.session.tx() {
        phase::RING => upgrade::advance(v, fd),
        phase::KERNEL => {
            // A program that only sends gets no further by its receives.
            upgrade::advance(v, fd);
            if !upgrade::switch(v, fd) {
                return Step::Plain;
            }
        }
        _ => return Step::Plain,
    }
    if v.out.w.fate.load(Ordering::Relaxed) != fate::OPEN
        || v.inn.w.fate.load(Ordering::Acquire) != fate::OPEN
        || v.ended()
    {
        // The reader has closed (or half closed): the kernel knows what a send gives now.
        return sealed(v, fd, Reason::HalfClosed);
    }
    if v.s.session.producer.behind(v.out) {
        look_alive(v, fd);
    }
    let (mut done, mut bell) = (0, Sleeper::Nobody);
    while done < left {
        let span = match space(v, fd, left - done) {
            Ok(span) => span,
            Err(Trouble::Corrupt) => return Step::Broken,
            Err(_) => break,
        };
        let n = copy(&span, done, (left - done).min(span.len()).min(CHUNK));
        if n == 0 {
            break;
        }
        match v.s.session.producer.publish(v.out, &span, n) {
            Ok(sleeper) => bell = bell.or(sleeper),
            Err(Trouble::Raced) => continue,
            Err(Trouble::Sealed) => break,
            Err(Trouble::Corrupt) => return Step::Broken,
        }
        done += n;
        v.s.count_ring(n, true);
    }
    if done > 0 {
        v.out.w.cpu.store(cpu::current() + 1, Ordering::Relaxed);
        v.s.session.full_since.store(0, Ordering::Relaxed);
        v.s.session.refused.store(0, Ordering::Relaxed);
        return Step::Put(done, bell);
    }
    if v.s.session.producer.is_sealed(v.out) { sealed(v, fd, Reason::PeerLeft) } else { Step::Full }
}

/// Free space for `left` bytes, in a larger block if they earn one.
fn space(v: &View<'_>, fd: c_int, left: usize) -> Result<Span, Trouble> {
    let size = v.block().map_or(0, |b| b.size);
    let often = v.s.session.fulls.load(Ordering::Relaxed) >= FULLS_TO_GROW;
    let larger = if often { 4 * size } else { left.next_power_of_two() }.clamp(UNIT, LARGEST);
    let earned = left > size || often || size < UNIT && left > size / 2;
    if larger > size && earned && !grow(v, larger)? && size < UNIT && left > size {
        // A bulk sender is better off with TCP than with a ring of a kilobyte.
        leave::finish_sending(v, fd, Reason::NoMemory);
        return Err(Trouble::Sealed);
    }
    let span = v.s.session.producer.space(v.out, &v.mem)?;
    if span.is_empty() {
        v.s.session.fulls.fetch_add(1, Ordering::Relaxed);
        look_alive(v, fd);
    }
    Ok(span)
}

/// Moves on to a block of `size` bytes if the ring is empty; false when there is no such block. The old one goes back at once:
/// the reader has nothing left to read in it.
fn grow(v: &View<'_>, size: usize) -> Result<bool, Trouble> {
    let (Some(old), Some(lease)) = (v.block(), v.s.session.lease()) else { return Err(Trouble::Corrupt) };
    if v.s.session.no_room.load(Ordering::Relaxed) != 0 {
        return Ok(false);
    }
    if v.s.session.producer.unread(v.out, &v.mem)? > 0 {
        return Ok(true);
    }
    let Some(block) = lease.arena().take_block(size) else {
        v.s.session.no_room.store(1, Ordering::Relaxed);
        return Ok(false);
    };
    v.s.session.producer.move_to(v.out, block);
    v.s.session.fulls.store(0, Ordering::Relaxed);
    lease.arena().give_block(old);
    Ok(true)
}

/// What a sender without space waits for: all of it while a larger block would serve it better.
pub(crate) fn wanted(v: &View<'_>) -> u32 {
    let small = v.block().is_some_and(|b| b.size < LARGEST);
    if small && v.s.session.no_room.load(Ordering::Relaxed) == 0 { want::ALL } else { want::HALF }
}

/// How long a sleep may last on behalf of a sender that found the ring full; `None` for any other. While the peer's kernel bytes are
/// not all read, the doorbell for space may be stuck behind them.
pub(crate) fn longest_sleep(s: &Sock) -> Option<u64> {
    let full = s.session.full_since.load(Ordering::Relaxed) != 0;
    full.then(|| if s.session.rx() == phase::RING { STALL_NS } else { NAP_NS })
}

/// The direction is sealed, by the peer or now by us: finishes it.
fn sealed(v: &View<'_>, fd: c_int, reason: Reason) -> Step {
    if v.ended()
        && !v.end_is_known()
        && let Some(_lock) = v.s.rlock.try_lock()
    {
        // The kernel may hold a reset that this send must not show.
        v.check_open(fd, true);
    }
    leave::finish_sending(v, fd, reason);
    Step::Plain
}

/// A reader that stands still may be dead: asks the kernel, now and then.
fn look_alive(v: &View<'_>, fd: c_int) {
    if v.s.session.rx() == phase::RING
        && let Some(_lock) = v.s.rlock.try_lock()
    {
        v.check_open(fd, false);
    }
}

/// How a wait for space went.
#[derive(PartialEq, Eq)]
enum Waited {
    Looked,
    Slept,
}

/// Waits for space. `EAGAIN` when `SO_SNDTIMEO` passes, `EINTR` on a signal, unless the call is one to be restarted: as send(2), one
/// that has not sent anything yet and has no time-out.
fn await_space(v: &View<'_>, fd: c_int, done: usize, deadline: &Cell<u64>) -> Result<Waited, Errno> {
    let mut wait = POLICY.begin(&v.s.tx_wait, true);
    let ready = || {
        v.s.session.producer.has_room(v.out, &v.mem, wanted(v)) || v.s.session.producer.is_sealed(v.out) || v.ended()
    };
    loop {
        if ready() {
            wait.paid();
            return Ok(Waited::Looked);
        }
        if v.s.has(flag::CLOSED) {
            return Err(Errno::BADF);
        }
        if !wait.again(|| v.reader_is()) {
            break;
        }
    }
    let since = wait.since();
    let mut end = u64::MAX;
    if v.s.has(flag::SNDTIMEO) {
        if deadline.get() == 0 {
            deadline.set(since + recv::timeout(fd, libc::SO_SNDTIMEO));
        }
        end = deadline.get();
    }
    v.note_wait();
    let result = sleep_for_space(v, fd, end);
    POLICY.slept(&v.s.tx_wait, since);
    match result {
        Err(Errno::INTR) if done == 0 && end == u64::MAX && handlers_restart() => Ok(Waited::Slept),
        result => result.map(|()| Waited::Slept),
    }
}

/// Whether every signal handler of the program was installed with `SA_RESTART`. Which of them ran nobody can say afterwards.
#[cold]
fn handlers_restart() -> bool {
    // Not sent from outside, or the C library's own.
    const OTHERS: [c_int; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP];
    (1..65).filter(|signal| !OTHERS.contains(signal) && !(32..34).contains(signal)).all(|signal| {
        // SAFETY: all-zero is a valid sigaction, and with a null pointer nothing is changed.
        let mut now: libc::sigaction = unsafe { core::mem::zeroed() };
        // SAFETY: as above.
        let known = unsafe { libc::sigaction(signal, core::ptr::null(), &raw mut now) } == 0;
        let handled = known && ![libc::SIG_DFL, libc::SIG_IGN].contains(&now.sa_sigaction);
        !handled || now.sa_flags & libc::SA_RESTART != 0
    })
}

fn sleep_for_space(v: &View<'_>, fd: c_int, end: u64) -> Result<(), Errno> {
    v.s.sleepers.fetch_add(1, Ordering::SeqCst);
    v.s.tx_sleepers.fetch_add(1, Ordering::SeqCst);
    let result = (|| {
        // Old doorbells go first: one that comes after the request below must be found by the sleep.
        let heard =
            v.s.session.rx() == phase::RING && v.s.rlock.try_lock().is_some_and(|_lock| v.swallow(fd, Me::Writer));
        if v.s.session.producer.want(v.out, &v.mem, wanted(v)) || v.s.session.producer.is_sealed(v.out) {
            return Ok(());
        }
        let now = time::now_ns();
        if now >= end {
            return Err(Errno::AGAIN);
        }
        if v.is_stalled() {
            // The lock is ours to take: we are outside it.
            leave::leave(v.s, fd, Reason::Stalled, false);
            return Ok(());
        }
        // Kernel bytes not read yet, or a doorbell left for another thread, would make POLLIN true for ever.
        let events = if heard { libc::POLLIN | libc::POLLRDHUP } else { libc::POLLRDHUP };
        let patience = if heard { STALL_NS } else { PATIENCE_NS };
        let mut poll = [libc::pollfd { fd, events, revents: 0 }];
        // SAFETY: no mask.
        let n = unsafe { raw::ppoll(&mut poll, Some(time::timespec(patience.min(end - now))), core::ptr::null()) }?;
        if n > 0 && poll[0].revents & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0 {
            v.saw_end();
        }
        Ok(())
    })();
    v.s.tx_sleepers.fetch_sub(1, Ordering::SeqCst);
    v.s.sleepers.fetch_sub(1, Ordering::SeqCst);
    result
}

/// Sends a file's bytes straight into the ring: sendfile(2) without the kernel's socket. `None` when the kernel carries everything.
pub(crate) fn file(
    s: &Sock,
    fd: c_int,
    mut read: impl FnMut(*mut u8, usize, usize) -> Result<usize, Errno>,
    total: usize,
) -> Option<Outcome> {
    let v = session::view(s)?;
    let (mut done, deadline) = (0, Cell::new(0));
    while done < total {
        // Nothing more comes from the file: its end, or an error.
        let mut over = None;
        let step = {
            let guard = s.wlock.lock();
            if guard.nested() {
                return Some(Outcome::Fail(Errno::INTR));
            }
            put(&v, fd, total - done, |span, from, limit| {
                let (ptr, room) = span.pieces()[0];
                let got = if room > 0 { read(ptr, room.min(limit), done + from) } else { return 0 };
                over = Some(got).filter(|got| got.is_err() || *got == Ok(0));
                got.unwrap_or(0)
            })
        };
        match step {
            Step::Put(n, bell) => {
                v.wake(fd, bell);
                send_deferred(s, fd);
                done += n;
            }
            Step::Plain if done == 0 => return None,
            Step::Plain => break,
            Step::Broken => return Some(Outcome::Fail(Errno::PIPE)),
            Step::Full if over.is_some() => {
                return Some(match over {
                    Some(Err(e)) if done == 0 => Outcome::Fail(e),
                    _ => Outcome::Done(done),
                });
            }
            Step::Full if plain::nonblocking(s, 0) => {
                v.note_full();
                let _ = v.s.session.producer.want(v.out, &v.mem, wanted(&v));
                return Some(if done > 0 { Outcome::Done(done) } else { Outcome::Fail(Errno::AGAIN) });
            }
            Step::Full => {
                if let Err(e) = await_space(&v, fd, done, &deadline) {
                    return Some(if done > 0 { Outcome::Done(done) } else { Outcome::Fail(e) });
                }
            }
        }
    }
    Some(Outcome::Done(done))
}

/// Bytes not read by the peer yet: `SIOCOUTQ` of the ring.
pub(crate) fn unread(s: &Sock) -> Option<usize> {
    let v = session::view(s)?;
    (s.session.tx() == phase::RING).then(|| s.session.producer.unread(v.out, &v.mem).unwrap_or(0))
}
