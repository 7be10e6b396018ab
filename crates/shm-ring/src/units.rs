//! Which units of an arena are lent, and to which session: words that both processes change, and neither trusts.

use madrigal_base::sync::{AtomicU64, Ordering};

const WORD: usize = u64::BITS as usize;
/// Bits of a tag with a part of the session: the direction, and how many units lie together.
const DETAIL: u64 = 0xff;

/// The random number of a session. Its low byte is zero, and it is not zero itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tag(u64);

impl Tag {
    /// A number that is one. `None`: it has bits where there are none.
    pub fn new(number: u64) -> Option<Self> {
        (number != 0 && number & DETAIL == 0).then_some(Self(number))
    }

    /// A tag made of random bits.
    pub fn fresh(random: u64) -> Self {
        Self((random & !DETAIL).max(DETAIL + 1))
    }

    /// The number.
    pub fn get(self) -> u64 {
        self.0
    }

    /// What stands on `count` units lent to direction `dir` of the session.
    fn on(self, dir: usize, count: usize) -> u64 {
        self.0 | (dir as u64 & 1) << 7 | u64::from(count.trailing_zeros())
    }
}

/// One bit per unit, set while it is lent. The first unit of each loan also has the borrower's tag. Part of the segment.
#[repr(C)]
pub(super) struct Units<const WORDS: usize, const UNITS: usize> {
    lent: [AtomicU64; WORDS],
    owner: [AtomicU64; UNITS],
}

impl<const WORDS: usize, const UNITS: usize> Units<WORDS, UNITS> {
    /// Borrows `count` units that lie together, `count` a power of two up to 64; the first of them. All or none are taken, whatever
    /// the other side takes at the same time. `None`: there is no such room.
    pub(super) fn take(&self, count: usize, tag: Tag, dir: usize) -> Option<usize> {
        let ones = u64::MAX >> (WORD - count.clamp(1, WORD));
        let places = (0..WORDS * WORD).step_by(count.max(1));
        let first = places
            .into_iter()
            .find(|at| self.lent.get(at / WORD).is_some_and(|word| take_bits(word, ones << (at % WORD))))?;
        self.owner.get(first)?.store(tag.on(dir, count), Ordering::Relaxed);
        Some(first)
    }

    /// Whether `count` units from `first` on are lent to direction `dir` of this session.
    pub(super) fn are_lent(&self, first: usize, count: usize, tag: Tag, dir: usize) -> bool {
        self.owner.get(first).is_some_and(|owner| owner.load(Ordering::Relaxed) == tag.on(dir, count))
    }

    /// Gives `count` units back, the first of them `first`; false, and nothing is changed, if they are not lent to this direction of
    /// this session.
    #[must_use]
    pub(super) fn give(&self, first: usize, count: usize, tag: Tag, dir: usize) -> bool {
        let (Some(word), Some(owner), 1..=WORD) = (self.lent.get(first / WORD), self.owner.get(first), count) else {
            return false;
        };
        // One caller finds the tag: a loan ends once.
        if owner.compare_exchange(tag.on(dir, count), 0, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return false;
        }
        // SYNC: Release pairs with `take_bits`: the next borrower finds us done with them.
        word.fetch_and(!(u64::MAX >> (WORD - count) << (first % WORD)), Ordering::AcqRel);
        true
    }
}

/// Sets the bits of `mask` if none of them is set.
fn take_bits(word: &AtomicU64, mask: u64) -> bool {
    let mut seen = word.load(Ordering::Relaxed);
    while seen & mask == 0 {
        // SYNC: Acquire pairs with `Units::give`.
        match word.compare_exchange(seen, seen | mask, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(now) => seen = now,
        }
    }
    false
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn units() -> Units<2, 128> {
        Units { lent: [const { AtomicU64::new(0) }; 2], owner: [const { AtomicU64::new(0) }; 128] }
    }

    impl Units<2, 128> {
        pub(crate) fn lent(&self) -> u32 {
            self.lent.iter().map(|word| word.load(Ordering::SeqCst).count_ones()).sum()
        }
    }

    #[cfg(not(feature = "shuttle"))]
    #[test]
    fn units_lie_together_and_are_lent_once() {
        let (units, tag) = (units(), Tag::fresh(7 << 8));
        assert_eq!([1, 16, 1, 64].map(|count| units.take(count, tag, 0)), [0, 16, 1, 64].map(Some));
        assert_eq!(units.lent(), 82);
        assert_eq!(units.take(64, tag, 0), None);
        assert_eq!([units.take(32, tag, 0), units.take(32, tag, 0)], [Some(32), None]);
        assert!(units.give(64, 64, tag, 0));
        assert_eq!((units.lent(), units.take(64, tag, 1)), (50, Some(64)));
    }

    #[cfg(not(feature = "shuttle"))]
    #[test]
    fn only_the_borrower_gives_back_and_only_what_it_has() {
        let (units, tag, other) = (units(), Tag::fresh(1 << 8), Tag::fresh(2 << 8));
        assert_eq!(units.take(4, tag, 1), Some(0));
        let wrong =
            [(0, 4, other, 1), (0, 4, tag, 0), (0, 8, tag, 1), (1, 4, tag, 1), (1 << 40, 4, tag, 1), (0, 1000, tag, 1)];
        for (first, count, tag, dir) in wrong {
            assert!(!units.give(first, count, tag, dir) && units.lent() == 4, "{first} {count} {tag:?} {dir}");
        }
        assert!(units.are_lent(0, 4, tag, 1) && !units.are_lent(0, 4, other, 1));
        assert!(units.give(0, 4, tag, 1) && !units.give(0, 4, tag, 1));
        assert_eq!(units.lent(), 0);
    }

    #[test]
    fn a_tag_leaves_room_for_its_details() {
        assert_eq!((Tag::fresh(0).get(), Tag::fresh(u64::MAX).get()), (256, u64::MAX << 8));
        assert!(Tag::new(0).is_none() && Tag::new(1).is_none() && Tag::new(256).is_some());
    }

    /// Both sides, at every interleaving a scheduler finds: a unit has one owner, and what is given back is all there is.
    #[cfg(feature = "shuttle")]
    #[test]
    fn two_sides_never_share_a_unit_nor_lose_one() {
        let run = || {
            let units = shuttle::sync::Arc::new(units());
            let sides = [(0, [16, 1]), (1, [1, 16])].map(|(side, counts)| {
                let units = shuttle::sync::Arc::clone(&units);
                shuttle::thread::spawn(move || {
                    for count in counts {
                        let tag = Tag::fresh((side as u64 + 1) << 8);
                        let first = units.take(count, tag, side).unwrap();
                        let before = units.lent();
                        assert!(before as usize >= count, "somebody else gave ours back");
                        assert!(units.give(first, count, tag, side));
                    }
                })
            });
            sides.into_iter().for_each(|side| side.join().unwrap());
            assert_eq!(units.lent(), 0, "units nobody has");
        };
        shuttle::check_random(run, 20_000);
        shuttle::check_pct(run, 5_000, 3);
    }
}
