//! The driver suite over the table.

use madrigal_testkit::{drivers, tidy, trials};

fn main() {
    let conclusion = libtest_mimic::run(
        &libtest_mimic::Arguments::from_args(),
        trials(madrigal::DRIVERS, drivers::CASES, drivers::context),
    );
    tidy();
    conclusion.exit();
}
