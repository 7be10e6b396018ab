//! Simulations of grids with a virtual clock: links that come up, end, fall silent and are cut, route updates that come late, streams that
//! migrate. Each schedule follows from a seed, which a failure names: `SEED=4711 cargo test -p madrigal-daemon simulation` runs that one alone.

mod dials;
mod migration;
mod routing;
mod streams;

/// Random numbers of a seed (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    /// A number less than `bound`.
    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// True once in `many` times.
    fn once_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }
}

/// Runs that many seeds, or the one of the environment.
fn run_seeds(count: u64, one: impl Fn(Random) + std::panic::RefUnwindSafe) {
    let given = std::env::var("SEED").ok().and_then(|seed| seed.parse::<u64>().ok());
    let seeds = given.map_or(0..count, |seed| seed..seed + 1);
    for seed in seeds {
        if let Err(why) = std::panic::catch_unwind(|| one(Random(seed.wrapping_mul(0x2545_F491_4F6C_DD1D)))) {
            eprintln!("to run this one alone: SEED={seed}");
            std::panic::resume_unwind(why);
        }
    }
}
