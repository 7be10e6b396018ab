//! Layer 1: the drivers, and the table of them.
//!
//! To add a driver: a folder here, two lines in the table below, a page in `docs/drivers`. The conformance suite runs over every
//! entry; a test fails if a folder is missing from the table or has no page.

use madrigal_netaccess::driver::Driver;

mod loopback;
pub mod shm;
mod tcp;

/// Every driver, nearest reach first. The other line of an entry is its `mod` above.
pub static DRIVERS: &[&dyn Driver] = &[&loopback::Loopback, &shm::driver::Shm, &tcp::Tcp];

/// The driver of that name.
pub fn driver(name: &str) -> Option<&'static dyn Driver> {
    DRIVERS.iter().copied().find(|driver| driver.name() == name)
}
