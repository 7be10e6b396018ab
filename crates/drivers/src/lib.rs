//! Layer 1: the drivers, and the table of them.
//!
//! To add a driver: a folder here, two lines in the table below, a page in `docs/drivers`. The conformance suite runs over every
//! entry; a test fails if a folder is missing from the table or has no page. A driver that carries messages among many nodes too has
//! a line in the second table, over which a suite of its own runs.

use madrigal_progress::driver::Driver;
use madrigal_progress::message::MessageDriver;

pub mod fabric;
mod loopback;
pub mod shm;
mod tcp;

/// Every driver, nearest reach first. The other line of an entry is its `mod` above.
pub static DRIVERS: &[&dyn Driver] = &[&loopback::Loopback, &shm::driver::Shm, &tcp::Tcp];

/// The driver of that name.
pub fn driver(name: &str) -> Option<&'static dyn Driver> {
    DRIVERS.iter().copied().find(|driver| driver.name() == name)
}

/// Every driver of messages, nearest reach first, and a fabric before the network.
pub static MESSAGE_DRIVERS: &[&dyn MessageDriver] =
    &[&loopback::Loopback, &shm::inbox::ShmMessages, &fabric::ANY, &tcp::Tcp];

/// The driver of messages of that name: one of the table, or `fabric:NAME` for one provider of libfabric's.
pub fn message_driver(name: &str) -> Option<&'static dyn MessageDriver> {
    let known = MESSAGE_DRIVERS.iter().copied().find(|driver| driver.name() == name);
    known.or_else(|| fabric::named(name))
}
