//! Going back to the kernel: sealing a session at an exact place, without losing a byte.
//!
//! Whatever a ring cannot carry (urgent data, stdio, splice, a forked or foreign holder, half close, a reader that stalls) ends in
//! [`leave`]. Our sending direction is finished at once: the peer drains what was published and then finds our bytes in its kernel
//! socket. Our receiving direction is sealed; what is left in the ring is read from there first, or, when somebody who knows
//! nothing of rings will read the socket, put into the kernel's queue behind what is there ([`put_back`], [`ask_back`]).

use core::ffi::c_int;
use core::sync::atomic::Ordering;
use std::os::fd::{AsRawFd, OwnedFd};

use madrigal_drivers::shm::layout::{fate, flush, state};
use madrigal_drivers::shm::ring::Trouble;
use madrigal_netaccess::wait::Peer;
use madrigal_report::Reason;
use madrigal_sys::{Errno, process, raw, tcp, time};

use crate::session::{self, View, phase};
use crate::sock::{Sock, mode};
use crate::{epoll, upgrade};

/// How long something is waited for that comes as soon as other threads run.
const DEADLINE_NS: u64 = 15_000_000_000;
/// How long, in a connection's whole life, its peer may keep us waiting while we leave.
const PEER_NS: u64 = 2_000_000_000;
/// More than any socket's queues hold.
const MOST_IN_KERNEL: usize = 64 << 20;
/// Unread bytes that are surely put back into a socket at once.
const SMALL: u64 = 32 << 10;

/// Leaves the session, if there is one, and never moves again.
pub(crate) fn leave_for_good(s: &Sock, fd: c_int, reason: Reason, hand_back: bool) {
    s.set_never(reason);
    leave(s, fd, reason, hand_back);
}

/// Leaves the session, if there is one. `hand_back`: nothing may stay in the ring, for the next reader does not know it.
pub(crate) fn leave(s: &Sock, fd: c_int, reason: Reason, hand_back: bool) {
    if s.mode() == mode::OFFERED {
        let guard = s.wlock.lock();
        if !guard.nested() && !upgrade::withdraw(s) {
            upgrade::begin(s, fd);
        }
    }
    if s.mode() != mode::SESSION {
        return;
    }
    let Some(v) = session::view(s) else { return };
    {
        let _sending = s.wlock.lock();
        let _receiving = s.rlock.lock();
        v.inn.wake.flush.store(flush::BUSY, Ordering::SeqCst);
        seal(&v, fd);
        // A thread asleep on the socket hears of bytes in the kernel only.
        let readers = s.sleepers.load(Ordering::SeqCst).saturating_sub(s.tx_sleepers.load(Ordering::SeqCst));
        // A forked child goes on with the ring, as we do; but should it become another program, little is left to hand back then.
        let little = reason != Reason::Forked || View::CONSUMER.waiting(v.inn) <= SMALL;
        let hand_back = hand_back && little || readers > 0;
        finish_receiving(&v, fd, hand_back);
        // Before we wait for a peer that leaves in the same moment, let it go on.
        let _ = v.inn.wake.flush.compare_exchange(flush::BUSY, flush::DONE, Ordering::SeqCst, Ordering::Relaxed);
        if reason == Reason::HalfClosed {
            take_back(&v, fd);
        }
        close_sending(&v, fd, reason);
    }
    epoll::stir(s);
    session::retire(s, fd);
    crate::send::send_deferred(s, fd);
}

/// Ends our sending direction and seals the other. Under the send lock.
pub(crate) fn finish_sending(v: &View<'_>, fd: c_int, reason: Reason) {
    seal(v, fd);
    close_sending(v, fd, reason);
}

/// Seals both directions: nothing is added to either ring from now on.
fn seal(v: &View<'_>, fd: c_int) {
    // SYNC: SeqCst: a peer that sees the seal sees this too, and does not take the doorbells for complete.
    v.begin_ringing();
    let rings = v.may_ring() && !v.ended();
    View::CONSUMER.seal(v.inn);
    v.s.session.producer.seal(v.out);
    if rings {
        // A peer that sleeps, for bytes or for space, has to notice: this is the last doorbell. (A peer that is gone would answer it
        // with a reset, which belongs to the program's next send.)
        v.ring_now(fd);
    }
    v.end_ringing();
}

/// Says how many doorbells there were; the kernel carries what we send from now on.
fn close_sending(v: &View<'_>, fd: c_int, reason: Reason) {
    if v.s.session.tx() == phase::DONE {
        return;
    }
    await_flush(v, fd);
    if v.out.wake.flush.load(Ordering::SeqCst) == flush::WANTED {
        take_back(v, fd);
    }
    wait_until(DEADLINE_NS, || v.s.session.ringing.load(Ordering::SeqCst) == 0);
    // A direction that never switched stays the kernel's: nobody knows where a ring would have begun.
    if v.s.session.tx() != phase::KERNEL {
        v.out.w.state.store(state::DONE, Ordering::SeqCst);
    }
    v.s.session.tx.store(phase::DONE, Ordering::SeqCst);
    session::tell_back(v.s, reason);
}

/// How long a reader that is at it may take before [`take_back`].
const READER_NS: u64 = 20_000;

/// Our direction is sealed and its end follows: what the peer has not read yet goes by the kernel, in front of the end. Whoever
/// reads the peer's socket after it, and knows nothing of rings, could not get it any more. Under the send lock.
pub(crate) fn take_back(v: &View<'_>, fd: c_int) {
    let (out, producer) = (v.out, &v.s.session.producer);
    if v.s.session.tx() != phase::RING || v.inn.w.fate.load(Ordering::Acquire) != fate::OPEN || v.ended() {
        return;
    }
    if out.wake.armed.load(Ordering::Relaxed) == 0 && v.reader_is() == Peer::Elsewhere {
        let end = time::now_ns() + READER_NS;
        while producer.unread(out, &v.mem).is_ok_and(|n| n > 0) && time::now_ns() < end {
            core::hint::spin_loop();
        }
    }
    wait_until(DEADLINE_NS, || v.s.session.ringing.load(Ordering::SeqCst) == 0);
    let room = || raw::sockopt_int(fd, libc::SOL_SOCKET, libc::SO_SNDBUF).unwrap_or(0) / 2;
    let unsent = raw::ioctl_int(fd, libc::TIOCOUTQ).unwrap_or(0);
    let Ok(unread) = producer.unread(out, &v.mem) else { return };
    if unread as i64 > i64::from(room() - unsent) {
        let _ = raw::set_sockopt(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &(unsent + unread as c_int));
    }
    if unread == 0 || unread as i64 > i64::from(room() - unsent) {
        return;
    }
    // Nobody else consumes these bytes once this succeeds: they are as good as unpublished, and lie still in our own block.
    let Ok(Some(span)) = producer.take_back(out, &v.mem) else { return };
    for (ptr, len) in span.pieces().into_iter().filter(|&(_, len)| len > 0) {
        // SAFETY: bytes this process published in a block it still holds.
        let bytes = unsafe { core::slice::from_raw_parts(ptr.cast_const(), len) };
        if send_all(fd, bytes) == Err(Errno::AGAIN) {
            return give_up(v, fd);
        }
        v.s.count_kernel(len, true);
    }
}

/// While the peer puts unread bytes of ours back into its socket, nothing may be sent behind them.
fn await_flush(v: &View<'_>, fd: c_int) {
    if v.out.wake.flush.load(Ordering::SeqCst) == flush::BUSY {
        await_peer(v, fd, || v.out.wake.flush.load(Ordering::SeqCst) != flush::BUSY);
    }
}

/// Waits for what the peer is about to do. A connection whose peer takes too long over such things in total, stopped or hostile, is
/// as good as reset: false.
fn await_peer(v: &View<'_>, fd: c_int, done: impl Fn() -> bool) -> bool {
    let waited = &v.s.session.waited;
    let (begin, patience) = (time::now_ns(), PEER_NS.saturating_sub(waited.load(Ordering::Relaxed)));
    let looks = core::cell::Cell::new(0u32);
    let gone = || {
        looks.set(looks.get() + 1);
        let late = looks.get() > 200 && looks.get().is_multiple_of(16);
        late && process::start_time(v.peer.pid.load(Ordering::Relaxed)).is_none()
    };
    let came = wait_until(patience, || done() || gone());
    waited.fetch_add(time::now_ns() - begin, Ordering::Relaxed);
    if !came {
        crate::recv::spoil(v, fd);
    }
    came
}

/// Waits for something another thread or process is about to do; true if it came in time.
pub(crate) fn wait_until(patience: u64, done: impl Fn() -> bool) -> bool {
    for _ in 0..200 {
        if done() {
            return true;
        }
        core::hint::spin_loop();
    }
    let end = time::now_ns() + patience;
    while !done() {
        if time::now_ns() > end {
            return false;
        }
        nap(20_000);
    }
    true
}

/// Sleeps; false when a signal handler ran.
pub(crate) fn nap(ns: u64) -> bool {
    // SAFETY: no descriptors and no mask: only a sleep.
    unsafe { raw::ppoll(&mut [], Some(time::timespec(ns)), core::ptr::null()) }.is_ok()
}

/// The direction we receive in has been sealed. Under both locks.
fn finish_receiving(v: &View<'_>, fd: c_int, hand_back: bool) {
    match v.s.session.rx() {
        phase::DONE => return,
        phase::KERNEL => return v.s.session.rx.store(phase::DONE, Ordering::SeqCst),
        _ => {}
    }
    let quiet = await_peer(v, fd, || v.inn.w.ringing.load(Ordering::SeqCst) == 0);
    if v.inn.w.state.load(Ordering::SeqCst) == state::KERNEL {
        // The writer never switched and cannot any more.
        return v.s.session.rx.store(phase::DONE, Ordering::SeqCst);
    }
    let (pos, end) = (v.s.session.pos.load(Ordering::Relaxed), v.inn.w.n_kernel.load(Ordering::Acquire));
    let residue = View::CONSUMER.waiting(v.inn);
    if v.s.session.rx() == phase::READY && pos == end {
        v.s.session.rx.store(phase::RING, Ordering::SeqCst);
    }
    if v.s.session.rx() == phase::RING && quiet {
        swallow_all(v, fd);
    }
    // Doorbells behind kernel bytes that are not read yet.
    let mixed = v.s.session.rx() == phase::READY && v.bells_due() > 0;
    if hand_back && (mixed || residue > 0) {
        match peer_socket(v) {
            Ok(peer) => {
                if put_back(v, fd, &peer, end.wrapping_sub(pos)).is_err() && !v.ended() {
                    give_up(v, fd);
                }
            }
            // The peer is gone, and with it what it had not sent.
            Err(_) if v.ended() || process::start_time(v.peer.pid.load(Ordering::Relaxed)).is_none() => {}
            Err(_) if mixed => give_up(v, fd),
            Err(_) => ask_back(v, fd),
        }
    }
    if v.s.session.rx() == phase::READY && v.bells_due() == 0 && View::CONSUMER.waiting(v.inn) == 0 {
        v.s.session.rx.store(phase::DONE, Ordering::SeqCst);
    }
    if v.s.session.rx() == phase::RING && v.bells_due() == 0 && View::CONSUMER.waiting(v.inn) == 0 {
        v.s.session.rx.store(phase::DONE, Ordering::SeqCst);
    }
}

/// Takes every doorbell out: all have been sent, the last may still be on its way.
fn swallow_all(v: &View<'_>, fd: c_int) {
    if v.bells_due() > 0 && !v.ended() {
        await_peer(v, fd, || {
            v.swallow_any(fd);
            v.bells_due() == 0 || v.ended()
        });
    }
}

/// We may not touch the peer's socket (ptrace_scope, a container): it takes its unread bytes back itself and sends them by the kernel,
/// as soon as one of its threads looks at the connection; the seal's doorbell has woken it.
fn ask_back(v: &View<'_>, fd: c_int) {
    v.inn.wake.flush.store(flush::WANTED, Ordering::SeqCst);
    let done = || v.inn.w.state.load(Ordering::SeqCst) == state::DONE || v.ended();
    wait_until(DEADLINE_NS, done);
    if View::CONSUMER.waiting(v.inn) > 0 && !v.ended() {
        return give_up(v, fd);
    }
    swallow_all(v, fd);
}

/// Bytes would be lost: the connection is reset instead, which everybody sees.
fn give_up(v: &View<'_>, fd: c_int) {
    v.s.set_never(Reason::NoHandBack);
    raw::disconnect(fd);
    v.saw_end();
}

/// Puts what is unread back into our own kernel queue, through a copy of the peer's socket: `kernel` data bytes that stand before
/// the doorbells, the ring, and what the peer sent by the kernel since. Under both locks. A peer that has not left yet sends nothing
/// meanwhile (`flush`); one that has may, and then nobody knows the order any more: an error.
fn put_back(v: &View<'_>, fd: c_int, peer: &OwnedFd, kernel: u64) -> Result<(), Errno> {
    let before = if v.s.session.rx() == phase::READY { set_aside(fd, kernel)? } else { Aside::default() };
    v.s.session.pos.fetch_add(before.len as u64, Ordering::Relaxed);
    v.s.session.rx.store(phase::RING, Ordering::SeqCst);
    swallow_all(v, fd);
    let queued = raw::ioctl_int(fd, libc::FIONREAD).map_or(0, |n| n as u64);
    let sent = tcp::bytes_written(peer.as_raw_fd())?;
    let since = set_aside(fd, queued)?;
    send_all(peer.as_raw_fd(), before.bytes())?;
    let residue = put_ring_back(v, peer)?;
    send_all(peer.as_raw_fd(), since.bytes())?;
    let ours = (before.len + residue + since.len) as u64;
    if tcp::bytes_written(peer.as_raw_fd())? == sent + ours { Ok(()) } else { Err(Errno::CONNRESET) }
}

/// Sends what is in the ring; how much it was.
fn put_ring_back(v: &View<'_>, peer: &OwnedFd) -> Result<usize, Errno> {
    let mut total = 0;
    loop {
        let span = match View::CONSUMER.data(v.inn, &v.mem) {
            Ok(span) if !span.is_empty() => span,
            _ => return Ok(total),
        };
        // Ours first: the peer may take them back in the same moment, and a child of ours may read them. Nothing is added to a sealed
        // ring, so the bytes stay where they are.
        match View::CONSUMER.advance(v.inn, &span, span.len()) {
            Ok(()) => {}
            Err(Trouble::Raced) => continue,
            Err(_) => return Err(Errno::CONNRESET),
        }
        total += span.len();
        for (ptr, len) in span.pieces() {
            // SAFETY: bytes of a sealed ring; the peer may spoil them, for itself alone.
            send_all(peer.as_raw_fd(), unsafe {
                core::slice::from_raw_parts(ptr.cast_const(), if ptr.is_null() { 0 } else { len })
            })?;
        }
    }
}

/// A copy of the peer's descriptor of this connection.
fn peer_socket(v: &View<'_>) -> Result<OwnedFd, Errno> {
    let copy = process::steal_fd(v.peer.pid.load(Ordering::Relaxed), v.peer.fd.load(Ordering::Relaxed) as i32)?;
    let same = tcp::cookie(copy.as_raw_fd()) == Ok(v.peer.cookie.load(Ordering::Relaxed));
    if same { Ok(copy) } else { Err(Errno::STALE) }
}

/// Kernel bytes taken out so that the doorbells behind them can be.
#[derive(Default)]
struct Aside {
    memory: Option<(*mut u8, usize)>,
    len: usize,
}

impl Aside {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the first `len` bytes of our own mapping were written by the kernel.
        self.memory.map_or(&[], |(ptr, _)| unsafe { core::slice::from_raw_parts(ptr, self.len) })
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        if let Some((ptr, size)) = self.memory {
            // SAFETY: our own mapping, which nobody uses any more.
            let _ = unsafe { rustix::mm::munmap(ptr.cast(), size) };
        }
    }
}

fn set_aside(fd: c_int, kernel: u64) -> Result<Aside, Errno> {
    if kernel == 0 {
        return Ok(Aside::default());
    }
    // The peer's number: no socket holds as much as that.
    let size = usize::try_from(kernel).ok().filter(|&size| size <= MOST_IN_KERNEL).ok_or(Errno::INVAL)?;
    let end = time::now_ns() + PEER_NS;
    let memory = crate::slab::zeroed_pages(size).ok_or(Errno::NOMEM)?;
    let mut aside = Aside { memory: Some((memory, size)), len: 0 };
    while aside.len < size {
        // SAFETY: the rest of our own mapping.
        match unsafe { raw::recv(fd, memory.add(aside.len).cast(), size - aside.len, libc::MSG_DONTWAIT) } {
            Ok(0) => break,
            Ok(n) => aside.len += n,
            Err(Errno::AGAIN | Errno::INTR) if time::now_ns() < end => _ = nap(20_000),
            Err(e) => return Err(e),
        }
    }
    Ok(aside)
}

fn send_all(fd: c_int, mut bytes: &[u8]) -> Result<(), Errno> {
    let end = time::now_ns() + PEER_NS;
    while !bytes.is_empty() {
        match raw::send_bytes(fd, bytes) {
            Ok(n) => bytes = bytes.get(n..).unwrap_or(&[]),
            Err(Errno::AGAIN | Errno::INTR) if time::now_ns() < end => _ = nap(50_000),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Whether the writer of a sealed direction has rung for the last time, and all its doorbells are out: what is queued now are bytes. Under
/// the receive lock.
pub(crate) fn has_rung_last(v: &View<'_>, fd: c_int) -> bool {
    // Read before the count: a doorbell that is counted after it comes.
    let last = may_ring_no_more(v);
    v.swallow_any(fd);
    if last || v.bells_due() > 0 {
        return last && v.bells_due() == 0;
    }
    // Its doorbell is about to come; or it died, or was spoilt, with the mark of one that it never sent.
    v.check_open(fd, false);
    if v.ended() || !matches!(raw::peek(fd, libc::MSG_DONTWAIT), Ok(1..)) {
        return false;
    }
    // Counts come before bytes: this is no doorbell, but something sent before the direction ended, or by a peer that lies. Nothing else
    // comes from a process that is no more.
    await_peer(v, fd, || may_ring_no_more(v) || v.bells_due() > 0) && v.bells_due() == 0
}

/// Whether the writer of a sealed direction rings no more.
pub(crate) fn may_ring_no_more(v: &View<'_>) -> bool {
    v.inn.w.state.load(Ordering::SeqCst) == state::DONE || v.inn.w.ringing.load(Ordering::SeqCst) == 0
}

/// The receiving direction is over because the peer left: ours ends too.
pub(crate) fn peer_left(v: &View<'_>, fd: c_int) {
    if v.s.session.tx() != phase::DONE
        && let Some(_lock) = v.s.wlock.try_lock()
    {
        finish_sending(v, fd, Reason::PeerLeft);
    }
}
