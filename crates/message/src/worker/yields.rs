//! Whether the caller itself yields between two polls. MPICH does so after each, Open MPI where tasks outnumber processors. Then the worker
//! does not yield, too: a waiting rank would yield twice for each poll, and all ranks would run in between.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use madrigal_sys::time;

/// Of so many polls that found nothing one is a sample.
const SAMPLED: u32 = 16;
/// The caller was without the processor for longer than any two clocks differ: another task had it.
const GAVE_NS: u64 = 500;
/// So long is no yield: the caller did something else, or another thread polls now.
const LONG_NS: u64 = 50_000_000;
/// How many more recent samples show that the caller yields than that it does not: the maximum, and where it counts.
const SURE: u32 = 8;
const BELIEVED: u32 = 4;

/// State about the caller. As in `Idle`, updates need no lock.
#[derive(Default)]
pub(super) struct YieldDetector {
    polls: AtomicU32,
    /// For how long this thread had had no processor when a poll was over; 0: nothing to compare with.
    without: AtomicU64,
    gave: AtomicU32,
}

impl YieldDetector {
    /// Whether the caller itself gives the processor away.
    #[inline]
    pub(super) fn yields(&self) -> bool {
        self.gave.load(Ordering::Relaxed) >= BELIEVED
    }

    /// A poll found nothing, and the caller's own time since the last one is over.
    #[inline]
    pub(super) fn back(&self) {
        if self.without.load(Ordering::Relaxed) != 0 {
            self.judge(without_processor());
        }
    }

    /// The caller's own time begins.
    #[inline]
    pub(super) fn leave(&self) {
        let polls = self.polls.load(Ordering::Relaxed).wrapping_add(1);
        self.polls.store(polls, Ordering::Relaxed);
        if polls.is_multiple_of(SAMPLED) {
            self.without.store(without_processor(), Ordering::Relaxed);
        }
    }

    /// Something came: what the caller does now is no sample.
    #[inline]
    pub(super) fn forget_last(&self) {
        self.without.store(0, Ordering::Relaxed);
    }

    fn judge(&self, without: u64) {
        let gone = without.saturating_sub(self.without.swap(0, Ordering::Relaxed));
        if gone > LONG_NS {
            return;
        }
        let gave = self.gave.load(Ordering::Relaxed);
        let gave = if gone > GAVE_NS { (gave + 1).min(SURE) } else { gave.saturating_sub(1) };
        self.gave.store(gave, Ordering::Relaxed);
    }
}

/// Nanoseconds this thread had no processor since some time: only differences mean anything, and it is never 0.
#[cold]
fn without_processor() -> u64 {
    time::now_ns().saturating_sub(time::thread_ns()).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn are_told_by_what_most_looks_show() {
        let detector = YieldDetector::default();
        let sample = |gone: u64| {
            detector.without.store(1, Ordering::Relaxed);
            detector.judge(1 + gone);
        };
        assert!(!detector.yields(), "nothing is known");
        (0..BELIEVED).for_each(|_| sample(2 * GAVE_NS));
        assert!(detector.yields());
        (0..20).for_each(|_| sample(2 * GAVE_NS));
        (0..20).for_each(|_| sample(2 * LONG_NS));
        assert!(detector.yields(), "that says nothing");
        (0..=SURE - BELIEVED).for_each(|_| sample(0));
        assert!(!detector.yields(), "he does so no more");
    }

    #[test]
    fn one_look_in_some_is_judged_by_and_none_after_something_came() {
        let detector = YieldDetector::default();
        let mut kept = 0;
        for _ in 0..10 * SAMPLED {
            detector.leave();
            kept += u32::from(detector.without.load(Ordering::Relaxed) != 0);
            detector.back();
        }
        assert_eq!(kept, 10);
        (0..SAMPLED).for_each(|_| detector.leave());
        detector.forget_last();
        assert_eq!(detector.without.load(Ordering::Relaxed), 0);
    }
}
