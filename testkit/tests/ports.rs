//! The suite of ports over the table of drivers of messages.

use madrigal_testkit::{message_drivers, message_trials, ports, tidy};

fn main() {
    let conclusion = libtest_mimic::run(
        &libtest_mimic::Arguments::from_args(),
        message_trials(&message_drivers(), ports::CASES, ports::context),
    );
    tidy();
    conclusion.exit();
}
