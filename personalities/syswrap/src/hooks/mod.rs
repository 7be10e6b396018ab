//! The exported names. Each hook gathers its arguments, calls the logic behind a panic guard, and ends as an [`Outcome`] says.
//!
//! To add one: a line in [`crate::real`], a function here in the file of its kind, and a check in `tests/`. Hooks use the
//! `C-unwind` ABI so that a thread cancelled inside the C library's own call unwinds through them.
// Exported to the dynamic linker, which rustc does not count as reachable.
#![allow(unreachable_pub)]

mod data;
mod fds;
mod files;
mod names;
mod options;
mod processes;
mod stdio;
mod syscall;
mod waits;

use core::ffi::c_int;

use libc::ssize_t;
use madrigal_sys::Errno;

use crate::outcome::{Outcome, set_errno};
use crate::table::{self, Kind};
use crate::{plain, process};

unsafe extern "C-unwind" {
    fn pthread_testcancel();
}

/// Whether `fd` is a TCP socket we know.
#[inline]
fn is_socket(fd: c_int) -> bool {
    table::get(fd).is_some_and(|w| w.kind() == Kind::Socket) && !process::is_plain()
}

/// Runs a hook's logic; should it panic, the program's call goes to the C library as if we were not there.
#[inline]
fn guarded(logic: impl FnOnce() -> Outcome) -> Outcome {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(logic)).unwrap_or(Outcome::Pass)
}

/// The same for logic with another kind of result.
#[inline]
fn guarded_or<T>(otherwise: T, logic: impl FnOnce() -> T) -> T {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(logic)).unwrap_or(otherwise)
}

/// Ends a data call; `real` makes the program's call on the C library.
#[inline]
fn finish(outcome: Outcome, real: impl FnOnce() -> ssize_t) -> ssize_t {
    match outcome {
        Outcome::Done(n) => n as ssize_t,
        Outcome::Fail(e) => fail(e) as ssize_t,
        Outcome::Pass | Outcome::Await(_) | Outcome::Again => real(),
        Outcome::Sleep(ticket) => {
            let ret = real();
            plain::after_sleep(ticket, ret);
            ret
        }
    }
}

/// Where a thread that was cancelled ends.
fn cancellation_point() {
    // SAFETY: no arguments; it may unwind this thread, and no frame of ours above this one has anything to drop.
    unsafe { pthread_testcancel() };
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
