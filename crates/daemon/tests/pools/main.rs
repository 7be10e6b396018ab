//! Pools, by real daemons and real programs, over each store. This program is also those daemons and programs: [`part::play`].
//!
//! Features (docs/features.md): I4.

mod bed;
mod failing;
mod part;
mod proxy;
mod storm;
mod suite;

use std::process::ExitCode;

use bed::Kind;
use madrigal_tests::trials;

fn main() -> ExitCode {
    if let Some(code) = part::play() {
        return code;
    }
    let mut all = Vec::new();
    for kind in [Kind::Keeper, Kind::Etcd] {
        for (name, test) in suite::TESTS.iter().chain(storm::TESTS) {
            all.push(trials::trial(format!("{kind:?}::{name}").to_lowercase(), move || test(kind)));
        }
    }
    for (name, test) in suite::OF_ONE_STORE.iter().chain(failing::TESTS) {
        all.push(trials::trial(*name, test));
    }
    trials::run_beside(all, 2)
}
