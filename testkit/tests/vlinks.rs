//! The VLink suite over the table and added drivers, plain and with each stack of adapters; over connections that break; and with certificates.

use madrigal_testkit::{added, all_drivers, enciphered, flaky, stacked, tidy, trials, vlinks, withdrawn};

fn main() {
    added::start();
    let arguments = libtest_mimic::Arguments::from_args();
    let table = &all_drivers();
    let mut all = trials(table, vlinks::CASES, vlinks::context);
    all.extend(trials(table, withdrawn::CASES, vlinks::context));
    all.extend(stacked::trials(table, vlinks::CASES));
    all.extend(stacked::trials(table, withdrawn::CASES));
    all.extend(trials(table, flaky::CASES, |driver| driver));
    all.extend(trials(table, enciphered::CASES, |driver| driver));
    let conclusion = libtest_mimic::run(&arguments, all);
    tidy();
    conclusion.exit();
}
