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
//! Memory: what the adapters keep ([`madrigal_adapters::stripe::Limits`]), and 128 KiB for a connection that is read.

mod dial;
mod ends;
mod greeting;
mod link;
mod listen;

use std::sync::Arc;

use madrigal_adapters::known;
use madrigal_adapters::stack::{Offer, Stack};
use madrigal_base::error::{ConnectError, ListenError};
use madrigal_base::locator::Locator;
use madrigal_progress::driver::{Connecting, Driver, Facts, Listener, Place};
use madrigal_progress::engine::Engine;

/// Why there are no links with a stack.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StackRefused {
    /// They would be enciphered.
    #[error(
        "`tls` in `{0}`: links of programs are enciphered by the daemons of their hosts (docs/daemon.md); leave it out"
    )]
    Tls(Stack),
    /// It is the driver alone.
    #[error("`{0}` has no adapter: the driver alone needs no stack")]
    Bare(Stack),
}

/// A driver whose links have the adapters of a stack, with the name and the addresses of the driver below.
pub struct Stacked {
    engine: Arc<Engine>,
    below: &'static dyn Driver,
    offer: Offer,
}

impl Stacked {
    /// The driver `below` with a stack, of whose last element, which says `tcp`, it takes the place. Links have all of the stack, or there
    /// is no link.
    pub fn new(engine: &Arc<Engine>, below: &'static dyn Driver, stack: Stack) -> Result<Self, StackRefused> {
        if stack.has("tls") {
            return Err(StackRefused::Tls(stack));
        }
        if stack.elements().len() < 2 {
            return Err(StackRefused::Bare(stack));
        }
        Ok(Self { engine: Arc::clone(engine), below, offer: Offer { stack, strict: true, known: known() } })
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

    fn listen(&self, at: &Locator, place: &Place) -> Result<Box<dyn Listener>, ListenError> {
        let ours = listen::Greeter::listen(&self.engine, self.below, (at, place), self.offer.clone())?;
        Ok(Box::new(ours))
    }

    fn connect(&self, to: &Locator, place: &Place) -> Result<Connecting, ConnectError> {
        let way =
            dial::Way { engine: Arc::clone(&self.engine), below: self.below, to: to.clone(), place: place.clone() };
        dial::Dial::begin(way, self.offer.clone()).map(|ours| Connecting::Pending(Box::new(ours)))
    }
}
