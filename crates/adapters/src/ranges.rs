//! Which bytes of a link are there: all before some position, and spans behind it.

use std::collections::BTreeMap;

/// Bytes from the first position to the second, many times: in order, apart from each other.
#[derive(Clone, Default, Debug)]
pub(crate) struct Spans(BTreeMap<u64, u64>);

impl Spans {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// How many bytes they are.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.iter().map(|(from, to)| to - from).sum()
    }

    /// Adds one; those that it touches become one with it.
    pub(crate) fn insert(&mut self, from: u64, to: u64) {
        let (mut from, mut to) = (from, to);
        if from >= to {
            return;
        }
        while let Some((first, last)) = self.0.range(..=to).next_back().map(|(first, last)| (*first, *last)) {
            if last < from {
                break;
            }
            self.0.remove(&first);
            (from, to) = (from.min(first), to.max(last));
        }
        self.0.insert(from, to);
    }

    /// Takes the first one out.
    pub(crate) fn take_first(&mut self) -> Option<(u64, u64)> {
        self.0.pop_first()
    }
}

/// What is there.
#[derive(Clone, Default, Debug)]
pub(crate) struct Ranges {
    floor: u64,
    above: Spans,
}

impl Ranges {
    /// Everything before it is there, and not the byte at it.
    pub(crate) fn floor(&self) -> u64 {
        self.floor
    }

    /// How many holes there are before the last byte.
    pub(crate) fn holes(&self) -> usize {
        self.above.len()
    }

    /// These are there.
    pub(crate) fn insert(&mut self, from: u64, to: u64) {
        if to <= self.floor {
            return;
        }
        if from > self.floor {
            return self.above.insert(from, to);
        }
        self.floor = to;
        while let Some(entry) = self.above.0.first_entry().filter(|entry| *entry.key() <= self.floor) {
            self.floor = self.floor.max(entry.remove());
        }
    }

    /// The first of the bytes from `from` to `to` that are not there.
    pub(crate) fn missing(&self, from: u64, to: u64) -> Option<(u64, u64)> {
        let mut from = from.max(self.floor);
        if let Some((_, last)) = self.above.0.range(..=from).next_back() {
            from = from.max(*last);
        }
        if from >= to {
            return None;
        }
        let next = self.above.0.range(from..).next().map_or(to, |(first, _)| *first);
        Some((from, to.min(next)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// As a list of bytes that are there or not.
        #[test]
        fn they_are_what_was_inserted(inserted in prop::collection::vec((0u64..80, 0u64..12), 0..40), ask in (0u64..90, 0u64..30)) {
            let (mut ranges, mut spans, mut there) = (Ranges::default(), Spans::default(), [false; 200]);
            for (from, len) in inserted {
                ranges.insert(from, from + len);
                spans.insert(from, from + len);
                there[from as usize..(from + len) as usize].fill(true);
                prop_assert_eq!(ranges.floor() as usize, there.iter().position(|there| !there).unwrap());
                let pieces = there.windows(2).filter(|pair| !pair[0] && pair[1]).count();
                prop_assert_eq!(ranges.holes(), pieces);
                prop_assert_eq!(spans.bytes() as usize, there.iter().filter(|there| **there).count());
            }
            let (from, to) = (ask.0 as usize, (ask.0 + ask.1) as usize);
            let first = (from..to).find(|at| !there[*at]);
            let missing = first.map(|first| (first as u64, (first..to).find(|at| there[*at]).unwrap_or(to) as u64));
            prop_assert_eq!(ranges.missing(from as u64, to as u64), missing);
            let mut before = None;
            while let Some((from, to)) = spans.take_first() {
                prop_assert!(from < to && before.is_none_or(|before| before < from));
                prop_assert!((from..to).all(|at| there[at as usize]));
                before = Some(to);
            }
        }
    }
}
