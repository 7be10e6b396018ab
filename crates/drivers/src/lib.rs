//! Layer 1: the drivers, and the table of them.
//!
//! To add a driver: a folder here, two lines in the table below, a page in `docs/drivers`. The conformance suite runs over every
//! entry; a test fails if a folder is missing from the table or has no page. A driver that carries messages among many nodes too has
//! a line in the second table, over which a suite of its own runs.
//!
//! Behind those of the table stand the drivers that the user adds at run time ([`added()`]): streams and packets only.

use std::sync::OnceLock;

use madrigal_plugin::Found;
use madrigal_progress::driver::Driver;
use madrigal_progress::message::MessageDriver;

mod added;
pub mod fabric;
mod loopback;
pub mod shm;
mod tcp;

/// The drivers of our own, nearest reach first. The other line of an entry is its `mod` above.
pub static DRIVERS: &[&dyn Driver] = &[&loopback::Loopback, &shm::driver::Shm, &tcp::Tcp];

/// Every driver: those of the table, and those that the user added.
pub fn drivers() -> impl Iterator<Item = &'static dyn Driver> {
    DRIVERS.iter().copied().chain(added().drivers().iter().map(|plugin| plugin as &dyn Driver))
}

/// The drivers that the user added, in the order of their names, found when this is first called. Those that cannot be loaded are there, too,
/// and say so when they are used.
pub fn added() -> &'static Found {
    static ADDED: OnceLock<Found> = OnceLock::new();
    ADDED.get_or_init(|| added::find(|name| DRIVERS.iter().any(|driver| driver.name() == name)))
}

/// The driver of that name.
pub fn driver(name: &str) -> Option<&'static dyn Driver> {
    drivers().find(|driver| driver.name() == name)
}

/// Every driver of messages, nearest reach first, and a fabric before the network.
pub static MESSAGE_DRIVERS: &[&dyn MessageDriver] =
    &[&loopback::Loopback, &shm::inbox::ShmMessages, &fabric::ANY, &tcp::Tcp];

/// The driver of messages of that name: one of the table, or `fabric:NAME` for one provider of libfabric's.
pub fn message_driver(name: &str) -> Option<&'static dyn MessageDriver> {
    let known = MESSAGE_DRIVERS.iter().copied().find(|driver| driver.name() == name);
    known.or_else(|| fabric::named(name))
}
