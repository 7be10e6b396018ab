//! Loops of calls whose sum does not depend on how TCP cuts the stream.

use core::{mem, ptr};

use libc::pollfd;
use madrigal_fuzz_sockets::op::{Op, Slot};
use madrigal_fuzz_sockets::via::{RecvVia, SendVia};

use crate::context::{Answer, StepContext, count, ending};
use crate::{c, memory, receive, state, transmit};

/// Makes one of the loops.
pub(crate) fn play(context: &StepContext, op: &Op) {
    match *op {
        Op::Exchange { slot, first, rounds, size, send, recv } => {
            exchange(context, &Exchange { slot, first, rounds, size, send, recv });
        }
        Op::SendAll { slot, len, chunk, via, lane } => {
            let (sent, end) = send_all(context, slot, lane as usize, len as usize, chunk as usize, via);
            tell(context, sent, end);
        }
        Op::RecvAll { slot, len, chunk, via } => {
            let (got, end) = recv_all(context, slot, len as usize, chunk as usize, via);
            tell(context, got, end);
        }
        Op::RecvToEnd { slot, chunk, via } => {
            let (got, end) = recv_all(context, slot, usize::MAX, chunk as usize, via);
            tell(context, got, end);
        }
        Op::Drain { slot, via } => drain(context, slot, via),
        Op::Timed { slot, len, us } => timed(context, slot, len as usize, us),
        _ => {}
    }
}

/// A loop's result: how much, and how it ended.
pub(crate) fn tell(context: &StepContext, sum: usize, end: u64) {
    context.keep(Answer { ret: sum as i64, errno: 0 });
    context.record.add(end);
}

/// Sleeps until a descriptor is ready for this, at most a second.
pub(crate) fn wait_for(fd: i32, events: i16) {
    let mut entry = pollfd { fd, events, revents: 0 };
    // SAFETY: one entry of our own.
    unsafe { c::poll(&raw mut entry, 1, 1000) };
}

/// Sends `len` bytes, in calls of at most `chunk`. How many were taken, and how it ended.
pub(crate) fn send_all(
    context: &StepContext,
    slot: Slot,
    lane: usize,
    len: usize,
    chunk: usize,
    via: SendVia,
) -> (usize, u64) {
    let mut sent = 0;
    while sent < len {
        match transmit::some(context, slot, lane, chunk.min(len - sent), via) {
            Ok(n) => sent += n,
            Err(libc::EAGAIN) => wait_for(state::fd(slot), libc::POLLOUT),
            Err(libc::EINTR) => {}
            Err(errno) => return (sent, ending::ERROR + errno as u64),
        }
    }
    (sent, ending::FULL)
}

/// Receives `len` bytes, in calls of at most `chunk`. How many came, and how it ended.
pub(crate) fn recv_all(context: &StepContext, slot: Slot, len: usize, chunk: usize, via: RecvVia) -> (usize, u64) {
    let mut got = 0;
    while got < len {
        match receive::some(context, state::fd(slot), chunk.min(len - got), via, 0) {
            Ok([]) => return (got, ending::END),
            Ok(data) => {
                context.check(slot, data, true);
                got += data.len();
            }
            Err(libc::EAGAIN) => wait_for(state::fd(slot), libc::POLLIN),
            Err(libc::EINTR) => {}
            Err(errno) => return (got, ending::ERROR + errno as u64),
        }
    }
    (got, ending::FULL)
}

struct Exchange {
    slot: Slot,
    first: bool,
    rounds: u16,
    size: u32,
    send: SendVia,
    recv: RecvVia,
}

fn exchange(context: &StepContext, x: &Exchange) {
    let size = x.size as usize;
    let mut sum = 0;
    for round in 0..u32::from(x.rounds) * 2 {
        let sends = (round % 2 == 0) == x.first;
        let (moved, end) = if sends {
            send_all(context, x.slot, 0, size, size, x.send)
        } else {
            recv_all(context, x.slot, size, size, x.recv)
        };
        sum += moved;
        if end != ending::FULL {
            return tell(context, sum, end);
        }
    }
    tell(context, sum, ending::FULL);
}

/// Takes what is there, and returns what is behind it.
fn drain(context: &StepContext, slot: Slot, via: RecvVia) {
    let fd = state::fd(slot);
    let (mut all, mut end) = (Vec::new(), ending::EMPTY);
    loop {
        if !via.has_flags() && !readable(fd) {
            break;
        }
        match receive::some(context, fd, 65536, via, libc::MSG_DONTWAIT) {
            Ok([]) => end = ending::END,
            Ok(data) => {
                all.extend_from_slice(data);
                continue;
            }
            Err(libc::EAGAIN) => {}
            Err(errno) => end = ending::ERROR + errno as u64,
        }
        break;
    }
    context.received(slot, &all, true);
    tell(context, all.len(), end);
}

fn readable(fd: i32) -> bool {
    let mut entry = pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry of our own.
    unsafe { c::poll(&raw mut entry, 1, 0) > 0 }
}

/// A receive that a timer interrupts every `us` microseconds, until a call returns `EINTR`. The timer signals only this thread: on a busy
/// machine it fires again while the last handler runs, and would interrupt another thread.
fn timed(context: &StepContext, slot: Slot, len: usize, us: u32) {
    // SAFETY: all-zero is a valid event and a valid timer.
    let (mut event, mut timer) = unsafe { (mem::zeroed::<libc::sigevent>(), mem::zeroed::<libc::timer_t>()) };
    (event.sigev_notify, event.sigev_signo) = (libc::SIGEV_THREAD_ID, libc::SIGALRM);
    let time = libc::timespec { tv_sec: 0, tv_nsec: i64::from(us) * 1000 };
    let every = libc::itimerspec { it_interval: time, it_value: time };
    // SAFETY: an event, a time and a timer of our own.
    unsafe {
        event.sigev_notify_thread_id = libc::gettid();
        libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer);
        libc::timer_settime(timer, 0, &raw const every, ptr::null_mut());
    }
    let room = memory::bytes(len);
    // SAFETY: memory of our own.
    let answer = count(|| unsafe { c::recv(state::fd(slot), room.as_mut_ptr().cast(), len, 0) });
    // SAFETY: the timer just made.
    unsafe { libc::timer_delete(timer) };
    context.keep(answer);
    context.received(slot, &room[..answer.ret.max(0) as usize], true);
}
