//! Counters of a socket's traffic: for earning a ring, for the report, and for changes between sending and receiving.

use core::sync::atomic::{AtomicU64, Ordering};

use super::Sock;
use crate::state::{process, record};

/// Bytes, either way, that earn a try.
const EARNED_BYTES: u64 = 256 << 10;

impl Sock {
    /// Whether the traffic so far makes a try worth it.
    #[inline]
    pub(crate) fn has_earned(&self) -> bool {
        let due = self.next_try.load(Ordering::Relaxed);
        self.sends.load(Ordering::Relaxed) + 1 >= due
            || self.bytes.load(Ordering::Relaxed) >= EARNED_BYTES.saturating_mul(u64::from(due / process::first_try()))
    }

    /// The next try needs twice the traffic.
    pub(crate) fn back_off(&self) {
        let due = self.next_try.load(Ordering::Relaxed);
        self.next_try.store(due.saturating_mul(2).max(process::first_try()), Ordering::Relaxed);
        self.sends.store(0, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
    }

    /// A session was left for the sake of a test: the next one is earned at once.
    pub(crate) fn earn_again(&self) {
        self.next_try.store(process::first_try(), Ordering::Relaxed);
    }

    /// Counts bytes that went by the kernel. Lossy between threads, as statistics may be.
    #[inline]
    pub(crate) fn count_kernel(&self, n: usize, out: bool) {
        self.bytes.store(self.bytes.load(Ordering::Relaxed) + n as u64, Ordering::Relaxed);
        if out {
            self.sends.store(self.sends.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed);
        }
        if !self.is_listed() && self.is_connection() {
            record::list_all();
        }
        if let Some(record) = self.record() {
            add(if out { &record.tcp_out } else { &record.tcp_in }, n);
        }
    }

    /// Counts bytes that went by a ring.
    #[inline]
    pub(crate) fn count_ring(&self, n: usize, out: bool) {
        if let Some(record) = self.record() {
            add(if out { &record.shm_out } else { &record.shm_in }, n);
        }
    }

    /// Counts alternations of sending and receiving.
    #[inline]
    pub(crate) fn alternate(&self, sending: bool) {
        let alternations = self.alternations.load(Ordering::Relaxed);
        let alternates = (alternations & 1 == 0) == sending;
        self.alternations
            .store(if alternates { alternations.wrapping_add(1) } else { u32::from(sending) }, Ordering::Relaxed);
    }
}

#[inline]
fn add(counter: &AtomicU64, n: usize) {
    counter.store(counter.load(Ordering::Relaxed) + n as u64, Ordering::Relaxed);
}
