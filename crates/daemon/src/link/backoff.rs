//! When another host is dialled: pauses that double, and short ones after a loss or for a waiting call. Decisions only, without sockets and
//! clocks, so that `simulation/dials.rs` can run them. `dial.rs` carries them out.

use crate::units::{MILLISECOND, SECOND};

/// The first pause between two attempts, and the longest one.
const PAUSES: (u64, u64) = (250 * MILLISECOND, 30 * SECOND);
/// The longest pause for hosts that were reached before, and for relays: they may be unable to dial this host.
const OFTEN: u64 = 4 * SECOND;
/// The pause after the last attempt where a call waits.
const URGENT: u64 = 500 * MILLISECOND;

/// The attempts to dial one host.
pub(crate) struct Backoff {
    /// When the host may be dialled.
    pub(crate) next: u64,
    pause: u64,
    dialled: u64,
}

impl Backoff {
    pub(crate) fn new(now: u64) -> Self {
        Self { next: now, pause: PAUSES.0, dialled: 0 }
    }

    /// The host is dialled now; `often` bounds the pause. Returns whether this is the first attempt of a row.
    pub(crate) fn dial(&mut self, now: u64, often: bool, chance: u64) -> bool {
        let first = self.pause == PAUSES.0;
        // Half of the pause is random, so that hosts do not dial all at once.
        self.next = now + self.pause / 2 + chance % (self.pause / 2);
        self.pause = (self.pause * 2).min(if often { OFTEN } else { PAUSES.1 });
        self.dialled = now;
        first
    }

    /// The host is needed: it may be dialled now, unless it was just dialled.
    pub(crate) fn dial_soon(&mut self, now: u64) {
        self.next = self.next.min(now.max(self.dialled + URGENT));
    }

    /// A link came up.
    pub(crate) fn up(&mut self) {
        self.pause = PAUSES.0;
    }

    /// The link was lost.
    pub(crate) fn lost(&mut self, now: u64, chance: u64) {
        self.pause = PAUSES.0;
        self.next = now + chance % PAUSES.0;
    }
}
