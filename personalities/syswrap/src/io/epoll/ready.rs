//! What epoll(7) and poll(2) would report of a socket, and what of it is an edge.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering};

use libc::{EPOLLERR, EPOLLET, EPOLLHUP, EPOLLRDHUP, epoll_event};
use madrigal_report::Reason;
use madrigal_shm_ring::layout::{SEALED, state};
use madrigal_sys::{raw, tcp};

use super::{ENDED, READABLE, URGENT, WRITABLE};
use crate::lifecycle::leave::finish_sending;
use crate::state::member::{Member, Stamps, bit};
use crate::state::session::{View, phase};
use crate::state::sock::Sock;
use crate::state::socket::{Socket, view};

/// What is reported of a member now, by its trigger mode.
pub(super) fn report_of(s: &Sock, member: &Member) -> Option<epoll_event> {
    let fd = if member.has(bit::ORPHAN) { s.fd() } else { member.fd.load(Ordering::Relaxed) };
    let check = |wanted| member.check_whole(wanted, || check(s, Some(member), fd, wanted));
    member.report(|| stamps(s, fd), check)
}

/// What is reported of a member where the kernel has `reported` what this process has not asked for: another process that has the set, too,
/// has asked for it.
pub(super) fn asked_elsewhere(s: &Sock, member: &Member, reported: u32) -> Option<epoll_event> {
    let is_other = reported & !(member.events.load(Ordering::Relaxed) | (EPOLLERR | EPOLLHUP) as u32) != 0;
    let events = if is_other { shown_of(s, member, reported) } else { 0 };
    (events != 0).then(|| epoll_event { events, u64: member.data.load(Ordering::Relaxed) })
}

/// What is ready now of what any process asks for: of a socket that has ended the kernel has `reported` all of that.
pub(super) fn shown_of(s: &Sock, member: &Member, reported: u32) -> u32 {
    let end = (EPOLLERR | EPOLLHUP) as u32;
    let asked = reported & !end;
    ready_of(s, member, asked) & (asked | end)
}

/// [`readiness`] of a member's socket.
pub(super) fn ready_of(s: &Sock, member: &Member, wanted: u32) -> u32 {
    let fd = if member.has(bit::ORPHAN) { s.fd() } else { member.fd.load(Ordering::Relaxed) };
    readiness(s, fd, wanted)
}

/// Whether a report would come now, without making it.
pub(super) fn would_report(s: &Sock, member: &Member) -> bool {
    member.would_report(|| report_of(s, member))
}

fn stamps(s: &Sock, fd: c_int) -> Stamps {
    const BY_KERNEL: u64 = 1 << 47;
    let by_kernel =
        |moves: &AtomicU32, ring: u64| ((u64::from(moves.load(Ordering::Relaxed)) + ring) % BY_KERNEL) | BY_KERNEL;
    let tail = view(s, fd).map_or(SEALED, |v| View::<Socket<'_>>::CONSUMER.tail(v.inn, Ordering::Acquire));
    let (carried, refusals) = (tail & !SEALED, u64::from(s.session.refusals.load(Ordering::Relaxed)));
    let ring = s.session.rx() == phase::RING && tail & SEALED == 0;
    // What a ring has carried since the last check counts behind its end, too: the kernel knows nothing of that.
    let into = if ring { carried % BY_KERNEL } else { by_kernel(&s.kernel_moves, carried) };
    let out = if s.session.tx() == phase::RING { refusals } else { by_kernel(&s.kernel_room, refusals) };
    Stamps { bytes: (into, out), kernel: (by_kernel(&s.kernel_moves, 0), by_kernel(&s.kernel_room, 0)) }
}

/// Whether bytes have come by the kernel since this was last asked. If they were read before the kernel's report, the report has no bytes,
/// and to the program it is an edge all the same.
pub(super) fn bytes_came(s: &Sock, fd: c_int) -> bool {
    if s.session.rx() == phase::RING {
        return false;
    }
    let counted = tcp::info(fd).map(|info| info.bytes_received);
    counted.is_ok_and(|counted| s.kernel_bytes.swap(counted, Ordering::Relaxed) != counted)
}

/// What epoll(7) would call ready on this socket. Events not in `wanted` may be skipped.
pub(crate) fn readiness(s: &Sock, fd: c_int, wanted: u32) -> u32 {
    check(s, None, fd, wanted)
}

/// [`readiness`]; with a `member` whose registration is ours, the kernel is not polled again before it has reported something new.
fn check(s: &Sock, member: Option<&Member>, fd: c_int, wanted: u32) -> u32 {
    let Some(v) = view(s, fd) else {
        let error = if s.session.has_pending_error() { EPOLLERR as u32 } else { 0 };
        return kernel_readiness(fd, wanted) | error;
    };
    let asked = READABLE | EPOLLRDHUP as u32 | wanted & URGENT;
    let mut ready = match s.session.rx() {
        phase::RING => ring_readiness(&v, member, asked),
        phase::READY if v.inn.w.state.load(Ordering::SeqCst) != state::KERNEL => switched_readiness(&v, member, asked),
        _ => ask_once(member, bit::IDLE_IN, fd, asked),
    };
    v.learn_end();
    if wanted & WRITABLE != 0 {
        ready |= writable(&v, member);
    }
    let (is_gone, ended) = s.session.end();
    if is_gone {
        // Whatever the kernel added to its answers.
        ready &= !ENDED;
    }
    if ended == 0 { ready } else { ready | ended | READABLE | EPOLLRDHUP as u32 }
}

fn ring_readiness(v: &View<'_, Socket<'_>>, member: Option<&Member>, asked: u32) -> u32 {
    match () {
        () if View::<Socket<'_>>::CONSUMER.waiting(v.inn) > 0 => READABLE,
        () if v.is_sealed_in() => sealed_readiness(v, member, asked),
        () => 0,
    }
}

/// Sealed and drained: the kernel carries bytes once the last doorbell is out.
fn sealed_readiness(v: &View<'_, Socket<'_>>, member: Option<&Member>, asked: u32) -> u32 {
    // The other end may wait for what we have in the ring.
    if v.s.tx() != phase::DONE
        && let Some(guard) = v.s.wlock.try_lock()
        && !guard.nested()
    {
        finish_sending(v, Reason::PeerLeft);
    }
    let is_read_by_another = match v.try_reading() {
        Some(_lock) => {
            v.finish_receiving();
            false
        }
        None => true,
    };
    match v.s.rx() {
        phase::DONE => ask_once(member, bit::IDLE_IN, v.wire.fd, asked),
        // The kernel may just have reported by an edge what is left, and it reports that once.
        _ if is_read_by_another && v.inbound() > 0 => READABLE,
        // The last doorbell is on its way.
        _ => 0,
    }
}

/// The writer has switched, and the reader has not come to the end of the kernel's bytes yet: in front of doorbells there may be data.
fn switched_readiness(v: &View<'_, Socket<'_>>, member: Option<&Member>, asked: u32) -> u32 {
    match v.try_reading().map(|_lock| v.reach_ring()) {
        Some(true) => ring_readiness(v, member, asked),
        Some(false) => ask_once(member, bit::IDLE_IN, v.wire.fd, asked),
        None if v.inbound() > 0 => READABLE,
        None => 0,
    }
}

fn writable(v: &View<'_, Socket<'_>>, member: Option<&Member>) -> u32 {
    if v.s.tx() != phase::RING {
        return ask_once(member, bit::IDLE_OUT, v.wire.fd, WRITABLE);
    }
    // The second check requests a doorbell: the reader rings once there is space.
    if v.s.producer.is_sealed(v.out) || v.ended() || v.has_some_room() || v.want() {
        return WRITABLE;
    }
    // Who asks for edges may have nothing to send; anybody else waits.
    if member.is_none_or(|member| member.events.load(Ordering::Relaxed) & EPOLLET as u32 == 0) {
        v.note_wait();
    }
    0
}

fn ask_once(member: Option<&Member>, idle: u32, fd: c_int, wanted: u32) -> u32 {
    let Some(member) = member else { return kernel_readiness(fd, wanted) };
    member.ask_once(idle, || kernel_readiness(fd, wanted))
}

/// What poll(2) shows of a descriptor in the kernel.
pub(crate) fn kernel_readiness(fd: c_int, wanted: u32) -> u32 {
    raw::poll_now(fd, wanted as i16) as u16 as u32
}
