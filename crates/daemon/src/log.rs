//! What the daemon says: a line each on standard error, which is its log file when nobody watches. Bounded, so that an unauthenticated peer
//! who calls all day fills no disk; and by itself, so that nothing else is left out for it.

use std::io::Write as _;

use crate::units::SECOND;

/// Lines a second, in the long run, and at once.
const RATE: (u64, u64) = (10, 500);

/// Where lines go.
pub(crate) struct Log {
    known: Budget,
    unauthenticated: Budget,
}

/// How many lines there may be.
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

    /// Says a line about those of the grid, or about unauthenticated peers.
    pub(crate) fn write(&mut self, now: u64, unauthenticated: bool, text: &str) {
        let budget = if unauthenticated { &mut self.unauthenticated } else { &mut self.known };
        let Some(dropped) = budget.spend(now) else { return };
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        let time = format!("{}.{:03}", time.tv_sec, time.tv_nsec / 1_000_000);
        let mut error = std::io::stderr().lock();
        if dropped > 0 {
            let whose = if unauthenticated { "lines about unauthenticated peers" } else { "lines" };
            let _ = writeln!(error, "{time} ({dropped} {whose} left out)");
        }
        // What others sent may stand in it: no control characters.
        let clean: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        let _ = writeln!(error, "{time} {clean}");
    }
}

impl Budget {
    /// Takes one line; how many were left out before it. `None`: this one is, too.
    fn spend(&mut self, now: u64) -> Option<u64> {
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
