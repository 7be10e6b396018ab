//! Links with adapters: any driver with a stack of them above it, as a driver again. So whatever uses a driver can have links that are
//! compressed, or of several connections, and both ends agree on that when they connect ([`madrigal_adapters::stack`]).
//!
//! ```text
//!   VLink --> ends --> link (the adapters, one lock) --> VLink of the driver below, one for each connection
//!                        ^------- handlers of their reads and writes, and of a timer, on the engine --------'
//! ```
//! What was written is kept until the other end has it, where the stack has a `stripe`: so a connection may break, any of them, and
//! the link goes on by those that are left, while the connecting end makes a new one. Closing waits for that, too; no longer than ten
//! seconds in which the other end takes nothing.
//!
//! With `tls` neither end has the link before the other one is known: the connect fails with the reason, or nothing arrives to be accepted.
//!
//! Messages go over such links by [`messages`], a driver of messages.
//!
//! Memory: what the adapters keep ([`madrigal_adapters::stripe::Limits`]), and 128 KiB for a connection that is read.

mod below;
mod dial;
mod ends;
mod greeting;
mod link;
mod listen;
mod made_of;
mod messages;
mod pace;

use std::net::IpAddr;
use std::sync::Arc;

use madrigal_adapters::stack::Stack;
use madrigal_base::error::{ConnectError, ListenError};
use madrigal_base::locator::Locator;
use madrigal_base::node::NodeAddress;
use madrigal_progress::driver::{Connecting, Detour, Driver, Facts, Listener, Place};
use madrigal_progress::engine::Engine;

use made_of::MadeOf;

pub use below::Below;
pub use made_of::{MakeTls, StackRefused};
pub use messages::StackedMessages;

/// How long the end of a link waits for the other end to take anything of what was written.
const LINGER: u64 = 10_000_000_000;

/// A driver whose links have the adapters of a stack, with the name and the addresses of the driver below.
pub struct Stacked {
    engine: Arc<Engine>,
    below: Below,
    made_of: MadeOf,
}

impl Stacked {
    /// The driver `below` with a stack, of whose last element, which says `tcp`, it takes the place. Links have all of the stack, or there
    /// is no link. `tls` is needed for a stack that has one: it is asked for an end at once, to see that there is a certificate.
    pub fn new(engine: &Arc<Engine>, below: Below, stack: Stack, tls: Option<MakeTls>) -> Result<Self, StackRefused> {
        Ok(Self { engine: Arc::clone(engine), below, made_of: MadeOf::new(stack, tls, LINGER)? })
    }
}

impl Driver for Stacked {
    fn name(&self) -> &'static str {
        self.below.name()
    }

    fn facts(&self) -> Facts {
        self.below.facts()
    }

    fn usable(&self, place: &Place) -> Result<(), String> {
        self.below.usable(place)
    }

    fn address_for(&self, name: &str) -> Option<Locator> {
        self.below.address_for(name)
    }

    fn addresses(&self, place: &Place) -> Vec<IpAddr> {
        self.below.addresses(place)
    }

    fn publish(&self, address: &mut NodeAddress, place: &Place) {
        self.below.publish(address, place);
    }

    fn detour(&self, to: &NodeAddress, place: &Place) -> Option<Detour> {
        self.below.detour(to, place)
    }

    fn listen(&self, at: &Locator, place: &Place) -> Result<Box<dyn Listener>, ListenError> {
        let ours = listen::Greeter::listen(&self.engine, &*self.below, (at, place), self.made_of.clone())?;
        Ok(Box::new(ours))
    }

    fn connect(&self, to: &Locator, place: &Place) -> Result<Connecting, ConnectError> {
        let (engine, below) = (Arc::clone(&self.engine), self.below.clone());
        let way = dial::Way { engine, below, to: to.clone(), place: place.clone() };
        dial::Dial::begin(way, self.made_of.clone()).map(|ours| Connecting::Pending(Box::new(ours)))
    }
}
