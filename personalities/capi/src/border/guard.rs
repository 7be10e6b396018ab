//! The wrapper of every call: the call is refused in a forked child, and nothing unwinds out of it.

use core::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use crate::codes::{MDG_EFORKED, MDG_EINTERNAL};
use crate::failure::{Failure, note};
use crate::fork;

/// Runs a call that returns a number of 0 or more. A failure is recorded, and its code returned.
#[inline]
pub(super) fn count(run: impl FnOnce() -> Result<i64, Failure>) -> i64 {
    if fork::is_child() {
        return i64::from(note(forked()));
    }
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(count)) => count,
        Ok(Err(failure)) => i64::from(note(failure)),
        Err(payload) => i64::from(note(internal(&*payload))),
    }
}

/// The same for a call that returns a small number, such as 0.
#[inline]
pub(super) fn status(run: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    count(|| run().map(i64::from)) as c_int
}

/// From now on panics are reported as errors only, and not on the program's stderr.
pub(super) fn be_quiet() {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| std::panic::set_hook(Box::new(|_| {})));
}

#[cold]
fn forked() -> Failure {
    Failure::new(
        MDG_EFORKED,
        "this process was forked from one that uses Madrigal, whose links and threads it does not have: \
         open the runtime after the fork, or exec",
    )
}

#[cold]
fn internal(payload: &(dyn std::any::Any + Send)) -> Failure {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no word of what");
    Failure::new(MDG_EINTERNAL, format!("a fault of Madrigal's own: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_code_and_a_text() {
        let failed = status(|| panic!("three {}", "pears"));
        let text = crate::failure::last_text();
        // SAFETY: a text of the library's, good until the next call of this thread fails.
        let text = unsafe { core::ffi::CStr::from_ptr(text) };
        assert_eq!((failed, text.to_str()), (MDG_EINTERNAL, Ok("a fault of Madrigal's own: three pears")));
        assert_eq!((count(|| Ok(1 << 40)), status(|| Ok(3))), (1 << 40, 3));
    }
}
