//! The exported names. Each hook gathers its arguments, calls the logic behind a panic guard, and ends by its [`Outcome`].
//!
//! To add one: CONTRIBUTING.md, "A hook". Hooks use the `C-unwind` ABI so that a thread cancelled inside the C library's own call unwinds
//! through them: their frames hold plain memory only.
//!
//! ```text
//!  is_socket, is_known   the gates: a TCP socket, anything that we know; of others the call goes on at once
//!  guarded, guarded_or   run the logic: no signal handler interrupts it, no panic leaves it
//!  aside                 the same around the program's own call: errno stays
//!  finish                ends a data call by its outcome
//!  forgetting            a call that closes a descriptor
//!  leaving               a sleep in the C library, which a thread may leave for good
//!  critical::outside     a sleep in a critical part: handlers run meanwhile
//!  get, fault            the program's memory, read and written: its addresses may be bad
//!  kernel_soon, kernel_only, sends_by_kernel   a connection goes by the kernel from now on, for a reason
//!  stdio::before_printf  the C library is about to write by itself; leaves_rest, await_gate: to read, to write where bytes go back
//! ```
// Exported to the dynamic linker, which rustc does not count as reachable.
#![allow(unreachable_pub)]

mod aio;
mod aliases;
mod data;
mod fds;
mod files;
mod messages;
mod names;
mod options;
mod processes;
mod shut;
mod signals;
mod stdio;
mod syscall;
mod waits;

use core::ffi::{c_int, c_void};

use libc::ssize_t;
use madrigal_report::Reason;
use madrigal_sys::critical::Critical;
use madrigal_sys::signals::Held;
use madrigal_sys::{Errno, fault};

use crate::io::target::Target;
use crate::io::{handlers, plain, recv, send};
use crate::lifecycle::close;
use crate::lifecycle::leave::{Back, leave_for_good};
use crate::outcome::{Outcome, errno, set_errno};
use crate::state::sock::mode;
use crate::state::socket::view;
use crate::state::table::{self, Kind};
use crate::state::{process, sock};

unsafe extern "C-unwind" {
    fn pthread_testcancel();
    fn _pthread_cleanup_push(cleanup: *mut Cleanup, routine: extern "C-unwind" fn(*mut c_void), held: *mut c_void);
    fn _pthread_cleanup_pop(cleanup: *mut Cleanup, runs: c_int);
}

/// `struct _pthread_cleanup_buffer`, which is the C library's.
type Cleanup = [usize; 4];

/// Whether `fd` is a TCP socket we know.
#[inline]
fn is_socket(fd: c_int) -> bool {
    table::get(fd).is_some_and(|w| w.kind() == Kind::Socket) && !process::is_plain()
}

/// Whether `fd` is anything we know.
#[inline]
fn is_known(fd: c_int) -> bool {
    table::get(fd).is_some() && !process::is_plain()
}

/// Runs a hook's logic, which no signal handler interrupts; should it panic, the program's call goes to the C library as if we were not
/// there.
#[inline]
fn guarded(logic: impl FnOnce() -> Outcome) -> Outcome {
    guarded_or(Outcome::Pass, logic)
}

/// The same for logic with another kind of result.
#[inline]
fn guarded_or<T>(otherwise: T, logic: impl FnOnce() -> T) -> T {
    let _critical = Critical::enter();
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(logic)).unwrap_or(otherwise)
}

/// The same, around the program's own call: errno stays as that left it.
#[inline]
fn aside(logic: impl FnOnce()) {
    let saved = errno();
    guarded_or((), logic);
    crate::outcome::restore_errno(saved);
}

/// Ends a data call; `real` makes the program's call on the C library.
#[inline]
fn finish(fd: c_int, outcome: Outcome, real: impl FnOnce() -> ssize_t) -> ssize_t {
    match outcome {
        Outcome::Done(n) => n as ssize_t,
        Outcome::Fail(e) => fail(e) as ssize_t,
        // To the handler on top of a close it is closed.
        Outcome::Pass if table::is_closing_here(fd) => fail(Errno::BADF) as ssize_t,
        Outcome::Pass | Outcome::Await(_) | Outcome::Again => real(),
        Outcome::Sleep(ticket) => {
            let ret = leaving(&ticket, plain::left, real);
            guarded_or((), || plain::after_sleep(ticket, ret));
            let reset = ret < 0 && errno() == libc::ECONNRESET;
            if ticket.receiving && (reset || ret == 0) { judged(fd, ret) } else { ret }
        }
    }
}

/// The same for a receive that returns more than a number of bytes. `write_end` writes the rest where the kernel has reported an error that
/// is the end of the stream, and nothing else. False: its address is bad.
fn finish_whole(
    fd: c_int,
    outcome: Outcome,
    real: impl FnOnce() -> ssize_t,
    write_end: impl FnOnce() -> bool,
) -> ssize_t {
    let refused = core::cell::Cell::new(false);
    let result = finish(fd, outcome, || {
        let result = real();
        refused.set(result < 0);
        result
    });
    if result == 0 && refused.get() && !write_end() { fail(Errno::FAULT) as ssize_t } else { result }
}

/// The kernel reported a reset, or the end, to a receive: is it what the peer meant?
#[cold]
fn judged(fd: c_int, result: ssize_t) -> ssize_t {
    let outcome = if result == 0 { Outcome::Done(0) } else { Outcome::Fail(Errno::CONNRESET) };
    match guarded(|| recv::judged(fd, outcome)) {
        Outcome::Done(n) => n as ssize_t,
        Outcome::Fail(e) => fail(e) as ssize_t,
        _ => result,
    }
}

/// Where a thread that was cancelled ends.
fn cancellation_point() {
    // SAFETY: no arguments; it may unwind this thread, and no frame of ours above this one has anything to drop.
    unsafe { pthread_testcancel() };
}

/// Closes a descriptor that we know, by `real`, in which a thread can be cancelled.
/// No handler runs meanwhile, which would find it half closed.
fn forgetting<T>(fd: c_int, real: impl FnOnce() -> T) -> T {
    // Forgotten, for the thread's end passes by this frame.
    core::mem::forget(Critical::enter());
    guarded_or((), || close::begin(fd));
    // SAFETY: what the routine takes.
    let result = unsafe { unless_cancelled(forgotten, core::ptr::without_provenance_mut(fd as usize), real) };
    forgotten(core::ptr::without_provenance_mut(fd as usize));
    result
}

extern "C-unwind" fn forgotten(fd: *mut c_void) {
    let _critical = Critical::resume();
    guarded_or((), || close::end(fd.addr() as c_int));
}

/// Runs what may end a thread that was cancelled. The signals it holds back are released before anything of the program's runs, and the
/// socket it sleeps on.
fn cancellable<T>(held: &Held, target: &Target, call: impl FnOnce() -> T) -> T {
    let holds = (held, target);
    // SAFETY: what the routine takes.
    unsafe { unless_cancelled(release, core::ptr::from_ref(&holds).cast_mut().cast(), call) }
}

/// The same where there is no socket.
fn releasing<T>(held: &Held, call: impl FnOnce() -> T) -> T {
    // SAFETY: what the routine takes.
    unsafe { unless_cancelled(release_held, core::ptr::from_ref(held).cast_mut().cast(), call) }
}

extern "C-unwind" fn release_held(held: *mut c_void) {
    // SAFETY: what `releasing` was given, in a frame behind its own.
    unsafe { &*held.cast::<Held>() }.release();
}

extern "C-unwind" fn release(held: *mut c_void) {
    // SAFETY: what `cancellable` was given, in a frame behind its own.
    let (held, target) = unsafe { *held.cast::<(&Held, &Target)>() };
    held.release();
    guarded_or((), || target.leave());
}

/// The same where a descriptor of ours, if there is one, would stay open.
fn closing<T>(fd: c_int, call: impl FnOnce() -> T) -> T {
    if fd < 0 {
        return call();
    }
    // SAFETY: what the routine takes.
    unsafe { unless_cancelled(close_own, core::ptr::without_provenance_mut(fd as usize), call) }
}

extern "C-unwind" fn close_own(fd: *mut c_void) {
    handlers::close_own(fd.addr() as c_int);
}

/// Sleeps in the C library; a thread that leaves that for good, cancelled or by longjmp(3), passes by `left` with what it is counted by.
fn leaving<A, T>(asleep: &A, left: fn(&A), sleep: impl FnOnce() -> T) -> T {
    extern "C-unwind" fn pass<A>(at: *mut c_void) {
        // SAFETY: what `leaving` was given, in a frame behind this one.
        let (asleep, left) = unsafe { *at.cast::<(&A, fn(&A))>() };
        guarded_or((), || left(asleep));
    }
    let held = (asleep, left);
    // SAFETY: what the routine takes.
    unsafe { unless_cancelled(pass::<A>, core::ptr::from_ref(&held).cast_mut().cast(), sleep) }
}

/// Runs what may end a thread that was cancelled: then by way of `routine`.
///
/// # Safety
/// `routine` may be called with `at` as long as this call lasts.
unsafe fn unless_cancelled<T>(
    routine: extern "C-unwind" fn(*mut c_void),
    at: *mut c_void,
    call: impl FnOnce() -> T,
) -> T {
    let mut cleanup = Cleanup::default();
    // SAFETY: it lives as long as this call; the thread's end passes by this frame, and runs the routine here.
    unsafe { _pthread_cleanup_push(&raw mut cleanup, routine, at) };
    let result = call();
    // SAFETY: what was pushed last: calls in between take back what they push.
    unsafe { _pthread_cleanup_pop(&raw mut cleanup, 0) };
    result
}

/// -1 and errno. A wait that was interrupted is where a cancelled thread ends.
#[cold]
fn fail(e: Errno) -> c_int {
    if e == Errno::INTR {
        cancellation_point();
    }
    set_errno(e);
    -1
}

/// The result of a call of the C library's.
fn checked(result: ssize_t) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| madrigal_sys::errno_from(errno()))
}

/// Reads one of the program's values. `None`: its address is bad, which the kernel will report.
///
/// # Safety
/// If it is mapped, the program vouches for it.
unsafe fn get<T: Copy>(from: *const T) -> Option<T> {
    if from.is_null() {
        return None;
    }
    // SAFETY: the caller's contract; what the C library's calls take are plain structures.
    unsafe { fault::read(from) }
}

/// Before a call that has to find every byte in the kernel, and leaves no trace in rings: the socket is a plain one from now on.
fn kernel_only(fd: c_int, reason: Reason) {
    if is_known(fd) {
        guarded_or((), || {
            if let Some(s) = sock::enter(fd) {
                leave_for_good(&s, fd, reason, Back::IntoKernel);
            }
        });
    }
}

/// The same where we can make the call ourselves. True: we have to, for what a gone peer left in the ring cannot be had in the kernel.
fn leaves_rest(fd: c_int, reason: Reason) -> bool {
    kernel_soon(fd, reason);
    let rests = has_rest(fd);
    if !rests {
        kernel_only(fd, reason);
    }
    rests
}

/// Whether bytes are left in the ring, or only we know of the end or the error behind them.
fn has_rest(fd: c_int) -> bool {
    let check = || {
        let s = sock::enter(fd).filter(|s| s.mode() == mode::SESSION)?;
        let in_ring = || view(&s, fd).is_some_and(|v| v.inbound() > 0 || v.ended());
        Some(s.session.is_gone() || s.session.has_pending_error() || s.session.receives() && in_ring())
    };
    is_known(fd) && guarded_or(false, || check().unwrap_or(false))
}

/// Whether the peer has gone, and only we know the result of a send.
fn is_gone(fd: c_int) -> bool {
    is_known(fd)
        && guarded_or(false, || sock::enter(fd).is_some_and(|s| s.mode() == mode::SESSION && s.session.is_gone()))
}

/// Whether there are bytes to be received.
fn has_bytes(fd: c_int) -> bool {
    guarded_or(false, || sock::enter(fd).is_some_and(|s| view(&s, fd).is_some_and(|v| v.inbound() > 0)))
}

/// Before the C library sends by itself, which the gate does not hold: not while the peer puts unread bytes back.
fn await_gate(fd: c_int) {
    if is_known(fd) {
        guarded_or((), || {
            if let Some(s) = sock::enter(fd) {
                send::in_order(&s, fd, || ());
            }
        });
    }
}

/// Before a call behind which our hooks read on: what is unread stays where it is, if it cannot be had in the kernel at once.
fn kernel_soon(fd: c_int, reason: Reason) {
    if is_known(fd) {
        guarded_or((), || {
            if let Some(s) = sock::enter(fd) {
                leave_for_good(&s, fd, reason, Back::IfPossible);
            }
        });
    }
}

/// The same before a call that only sends: what is unread stays where it is.
fn sends_by_kernel(fd: c_int, reason: Reason) {
    if is_known(fd) {
        guarded_or((), || {
            if let Some(s) = sock::enter(fd) {
                leave_for_good(&s, fd, reason, Back::Lazily);
            }
        });
    }
}
