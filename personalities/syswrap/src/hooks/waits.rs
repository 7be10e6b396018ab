//! Waits: poll(2), select(2), epoll(7).

use core::ffi::c_int;
use core::ptr;

use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};
use madrigal_sys::{Errno, time};

use super::{fail, guarded_or};
use crate::epoll::{self, Limits, Waited};
use crate::poll::{self, Polled, Sets};
use crate::{process, real, table};

/// When a wait of `timeout` milliseconds ends.
fn end_of_ms(timeout: c_int) -> Option<u64> {
    match timeout {
        0 => Some(0),
        1.. => Some(time::now_ns() + timeout as u64 * 1_000_000),
        _ => None,
    }
}

/// When a wait of this long ends. An illegal time is the C library's to refuse.
///
/// # Safety
/// `timeout` is null or points to a time.
unsafe fn end_of(timeout: *const timespec) -> Result<Option<u64>, ()> {
    if timeout.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's contract.
    let t = unsafe { *timeout };
    match (t.tv_sec, t.tv_nsec) {
        (0, 0) => Ok(Some(0)),
        (s, n) if s >= 0 && (0..1_000_000_000).contains(&n) => {
            let ns = (s as u64).saturating_mul(1_000_000_000).saturating_add(n as u64);
            Ok(Some(time::now_ns().saturating_add(ns)))
        }
        _ => Err(()),
    }
}

fn answer(result: Result<usize, Errno>) -> c_int {
    match result {
        Ok(n) => n as c_int,
        Err(e) => fail(e),
    }
}

/// Whether only the kernel may be asked.
fn idle() -> bool {
    process::is_plain()
}

/// Whether a poll(2) has something of ours among its descriptors.
///
/// # Safety
/// `fds` points to `n` entries.
#[inline]
unsafe fn concerns_us(fds: *mut pollfd, n: nfds_t) -> bool {
    if idle() || fds.is_null() || n == 0 || n > 1 << 20 {
        return false;
    }
    // SAFETY: the caller's contract.
    unsafe { core::slice::from_raw_parts(fds, n as usize) }.iter().any(|p| poll::is_ours(p.fd))
}

/// Runs our poll; `None`: the C library's.
///
/// # Safety
/// `fds` points to `n` entries; the mask in `limits` is null or points to a signal set.
unsafe fn run(fds: *mut pollfd, n: nfds_t, limits: Limits) -> Option<Result<usize, Errno>> {
    // SAFETY: the caller's contract.
    let fds = unsafe { core::slice::from_raw_parts_mut(fds, n as usize) };
    again(|| poll::poll(fds, limits))
}

/// Polls until it is over; between its sleeps a thread can be cancelled.
fn again(mut poll: impl FnMut() -> Polled) -> Option<Result<usize, Errno>> {
    loop {
        match guarded_or(Polled::Pass, &mut poll) {
            Polled::Pass => return None,
            Polled::Done(result) => return Some(result),
            Polled::Again => super::cancellation_point(),
        }
    }
}

/// poll(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn poll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the program's arguments, passed on unchanged; so in every hook below.
    let real = || unsafe { real::poll()(fds, n, timeout) };
    // SAFETY: see above.
    if !unsafe { concerns_us(fds, n) } {
        return real();
    }
    let limits = Limits { end: end_of_ms(timeout), mask: ptr::null() };
    // SAFETY: see above.
    if let Some(result) = unsafe { run(fds, n, limits) } {
        return answer(result);
    }
    let since = time::now_ns();
    let result = real();
    learn(timeout != 0, since);
    result
}

/// Lets the thread's waiter learn from a sleep in the C library.
fn learn(slept: bool, since: u64) {
    if slept && !idle() {
        let saved = crate::outcome::errno();
        poll::after_sleep(since);
        crate::outcome::restore_errno(saved);
    }
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
    if unsafe { concerns_us(fds, n) }
        // SAFETY: see `poll`.
        && let Ok(end) = unsafe { end_of(timeout) }
        // SAFETY: see `poll`.
        && let Some(result) = unsafe { run(fds, n, Limits { end, mask }) }
    {
        return answer(result);
    }
    // SAFETY: see `poll`.
    unsafe { real::ppoll()(fds, n, timeout, mask) }
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

/// select(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn select(
    n: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let sets = Sets { read, write, except };
    let mut spec = timespec { tv_sec: 0, tv_nsec: 0 };
    let mut time_ptr: *const timespec = ptr::null();
    if !timeout.is_null() {
        // SAFETY: see `poll`.
        let t = unsafe { *timeout };
        spec = timespec { tv_sec: t.tv_sec + t.tv_usec / 1_000_000, tv_nsec: t.tv_usec % 1_000_000 * 1000 };
        time_ptr = &raw const spec;
    }
    // SAFETY: our own copy of the time.
    if let Ok(end) = unsafe { end_of(time_ptr) } {
        let limits = Limits { end, mask: ptr::null() };
        // SAFETY: see `poll`.
        if let Some(result) = unsafe { run_select(n, sets, limits) } {
            if result.is_ok() && !timeout.is_null() {
                // SAFETY: see `poll`.
                unsafe { *timeout = poll::left_of(limits) };
            }
            return answer(result);
        }
    }
    let _ = spec;
    // SAFETY: see `poll`.
    unsafe { real::select()(n, read, write, except, timeout) }
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
    if let Ok(end) = unsafe { end_of(timeout) }
        // SAFETY: see `poll`.
        && let Some(result) = unsafe { run_select(n, Sets { read, write, except }, Limits { end, mask }) }
    {
        return answer(result);
    }
    // SAFETY: see `poll`.
    unsafe { real::pselect()(n, read, write, except, timeout, mask) }
}

/// # Safety
/// As for select(2) and [`Limits`].
unsafe fn run_select(n: c_int, sets: Sets, limits: Limits) -> Option<Result<usize, Errno>> {
    if idle() || n <= 0 || n > 1 << 20 {
        return None;
    }
    // SAFETY: the caller's contract.
    again(|| unsafe { poll::select(n as usize, sets, limits) })
}

/// epoll_ctl(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    // SAFETY: see `poll`.
    let call = || unsafe { real::epoll_ctl()(epfd, op, fd, event) };
    if table::get(fd).is_none() || idle() {
        return call();
    }
    // SAFETY: see `poll`.
    let given = if event.is_null() { None } else { Some(unsafe { event.read_unaligned() }) };
    let result = guarded_or(None, || Some(epoll::control(epfd, op, fd, given, call)));
    result.unwrap_or_else(call)
}

/// epoll_wait(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_wait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int {
    // SAFETY: see `poll`.
    unsafe { wait_ms(epfd, events, max, timeout, ptr::null(), |t| real::epoll_wait()(epfd, events, max, t)) }
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
    unsafe { wait_ms(epfd, events, max, timeout, mask, |t| real::epoll_pwait()(epfd, events, max, t, mask)) }
}

/// The millisecond waits; `real(timeout)` is the C library's.
///
/// # Safety
/// As for epoll_pwait(2).
unsafe fn wait_ms(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: c_int,
    mask: *const sigset_t,
    real: impl Fn(c_int) -> c_int,
) -> c_int {
    if table::get(epfd).is_none() || idle() {
        return real(timeout);
    }
    let limits = Limits { end: end_of_ms(timeout), mask };
    loop {
        match guarded_or(Waited::Pass, || epoll::wait(epfd, events, max, limits)) {
            Waited::Pass => return real(timeout),
            Waited::Done(result) => return answer(result),
            Waited::Again => super::cancellation_point(),
            Waited::Sleep(since) => {
                let left = limits.left().map_or(-1, |ns| c_int::try_from(ns.div_ceil(1_000_000)).unwrap_or(c_int::MAX));
                let got = real(left);
                if let Some(n) = guarded_or(Some(got), || epoll::after_sleep(epfd, events, got, since)) {
                    return n;
                }
            }
        }
    }
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
    let real = |t: *const timespec| unsafe { real::epoll_pwait2()(epfd, events, max, t, mask) };
    // SAFETY: see `poll`.
    let Ok(end) = (unsafe { end_of(timeout) }) else { return real(timeout) };
    if table::get(epfd).is_none() || idle() {
        return real(timeout);
    }
    let limits = Limits { end, mask };
    loop {
        match guarded_or(Waited::Pass, || epoll::wait(epfd, events, max, limits)) {
            Waited::Pass => return real(timeout),
            Waited::Done(result) => return answer(result),
            Waited::Again => super::cancellation_point(),
            Waited::Sleep(since) => {
                let left = limits.left().map(time::timespec);
                let got = real(left.as_ref().map_or(ptr::null(), ptr::from_ref));
                if let Some(n) = guarded_or(Some(got), || epoll::after_sleep(epfd, events, got, since)) {
                    return n;
                }
            }
        }
    }
}
