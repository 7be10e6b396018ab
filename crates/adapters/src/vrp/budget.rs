//! How much of a class may be given up: never more than its tolerance, of any window of bytes that follow each other, and of all that were
//! sent.

use std::collections::BTreeMap;

use super::{Class, Lost};

/// The most spans that are kept: more than a window has datagrams, so that only a peer that sends single bytes comes to it.
const MOST_SPANS: usize = 16 << 10;

/// What of a class is given up. Positions count the bytes of its messages, one message behind the other.
#[derive(Debug)]
pub(super) struct Budget {
    class: Class,
    /// What is given up, from the first position to the second; apart from each other, or touching.
    spans: BTreeMap<u64, u64>,
    /// How many bytes that is, of all that were ever sent.
    lost: u64,
}

impl Budget {
    pub(super) fn new(class: Class) -> Self {
        Self { class, spans: BTreeMap::new(), lost: 0 }
    }

    /// Gives these bytes up, if they may be; `sent` is behind the last byte that was ever to be sent.
    pub(super) fn give_up(&mut self, from: u64, to: u64, sent: u64) -> bool {
        let allowed = self.allows(from, to, sent);
        if allowed {
            self.insert(from, to);
        }
        allowed
    }

    /// A message is settled, from one position to the other: only these of its bytes were lost.
    pub(super) fn settle(&mut self, from: u64, to: u64, lost: &Lost) {
        let given: Vec<u64> = self.spans.range(from..to).map(|(first, _)| *first).collect();
        for first in given {
            let last = self.spans.remove(&first).unwrap_or(first);
            self.lost -= last - first;
        }
        lost.iter().for_each(|(first, last)| self.insert(from + u64::from(*first), from + u64::from(*last)));
    }

    /// Nothing before this position will be given up any more.
    pub(super) fn forget_before(&mut self, position: u64) {
        let oldest = position.saturating_sub(self.class.window);
        while let Some(entry) = self.spans.first_entry().filter(|entry| *entry.get() <= oldest) {
            entry.remove();
        }
    }

    fn insert(&mut self, from: u64, to: u64) {
        self.spans.insert(from, to);
        self.lost += to - from;
    }

    fn allows(&self, from: u64, to: u64, sent: u64) -> bool {
        let window = self.class.window;
        if self.spans.len() >= MOST_SPANS || !self.fits(self.lost + (to - from), sent) {
            return false;
        }
        let near = self.near(from, to);
        // How many bytes are given up before each of these spans.
        let mut before = Vec::with_capacity(near.len());
        let mut all = 0;
        for (first, last) in &near {
            before.push(all);
            all += last - first;
        }
        let up_to = |position: u64| match near.partition_point(|(first, _)| *first < position).checked_sub(1) {
            Some(at) => before[at] + near[at].1.min(position) - near[at].0,
            None => 0,
        };
        // Where most of them lie in one window, it begins or ends with one of them.
        near.iter().all(|(first, last)| {
            let behind = up_to(first.saturating_add(window)) - up_to(*first);
            let ahead = up_to(*last) - up_to(last.saturating_sub(window));
            self.fits(behind.max(ahead), window)
        })
    }

    /// Whether so many bytes of others may be given up.
    fn fits(&self, lost: u64, of: u64) -> bool {
        u128::from(lost) * 1000 <= u128::from(self.class.tolerance) * u128::from(of)
    }

    /// What would be given up in the windows that these bytes are in.
    fn near(&self, from: u64, to: u64) -> Vec<(u64, u64)> {
        let (oldest, newest) = (from.saturating_sub(self.class.window), to.saturating_add(self.class.window));
        let begin = self.spans.range(..=oldest).next_back().map_or(oldest, |(first, _)| *first);
        let mut near: Vec<(u64, u64)> = self.spans.range(begin..newest).map(|(first, last)| (*first, *last)).collect();
        let place = near.partition_point(|(first, _)| *first < from);
        near.insert(place, (from, to));
        near
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Whether the losses of every window, and of all bytes, are within the tolerance.
    fn holds(lost: &[bool], sent: usize, class: Class) -> bool {
        let count = |bytes: &[bool]| bytes.iter().filter(|lost| **lost).count() as u64;
        let fits = |n: u64, of: u64| n * 1000 <= u64::from(class.tolerance) * of;
        fits(count(lost), sent as u64)
            && (0..lost.len())
                .all(|at| fits(count(&lost[at..lost.len().min(at + class.window as usize)]), class.window))
    }

    proptest! {
        #[test]
        fn what_is_given_up_never_exceeds_the_tolerance(
            tolerance in 0u32..=1000,
            window in 1u64..60,
            wanted in prop::collection::vec((0u64..300, 1u64..8), 0..60),
            settled in 0usize..60,
        ) {
            let class = Class { tolerance, window, ..Class::default() };
            let (mut budget, mut lost, mut sent) = (Budget::new(class), [false; 320], 0);
            for (index, (from, len)) in wanted.into_iter().enumerate() {
                let to = from + len;
                sent = sent.max(to);
                if index == settled {
                    // Of these a few came after all.
                    let kept: Lost = (0..100u32).filter(|at| lost[*at as usize] && at % 3 > 0).map(|at| (at, at + 1)).collect();
                    let begins = |at: &u64| !(lost[*at as usize] && lost[*at as usize - 1]);
                    if begins(&100) {
                        budget.settle(0, 100, &kept);
                        (0..100).filter(|at| at % 3 == 0).for_each(|at| lost[at] = false);
                    }
                }
                let span = from as usize..to as usize;
                if lost[span.clone()].iter().any(|lost| *lost) {
                    continue;
                }
                let mut then = lost;
                then[span].fill(true);
                let allowed = budget.give_up(from, to, sent);
                // Neither too much, nor less than there may be.
                prop_assert_eq!(allowed, holds(&then, sent as usize, class), "{}..{} of {}", from, to, sent);
                if allowed {
                    lost = then;
                }
            }
        }
    }

    #[test]
    fn single_bytes_do_not_fill_memory() {
        let mut budget = Budget::new(Class { tolerance: 1000, window: 8, ..Class::default() });
        let given = (0..1u64 << 17).filter(|at| budget.give_up(2 * at, 2 * at + 1, 1 << 18)).count();
        assert_eq!(given, MOST_SPANS);
    }

    #[test]
    fn what_is_old_is_forgotten() {
        let mut budget = Budget::new(Class { tolerance: 500, window: 10, ..Class::default() });
        assert!(budget.give_up(0, 5, 100) && !budget.give_up(5, 6, 100) && budget.give_up(10, 15, 100));
        budget.forget_before(15);
        assert_eq!(budget.spans.len(), 1);
        budget.forget_before(25);
        assert!(budget.spans.is_empty() && budget.give_up(25, 30, 100));
    }
}
