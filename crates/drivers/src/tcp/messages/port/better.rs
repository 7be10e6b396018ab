//! When a direct way is tried to replace one by the daemon.

use madrigal_sys::time;

/// How long after a link came up by the daemon a direct way is tried, and at most how long after the last time.
const FIRST_GAP: u64 = 1_000_000_000;
const LAST_GAP: u64 = 30_000_000_000;
/// When to try direct ways.
pub(super) struct Better {
    pub(super) at: u64,
    pub(super) gap: u64,
}

impl Default for Better {
    fn default() -> Self {
        Self { at: u64::MAX, gap: FIRST_GAP }
    }
}

impl Better {
    /// A link has come up by the daemon.
    pub(super) fn soon() -> Self {
        Self { at: time::now_ns() + FIRST_GAP, gap: FIRST_GAP }
    }

    /// The attempt failed: the next one comes later.
    pub(super) fn later(&mut self) {
        self.gap = (self.gap * 2).min(LAST_GAP);
    }
}

/// How a link goes that has no connection.
pub(super) const LOST: &str = "through the daemon: lost, another connection is looked for";
