//! Checksums of what travels in rings, if enabled (`MADRIGAL_CHECK`). The writer publishes the sum at the end of each of its pieces, and
//! the reader compares its own sum there.

use madrigal_base::sync::Ordering;
use madrigal_shm_ring::layout::SUMS;
use madrigal_shm_ring::ring::{Span, Trouble};

use super::{View, Wire};

impl<W: Wire> View<'_, W> {
    /// The sum of everything read, once the first `n` bytes of `span` are; compared where a piece ends.
    #[inline]
    pub(super) fn sum_up(&self, span: &Span, n: usize) -> Result<u32, Trouble> {
        let s = self.s;
        if s.checks.load(Ordering::Relaxed) == 0 {
            return Ok(0);
        }
        self.compare_sums(span, n)
    }

    #[cold]
    fn compare_sums(&self, span: &Span, n: usize) -> Result<u32, Trouble> {
        let s = self.s;
        let sums = &self.slot.sums[1 - s.side()];
        let (mut sum, mut at, end) = (s.sum_in.load(Ordering::Relaxed), span.at, span.at + n as u64);
        if s.summed.load(Ordering::Relaxed) != at {
            // A signal handler has taken some bytes in between: the sum is lost.
            s.checks.store(0, Ordering::Relaxed);
            return Ok(0);
        }
        let mut next = s.piece_in.load(Ordering::Relaxed);
        loop {
            let count = sums.count.load(Ordering::Acquire);
            // Sums that were overwritten cannot be compared.
            next = next.max(count.saturating_sub(SUMS as u64 - 1));
            if next >= count {
                break;
            }
            let piece = sums.piece[next as usize % SUMS].load(Ordering::Acquire);
            if sums.count.load(Ordering::Acquire) >= next + SUMS as u64 {
                continue;
            }
            // Half of the position is known: the piece ends within 2 GiB before or behind.
            let before = (end as u32).wrapping_sub(piece as u32);
            if before > u32::MAX / 2 {
                break;
            }
            let to = end - u64::from(before);
            next += 1;
            if to < at {
                continue;
            }
            sum = span.sum(sum, (at - span.at) as usize, (to - at) as usize);
            at = to;
            if sum != (piece >> 32) as u32 {
                return Err(Trouble::Corrupt);
            }
        }
        s.piece_in.store(next, Ordering::Relaxed);
        Ok(span.sum(sum, (at - span.at) as usize, (end - at) as usize))
    }

    /// Stores the sum up to position `at`.
    #[inline]
    pub(super) fn keep_sum(&self, at: u64, sum: u32) {
        if self.s.checks.load(Ordering::Relaxed) != 0 {
            self.s.sum_in.store(sum, Ordering::Relaxed);
            self.s.summed.store(at, Ordering::Relaxed);
        }
    }

    /// Publishes the sum behind the `n` bytes just copied into `span`, before the bytes themselves. Under the send lock.
    #[inline]
    pub(super) fn publish_sum(&self, span: &Span, n: usize) {
        if self.s.checks.load(Ordering::Relaxed) != 0 {
            self.add_sum(span, n);
        }
    }

    #[cold]
    fn add_sum(&self, span: &Span, n: usize) {
        let s = self.s;
        let sum = span.sum(s.sum_out.load(Ordering::Relaxed), 0, n);
        let sums = &self.slot.sums[s.side()];
        let count = sums.count.load(Ordering::Relaxed);
        let end = (span.at + n as u64) & u64::from(u32::MAX);
        sums.piece[count as usize % SUMS].store(u64::from(sum) << 32 | end, Ordering::Release);
        s.sum_out.store(sum, Ordering::Relaxed);
        // SYNC: Release pairs with the Acquire in `sum_up`; the bytes themselves are published behind it.
        sums.count.store(count + 1, Ordering::Release);
    }
}
