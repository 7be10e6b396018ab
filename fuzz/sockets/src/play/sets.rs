//! epoll(7).

use core::ptr;
use core::sync::atomic::Ordering;

use libc::{c_int, c_long, epoll_event};
use madrigal_fuzz_sockets::op::{Ctl, Op, Slot, Time};
use madrigal_fuzz_sockets::via::EpollVia;

use crate::context::{Answer, StepContext, call};
use crate::waits::{address, mask, milliseconds, span};
use crate::{c, signals, state};

/// Room for as many events as any set of a program can have.
const ENOUGH: u8 = 16;
/// Waits for less are made again, so that it does not matter which comes first.
const AGAIN: usize = 24;

/// A step about a set.
pub(crate) fn play(context: &StepContext, op: &Op) {
    match *op {
        Op::EpollCreate { slot } => {
            // SAFETY: no memory is passed.
            let answer = context.call(|| unsafe { c::epoll_create1(0) });
            context.open(slot, answer);
        }
        Op::EpollCtl { set, what, slot, events, data } => {
            let mut event = epoll_event { events, u64: data };
            let what = match what {
                Ctl::Add => libc::EPOLL_CTL_ADD,
                Ctl::Mod => libc::EPOLL_CTL_MOD,
                Ctl::Del => libc::EPOLL_CTL_DEL,
            };
            // SAFETY: an event of our own.
            context.call(|| unsafe { c::epoll_ctl(state::fd(set), what, state::fd(slot), &raw mut event) });
        }
        Op::EpollWait { set, max, via, time } => wait(context, set, max, via, time),
        _ => {}
    }
}

/// The events, by data.
type Ready = Vec<(u64, u32)>;

fn wait(context: &StepContext, set: Slot, max: u8, via: EpollVia, time: Time) {
    let before = signals::count();
    let (mut answer, mut ready) = poll(state::fd(set), max, via, time);
    context.record.signals.store(signals::count() - before, Ordering::Relaxed);
    if max < ENOUGH && answer.ret > 0 {
        rest(state::fd(set), max, via, &mut ready);
        answer.ret = ready.len() as i64;
    }
    keep(context, answer, &ready);
}

/// A wait that slept may have been woken by the first of several things.
pub(crate) fn top_up(context: &StepContext, set: Slot, max: u8, via: EpollVia) {
    let seen = context.record.read();
    if seen.ret > 0 {
        let mut ready = seen.aux.chunks_exact(2).map(|pair| (pair[0], pair[1] as u32)).collect();
        rest(state::fd(set), max, via, &mut ready);
        context.record.used.store(0, Ordering::Relaxed);
        keep(context, Answer { ret: ready.len() as i64, errno: 0 }, &ready);
    }
}

/// Polls again, without waiting, until nothing new is reported.
fn rest(fd: c_int, max: u8, via: EpollVia, ready: &mut Ready) {
    for _ in 0..AGAIN {
        let (answer, more) = poll(fd, max, via, Time::Zero);
        if answer.ret <= 0 {
            break;
        }
        more.into_iter().for_each(|event| join(ready, event));
        if max >= ENOUGH {
            break;
        }
    }
}

fn join(ready: &mut Ready, event: (u64, u32)) {
    match ready.iter_mut().find(|known| known.0 == event.0) {
        Some(known) => known.1 |= event.1,
        None => ready.push(event),
    }
}

/// epoll(7) promises no order, so the record has one of its own.
fn keep(context: &StepContext, answer: Answer, ready: &Ready) {
    let mut sorted = ready.clone();
    sorted.sort_unstable();
    context.keep(answer);
    for (data, events) in sorted {
        context.record.add(data);
        context.record.add(u64::from(events));
    }
}

fn poll(fd: c_int, max: u8, via: EpollVia, time: Time) -> (Answer, Ready) {
    let mut events = [epoll_event { events: 0, u64: 0 }; ENOUGH as usize];
    let (at, max, ms) = (events.as_mut_ptr(), c_int::from(max.min(ENOUGH)), milliseconds(time));
    let (span, mask) = (span(time), mask());
    // SAFETY: room for as many events as are asked for; a time and a mask of our own.
    let answer = unsafe {
        match via {
            EpollVia::Pwait => call(|| c::epoll_pwait(fd, at, max, ms, ptr::null())),
            EpollVia::PwaitMask => call(|| c::epoll_pwait(fd, at, max, ms, &raw const mask)),
            EpollVia::Pwait2 => call(|| c::epoll_pwait2(fd, at, max, address(span.as_ref()), &raw const mask)),
            EpollVia::SysWait => call(|| {
                let none = ptr::null::<libc::sigset_t>();
                c::syscall(libc::SYS_epoll_pwait, fd as c_long, at, max as c_long, ms as c_long, none, 8 as c_long)
            }),
            EpollVia::Wait => call(|| c::epoll_wait(fd, at, max, ms)),
        }
    };
    let told = events.iter().take(answer.ret.max(0) as usize).map(|event| (event.u64, event.events));
    (answer, told.collect())
}
