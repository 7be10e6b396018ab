//! The driver suite over the table, and over drivers that were added.

use madrigal_testkit::{added, all_drivers, drivers, tidy, trials};

fn main() {
    added::start();
    let table = all_drivers();
    let mut all = trials(&table, drivers::CASES, drivers::context);
    let packets: Vec<_> = table.into_iter().filter(|driver| drivers::has_packets(*driver)).collect();
    all.extend(trials(&packets, drivers::PACKETS, drivers::context));
    let conclusion = libtest_mimic::run(&libtest_mimic::Arguments::from_args(), all);
    tidy();
    conclusion.exit();
}
