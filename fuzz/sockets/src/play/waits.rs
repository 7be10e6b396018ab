//! poll(2), select(2) and their relatives.

use core::ptr;
use core::sync::atomic::Ordering;

use libc::{POLLIN, POLLOUT, POLLPRI, c_int, c_long, fd_set, pollfd, sigset_t, timespec, timeval};
use madrigal_fuzz_sockets::op::{Slot, Time};
use madrigal_fuzz_sockets::via::PollVia;

use crate::context::{Answer, StepContext, call};
use crate::{c, signals, state};

/// One wait; the record has the reported events of each descriptor.
pub(crate) fn poll(context: &StepContext, entries: &[(Slot, i16)], via: PollVia, time: Time) {
    let before = signals::count();
    let (answer, ready) = poll_once(entries, via, time);
    context.record.signals.store(signals::count() - before, Ordering::Relaxed);
    context.keep(answer);
    if answer.ret >= 0 {
        ready.iter().for_each(|events| context.record.add(u64::from(*events)));
    }
}

/// A wait that slept may have been woken by the first of several things.
pub(crate) fn top_up(context: &StepContext, entries: &[(Slot, i16)], via: PollVia) {
    if context.record.ret.load(Ordering::Relaxed) > 0 {
        let (answer, ready) = poll_once(entries, via, Time::Zero);
        context.keep(answer);
        for (word, events) in context.record.aux.iter().zip(ready) {
            word.store(u64::from(events), Ordering::Relaxed);
        }
    }
}

fn poll_once(entries: &[(Slot, i16)], via: PollVia, time: Time) -> (Answer, Vec<u16>) {
    match via {
        PollVia::Select | PollVia::Pselect | PollVia::PselectMask => by_select(entries, via, time),
        _ => by_poll(entries, via, time),
    }
}

/// A time as poll(2) wants it.
pub(crate) fn milliseconds(time: Time) -> c_int {
    match time {
        Time::Zero => 0,
        Time::Ms(ms) => c_int::from(ms),
        Time::Forever => -1,
    }
}

/// A time as ppoll(2) wants it.
pub(crate) fn span(time: Time) -> Option<timespec> {
    match time {
        Time::Zero => Some(timespec { tv_sec: 0, tv_nsec: 0 }),
        Time::Ms(ms) => Some(timespec { tv_sec: i64::from(ms) / 1000, tv_nsec: i64::from(ms) % 1000 * 1_000_000 }),
        Time::Forever => None,
    }
}

/// A mask with one signal that never comes.
pub(crate) fn mask() -> sigset_t {
    // SAFETY: a set of our own.
    unsafe {
        let mut set = core::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGWINCH);
        set
    }
}

/// The address of a value that may be missing.
pub(crate) fn address<T>(value: Option<&T>) -> *const T {
    value.map_or(ptr::null(), ptr::from_ref)
}

fn by_poll(entries: &[(Slot, i16)], via: PollVia, time: Time) -> (Answer, Vec<u16>) {
    let mut list: Vec<pollfd> =
        entries.iter().map(|(slot, events)| pollfd { fd: state::fd(*slot), events: *events, revents: 0 }).collect();
    let (at, n, room) = (list.as_mut_ptr(), list.len() as libc::nfds_t, size_of_val(list.as_slice()));
    let (ms, span, mask) = (milliseconds(time), span(time), mask());
    let span = address(span.as_ref());
    // SAFETY: a list, a time and a mask of our own.
    let answer = unsafe {
        match via {
            PollVia::Ppoll => call(|| c::ppoll(at, n, span, ptr::null())),
            PollVia::PpollMask => call(|| c::ppoll(at, n, span, &raw const mask)),
            PollVia::PollChk => call(|| c::__poll_chk(at, n, ms, room)),
            PollVia::PpollChk => call(|| c::__ppoll_chk(at, n, span, &raw const mask, room)),
            PollVia::SysPoll => call(|| sys_poll(at, n, span)),
            _ => call(|| c::poll(at, n, ms)),
        }
    };
    (answer, list.iter().map(|entry| entry.revents as u16).collect())
}

/// ppoll by its number; the kernel writes what is left into the time, so it gets one of its own.
fn sys_poll(list: *mut pollfd, n: libc::nfds_t, span: *const timespec) -> c_long {
    // SAFETY: the callers' list and time.
    unsafe {
        let mut left = span.as_ref().copied();
        let at = left.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
        c::syscall(libc::SYS_ppoll, list, n, at, ptr::null::<sigset_t>(), 8 as c_long)
    }
}

fn by_select(entries: &[(Slot, i16)], via: PollVia, time: Time) -> (Answer, Vec<u16>) {
    // SAFETY: all-zero sets are empty.
    let mut sets: [fd_set; 3] = unsafe { core::mem::zeroed() };
    let wanted = [POLLIN, POLLOUT, POLLPRI];
    let mut most = -1;
    for (slot, events) in entries {
        let fd = state::fd(*slot);
        for (set, bit) in sets.iter_mut().zip(wanted) {
            if (0..1024).contains(&fd) && events & bit != 0 {
                // SAFETY: a descriptor that the set has room for.
                unsafe { libc::FD_SET(fd, set) };
                most = most.max(fd);
            }
        }
    }
    let [r, w, e] = &mut sets;
    let (span, mask) = (span(time), mask());
    let mut left = span.map(|span| timeval { tv_sec: span.tv_sec, tv_usec: span.tv_nsec / 1000 });
    let left = left.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
    let span = address(span.as_ref());
    // SAFETY: sets, times and a mask of our own.
    let answer = unsafe {
        match via {
            PollVia::Pselect => call(|| c::pselect(most + 1, r, w, e, span, ptr::null())),
            PollVia::PselectMask => call(|| c::pselect(most + 1, r, w, e, span, &raw const mask)),
            _ => call(|| c::select(most + 1, r, w, e, left)),
        }
    };
    let ready = entries.iter().map(|(slot, events)| {
        let fd = state::fd(*slot);
        let bits = sets.iter().zip(wanted).filter(|(set, bit)| {
            // SAFETY: a descriptor that the set has room for.
            (0..1024).contains(&fd) && events & bit != 0 && unsafe { libc::FD_ISSET(fd, *set) }
        });
        bits.fold(0, |all, (_, bit)| all | bit as u16)
    });
    (answer, ready.collect())
}
