//! The suite of endpoints over the table of drivers of messages, over stacks, also of connections that break, and over ports
//! that make it hard.

use madrigal_progress::message::MessageDriver;
use madrigal_testkit::awkward::{Awkward, Ways};
use madrigal_testkit::{endpoints, flaky, message_drivers, message_trials, stacked, tidy};

static WAYS: [Ways; 3] =
    [Ways { parts: true, copies: false }, Ways { parts: false, copies: true }, Ways { parts: true, copies: true }];

fn trials_of_flaky() -> Vec<libtest_mimic::Trial> {
    let drivers = [madrigal::driver("tcp").expect("always there")];
    madrigal_testkit::trials(&drivers, flaky::MESSAGE_CASES, |driver| driver)
}

fn main() {
    let mut trials = message_trials(&message_drivers(), endpoints::CASES, endpoints::context);
    trials.extend(message_trials(&stacked::message_drivers(), endpoints::CASES, endpoints::context));
    trials.extend(trials_of_flaky());
    let loopback = madrigal::message_driver("loopback").expect("always there");
    for ways in WAYS {
        let awkward: &'static dyn MessageDriver = Box::leak(Box::new(Awkward { driver: loopback, ways }));
        let kind = format!("parts={},copies={}", ways.parts, ways.copies);
        let all = message_trials(&[awkward], endpoints::CASES, endpoints::context);
        trials.extend(all.into_iter().map(|trial| trial.with_kind(kind.clone())));
    }
    let conclusion = libtest_mimic::run(&libtest_mimic::Arguments::from_args(), trials);
    tidy();
    conclusion.exit();
}
