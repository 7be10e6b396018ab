//! The VLink suite over the table.

use madrigal_testkit::{tidy, trials, vlinks};

fn main() {
    let arguments = libtest_mimic::Arguments::from_args();
    let conclusion = libtest_mimic::run(&arguments, trials(madrigal::DRIVERS, vlinks::CASES, vlinks::context));
    tidy();
    conclusion.exit();
}
