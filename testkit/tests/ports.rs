//! The suite of ports over the table of drivers of messages, and over stacks.

use madrigal_testkit::{message_drivers, message_trials, ports, stacked, tidy};

fn main() {
    let mut trials = message_trials(&message_drivers(), ports::CASES, ports::context);
    trials.extend(message_trials(&stacked::message_drivers(), ports::CASES, ports::context));
    let conclusion = libtest_mimic::run(&libtest_mimic::Arguments::from_args(), trials);
    tidy();
    conclusion.exit();
}
