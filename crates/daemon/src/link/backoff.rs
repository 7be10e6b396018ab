//! When another host is dialled: pauses that double, and short ones after a loss or for a waiting call. Decisions only, without sockets and
//! clocks, so that `simulation/dials.rs` can play them. `dial.rs` carries them out.

use crate::units::{MILLISECOND, SECOND};

/// The first pause between two attempts, and the longest.
const PAUSES: (u64, u64) = (250 * MILLISECOND, 30 * SECOND);
/// The longest pause where it worked before, and for relays: the other end may be able to do nothing but wait for it.
const WORKED: u64 = 4 * SECOND;
/// Somebody waits: this long after the last attempt the next may begin.
const URGENT: u64 = 500 * MILLISECOND;

/// The attempts to dial one host.
pub(crate) struct Pace {
    /// When it may be dialled.
    pub(crate) next: u64,
    pause: u64,
    dialled: u64,
}

impl Pace {
    pub(crate) fn new(now: u64) -> Self {
        Self { next: now, pause: PAUSES.0, dialled: 0 }
    }

    /// It is dialled now; `often`: it is worth to try often. Whether this is the first attempt of several.
    pub(crate) fn dial(&mut self, now: u64, often: bool, chance: u64) -> bool {
        let first = self.pause == PAUSES.0;
        // Not all at the same moment: half of the pause by chance.
        self.next = now + self.pause / 2 + chance % (self.pause / 2);
        self.pause = (self.pause * 2).min(if often { WORKED } else { PAUSES.1 });
        self.dialled = now;
        first
    }

    /// Somebody wants to reach it: it is dialled now, unless it just was.
    pub(crate) fn hurry(&mut self, now: u64) {
        self.next = self.next.min(now.max(self.dialled + URGENT));
    }

    /// There is a link with it.
    pub(crate) fn up(&mut self) {
        self.pause = PAUSES.0;
    }

    /// There is none any more.
    pub(crate) fn lost(&mut self, now: u64, chance: u64) {
        self.pause = PAUSES.0;
        self.next = now + chance % PAUSES.0;
    }
}
