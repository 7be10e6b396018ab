//! The suites of links over every stack of adapters.

use libtest_mimic::Trial;
use madrigal_progress::driver::Driver;

use crate::{Case, trial, vlinks};

/// Trials of links with adapters: every stack that links of programs can have, over each driver; trials are named `STACK/DRIVER::CASE`.
pub fn trials(drivers: &[&'static dyn Driver], cases: &'static [Case<vlinks::Context>]) -> Vec<Trial> {
    let all = drivers.iter().flat_map(|driver| STACKS.iter().map(|above| (*driver, *above)));
    let of = |(driver, above): (&'static dyn Driver, &'static str)| {
        let stack = format!("{above}/tcp").parse().expect("a stack");
        let name = format!("{above}/{}", driver.name());
        let made = |case| {
            let stack = Clone::clone(&stack);
            trial(&name, case, None, move || vlinks::stacked(driver, Some(stack)))
        };
        cases.iter().map(made).collect::<Vec<_>>()
    };
    all.flat_map(of).collect()
}

/// What stands above the driver in those stacks.
const STACKS: &[&str] = &["adoc", "stripe(1)", "stripe(4)", "adoc/stripe(3)", "tls", "adoc/tls/stripe(3)"];
