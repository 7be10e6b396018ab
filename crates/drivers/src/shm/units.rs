//! Which units of an arena are lent: a bitmap both processes change, and neither trusts.

use madrigal_base::sync::{AtomicU64, Ordering};

const WORD: usize = u64::BITS as usize;

/// One bit a unit, set while it is lent. Part of the segment: `WORDS` words and nothing else.
#[repr(transparent)]
pub(super) struct Units<const WORDS: usize>([AtomicU64; WORDS]);

impl<const WORDS: usize> Units<WORDS> {
    /// Borrows `count` units that lie together, `count` a power of two up to 64; the first of them. All or none are taken, whatever
    /// the other side takes at the same time. `None`: there is no such room.
    pub(super) fn take(&self, count: usize) -> Option<usize> {
        let ones = u64::MAX >> (WORD - count.clamp(1, WORD));
        let places = (0..WORDS * WORD).step_by(count.max(1));
        places.into_iter().find(|at| self.0.get(at / WORD).is_some_and(|word| take_bits(word, ones << (at % WORD))))
    }

    /// Gives `count` units back, the first of them `first`. Units there are not are passed over.
    pub(super) fn give(&self, first: usize, count: usize) {
        if let (Some(word), 1..=WORD) = (self.0.get(first / WORD), count) {
            // SYNC: Release pairs with `take_bits`: who takes them next finds us done with them.
            word.fetch_and(!(u64::MAX >> (WORD - count) << (first % WORD)), Ordering::AcqRel);
        }
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
mod tests {
    use super::*;

    fn units() -> Units<2> {
        Units([AtomicU64::new(0), AtomicU64::new(0)])
    }

    impl Units<2> {
        fn lent(&self) -> u32 {
            self.0.iter().map(|word| word.load(Ordering::SeqCst).count_ones()).sum()
        }
    }

    #[cfg(not(feature = "shuttle"))]
    #[test]
    fn units_lie_together_and_are_lent_once() {
        let units = units();
        assert_eq!([units.take(1), units.take(16), units.take(1), units.take(64)], [0, 16, 1, 64].map(Some));
        assert_eq!(units.lent(), 82);
        assert_eq!(units.take(64), None);
        assert_eq!([units.take(32), units.take(32)], [Some(32), None]);
        units.give(64, 64);
        units.give(1 << 40, 1);
        units.give(0, 1000);
        assert_eq!((units.lent(), units.take(64)), (50, Some(64)));
    }

    /// Both sides, at every interleaving a scheduler finds: a unit has one owner, and what is given back is all there is.
    #[cfg(feature = "shuttle")]
    #[test]
    fn two_sides_never_share_a_unit_nor_lose_one() {
        let run = || {
            let units = shuttle::sync::Arc::new(units());
            let sides = [[16, 1], [1, 16]].map(|counts| {
                let units = shuttle::sync::Arc::clone(&units);
                shuttle::thread::spawn(move || {
                    for count in counts {
                        let first = units.take(count).unwrap();
                        let before = units.lent();
                        assert!(before as usize >= count, "somebody else gave ours back");
                        units.give(first, count);
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
