//! The `fabric` driver: messages over a provider of the installed libfabric, for fabrics that only it knows (verbs, EFA, CXI, PSM).
//!
//! ```text
//!   port --- peer, peer, ...: a link each (what either side may send, the frame on its way); connections: how they begin and end
//!     |----- packet: what one message of the provider's holds (no I/O)
//!     '----- ffi: libfabric, loaded when first wanted; one endpoint and its buffers
//!   provider: which one, and whether it is available
//! ```
//! `fabric` takes a fabric that is really there; `fabric:NAME` takes the provider of that name, for instance `fabric:tcp`. Never our own.

mod connections;
mod ffi;
mod own;
mod packet;
mod peer;
mod port;
mod provider;

use std::sync::{Mutex, PoisonError};

use madrigal_base::ids::Reach;
use madrigal_base::node::NodeId;
use madrigal_progress::driver::{Facts, Place};
use madrigal_progress::message::{MessageDriver, Port};

use provider::Wanted;

/// The driver, of one provider or of any.
pub(crate) struct Fabric {
    name: &'static str,
    wanted: Wanted,
}

/// The driver of a fabric that is really there.
pub const NAME: &str = "fabric";
/// What the names of drivers begin with that take one provider.
pub const PREFIX: &str = "fabric:";

/// Any fabric that is really there.
pub(crate) static ANY: Fabric = Fabric { name: NAME, wanted: Wanted::Real };

/// The driver of a name such as `fabric:tcp`; the same one each time.
pub(crate) fn named(name: &str) -> Option<&'static dyn MessageDriver> {
    known(name).map(|driver| driver as &dyn MessageDriver)
}

fn known(name: &str) -> Option<&'static Fabric> {
    static NAMED: Mutex<Vec<&'static Fabric>> = Mutex::new(Vec::new());
    let provider = name.strip_prefix(PREFIX)?;
    let legal = |b: u8| b.is_ascii_alphanumeric() || b"_;-".contains(&b);
    if provider.is_empty() || provider.len() > 64 || !provider.bytes().all(legal) {
        return None;
    }
    let mut all = NAMED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = all.iter().find(|known| known.name == name) {
        return Some(*known);
    }
    let name: &'static str = Box::leak(name.to_owned().into_boxed_str());
    let wanted = Wanted::Named(name.strip_prefix(PREFIX)?);
    let made: &'static Fabric = Box::leak(Box::new(Fabric { name, wanted }));
    all.push(made);
    Some(made)
}

/// Whether this thread is inside a call of ours to libfabric: a provider of ours must refuse meanwhile.
pub fn is_asking() -> bool {
    ffi::is_asking()
}

/// What the driver `fabric` or `fabric:NAME` takes here: the provider, such as `tcp;ofi_rxm`, and what it goes through. `Err`: why nothing.
pub fn chosen(driver: &str) -> Result<(String, String), String> {
    let driver = if driver == NAME { Some(&ANY) } else { known(driver) };
    let chosen = driver.ok_or("no such driver")?.wanted.find()?;
    let offer = chosen.offer().ok_or("libfabric offers nothing")?;
    Ok((offer.provider(), offer.domain()))
}

/// The installed libfabric.
pub struct Installed {
    /// Its version, such as 1 and 17.
    pub version: (u32, u32),
    /// What it offers for messages: provider and domain, each pair once.
    pub offers: Vec<(String, String)>,
}

/// The installed libfabric. `Err`: there is none.
pub fn installed() -> Result<Installed, String> {
    let version = ffi::installed()?;
    let mut list = Vec::new();
    // Nothing on offer is an answer too.
    if let Ok(offers) = ffi::ask(None) {
        for offer in offers.iter() {
            let named = (offer.provider(), offer.domain());
            if !list.contains(&named) {
                list.push(named);
            }
        }
    }
    Ok(Installed { version, offers: list })
}

impl MessageDriver for Fabric {
    fn name(&self) -> &'static str {
        self.name
    }

    fn facts(&self) -> Facts {
        // Only a provider knows whether it reaches other hosts; one that does not reports it when a peer is dialled.
        Facts { reach: Reach::Network, one_user: false, takes: "an address of the provider's" }
    }

    fn usable(&self, _place: &Place) -> Result<(), String> {
        self.wanted.find().map(drop)
    }

    fn open(&self, me: NodeId, place: &Place) -> Result<Box<dyn Port>, String> {
        let chosen = self.wanted.find()?;
        let offer = chosen.offer().ok_or("libfabric offers nothing")?;
        Ok(Box::new(port::FabricPort::open(me, place, offer)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_driver() {
        let one = named("fabric:tcp").unwrap();
        assert_eq!(one.name(), "fabric:tcp");
        assert!(core::ptr::addr_eq(one, named("fabric:tcp").unwrap()));
        for wrong in ["fabric", "fabric:", "tcp", "fabric:a b", "fabric:../x"] {
            assert!(named(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn ourselves_are_refused_by_name() {
        let place = Place { directory: String::new(), ..Place::default() };
        let why = named("fabric:madrigal").unwrap().usable(&place).unwrap_err();
        assert!(why.contains("ourselves"), "{why}");
    }
}
