//! Tests that can check only at run time whether they can run: one that cannot is counted as ignored, with the reason, never as passed.
//!
//! ```text
//! madrigal_tests::trials![redis_answers, far::away];
//!
//! fn redis_answers() {
//!     let server = trials::need("redis-server");
//!     ...
//! }
//! ```
//! The compiler warns of a function that is not in the list, since it is never used.

use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};

use crate::host;

/// What unwinds a test that cannot run.
struct Skip(String);

/// Ends the test of this thread: it cannot run here, and why.
pub fn skip(reason: impl Into<String>) -> ! {
    // No panic: it would be reported as a failure.
    panic::resume_unwind(Box::new(Skip(reason.into())))
}

/// The file of a program that the test cannot do without.
pub fn need(program: &str) -> PathBuf {
    host::find_program(program).unwrap_or_else(|| skip(format!("no {program}")))
}

/// All of them.
pub fn need_all(programs: &[&str]) {
    for program in programs {
        need(program);
    }
}

/// A test that may [`skip`].
pub fn trial(name: impl Into<String>, test: impl FnOnce() + Send + 'static) -> Trial {
    Trial::ignorable_test(name, move || outcome(test))
}

fn outcome(test: impl FnOnce()) -> Result<Completion, Failed> {
    match panic::catch_unwind(AssertUnwindSafe(test)) {
        Ok(()) => Ok(Completion::Completed),
        Err(payload) => match payload.downcast::<Skip>() {
            Ok(skip) => Ok(Completion::ignored_with(skip.0)),
            Err(payload) => Err(Failed::from(words(&*payload))),
        },
    }
}

/// Runs them by the arguments.
pub fn run(trials: Vec<Trial>) -> ExitCode {
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// The same, so many at a time unless the arguments set another number: for tests that mostly wait.
pub fn run_beside(trials: Vec<Trial>, threads: usize) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(threads);
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// The text of a panic. Its place has been printed.
fn words(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("it panicked").to_owned()
}

/// The `main` of a test program without cargo's harness: the names of its tests. Those that are no measure of anything beside others stand
/// behind `measured:` and are named `measured::..`; those that take minutes stand behind `long:` and are named `long::..` (`tests/all`).
#[macro_export]
macro_rules! trials {
    ($($test:path),+ $(; measured: $($measured:path),+)? $(; long: $($long:path),+)? $(,)?) => {
        fn main() -> std::process::ExitCode {
            let mut all = vec![$($crate::trials::trial(stringify!($test), $test as fn())),+];
            $(all.extend([$($crate::trials::trial(concat!("measured::", stringify!($measured)), $measured as fn())),+]);)?
            $(all.extend([$($crate::trials::trial(concat!("long::", stringify!($long)), $long as fn())),+]);)?
            $crate::trials::run(all)
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_cannot_run_is_ignored_and_one_that_fails_fails() {
        assert!(matches!(outcome(|| {}), Ok(Completion::Completed)));
        let ignored = outcome(|| need_all(&["sh", "no-such-program"]));
        assert!(matches!(ignored, Ok(Completion::Ignored { reason: Some(reason) }) if reason == "no no-such-program"));
        assert_eq!(outcome(|| panic!("{} apples", 3)).err().unwrap().message(), Some("3 apples"));
    }
}
