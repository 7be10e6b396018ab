//! What this process knows of itself: configuration, wait policy, its report, and whether it may use rings at all.

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::os::fd::AsRawFd;

use madrigal_progress::wait::WaitPolicy;
use madrigal_report::{Reason, Report};

use super::lock::Lock;
use super::slab::zeroed_pages;
use super::{fork_locks, load, table};

/// The wait policy of every wait in this process.
pub(crate) static POLICY: WaitPolicy = WaitPolicy::new();
/// Set while `--only` names ports.
static ONLY: AtomicBool = AtomicBool::new(false);
static ONLY_PORTS: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];
/// A [`Reason`] for which nothing moves in this process any more; 0 for none.
static OFF: AtomicU32 = AtomicU32::new(0);
/// True once only the kernel may be asked: see [`go_plain`].
static PLAIN: AtomicBool = AtomicBool::new(false);
/// How many forks began or ended so far; odd while one is under way.
static FORKS: AtomicU32 = AtomicU32::new(0);
/// One of [`eager`].
static EAGER: AtomicU32 = AtomicU32::new(eager::NOT);
/// The state of a generator of random numbers, for [`eager::RANDOM`].
static DICE: AtomicU64 = AtomicU64::new(0);
/// Sums are kept of what travels in rings.
static CHECKS: AtomicBool = AtomicBool::new(false);
/// How many calls that spawn began or ended so far; odd while one is under way.
static SPAWNS: AtomicU32 = AtomicU32::new(0);
static SPAWNING: AtomicU32 = AtomicU32::new(0);
static ID: AtomicU64 = AtomicU64::new(0);
static REPORT: AtomicPtr<Report> = AtomicPtr::new(core::ptr::null_mut());
static REPORT_FD: AtomicI32 = AtomicI32::new(-1);
static REPORT_LOCK: Lock = Lock::new();

/// Reads the configuration from the environment; called once, before any hook of this library runs.
pub(crate) fn configure() {
    if !allows("shm") {
        OFF.store(Reason::MethodOff as u32, Ordering::Relaxed);
    }
    if let Some(us) = env(c"MADRIGAL_SPIN_US").and_then(|v| v.parse::<u64>().ok()) {
        POLICY.set_max_spin_ns(us.min(1_000_000) * 1000);
    }
    CHECKS.store(env(c"MADRIGAL_CHECK").is_some_and(|v| !matches!(v, "" | "0")), Ordering::Relaxed);
    if let Some(text) = env(c"MADRIGAL_EAGER") {
        be_eager(text);
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

/// When connections earn a ring, in tests.
mod eager {
    /// When it pays.
    pub(super) const NOT: u32 = 0;
    /// At the first byte.
    pub(super) const FIRST: u32 = 1;
    /// So, too; and sessions are left at random points, and earned again.
    pub(super) const RANDOM: u32 = 2;
}

/// How many data calls on a session, on average, until it is left at random.
const LEAVES_AFTER: u64 = 24;

fn be_eager(text: &str) {
    let (how, seed) = text.split_once(':').unwrap_or((text, ""));
    let how = match how {
        "first" => eager::FIRST,
        "random" => eager::RANDOM,
        _ => eager::NOT,
    };
    EAGER.store(how, Ordering::Relaxed);
    // Different in each process of a run, and the same in each run.
    let name = program_name().bytes().fold(0u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
    DICE.store(seed.parse::<u64>().unwrap_or_else(|_| madrigal_sys::process::random()) ^ name, Ordering::Relaxed);
}

unsafe extern "C" {
    /// The program's name without its folder (invocation_name(3)).
    static program_invocation_short_name: *const core::ffi::c_char;
}

fn program_name() -> &'static str {
    // SAFETY: the C library sets it before any constructor runs, to a string of the program's arguments, or leaves it null.
    let name = unsafe { program_invocation_short_name };
    if name.is_null() {
        return "";
    }
    // SAFETY: as above: null-terminated.
    unsafe { CStr::from_ptr(name) }.to_str().unwrap_or("")
}

/// Sends that earn the first try.
pub(crate) fn first_try() -> u32 {
    // A session costs both ends together about as much as ten small exchanges.
    if EAGER.load(Ordering::Relaxed) == eager::NOT { 8 } else { 1 }
}

/// Whether to leave a session now, for a test.
#[inline]
pub(crate) fn leaves_at_random() -> bool {
    EAGER.load(Ordering::Relaxed) == eager::RANDOM && {
        // splitmix64
        let state = DICE.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
        let mixed = (state ^ state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ mixed >> 31).is_multiple_of(LEAVES_AFTER)
    }
}

/// Whether sums are kept of what travels in rings.
pub(crate) fn checks() -> bool {
    CHECKS.load(Ordering::Relaxed)
}

/// Shared memory has impossible values. A peer may write anything, and harms its own connections only. But if sums are checked this counts
/// as a fault of ours: nothing new moves in this process.
#[cold]
pub(crate) fn contradiction() {
    if checks() {
        disable(Reason::Contradiction);
    }
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

/// Whether the user allows this method.
pub(crate) fn allows(method: &str) -> bool {
    env(c"MADRIGAL_METHODS").is_none_or(|methods| method_allowed(methods, method))
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

/// Disables rings for the rest of this process's life.
pub(crate) fn disable(reason: Reason) {
    OFF.store(reason as u32, Ordering::Relaxed);
    if let Some(report) = made_report() {
        report.set_off(reason);
    }
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

/// Whether the user wants only some ports looked after.
pub(crate) fn wants_some_ports() -> bool {
    ONLY.load(Ordering::Relaxed)
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

/// Marks the beginning and the end of a fork.
pub(crate) fn fork_step() {
    FORKS.fetch_add(1, Ordering::SeqCst);
}

/// Marks the beginning and the end of a call that spawns.
pub(crate) fn spawn_step(begins: bool) {
    SPAWNS.fetch_add(1, Ordering::SeqCst);
    if begins {
        SPAWNING.fetch_add(1, Ordering::SeqCst);
    } else {
        SPAWNING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// How many children were made, or are being made, that may have an uncounted copy of a descriptor: of any, or only of one that does not
/// close on exec. `None`: one is being made now.
pub(crate) fn children(closes_on_exec: bool) -> Option<u32> {
    let (forks, spawns) = (FORKS.load(Ordering::SeqCst), SPAWNS.load(Ordering::SeqCst));
    if forks & 1 != 0 || !closes_on_exec && SPAWNING.load(Ordering::SeqCst) != 0 {
        return None;
    }
    Some(if closes_on_exec { forks } else { forks.wrapping_add(spawns) })
}

/// The table `madrigal why` reads; made on first use. `None` when it cannot be made: everything works, nothing is reported.
#[inline]
pub(crate) fn report() -> Option<&'static Report> {
    made_report().or_else(make_report)
}

/// The same, if it is made already.
#[inline]
fn made_report() -> Option<&'static Report> {
    // SAFETY: a report is published once and lives for ever.
    unsafe { REPORT.load(Ordering::Acquire).as_ref() }
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
    if let Some(known) = made_report() {
        return Some(known);
    }
    let made = Report::create().ok().zip(zeroed_pages(size_of::<Report>()));
    let Some((report, place)) = made else {
        REPORT_FD.store(-2, Ordering::Relaxed);
        return None;
    };
    REPORT_FD.store(report.fd().as_raw_fd(), Ordering::Relaxed);
    table::hide(report.fd().as_raw_fd());
    let place = place.cast::<Report>();
    // SAFETY: fresh pages, large and aligned enough, that no other code knows yet and that are never unmapped.
    let report = unsafe {
        place.write(report);
        &*place
    };
    if let Some(reason) = off() {
        report.set_off(reason);
    }
    REPORT.store(place, Ordering::Release);
    load::keep();
    Some(report)
}

/// The program wants that very number, by dup2(2): our descriptor is another one from now on. False: it is not this one.
pub(crate) fn yield_report_fd(wanted: i32) -> bool {
    let ours = wanted >= 0 && REPORT_FD.load(Ordering::Relaxed) == wanted;
    if ours {
        REPORT_FD.store(table::move_hidden(wanted), Ordering::Relaxed);
    }
    ours
}

/// The program is out of descriptors: gives up the report's, which only serves to find it. True if there was one.
pub(crate) fn give_up_report_fd() -> bool {
    table::close_hidden(REPORT_FD.swap(-1, Ordering::Relaxed))
}

/// Before a fork: no thread makes the report until the fork is over.
pub(crate) fn quiesce() {
    fork_locks::acquire(&REPORT_LOCK);
}

/// In the parent: undoes [`quiesce`].
pub(crate) fn resume() {
    fork_locks::release(&REPORT_LOCK);
}

/// The child after fork(2): another process with a report of its own.
pub(crate) fn after_fork() {
    fork_locks::reset(&REPORT_LOCK);
    ID.store(0, Ordering::Relaxed);
    SPAWNING.store(0, Ordering::Relaxed);
    REPORT.store(core::ptr::null_mut(), Ordering::Release);
    give_up_report_fd();
}
