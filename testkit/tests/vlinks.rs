//! The VLink suite over the table.

use madrigal_testkit::{tidy, trials, vlinks, withdrawn};

fn main() {
    let arguments = libtest_mimic::Arguments::from_args();
    let mut all = trials(madrigal::DRIVERS, vlinks::CASES, vlinks::context);
    all.extend(trials(madrigal::DRIVERS, withdrawn::CASES, vlinks::context));
    let conclusion = libtest_mimic::run(&arguments, all);
    tidy();
    conclusion.exit();
}
