//! What this process knows of itself: configuration, wait policy, its report, and whether it may use rings at all.

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::os::fd::AsRawFd;

use madrigal_netaccess::wait::WaitPolicy;
use madrigal_report::{Reason, Report};
use madrigal_sys::lock::Lock;

use crate::slab::zeroed_pages;

/// The wait policy of every wait in this process.
pub(crate) static POLICY: WaitPolicy = WaitPolicy::new();
/// Set while `--only` names ports.
static ONLY: AtomicBool = AtomicBool::new(false);
static ONLY_PORTS: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];
/// A [`Reason`] for which nothing moves in this process any more; 0 for none.
static OFF: AtomicU32 = AtomicU32::new(0);
/// True once only the kernel may be asked: see [`go_plain`].
static PLAIN: AtomicBool = AtomicBool::new(false);
/// Odd while a fork is under way; see [`fork_count`].
static FORKS: AtomicU32 = AtomicU32::new(0);
/// See [`pace_ns`].
static PACE_NS: AtomicU64 = AtomicU64::new(0);
static ID: AtomicU64 = AtomicU64::new(0);
static REPORT: AtomicPtr<Report> = AtomicPtr::new(core::ptr::null_mut());
static REPORT_FD: AtomicI32 = AtomicI32::new(-1);
static REPORT_LOCK: Lock = Lock::new();

/// Reads the configuration from the environment; called once, before any hook of this library runs.
pub(crate) fn configure() {
    learn_pace();
    if let Some(methods) = env(c"MADRIGAL_METHODS")
        && !method_allowed(methods, "shm")
    {
        OFF.store(Reason::MethodOff as u32, Ordering::Relaxed);
    }
    if let Some(directory) = env(c"MADRIGAL_DAEMON")
        && env(c"MADRIGAL_METHODS").is_none_or(|methods| method_allowed(methods, "daemon"))
    {
        crate::route::configure(directory);
    }
    if let Some(us) = env(c"MADRIGAL_SPIN_US").and_then(|v| v.parse::<u64>().ok()) {
        POLICY.set_max_spin_ns(us.min(1_000_000) * 1000);
    }
    if let Some(only) = env(c"MADRIGAL_ONLY").filter(|v| !v.is_empty()) {
        ONLY.store(true, Ordering::Relaxed);
        for range in only.split(',') {
            let (from, to) = range.split_once('-').unwrap_or((range, range));
            let (Ok(from), Ok(to)) = (from.trim().parse::<u16>(), to.trim().parse::<u16>()) else { continue };
            for port in from..=to {
                ONLY_PORTS[port as usize / 64].fetch_or(1 << (port % 64), Ordering::Relaxed);
            }
        }
    }
}

/// Programs that break when answers come too soon, and how soon is too soon. sockperf's ping-pong keeps a table with room for
/// 600,000 round trips a second (`MPS_MAX_PP`) and one second more, and ends with an error when there are more.
const TOO_FAST: &[(&str, u64)] = &[("sockperf", 900)];

unsafe extern "C" {
    /// The program's name without its folder (invocation_name(3)).
    static program_invocation_short_name: *const core::ffi::c_char;
}

fn learn_pace() {
    // SAFETY: the C library sets it before any constructor runs, to a string of the program's arguments.
    let name = unsafe { program_invocation_short_name };
    if name.is_null() {
        return;
    }
    // SAFETY: as above: null-terminated.
    let name = unsafe { CStr::from_ptr(name) }.to_str();
    if let Some((_, ns)) = TOO_FAST.iter().find(|(program, _)| name == Ok(program)) {
        PACE_NS.store(*ns, Ordering::Relaxed);
    }
}

/// Nanoseconds a client must let pass between its request and the answer, because it would break otherwise; 0 for all but a few
/// programs.
#[inline]
pub(crate) fn pace_ns() -> u64 {
    PACE_NS.load(Ordering::Relaxed)
}

/// An environment variable, as it was at start.
pub(crate) fn env(name: &CStr) -> Option<&'static str> {
    // SAFETY: a null-terminated name; called while the program is still single-threaded or from set-up code that, like every
    // getenv(3), must not race with a setenv(3) of the same variable.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: getenv gave a null-terminated string of the environment block.
    unsafe { CStr::from_ptr(value) }.to_str().ok()
}

/// Whether a method list such as `shm,tcp` or `^shm` allows `method`.
fn method_allowed(list: &str, method: &str) -> bool {
    let (deny, names) = list.strip_prefix('^').map_or((false, list), |rest| (true, rest));
    names.split(',').any(|n| n.trim() == method) != deny
}

/// Why nothing may move to a ring in this process, if so.
pub(crate) fn off() -> Option<Reason> {
    Reason::from_code(OFF.load(Ordering::Relaxed))
}

/// Turns rings off for the rest of this process's life.
pub(crate) fn turn_off(reason: Reason) {
    OFF.store(reason as u32, Ordering::Relaxed);
}

/// From now on hooks make only the calls the program itself makes (a sandbox may kill for any other).
pub(crate) fn go_plain() {
    PLAIN.store(true, Ordering::Relaxed);
}

/// Whether [`go_plain`] was called.
#[inline]
pub(crate) fn is_plain() -> bool {
    PLAIN.load(Ordering::Relaxed)
}

/// Whether the user wants connections on this port moved.
pub(crate) fn port_wanted(port: u16) -> bool {
    !ONLY.load(Ordering::Relaxed) || ONLY_PORTS[port as usize / 64].load(Ordering::Relaxed) >> (port % 64) & 1 != 0
}

/// A random number naming this process (changes at fork).
pub(crate) fn id() -> u64 {
    let known = ID.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let fresh = madrigal_sys::process::random() | 1;
    ID.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed).map_or_else(|seen| seen, |_| fresh)
}

/// How many forks began or ended so far. A descriptor made while this changed may have a copy in a child nobody counted.
#[inline]
pub(crate) fn fork_count() -> u32 {
    FORKS.load(Ordering::SeqCst)
}

/// Marks the beginning and the end of a fork.
pub(crate) fn fork_step() {
    FORKS.fetch_add(1, Ordering::SeqCst);
}

/// The table `madrigal why` reads; made on first use. `None` when it cannot be made: everything works, nothing is told.
#[inline]
pub(crate) fn report() -> Option<&'static Report> {
    let report = REPORT.load(Ordering::Acquire);
    if report.is_null() {
        return make_report();
    }
    // SAFETY: a report is published once and lives for ever.
    Some(unsafe { &*report })
}

/// The report's descriptor, which the program must neither see nor close; -1 for none.
#[inline]
pub(crate) fn report_fd() -> i32 {
    REPORT_FD.load(Ordering::Relaxed)
}

#[cold]
fn make_report() -> Option<&'static Report> {
    if is_plain() || REPORT_FD.load(Ordering::Relaxed) == -2 {
        return None;
    }
    let guard = REPORT_LOCK.lock();
    if guard.nested() {
        return None;
    }
    let known = REPORT.load(Ordering::Acquire);
    if !known.is_null() {
        // SAFETY: as in `report`.
        return Some(unsafe { &*known });
    }
    let made = Report::create().ok().zip(zeroed_pages(size_of::<Report>()));
    let Some((report, place)) = made else {
        REPORT_FD.store(-2, Ordering::Relaxed);
        return None;
    };
    REPORT_FD.store(report.fd().as_raw_fd(), Ordering::Relaxed);
    let place = place.cast::<Report>();
    // SAFETY: fresh pages, large and aligned enough, that nobody else knows yet and that are never unmapped.
    let report = unsafe {
        place.write(report);
        &*place
    };
    REPORT.store(place, Ordering::Release);
    Some(report)
}

/// Moves the report's descriptor out of the way: the program wants that very number.
pub(crate) fn yield_report_fd() {
    let old = REPORT_FD.load(Ordering::Relaxed);
    if let Ok(new) = madrigal_sys::raw::fcntl(old, libc::F_DUPFD_CLOEXEC, old.max(0) as usize + 1) {
        REPORT_FD.store(new, Ordering::Relaxed);
    }
}

/// The program is out of descriptors: gives up the report's, which only serves to find it. True if there was one.
pub(crate) fn give_up_report_fd() -> bool {
    let fd = REPORT_FD.swap(-1, Ordering::Relaxed);
    if fd >= 0 {
        madrigal_sys::raw::close(fd);
    }
    fd >= 0
}

/// The child after fork(2): another process with a report of its own.
pub(crate) fn after_fork() {
    REPORT_LOCK.reset();
    ID.store(0, Ordering::Relaxed);
    let fd = REPORT_FD.swap(-1, Ordering::Relaxed);
    REPORT.store(core::ptr::null_mut(), Ordering::Release);
    if fd >= 0 {
        madrigal_sys::raw::close(fd);
    }
}
