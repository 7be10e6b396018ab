//! The driver suite over the table.

use madrigal_testkit::{drivers, tidy, trials};

fn main() {
    let mut all = trials(madrigal::DRIVERS, drivers::CASES, drivers::context);
    let packets: Vec<_> = madrigal::DRIVERS.iter().copied().filter(|driver| drivers::has_packets(*driver)).collect();
    all.extend(trials(&packets, drivers::PACKETS, drivers::context));
    let conclusion = libtest_mimic::run(&libtest_mimic::Arguments::from_args(), all);
    tidy();
    conclusion.exit();
}
