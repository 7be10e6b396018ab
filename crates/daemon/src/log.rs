//! What the daemon says: a line each on standard error, which is its log file when nobody watches. Bounded, so that a stranger who knocks
//! all day fills no disk.

use std::io::Write as _;

use crate::daemon::SECOND;

/// Lines a second, in the long run, and at once.
const RATE: (u64, u64) = (10, 500);

/// Where lines go.
pub(crate) struct Log {
    since: u64,
    left: u64,
    dropped: u64,
}

impl Log {
    pub(crate) fn new(now: u64) -> Self {
        Self { since: now, left: RATE.1, dropped: 0 }
    }

    /// Says a line.
    pub(crate) fn say(&mut self, now: u64, text: &str) {
        let earned = now.saturating_sub(self.since) / (SECOND / RATE.0);
        self.since += earned * (SECOND / RATE.0);
        self.left = (self.left + earned).min(RATE.1);
        if self.left == 0 {
            self.dropped += 1;
            return;
        }
        self.left -= 1;
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        let mut error = std::io::stderr().lock();
        if self.dropped > 0 {
            let _ =
                writeln!(error, "{}.{:03} ({} lines left out)", time.tv_sec, time.tv_nsec / 1_000_000, self.dropped);
            self.dropped = 0;
        }
        // What others sent may stand in it: no control characters.
        let clean: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        let _ = writeln!(error, "{}.{:03} {clean}", time.tv_sec, time.tv_nsec / 1_000_000);
    }
}
