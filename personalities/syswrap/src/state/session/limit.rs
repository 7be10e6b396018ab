//! How long something may take.

use super::Wire;

/// A limit for a wait. Time in which this process did not run - a debugger stopped it, or a shell, or others had the processors - does not
/// count: what it waits for could not be seen meanwhile.
pub(crate) struct Limit {
    end: u64,
    seen: u64,
}

/// How long the kernel may be short of memory for sockets. Then room that was there is missing, and packets are dropped and sent again ever
/// later. Half of what was to be sent may be on its way: to give up loses a connection.
pub(super) const SHORT_NS: u64 = 60_000_000_000;
/// How long to wait for a peer that was requested to take its bytes back, and for what it sends meanwhile.
pub(super) const ASKED_NS: u64 = 15_000_000_000;
/// How long another party that lives may hold what it works under: the gate, the word `taking`, the lock of a family. More than all its own
/// waits together: who goes on before it is done ends the connection, or gets bytes between those that go back.
pub(crate) const HELD_NS: u64 = ASKED_NS + 3 * SHORT_NS;
/// Between two looks of a process that runs there is less. (A pause of the model takes 10 ms.)
const GAP_NS: u64 = 50_000_000;

impl Limit {
    /// One that begins now, of `ns` nanoseconds.
    pub(crate) fn new(wire: impl Wire, ns: u64) -> Self {
        let now = wire.now();
        Self { end: now.saturating_add(ns), seen: now }
    }

    /// Whether it has passed. To be asked in each round of the wait.
    pub(crate) fn has_passed(&mut self, wire: impl Wire) -> bool {
        let now = wire.now();
        let gap = now.saturating_sub(self.seen);
        self.seen = now;
        if gap > GAP_NS {
            self.end = self.end.saturating_add(gap);
        }
        now > self.end
    }
}
