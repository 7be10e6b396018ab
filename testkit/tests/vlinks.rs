//! The VLink suite over the table, plain and with each stack of adapters; over connections that break; and with certificates.

use madrigal_testkit::{enciphered, flaky, stacked, tidy, trials, vlinks, withdrawn};

fn main() {
    let arguments = libtest_mimic::Arguments::from_args();
    let mut all = trials(madrigal::DRIVERS, vlinks::CASES, vlinks::context);
    all.extend(trials(madrigal::DRIVERS, withdrawn::CASES, vlinks::context));
    all.extend(stacked::trials(madrigal::DRIVERS, vlinks::CASES));
    all.extend(stacked::trials(madrigal::DRIVERS, withdrawn::CASES));
    all.extend(trials(madrigal::DRIVERS, flaky::CASES, |driver| driver));
    all.extend(trials(madrigal::DRIVERS, enciphered::CASES, |driver| driver));
    let conclusion = libtest_mimic::run(&arguments, all);
    tidy();
    conclusion.exit();
}
