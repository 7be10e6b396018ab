//! What lies where in the memory two linked processes share, and in the one a process shares with all its peers.
//!
//! ```text
//!   pair  0       4 KiB            20 KiB           64 KiB
//!         | lines | cells there    | cells back     | bulk there | bulk back |
//!   page  0
//!         | asleep | summary | map of links that have something |
//! ```
//! Nothing here is trusted: every reader of a word masks and bounds it. One cache line has one writer at a time.

use madrigal_base::sync::{AtomicU32, AtomicU64, Ordering};

/// Cells of a direction: a power of two.
pub(super) const CELLS: usize = if cfg!(feature = "shuttle") { 8 } else { 256 };
/// Words of a cell that carry a frame.
pub(super) const WORDS: usize = 7;
/// Bytes of a frame that fit one cell.
pub(super) const ONE: usize = 8 * WORDS;
/// The most cells of one frame.
pub(super) const MOST: usize = if cfg!(feature = "shuttle") { 2 } else { 8 };
/// Bytes of a frame that fit the most cells.
pub(super) const INLINE: usize = MOST * ONE;

/// A cache line with a frame, or a part of one. The bytes are written first, then the word that announces them.
#[repr(C, align(64))]
#[derive(Default)]
pub(super) struct Cell {
    /// A [`Word`].
    pub(super) word: AtomicU64,
    /// Head and body, without gap.
    pub(super) data: [AtomicU64; WORDS],
}

impl Cell {
    /// Writes the first `count` words.
    #[inline]
    pub(super) fn fill(&self, words: &[u64; WORDS], count: usize) {
        for (to, word) in self.data.iter().zip(words).take(count) {
            to.store(*word, Ordering::Relaxed);
        }
    }

    /// All words, whatever is in them.
    #[inline]
    pub(super) fn words(&self) -> [u64; WORDS] {
        self.data.each_ref().map(|word| word.load(Ordering::Relaxed))
    }
}

/// The cells of a direction.
pub(super) type Cells = [Cell; CELLS];

/// What a frame in cells is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Head and body are in the cells.
    Whole,
    /// The head is, behind two words: how long the body is, and how much of it is in the bulk ring. The rest follows.
    Begin,
    /// One word: how much more is in the bulk ring.
    More,
    /// One word: the bulk ring is of this class from now on.
    Grow,
}

/// The first word of a cell.
///
/// ```text
///   0 kind: 4 bits   4 bytes of the head: 7   11 bytes in the cells: 9   20 direction: 1   21 number: 43
/// ```
/// The number counts the frames of a direction, wherever they are put, so that a reader knows which comes next, and a word of the
/// past is never taken for one that is expected: the count does not come round while a program runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Word(u64);

impl Word {
    /// Bits below the key.
    const KEY: u32 = 20;

    /// Of a frame with that key.
    #[inline]
    pub(super) fn new(kind: Kind, head: usize, len: usize, key: Key) -> Self {
        Self(key.0 << Self::KEY | (len as u64) << 11 | (head as u64) << 4 | (kind as u64 + 1))
    }

    /// What was read from shared memory.
    #[inline]
    pub(super) fn read(bits: u64) -> Self {
        Self(bits)
    }

    /// To be stored.
    #[inline]
    pub(super) fn bits(self) -> u64 {
        self.0
    }

    /// Whether it is of the frame with that key.
    #[inline]
    pub(super) fn is(self, key: Key) -> bool {
        self.0 >> Self::KEY == key.0
    }

    /// What the frame is, and how many bytes in the cells are head and head and body; `None`: nothing an honest peer writes.
    #[inline]
    pub(super) fn parts(self) -> Option<(Kind, usize, usize)> {
        let kind = match self.0 & 15 {
            1 => Kind::Whole,
            2 => Kind::Begin,
            3 => Kind::More,
            4 => Kind::Grow,
            _ => return None,
        };
        let (head, len) = ((self.0 >> 4) as usize & 127, (self.0 >> 11) as usize & 511);
        (head <= len && len <= INLINE).then_some((kind, head, len))
    }
}

/// The number of a frame and its direction, as both sides count it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Key(u64);

impl Key {
    /// Of the first frame of a direction.
    pub(super) fn first(direction: usize) -> Self {
        Self(1 << 1 | (direction as u64 & 1))
    }

    /// Of the next one.
    #[inline]
    pub(super) fn next(self) -> Self {
        Self((self.0 + 2) & (u64::MAX >> Word::KEY))
    }
}

/// Written by the reader of a direction.
#[repr(C, align(128))]
#[derive(Default)]
pub(super) struct ReadLine {
    /// Cells taken.
    pub(super) cells: AtomicU64,
    /// Bytes of the bulk ring taken, and in the top byte which class of ring.
    pub(super) bulk: AtomicU64,
}

/// Set by one side, taken by the other.
#[repr(C, align(128))]
#[derive(Default)]
pub(super) struct WakeLine {
    /// Set by a reader that does not poll this direction; the writer takes it and owes a notice.
    pub(super) notice: AtomicU32,
}

/// Set by one side, taken by the other.
#[repr(C, align(128))]
#[derive(Default)]
pub(super) struct WantLine {
    /// Set by a writer that waits for room; the reader takes it and owes a notice.
    pub(super) want: AtomicU32,
}

/// The lines of a direction.
#[repr(C)]
#[derive(Default)]
pub(super) struct Direction {
    pub(super) read: ReadLine,
    pub(super) wake: WakeLine,
    pub(super) want: WantLine,
}

/// The first page of a pair.
#[repr(C, align(128))]
#[derive(Default)]
pub(super) struct Lines {
    /// A cell both sides write in turn.
    pub(super) alternate: Cell,
    _apart: Cell,
    /// From the side that made the pair, and back.
    pub(super) directions: [Direction; 2],
}

/// Links share a bit of a notification page's map if their numbers are the same modulo this.
pub(super) const BITS: usize = 64 * 64;

/// What all peers of a process write.
#[repr(C, align(128))]
pub(super) struct NotificationPage {
    pub(super) asleep: Lonely<AtomicU32>,
    /// Which words of the map have a bit set.
    pub(super) summary: Lonely<AtomicU64>,
    /// The processor on which the owner last polled, plus one.
    pub(super) cpu: Lonely<AtomicU32>,
    /// Which links have something.
    pub(super) map: [AtomicU64; BITS / 64],
}

impl Default for NotificationPage {
    fn default() -> Self {
        let map = core::array::from_fn(|_| AtomicU64::new(0));
        Self { asleep: Lonely::default(), summary: Lonely::default(), cpu: Lonely::default(), map }
    }
}

/// A value on cache lines of its own.
#[repr(C, align(128))]
#[derive(Default)]
pub(super) struct Lonely<T>(pub(super) T);

/// Bytes of a notification page.
pub(super) const PAGE_BYTES: usize = 4096;
/// Bytes of a pair; sparse.
pub(super) const PAIR_BYTES: usize = BULK_AT + 2 * BULK_SPAN;

/// Where the cells of a direction begin.
pub(super) const fn cells_at(direction: usize) -> usize {
    4096 + (direction & 1) * CELLS * size_of::<Cell>()
}

/// Where the bulk rings of a direction begin.
pub(super) const fn bulk_at(direction: usize) -> usize {
    BULK_AT + (direction & 1) * BULK_SPAN
}

/// Bytes that exist from the beginning.
pub(super) const FIRST_BYTES: usize = cells_at(1) + CELLS * size_of::<Cell>();

const BULK_AT: usize = 64 << 10;
const BULK_SPAN: usize = 2 << 20;

#[cfg(not(feature = "shuttle"))]
const _: () = {
    assert!(size_of::<Cell>() == 64 && size_of::<Lines>() <= 4096 && size_of::<NotificationPage>() <= PAGE_BYTES);
    assert!(FIRST_BYTES <= BULK_AT);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_says_what_was_put_in_and_nonsense_says_nothing() {
        let key = Key::first(1).next();
        let word = Word::read(Word::new(Kind::Begin, 64, 80, key).bits());
        assert!(word.is(key) && !word.is(key.next()) && !word.is(Key::first(0).next()));
        assert_eq!(word.parts(), Some((Kind::Begin, 64, 80)));
        assert_eq!(Word::read(0).parts(), None);
        assert_eq!(Word::read(u64::MAX).parts(), None);
        assert_eq!(Word::new(Kind::Whole, 9, 8, key).parts(), None, "a head longer than all");
        assert!(!Word::read(0).is(Key::first(0)) && !Word::read(0).is(Key::first(1)));
    }
}
