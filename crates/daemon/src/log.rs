//! The log: lines on standard error, which is a file when the daemon runs in the background. Its rate is bounded, so that an
//! unauthenticated peer cannot fill the disk. Lines about such peers have a budget of their own, so that no other line is dropped for them.

use std::io::Write as _;

use crate::units::SECOND;

/// Lines a second in the long run, and in one burst.
const RATE: (u64, u64) = (10, 500);

/// The log, with its budgets.
pub(crate) struct Log {
    known: Budget,
    unauthenticated: Budget,
}

/// A token bucket of lines.
struct Budget {
    since: u64,
    left: u64,
    dropped: u64,
}

impl Log {
    pub(crate) fn new(now: u64) -> Self {
        let budget = || Budget { since: now, left: RATE.1, dropped: 0 };
        Self { known: budget(), unauthenticated: budget() }
    }

    /// Writes a line, unless its budget is spent.
    pub(crate) fn write(&mut self, now: u64, unauthenticated: bool, text: &str) {
        let budget = if unauthenticated { &mut self.unauthenticated } else { &mut self.known };
        let Some(dropped) = budget.take_line(now) else { return };
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        let time = format!("{}.{:03}", time.tv_sec, time.tv_nsec / 1_000_000);
        let mut error = std::io::stderr().lock();
        if dropped > 0 {
            let whose = if unauthenticated { "lines about unauthenticated peers" } else { "lines" };
            let _ = writeln!(error, "{time} ({dropped} {whose} left out)");
        }
        // A peer may have chosen part of the text: no control characters.
        let clean: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        let _ = writeln!(error, "{time} {clean}");
    }
}

impl Budget {
    /// Takes one line, and returns how many were dropped before it. `None`: this one is dropped, too.
    fn take_line(&mut self, now: u64) -> Option<u64> {
        let earned = now.saturating_sub(self.since) / (SECOND / RATE.0);
        self.since += earned * (SECOND / RATE.0);
        self.left = (self.left + earned).min(RATE.1);
        let left = self.left.checked_sub(1);
        match left {
            Some(left) => self.left = left,
            None => self.dropped += 1,
        }
        left.map(|_| std::mem::take(&mut self.dropped))
    }
}
