//! Simulations of grids with a virtual clock: links that come up, end, fall silent and are cut, route updates that come late, streams that
//! migrate. Each schedule follows from a seed, which a failure names: `SEED=4711 cargo test -p madrigal-daemon simulation` runs that one alone.

mod dials;
mod migration;
mod routing;
mod streams;

use madrigal_seeds::Random;

/// Runs that many seeds, or the one of the environment.
fn run_seeds(count: u64, one: impl Fn(Random) + std::panic::RefUnwindSafe) {
    madrigal_seeds::run(count, |seed| one(Random::new(seed)));
}
