//! The rate at which the connections of a link take bytes.

/// Fewer bytes mean nothing.
const ENOUGH: u64 = 128 << 10;

/// How fast the connections take bytes while there is something to be taken.
#[derive(Default)]
pub(super) struct Pace {
    since: u64,
    bytes: u64,
}

impl Pace {
    /// A connection has more than it can take.
    pub(super) fn begin(&mut self, now: u64) {
        if self.since == 0 {
            (self.since, self.bytes) = (now, 0);
        }
    }

    pub(super) fn took(&mut self, count: usize) {
        self.bytes += count as u64;
    }

    /// Bytes a second, if enough of them were counted.
    pub(super) fn rate(&mut self, now: u64, is_busy: bool) -> Option<u64> {
        let time = now.saturating_sub(self.since);
        let enough = self.since > 0 && time > 10_000_000 && self.bytes >= ENOUGH;
        let rate = u128::from(self.bytes) * 1_000_000_000 / u128::from(time.max(1));
        if enough || !is_busy {
            (self.since, self.bytes) = (if is_busy { now } else { 0 }, 0);
        }
        enough.then(|| u64::try_from(rate).unwrap_or(u64::MAX))
    }
}
