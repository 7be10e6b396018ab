//! The bulk ring of a direction: bodies that do not fit cells. Chunks are contiguous. Both sides compute alike where each begins, so no
//! position is ever sent, and none can be wrong.

use super::layout::bulk_at;

/// Bytes of the ring, class by class. Each has a place of its own, so a writer moves to the next without waiting.
const CLASSES: [usize; 3] = [32 << 10, 256 << 10, 1 << 20];

/// The classes there are.
pub(super) const COUNT: u8 = CLASSES.len() as u8;

/// One side's idea of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Ring {
    /// Which, plus one; 0: there is none yet.
    class: u8,
    /// Bytes used so far, gaps included.
    at: u64,
}

impl Ring {
    /// The ring of class `class`, fresh; `None`: there is no such class.
    pub(super) fn new(class: u8) -> Option<Self> {
        (1..=COUNT).contains(&class).then_some(Self { class, at: 0 })
    }

    /// Its class, plus one; 0 for none.
    pub(super) fn class(self) -> u8 {
        self.class
    }

    /// Its size in bytes.
    #[inline]
    pub(super) fn size(self) -> usize {
        CLASSES.get(usize::from(self.class).wrapping_sub(1)).copied().unwrap_or(0)
    }

    /// Where its bytes are in a pair, for direction `direction`.
    #[inline]
    pub(super) fn offset(self, direction: usize) -> usize {
        let smaller: usize = CLASSES.iter().take(usize::from(self.class).saturating_sub(1)).sum();
        bulk_at(direction) + smaller
    }

    /// The longest chunk.
    #[inline]
    pub(super) fn longest(self) -> usize {
        self.size() / 4
    }

    /// A chunk of `len` bytes: its offset inside the ring, and the ring behind it. `None`: it is longer than any, or
    /// empty.
    #[inline]
    pub(super) fn chunk(self, len: usize) -> Option<(usize, Self)> {
        if len == 0 || len > self.longest() {
            return None;
        }
        let start = self.at as usize & (self.size() - 1);
        let gap = if start + len > self.size() { self.size() - start } else { 0 };
        // Chunks begin at cache lines.
        let at = self.at + (gap + len.next_multiple_of(64)) as u64;
        Some(((start + gap) & (self.size() - 1), Self { at, ..self }))
    }

    /// The word by which a reader reports how far it is.
    #[inline]
    pub(super) fn word(self) -> u64 {
        u64::from(self.class) << 56 | self.at & (u64::MAX >> 8)
    }

    /// Whether there is room up to `behind`, which [`Ring::chunk`] gave, by the reader's word; `None`: the word is nonsense. A word
    /// of an earlier ring: nothing of this one was read.
    #[inline]
    pub(super) fn has_room(self, behind: Self, word: u64) -> Option<bool> {
        let read = if (word >> 56) as u8 == self.class { word & (u64::MAX >> 8) } else { 0 };
        let unread = self.at.wrapping_sub(read);
        (unread <= self.size() as u64).then_some(behind.at.wrapping_sub(read) <= self.size() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rings_lie_apart_and_inside() {
        let rings: Vec<_> = (0..2).flat_map(|dir| (1..=COUNT).map(move |c| (dir, Ring::new(c).unwrap()))).collect();
        for pair in rings.windows(2) {
            assert!(pair[0].1.offset(pair[0].0) + pair[0].1.size() <= pair[1].1.offset(pair[1].0));
        }
        let (dir, last) = rings[rings.len() - 1];
        assert!(last.offset(dir) + last.size() <= super::super::layout::PAIR_BYTES);
        assert!(Ring::new(0).is_none() && Ring::new(COUNT + 1).is_none());
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Chunks that a writer keeps within its size never overlap while unread, and both sides count alike.
        #[test]
        fn unread_chunks_never_overlap(lens in prop::collection::vec(1..9000usize, 1..60), lag in 1..8usize) {
            let mut writer = Ring::new(1).unwrap();
            let mut reader = writer;
            let mut unread: Vec<(usize, usize)> = Vec::new();
            for len in lens {
                let Some((at, behind)) = writer.chunk(len) else { continue };
                while unread.len() >= lag || !writer.has_room(behind, reader.word()).unwrap() {
                    let (at, len) = unread.remove(0);
                    let (found, next) = reader.chunk(len).unwrap();
                    prop_assert_eq!(found, at);
                    reader = next;
                }
                prop_assert!(at + len <= writer.size());
                prop_assert!(unread.iter().all(|&(a, l)| a + l <= at || at + len <= a));
                unread.push((at, len));
                writer = behind;
            }
        }
    }
}
