//! Conformance suites: written once against a contract, run over everything that claims to keep it.
//!
//! * [`circuits`], [`send_receive`], [`mailboxes`]: the promises of `Circuit`, of send ports and receive ports, and of mailboxes, over any
//!   `MessageDriver`;
//! * [`endpoints`]: the promises of `Endpoint`, over any `MessageDriver`, [awkward] ones included;
//! * [`drivers`]: the contracts of `progress::driver`, for any `Driver`;
//! * [`ports`]: the contract of `progress::message`, for any `MessageDriver`;
//! * [`stacked`]: the same with each stack of adapters; [`flaky`]: over connections that break; [`enciphered`]: with
//!   certificates;
//! * [`added`]: drivers that are compiled and added while the tests run;
//! * [`vlinks`]: the promises of `VLink`, over any driver, and over [`udp`]; [`withdrawn`]: of its operations that are taken back.
//!
//! A suite is a list of trials. To run it over a driver is one line, and over the table none at all: the tests in `tests/` take
//! all of `madrigal::drivers()`. No trial has an upper time limit; a [`watchdog`] ends a run that hangs and names the trial.

pub mod added;
pub mod awkward;
pub mod circuits;
pub mod drivers;
pub mod enciphered;
pub mod endpoints;
pub mod flaky;
pub mod hosts;
pub mod mailboxes;
pub mod noise;
pub mod ports;
pub mod send_receive;
pub mod stacked;
pub mod udp;
pub mod vlinks;
pub mod watchdog;
pub mod withdrawn;

use libtest_mimic::{Completion, Failed, Trial};
use madrigal_base::network::Network;
use madrigal_progress::driver::{Driver, Place};
use madrigal_progress::message::MessageDriver;

/// A trial of a suite: its name, and what it does with a driver.
pub struct Case<C: 'static> {
    /// What is promised.
    pub name: &'static str,
    /// Panics where it is not kept.
    pub run: fn(&C),
}

/// One trial for every case and driver, named `DRIVER::CASE`, under the watchdog. `context` makes what a case gets.
pub fn trials<C: 'static>(
    drivers: &[&'static dyn Driver],
    cases: &'static [Case<C>],
    context: fn(&'static dyn Driver) -> C,
) -> Vec<Trial> {
    let trial = |driver, case: &'static Case<C>| trial(Driver::name(driver), case, None, move || context(driver));
    drivers.iter().flat_map(|driver| cases.iter().map(move |case| trial(*driver, case))).collect()
}

/// The same for drivers of messages; trials of a driver that cannot be used here are ignored, with the reason.
pub fn message_trials<C: 'static>(
    drivers: &[&'static dyn MessageDriver],
    cases: &'static [Case<C>],
    context: fn(&'static dyn MessageDriver) -> C,
) -> Vec<Trial> {
    let of = |driver: &'static dyn MessageDriver| {
        let lacks = driver.usable(&place()).err().map(|why| why.to_string());
        cases.iter().map(move |case| trial(MessageDriver::name(driver), case, lacks.clone(), move || context(driver)))
    };
    drivers.iter().flat_map(|driver| of(*driver)).collect()
}

pub(crate) fn trial<C: 'static>(
    driver: &str,
    case: &'static Case<C>,
    lacks: Option<String>,
    context: impl FnOnce() -> C + Send + 'static,
) -> Trial {
    let name = format!("{driver}::{}", case.name);
    Trial::ignorable_test(name.clone(), move || {
        if let Some(lacks) = lacks {
            return Ok(Completion::ignored_with(lacks));
        }
        let _dog = watchdog::Watchdog::set(&name);
        (case.run)(&context());
        Ok::<_, Failed>(Completion::Completed)
    })
}

/// The drivers of messages whose system calls are all our own.
pub fn own_message_drivers() -> Vec<&'static dyn MessageDriver> {
    let all = madrigal::MESSAGE_DRIVERS.iter().copied();
    all.filter(|driver| !driver.name().starts_with("fabric")).collect()
}

/// Names one more way of the `fabric` driver to try.
const FABRIC: &str = "MADRIGAL_TESTKIT_FABRIC";

/// The same, and the `fabric` driver over the provider it chooses and over `tcp`. libfabric 1.17's own `shm` now and then crashes where one
/// process opens and closes it many times, as suites do: it is tried when asked for, by `MADRIGAL_TESTKIT_FABRIC=fabric:shm` and one case
/// after the other.
pub fn message_drivers() -> Vec<&'static dyn MessageDriver> {
    let further = std::env::var(FABRIC).ok();
    let names = ["fabric", "fabric:tcp"].into_iter().chain(further.as_deref());
    own_message_drivers().into_iter().chain(names.filter_map(madrigal::message_driver)).collect()
}

/// The drivers of the table, and those that were added.
pub fn all_drivers() -> Vec<&'static dyn Driver> {
    madrigal::drivers().collect()
}

/// A place of this process's own, so that test runs do not meet.
pub fn place() -> Place {
    let directory = format!("/dev/shm/madrigal-test-{}", madrigal_sys::process::own_pid());
    let network = Network { connect_timeout: 60, ..Network::default() };
    Place { directory, network, daemons: Vec::new() }
}

/// Removes what [`place`] may have left; for the end of a test program.
pub fn tidy() {
    let _ = std::fs::remove_dir_all(place().directory);
    added::tidy();
}
