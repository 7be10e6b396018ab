//! The VLink suite over the table, added drivers and `vrp/udp`, plain and with each stack of adapters; over connections that break; and
//! with certificates.

use madrigal_progress::driver::Driver;
use madrigal_testkit::udp::Vrp;
use madrigal_testkit::{added, all_drivers, enciphered, flaky, stacked, tidy, trials, vlinks, withdrawn};

fn main() {
    added::start();
    let arguments = libtest_mimic::Arguments::from_args();
    let table = &all_drivers();
    let with_udp: Vec<&'static dyn Driver> = table.iter().copied().chain([&Vrp as &dyn Driver]).collect();
    let mut all = trials(&with_udp, vlinks::CASES, vlinks::context);
    all.extend(trials(&with_udp, withdrawn::CASES, vlinks::context));
    all.extend(stacked::trials(&with_udp, vlinks::CASES));
    all.extend(stacked::trials(&with_udp, withdrawn::CASES));
    all.extend(trials(table, flaky::CASES, |driver| driver));
    all.extend(trials(table, enciphered::CASES, |driver| driver));
    let conclusion = libtest_mimic::run(&arguments, all);
    tidy();
    conclusion.exit();
}
