//! For simulations in tests: random numbers that follow from a seed, and a schedule for each seed. A failure names its seed, and
//! `SEED=4711 cargo test ...` runs that one alone.
#![forbid(unsafe_code)]

use std::panic::{RefUnwindSafe, catch_unwind, resume_unwind};

/// Random numbers of a seed (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Those of a seed; neighbours have nothing in common.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x2545_F491_4F6C_DD1D))
    }

    /// Any number.
    pub fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    /// A number less than `bound`; 0 where that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.any() % bound.max(1)
    }

    /// True once in `many` times.
    pub fn once_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }
}

/// Runs the schedules of that many seeds, or the one of the environment.
pub fn run(count: u64, one: impl Fn(u64) + RefUnwindSafe) {
    let given = std::env::var("SEED").ok().and_then(|seed| seed.parse::<u64>().ok());
    let seeds = given.map_or(0..count, |seed| seed..seed.saturating_add(1));
    for seed in seeds {
        if let Err(why) = catch_unwind(|| one(seed)) {
            eprintln!("to run this one alone: SEED={seed}");
            resume_unwind(why);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_a_seed_are_always_the_same_and_within_bounds() {
        let first = |seed| Random::new(seed).any();
        assert_eq!([first(0), first(1), first(4711)], [first(0), first(1), first(4711)]);
        assert!(first(0) != first(1) && first(1) != first(2));
        let mut random = Random::new(7);
        let drawn: Vec<u64> = (0..10_000).map(|_| random.below(10)).collect();
        assert!((0..10).all(|number| drawn.iter().filter(|one| **one == number).count() > 800));
        assert_eq!((random.below(0), random.below(1)), (0, 0));
        assert!((0..10_000).filter(|_| random.once_in(100)).count() < 300);
    }

    #[test]
    fn a_seed_that_fails_ends_the_run() {
        let ran = std::sync::Mutex::new(Vec::new());
        let failed = catch_unwind(|| {
            run(10, |seed| {
                ran.lock().unwrap().push(seed);
                assert!(seed < 3, "seed {seed}");
            });
        });
        assert!(failed.is_err() && ran.into_inner().is_ok_and(|ran| ran == [0, 1, 2, 3]));
    }
}
