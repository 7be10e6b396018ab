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
//! Memory: what the adapters keep ([`madrigal_adapters::stripe::Limits`]), and 128 KiB for a connection that is read.

mod dial;
mod ends;
mod greeting;
mod link;
mod listen;
mod made_of;

use std::sync::Arc;

use madrigal_adapters::known;
use madrigal_adapters::stack::{Offer, Stack};
use madrigal_adapters::tls::Role;
use madrigal_base::error::{ConnectError, ListenError};
use madrigal_base::locator::Locator;
use madrigal_progress::driver::{Connecting, Driver, Facts, Listener, Place};
use madrigal_progress::engine::Engine;

use made_of::MadeOf;

pub use made_of::MakeTls;

/// A program that uses this library without certificates.
const NO_TLS: &str = "this program has no certificates";

/// Why there are no links with a stack.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StackRefused {
    /// Each of their connections would be enciphered for itself.
    #[error(
        "`tls` below `stripe` in `{0}`: a program's link has one handshake for all its connections; write `tls/stripe(N)`"
    )]
    TlsBelow(Stack),
    /// There is no certificate to be shown.
    #[error("`tls` in `{stack}`: {why}")]
    NoCertificate {
        /// The stack.
        stack: Stack,
        /// What is missing, and what to type.
        why: String,
    },
    /// It is the driver alone.
    #[error("`{0}` has no adapter: the driver alone needs no stack")]
    Bare(Stack),
}

/// A driver whose links have the adapters of a stack, with the name and the addresses of the driver below.
pub struct Stacked {
    engine: Arc<Engine>,
    below: &'static dyn Driver,
    made_of: MadeOf,
}

impl Stacked {
    /// The driver `below` with a stack, of whose last element, which says `tcp`, it takes the place. Links have all of the stack, or there
    /// is no link. `tls` is needed for a stack that has one: it is asked for an end at once, to see that there is a certificate.
    pub fn new(
        engine: &Arc<Engine>,
        below: &'static dyn Driver,
        stack: Stack,
        tls: Option<MakeTls>,
    ) -> Result<Self, StackRefused> {
        if stack.has("tls") {
            if stack.has("stripe") && !stack.is_enciphered_once() {
                return Err(StackRefused::TlsBelow(stack));
            }
            let made = tls.as_ref().ok_or_else(|| NO_TLS.to_owned()).and_then(|tls| tls(Role::Accepting));
            if let Err(why) = made {
                return Err(StackRefused::NoCertificate { stack, why });
            }
        }
        if stack.elements().len() < 2 {
            return Err(StackRefused::Bare(stack));
        }
        let offer = Offer { stack, strict: true, known: known() };
        Ok(Self { engine: Arc::clone(engine), below, made_of: MadeOf { offer, tls } })
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
        let ours = listen::Greeter::listen(&self.engine, self.below, (at, place), self.made_of.clone())?;
        Ok(Box::new(ours))
    }

    fn connect(&self, to: &Locator, place: &Place) -> Result<Connecting, ConnectError> {
        let way =
            dial::Way { engine: Arc::clone(&self.engine), below: self.below, to: to.clone(), place: place.clone() };
        dial::Dial::begin(way, self.made_of.clone()).map(|ours| Connecting::Pending(Box::new(ours)))
    }
}
