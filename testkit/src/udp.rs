//! `vrp/udp` in the suites: its runtime makes the driver, for that has certificates; here are its name and its addresses.

use std::net::SocketAddr;

use madrigal::error::{ConnectError, ListenError};
use madrigal::ids::Reach;
use madrigal::locator::Locator;
use madrigal_progress::driver::{Connecting, Driver, Facts, Listener, Place};

/// The driver that a context of the suites takes for `vrp/udp`.
pub struct Vrp;

impl Driver for Vrp {
    fn name(&self) -> &'static str {
        "udp"
    }

    fn facts(&self) -> Facts {
        Facts { reach: Reach::Network, one_user: false, takes: "vrp/udp://ADDRESS:PORT" }
    }

    fn usable(&self, _place: &Place) -> Result<(), String> {
        Ok(())
    }

    fn address_for(&self, _name: &str) -> Option<Locator> {
        Some(Locator::inet(self.name(), SocketAddr::from(([127, 0, 0, 1], 0))))
    }

    fn listen(&self, at: &Locator, _place: &Place) -> Result<Box<dyn Listener>, ListenError> {
        Err(ListenError::NoDriver { at: at.clone() })
    }

    fn connect(&self, to: &Locator, _place: &Place) -> Result<Connecting, ConnectError> {
        Err(ConnectError::NoDriver { to: to.clone() })
    }
}
