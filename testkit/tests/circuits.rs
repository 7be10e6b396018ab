//! The suites of Circuits, and of send ports and receive ports, over the table of drivers of messages, over stacks, and over
//! ports that make it hard.

use madrigal_progress::message::MessageDriver;
use madrigal_testkit::awkward::{Awkward, Ways};
use madrigal_testkit::{circuits, mailboxes, message_drivers, message_trials, send_receive, stacked, tidy};

static WAYS: [Ways; 2] = [Ways { parts: true, copies: false }, Ways { parts: true, copies: true }];

fn main() {
    let mut drivers = message_drivers();
    drivers.extend(stacked::message_drivers());
    let mut trials = message_trials(&drivers, circuits::CASES, circuits::context);
    trials.extend(message_trials(&drivers, send_receive::CASES, send_receive::context));
    trials.extend(message_trials(&message_drivers(), mailboxes::CASES, mailboxes::context));
    let beside: Vec<_> = ["shm", "tcp"].into_iter().filter_map(madrigal::message_driver).collect();
    trials.extend(message_trials(&beside, send_receive::carried::CASES, send_receive::context));
    let loopback = madrigal::message_driver("loopback").expect("always there");
    for ways in WAYS {
        let awkward: &'static dyn MessageDriver = Box::leak(Box::new(Awkward { driver: loopback, ways }));
        let kind = format!("parts={},copies={}", ways.parts, ways.copies);
        let all = message_trials(&[awkward], circuits::CASES, circuits::context);
        trials.extend(all.into_iter().map(|trial| trial.with_kind(kind.clone())));
    }
    let conclusion = libtest_mimic::run(&libtest_mimic::Arguments::from_args(), trials);
    tidy();
    conclusion.exit();
}
