//! Waits: poll(2), select(2), epoll(7).

use core::ffi::c_int;
use core::ptr;

use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, ssize_t, timespec, timeval};
use madrigal_sys::{Errno, fault, time};

use super::signals::is_awake;
use super::{cancellation_point, checked, fail, get, guarded_or, is_known, leaving, releasing};
use crate::io::epoll::{self, Waited};
use crate::io::limits::{Limits, Signals};
use crate::io::poll::{self, Fds, Polled, Sets, select};
use crate::real;

// --- how long ---------------------------------------------------------------------------------------------------------------------

/// When a wait of `timeout` milliseconds ends.
fn end_of_ms(timeout: c_int) -> Option<u64> {
    match timeout {
        0 => Some(0),
        1.. => Some(time::now_ns() + timeout as u64 * 1_000_000),
        _ => None,
    }
}

/// When a wait of this long ends. An illegal time is the kernel's to refuse.
fn end_of(t: timespec) -> Result<u64, ()> {
    match (t.tv_sec, t.tv_nsec) {
        (0, 0) => Ok(0),
        (s, n) if s >= 0 && (0..1_000_000_000).contains(&n) => {
            let ns = (s as u64).saturating_mul(1_000_000_000).saturating_add(n as u64);
            Ok(time::now_ns().saturating_add(ns))
        }
        _ => Err(()),
    }
}

/// The same for a time that may be null: for ever.
///
/// # Safety
/// As for [`get`].
unsafe fn end_at(timeout: *const timespec) -> Result<Option<u64>, ()> {
    if timeout.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's contract.
    unsafe { get(timeout) }.ok_or(()).and_then(end_of).map(Some)
}

fn answer(result: Result<usize, Errno>) -> c_int {
    match result {
        Ok(n) => n as c_int,
        Err(e) => fail(e),
    }
}

/// Makes a wait. What it holds back runs behind it, or behind the thread, if that is cancelled.
fn lasting<T>((end, mask): (Option<u64>, *const sigset_t), wait: impl FnOnce(Limits<'_>) -> T) -> T {
    let signals = Signals::new(mask);
    let result = releasing(signals.held(), || wait(Limits { end, signals: &signals }));
    signals.held().release();
    result
}

// --- poll -------------------------------------------------------------------------------------------------------------------------

/// Polls a copy until it is over; between its sleeps a thread can be cancelled. `None`: the call is the C library's.
fn run(fds: &mut Fds, limits: Limits<'_>) -> Option<Result<usize, Errno>> {
    loop {
        match guarded_or(Polled::Pass, || poll::poll(fds.of(), limits)) {
            Polled::Pass => return None,
            Polled::Done(result) => return Some(result),
            Polled::Again => cancellation_point(),
            Polled::Sleep(asleep) => {
                let got = leaving(&asleep, poll::left, || sleep(fds.of(), limits));
                let moved = guarded_or(false, || poll::after_sleep(asleep, fds.of()));
                if !moved || got.is_err() {
                    return Some(got);
                }
            }
        }
        limits.signals.resume();
    }
}

/// Sleeps in the C library.
fn sleep(fds: &mut [pollfd], limits: Limits<'_>) -> Result<usize, Errno> {
    let left = limits.left().map(time::timespec);
    let left = left.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: descriptors and a time of our own; the mask is the program's.
    checked(unsafe { real::ppoll()(fds.as_mut_ptr(), fds.len() as nfds_t, left, limits.signals.mask()) } as ssize_t)
}

/// # Safety
/// As for ppoll(2), but for addresses that are bad.
unsafe fn poll_within(fds: *mut pollfd, n: nfds_t, end: Option<u64>, mask: *const sigset_t) -> Option<c_int> {
    // SAFETY: the caller's contract.
    let mut copy = unsafe { Fds::copy(fds, n) }?;
    let result = lasting((end, mask), |limits| run(&mut copy, limits));
    // SAFETY: as above.
    let written = !matches!(result, Some(Ok(_))) || unsafe { copy.write_answers(fds) };
    copy.free();
    result.map(|result| answer(if written { result } else { Err(Errno::FAULT) }))
}

/// poll(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn poll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the program's arguments, passed on unchanged; so in every hook below.
    let real = || unsafe { real::poll()(fds, n, timeout) };
    if !is_awake() {
        return real();
    }
    // SAFETY: see above.
    unsafe { poll_within(fds, n, end_of_ms(timeout), ptr::null()) }.unwrap_or_else(real)
}

/// `poll` with a checked array size.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __poll_chk(fds: *mut pollfd, n: nfds_t, timeout: c_int, size: size_t) -> c_int {
    if size / size_of::<pollfd>() < n as usize {
        // SAFETY: the C library reports the overflow and ends the program.
        return unsafe { real::__poll_chk()(fds, n, timeout, size) };
    }
    // SAFETY: see `poll`.
    unsafe { poll(fds, n, timeout) }
}

/// ppoll(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ppoll(
    fds: *mut pollfd,
    n: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: see `poll`.
    let real = || unsafe { real::ppoll()(fds, n, timeout, mask) };
    if !is_awake() {
        return real();
    }
    // SAFETY: see `poll`.
    let Ok(end) = (unsafe { end_at(timeout) }) else { return real() };
    // SAFETY: see `poll`.
    unsafe { poll_within(fds, n, end, mask) }.unwrap_or_else(real)
}

/// `ppoll` with a checked array size.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __ppoll_chk(
    fds: *mut pollfd,
    n: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    size: size_t,
) -> c_int {
    if size / size_of::<pollfd>() < n as usize {
        // SAFETY: the C library reports the overflow and ends the program.
        return unsafe { real::__ppoll_chk()(fds, n, timeout, mask, size) };
    }
    // SAFETY: see `poll`.
    unsafe { ppoll(fds, n, timeout, mask) }
}

// --- select -----------------------------------------------------------------------------------------------------------------------

/// # Safety
/// As for pselect(2), but for addresses that are bad.
unsafe fn select_within(n: c_int, sets: Sets, end: Option<u64>, mask: *const sigset_t) -> Option<Result<usize, Errno>> {
    // SAFETY: the caller's contract.
    let mut copy = unsafe { sets.fds(n) }?;
    let result = lasting((end, mask), |limits| select_from(&mut copy, limits));
    select::unmute(copy.of());
    // SAFETY: as above.
    let result = result.map(|polled| polled.and_then(|_| unsafe { sets.write_answers(n, copy.of()) }));
    copy.free();
    result
}

/// Polls until there is something that select(2) reports.
fn select_from(fds: &mut Fds, limits: Limits<'_>) -> Option<Result<usize, Errno>> {
    let mut muted = false;
    loop {
        let end = if muted { Some(limits.end.unwrap_or(u64::MAX).min(time::now_ns() + MUTED_NS)) } else { limits.end };
        let polled = run(fds, Limits { end, ..limits });
        let woken = matches!(polled, Some(Ok(n)) if n > 0);
        if woken && !select::reports_any(fds.of()) && limits.left() != Some(0) {
            // What poll(2) reports in any case, and select(2) only if it is asked for.
            select::mute(fds.of());
            muted = true;
        } else if muted && matches!(polled, Some(Ok(_))) {
            select::unmute(fds.of());
            muted = false;
            // What was muted is reported with the others, and where the time is over.
            if woken || limits.left() == Some(0) {
                let all = run(fds, Limits { end: Some(0), ..limits });
                if select::reports_any(fds.of()) || limits.left() == Some(0) {
                    return all;
                }
            }
        } else {
            return polled;
        }
        limits.signals.resume();
    }
}

/// How long a select(2) mutes descriptors with an error or a hang-up that it does not report.
const MUTED_NS: u64 = 20_000_000;

/// select(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn select(
    n: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: see `poll`.
    let real = || unsafe { real::select()(n, read, write, except, timeout) };
    if !is_awake() {
        return real();
    }
    // SAFETY: see `poll`.
    let Ok(end) = (unsafe { end_of_select(timeout) }) else { return real() };
    // SAFETY: see `poll`.
    let result = unsafe { select_within(n, Sets { read, write, except }, end, ptr::null()) };
    let Some(result) = result else { return real() };
    if let Some(left) = end.map(|end| end.saturating_sub(time::now_ns())) {
        let left = timeval { tv_sec: (left / 1_000_000_000) as i64, tv_usec: (left % 1_000_000_000 / 1000) as i64 };
        // SAFETY: see `poll`.
        unsafe { fault::write(timeout, left) };
    }
    answer(result)
}

/// # Safety
/// As for [`get`].
unsafe fn end_of_select(timeout: *const timeval) -> Result<Option<u64>, ()> {
    if timeout.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's contract.
    let t = unsafe { get(timeout) }.ok_or(())?;
    let (s, us) = (t.tv_sec.checked_add(t.tv_usec / 1_000_000).ok_or(())?, t.tv_usec % 1_000_000);
    end_of(timespec { tv_sec: s, tv_nsec: us * 1000 }).map(Some)
}

/// pselect(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pselect(
    n: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: see `poll`.
    let real = || unsafe { real::pselect()(n, read, write, except, timeout, mask) };
    if !is_awake() {
        return real();
    }
    // SAFETY: see `poll`.
    let Ok(end) = (unsafe { end_at(timeout) }) else { return real() };
    // SAFETY: see `poll`.
    unsafe { select_within(n, Sets { read, write, except }, end, mask) }.map_or_else(real, answer)
}

// --- epoll ------------------------------------------------------------------------------------------------------------------------

/// epoll_ctl(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    // SAFETY: see `poll`.
    let real = || unsafe { real::epoll_ctl()(epfd, op, fd, event) };
    if !is_known(fd) {
        return real();
    }
    // SAFETY: see `poll`.
    let given = unsafe { wish(event) };
    let call = || checked(real() as ssize_t).map(|_| ());
    match guarded_or(None, || Some(epoll::control(epfd, op, fd, given, call))) {
        Some(Ok(())) => 0,
        Some(Err(e)) => fail(e),
        None => real(),
    }
}

/// What epoll_ctl(2) is given, by its parts: the whole, which is not aligned, would be copied in other parts than it is read.
///
/// # Safety
/// As for [`get`].
#[inline]
unsafe fn wish(event: *mut epoll_event) -> Option<epoll_event> {
    let data = event.wrapping_byte_add(core::mem::offset_of!(epoll_event, u64));
    // SAFETY: the caller's contract.
    unsafe { Some(epoll_event { events: get(event.cast())?, u64: get(data.cast())? }) }
}

/// epoll_wait(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_wait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int {
    let real = |t, mask: *const sigset_t| match mask.is_null() {
        // SAFETY: see `poll`.
        true => unsafe { real::epoll_wait()(epfd, events, max, t) },
        // SAFETY: see `poll`; the mask is ours.
        false => unsafe { real::epoll_pwait()(epfd, events, max, t, mask) },
    };
    wait_ms((epfd, events, max, timeout), ptr::null(), real)
}

/// epoll_pwait(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_pwait(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: see `poll`.
    let real = |t, mask| unsafe { real::epoll_pwait()(epfd, events, max, t, mask) };
    wait_ms((epfd, events, max, timeout), mask, real)
}

/// The millisecond waits; `real(timeout, mask)` is the C library's.
fn wait_ms(
    (epfd, events, max, timeout): (c_int, *mut epoll_event, c_int, c_int),
    mask: *const sigset_t,
    real: impl Fn(c_int, *const sigset_t) -> c_int,
) -> c_int {
    if !is_known(epfd) {
        return real(timeout, mask);
    }
    let milliseconds = |ns: u64| c_int::try_from(ns.div_ceil(1_000_000)).unwrap_or(c_int::MAX);
    let sleep = |limits: Limits<'_>| real(limits.left().map_or(-1, milliseconds), limits.signals.mask());
    wait((epfd, events, max), (end_of_ms(timeout), mask), sleep).map_or_else(|| real(timeout, mask), answer)
}

/// epoll_pwait2(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_pwait2(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: see `poll`.
    let real = |t: *const timespec, mask| unsafe { real::epoll_pwait2()(epfd, events, max, t, mask) };
    if !is_known(epfd) {
        return real(timeout, mask);
    }
    // SAFETY: see `poll`.
    let Ok(end) = (unsafe { end_at(timeout) }) else { return real(timeout, mask) };
    let sleep = |limits: Limits<'_>| {
        let left = limits.left().map(time::timespec);
        real(left.as_ref().map_or(ptr::null(), ptr::from_ref), limits.signals.mask())
    };
    wait((epfd, events, max), (end, mask), sleep).map_or_else(|| real(timeout, mask), answer)
}

/// How often the kernel may wake a wait without an event for the program, before a wait whose time is over ends: another process that
/// has the set and changes it may cause that for ever.
const MOST_IN_VAIN: u32 = 64;
/// From then on a wait pauses for so long in between: what is level-triggered is reported again at once.
const VAIN_NS: u64 = 1_000_000;

/// Waits; `sleep(limits)` is the C library's wait. `None`: the whole call is.
fn wait(
    (epfd, events, max): (c_int, *mut epoll_event, c_int),
    (end, mask): (Option<u64>, *const sigset_t),
    sleep: impl Fn(Limits<'_>) -> c_int,
) -> Option<Result<usize, Errno>> {
    lasting((end, mask), |limits| {
        let (mut vain, mut since) = (0u32, 0);
        loop {
            match guarded_or(Waited::Pass, || epoll::wait(epfd, events, max, limits)) {
                Waited::Pass => return None,
                Waited::Done(result) => return Some(result),
                Waited::Again => cancellation_point(),
                Waited::Sleep(asleep) => {
                    let got = leaving(&asleep, epoll::left, || sleep(limits));
                    if let Some(n) = guarded_or(Some(got), || epoll::after_sleep(asleep, events, got)) {
                        return Some(checked(n as ssize_t));
                    }
                }
            }
            limits.signals.resume();
            if vain == 0 {
                since = time::now_ns();
            }
            vain += 1;
            if vain <= MOST_IN_VAIN {
                continue;
            }
            if time::now_ns() > since + u64::from(MOST_IN_VAIN) * VAIN_NS {
                // It has slept in between.
                vain = 0;
            } else if let Some(ended) = pause(limits) {
                return Some(ended);
            }
        }
    })
}

/// Sleeps for a moment. `Some`: the wait is over.
fn pause(limits: Limits<'_>) -> Option<Result<usize, Errno>> {
    let left = limits.left().unwrap_or(VAIN_NS);
    if left == 0 {
        return Some(Ok(0));
    }
    sleep(&mut [], Limits { end: Some(time::now_ns() + left.min(VAIN_NS)), ..limits }).err().map(Err)
}
