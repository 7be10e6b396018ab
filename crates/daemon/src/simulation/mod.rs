//! Grids played through with a clock of their own: links that come, go, fall silent and are cut, relays that tell each other late what
//! they lead to, streams that go on by another way. Each schedule follows from one number, which a failure names: `SEED=4711 cargo test -p
//! madrigal-daemon simulation` plays that one alone.

mod dials;
mod migration;
mod streams;
mod ways;

/// Numbers that follow from a seed (splitmix64).
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    /// Less than `bound`.
    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// Whether something happens that does so once in `many` times.
    fn once_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }
}

/// Plays that many schedules, or the one that was asked for.
fn play(count: u64, one: impl Fn(Chance) + std::panic::RefUnwindSafe) {
    let asked = std::env::var("SEED").ok().and_then(|seed| seed.parse::<u64>().ok());
    let seeds = asked.map_or(0..count, |seed| seed..seed + 1);
    for seed in seeds {
        if let Err(why) = std::panic::catch_unwind(|| one(Chance(seed.wrapping_mul(0x2545_F491_4F6C_DD1D)))) {
            eprintln!("to play this one alone: SEED={seed}");
            std::panic::resume_unwind(why);
        }
    }
}
