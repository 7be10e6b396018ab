//! What epoll(7) and poll(2) would say of a socket, and what of it is news.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use libc::{EPOLLERR, EPOLLET, EPOLLHUP, EPOLLONESHOT, EPOLLRDHUP, epoll_event};
use madrigal_drivers::shm::layout::{SEALED, flush, state};
use madrigal_report::Reason;
use madrigal_sys::{raw, time};

use super::{ENDED, Member, READABLE, URGENT, WRITABLE, bit};
use crate::session::{self, View, phase};
use crate::sock::Sock;
use crate::{leave, send};

/// What the program is told of a member now, by its trigger mode.
pub(super) fn report_of(s: &Sock, member: &Member) -> Option<epoll_event> {
    let wanted = member.events.load(Ordering::Relaxed);
    // Taken before the look: what comes in between is reported now and counts as news once more, but never gets lost.
    let stamps = if wanted & EPOLLET as u32 != 0 { Some(stamps(s)) } else { None };
    let ready =
        look(s, Some(member), member.fd.load(Ordering::Relaxed), wanted) & (wanted | (EPOLLERR | EPOLLHUP) as u32);
    if ready == 0 || stamps.is_some_and(|stamps| !is_news(member, ready, stamps)) {
        return None;
    }
    if wanted & EPOLLONESHOT as u32 != 0 {
        member.set_bit(bit::SPENT, true);
    }
    Some(epoll_event { events: ready, u64: member.data.load(Ordering::Relaxed) })
}

/// Whether a report would come now, without making it.
pub(super) fn would_report(s: &Sock, member: &Member) -> bool {
    let (seen_in, seen_out) = (member.seen_in.load(Ordering::Relaxed), member.seen_out.load(Ordering::Relaxed));
    let spent = member.has(bit::SPENT);
    let ready = report_of(s, member).is_some();
    member.seen_in.store(seen_in, Ordering::Relaxed);
    member.seen_out.store(seen_out, Ordering::Relaxed);
    member.set_bit(bit::SPENT, spent);
    ready
}

/// How far either direction has come: a change is an edge.
fn stamps(s: &Sock) -> (u64, u64) {
    let ended = u64::from(s.kernel_events.load(Ordering::Relaxed) & ENDED) << 48;
    let by_kernel = |moves: &core::sync::atomic::AtomicU32| u64::from(moves.load(Ordering::Relaxed)) | 1 << 47;
    let tail = session::view(s).map_or(SEALED, |v| v.inn.w.tail.load(Ordering::Acquire));
    let ring = s.session.rx() == phase::RING && tail & SEALED == 0;
    let into = if ring { tail & ((1 << 47) - 1) } else { by_kernel(&s.kernel_moves) };
    let out = if s.session.tx() == phase::RING {
        u64::from(s.session.refusals.load(Ordering::Relaxed))
    } else {
        by_kernel(&s.kernel_room)
    };
    (into | ended, out)
}

fn is_news(member: &Member, ready: u32, (into, out): (u64, u64)) -> bool {
    let news_in = ready & (READABLE | ENDED | URGENT) != 0 && member.seen_in.swap(into, Ordering::Relaxed) != into;
    let news_out = ready & WRITABLE != 0 && member.seen_out.swap(out, Ordering::Relaxed) != out;
    news_in || news_out
}

/// What epoll(7) would call ready on this socket. `wanted` spares questions nobody asked.
pub(crate) fn readiness(s: &Sock, fd: c_int, wanted: u32) -> u32 {
    look(s, None, fd, wanted)
}

/// [`readiness`]; with a member whose registration is ours, the kernel is not asked again before it has told something new.
fn look(s: &Sock, told: Option<&Member>, fd: c_int, wanted: u32) -> u32 {
    let Some(v) = session::view(s) else { return kernel_readiness(fd, wanted) };
    let asked = READABLE | EPOLLRDHUP as u32 | wanted & URGENT;
    let mut ready = match s.session.rx() {
        phase::RING if View::CONSUMER.waiting(v.inn) > 0 => READABLE,
        // Sealed and drained: the kernel carries bytes once the doorbells are out.
        phase::RING if View::CONSUMER.stirred(v.inn) => sealed_readiness(&v, fd),
        phase::RING => 0,
        phase::READY if v.inn.w.state.load(Ordering::SeqCst) != state::KERNEL => switched_readiness(&v),
        _ => ask_once(told, bit::QUIET_IN, fd, asked),
    };
    let ended = v.end_events();
    if ended != 0 {
        ready |= ended | READABLE | EPOLLRDHUP as u32;
    }
    if wanted & WRITABLE != 0 {
        ready |= writable(&v, told, fd);
    }
    ready
}

fn sealed_readiness(v: &View<'_>, fd: c_int) -> u32 {
    if v.out.wake.flush.load(Ordering::Relaxed) == flush::WANTED {
        // The other end waits for what we have in the ring.
        leave::peer_left(v, fd);
    }
    let last = match v.s.rlock.try_lock() {
        Some(_lock) => leave::has_rung_last(v, fd),
        None => leave::may_ring_no_more(v) && v.bells_due() == 0,
    };
    if last { kernel_readiness(fd, READABLE | EPOLLRDHUP as u32) } else { 0 }
}

/// The writer has switched, and the reader has not come to the end of the kernel's bytes yet.
fn switched_readiness(v: &View<'_>) -> u32 {
    let left = v.inn.w.n_kernel.load(Ordering::Acquire) != v.s.session.pos.load(Ordering::Relaxed);
    if left || View::CONSUMER.stirred(v.inn) { READABLE } else { 0 }
}

fn writable(v: &View<'_>, told: Option<&Member>, fd: c_int) -> u32 {
    if v.s.session.tx() != phase::RING {
        return ask_once(told, bit::QUIET_OUT, fd, WRITABLE);
    }
    let producer = &v.s.session.producer;
    if producer.is_sealed(v.out) || v.ended() || producer.has_room(v.out, &v.mem, v.enough()) {
        return WRITABLE;
    }
    // The reader rings once there is space.
    if producer.want(v.out, &v.mem, send::wanted(v)) {
        return WRITABLE;
    }
    // Who asks for edges may have nothing to send; anybody else waits.
    if told.is_none_or(|member| member.events.load(Ordering::Relaxed) & EPOLLET as u32 == 0) {
        v.note_wait();
    }
    0
}

/// A sender whose reader stands still goes back to TCP. Outside every lock.
pub(crate) fn relieve(s: &Sock, fd: c_int) {
    if s.session.full_since.load(Ordering::Relaxed) != 0 && session::view(s).is_some_and(|v| v.is_stalled()) {
        leave::leave(s, fd, Reason::Stalled, false);
    }
}

fn ask_once(told: Option<&Member>, quiet: u32, fd: c_int, wanted: u32) -> u32 {
    let Some(member) = told else { return kernel_readiness(fd, wanted) };
    if member.has(quiet) {
        return 0;
    }
    // SYNC: SeqCst, before the look: an event in between finds the bit set and clears it (`wait::note`).
    member.set_bit(quiet, true);
    let ready = kernel_readiness(fd, wanted);
    if ready != 0 {
        member.set_bit(quiet, false);
    }
    ready
}

pub(super) fn kernel_readiness(fd: c_int, wanted: u32) -> u32 {
    let mut poll = [libc::pollfd { fd, events: wanted as i16, revents: 0 }];
    // SAFETY: no mask.
    match unsafe { raw::ppoll(&mut poll, Some(time::timespec(0)), core::ptr::null()) } {
        Ok(n) if n > 0 => poll[0].revents as u16 as u32,
        _ => 0,
    }
}
