//! The suites of links over every stack of adapters, and drivers of messages with such stacks.

use libtest_mimic::Trial;
use madrigal::StackedMessages;
use madrigal_progress::driver::Driver;
use madrigal_progress::message::MessageDriver;

use crate::udp::Vrp;
use crate::{Case, trial, vlinks};

/// Trials of links with adapters: every stack that links of programs can have, over each driver; trials are named `STACK/DRIVER::CASE`.
pub fn trials(drivers: &[&'static dyn Driver], cases: &'static [Case<vlinks::Context>]) -> Vec<Trial> {
    let all = drivers.iter().flat_map(|driver| stacks(*driver).map(|above| (*driver, above)));
    let of = |(driver, above): (&'static dyn Driver, &'static str)| {
        let stack = format!("{above}/tcp").parse().expect("a stack");
        let name = format!("{above}/{}", driver.name());
        let made = |case| {
            let stack = Clone::clone(&stack);
            trial(&name, case, None, move || vlinks::stacked(driver, Some(stack)))
        };
        cases.iter().map(made).collect::<Vec<_>>()
    };
    all.flat_map(of).collect()
}

/// Those of a driver: one that enciphers has no `tls` above it.
fn stacks(driver: &dyn Driver) -> impl Iterator<Item = &'static str> {
    let enciphers = driver.name() == Vrp.name();
    STACKS.iter().copied().filter(move |above| !(enciphers && above.contains("tls")))
}

/// What stands above the driver in those stacks.
const STACKS: &[&str] = &["adoc", "stripe(1)", "stripe(4)", "adoc/stripe(3)", "tls", "adoc/tls/stripe(3)"];

/// Drivers of messages with these stacks, over TCP; trials are named `STACK::CASE`.
pub fn message_drivers() -> Vec<&'static dyn MessageDriver> {
    MESSAGE_STACKS.iter().map(|stack| messages_over(stack, madrigal::driver("tcp").expect("always there"))).collect()
}

/// A driver of messages with that stack, over a driver of bytes.
pub fn messages_over(stack: &str, below: &'static dyn Driver) -> &'static dyn MessageDriver {
    let tls = Some(vlinks::certificates());
    let made = StackedMessages::new(below, stack.parse().expect("a stack"), tls.as_ref().map(madrigal::GridTls::ends))
        .expect("a stack of links");
    Box::leak(Box::new(made))
}

/// The driver of messages of that name, which may be a stack; for started copies.
pub fn message_driver(name: &str) -> Option<&'static dyn MessageDriver> {
    if name.contains('/') {
        return Some(messages_over(name, madrigal::driver("tcp")?));
    }
    madrigal::message_driver(name)
}

const MESSAGE_STACKS: &[&str] = &["adoc/tcp", "stripe(2)/tcp", "adoc/tls/stripe(2)/tcp"];
