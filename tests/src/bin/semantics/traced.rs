//! Checks in a process of their own, whose system calls are seen.
#![allow(unsafe_code)]

use madrigal_tests::net;

/// A thread that sleeps in so many samples in a row, a millisecond between two, is asleep for long.
const SAMPLES: u32 = 20;

/// A check whose main thread is traced: it marks what is to be seen by a stop before and one behind it.
struct Traced(i32);

/// What became of it.
enum Stop {
    Mark,
    /// Before a system call, or behind it.
    Call,
    Signal(i32),
    Ended(i32),
}

impl Traced {
    fn start(check: impl FnOnce(&dyn Fn())) -> Self {
        Self(net::fork(|| {
            // Of a traced process an ignored signal, too, wakes some thread.
            net::mask(libc::SIGCHLD, true);
            // SAFETY: no pointers; its parent traces it.
            unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) };
            check(&|| {
                // SAFETY: no pointers.
                unsafe { libc::raise(libc::SIGSTOP) };
            });
            0
        }))
    }

    /// Its next stop; `None`: it is asleep instead.
    fn wait(&self, or_sleep: bool) -> Option<Stop> {
        let (mut status, mut sleeps) = (0, 0);
        let flags = if or_sleep { libc::WNOHANG } else { 0 };
        // SAFETY: our own child, and a place for what became of it.
        while unsafe { libc::waitpid(self.0, &raw mut status, flags) } == 0 {
            sleeps = if crate::is_asleep(self.0) { sleeps + 1 } else { 0 };
            match sleeps {
                0 => std::thread::yield_now(),
                SAMPLES => return None,
                _ => net::sleep_ms(1),
            }
        }
        Some(match libc::WSTOPSIG(status) {
            _ if !libc::WIFSTOPPED(status) => Stop::Ended(status),
            libc::SIGSTOP => {
                // SAFETY: it is stopped. It is not to outlive a check that fails.
                unsafe { libc::ptrace(libc::PTRACE_SETOPTIONS, self.0, 0, libc::PTRACE_O_EXITKILL) };
                Stop::Mark
            }
            libc::SIGTRAP => Stop::Call,
            signal => Stop::Signal(signal),
        })
    }

    /// It goes on, up to its next system call if `seen`.
    fn go_on(&self, seen: bool, signal: i32) {
        self.go(if seen { libc::PTRACE_SYSCALL } else { libc::PTRACE_CONT }, signal);
    }

    fn go(&self, how: libc::c_uint, signal: i32) {
        // SAFETY: it is stopped.
        assert_eq!(unsafe { libc::ptrace(how, self.0, 0, signal) }, 0);
    }
}

/// A check that calls what it is given twice: the system calls between.
pub(crate) fn system_calls(check: impl FnOnce(&dyn Fn())) -> u32 {
    let (traced, mut stops, mut marks) = (Traced::start(check), 0, 0);
    loop {
        let mut signal = 0;
        match traced.wait(false).unwrap() {
            Stop::Mark => marks += 1,
            Stop::Call => stops += u32::from(marks == 1),
            Stop::Signal(other) => signal = other,
            Stop::Ended(status) => {
                assert_eq!((status, marks), (0, 2));
                // One before a call and one behind it.
                return stops / 2;
            }
        }
        traced.go_on(marks == 1, signal);
    }
}

/// The same; `act` is called while it stands before or behind its system call number `at`, counted in stops, or is asleep in an earlier
/// one. False: it did not make so many.
pub(crate) fn at_stop(at: u32, act: impl FnOnce(), check: impl FnOnce(&dyn Fn())) -> bool {
    let (traced, mut stops, mut marks, mut act) = (Traced::start(check), 0, 0, Some(act));
    loop {
        let mut signal = 0;
        let Some(stop) = traced.wait(marks == 1 && act.is_some()) else {
            act.take().unwrap()();
            continue;
        };
        match stop {
            Stop::Mark => marks += 1,
            Stop::Call => stops += 1,
            Stop::Signal(other) => signal = other,
            Stop::Ended(status) => {
                assert_eq!((status, marks), (0, 2), "acted at stop {at} of {stops}");
                return stops >= at;
            }
        }
        // At its end at the latest.
        if (stops == at || marks == 2)
            && let Some(act) = act.take()
        {
            act();
        }
        traced.go_on(marks == 1, signal);
    }
}

/// The same; it gets a signal before its instruction number `at`. How many it made: of fewer than `at` it got none.
pub(crate) fn at_instruction(at: u32, signal: i32, check: impl FnOnce(&dyn Fn())) -> u32 {
    let (traced, mut steps, mut marks) = (Traced::start(check), 0, 0);
    loop {
        let mut pending = 0;
        match traced.wait(false).unwrap() {
            Stop::Mark => marks += 1,
            Stop::Call => steps += 1,
            Stop::Signal(other) => pending = other,
            Stop::Ended(status) => {
                assert_eq!((status, marks), (0, 2), "{signal} before instruction {at} of {steps}");
                return steps;
            }
        }
        if steps == at && marks == 1 && pending == 0 {
            net::kill(traced.0, signal).unwrap();
        }
        traced.go(if marks == 1 && steps < at { libc::PTRACE_SINGLESTEP } else { libc::PTRACE_CONT }, pending);
    }
}
