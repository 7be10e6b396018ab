//! Messages over links with a stack: the cross-paradigm adapter from any driver of bytes between hosts to a driver of messages.
//!
//! ```text
//!   port --- meeting: one listener, dialling, authentication (proto::reach)
//!     |----- lane, lane, ...: a link that is up (proto::frame), over the adapters of the stack
//!     |----- reports: what the engine says of the listener, of attempts, of links
//!     '----- engine: the connections below the adapters, and their timers
//! ```
//! A process publishes its addresses, one port, and the stack. A node with another stack, or with none, is refused at once; where an
//! address does not tell, by the greeting of the stack. Both sides prove their node id above the adapters, whatever path the connections
//! take: with `tls` in the stack nobody in between learns it. Either side may open a link, when there is something to be sent, and of several
//! between two processes exactly one is kept.
//!
//! What a message costs: a short one is copied into the adapters, and goes by one system call of each connection that carries a part of it.
//! At the other end it is found by one look of the engine (epoll_wait(2)), which every poll has while something is going on, and read by
//! one receive; then it is copied once, out of the adapters, to where the layer above wants it. Memory is allocated five times for a message by
//! `adoc` or `stripe`, seven times by `adoc/tls/stripe` (`testkit/tests/allocations.rs`). Acknowledgements of a `stripe` are sends and
//! receives of their own, at most one each for 10 ms, or for 64 KiB.
//!
//! What a link costs: the adapters ([`madrigal_adapters::stripe::Limits`]), and 128 KiB for each connection.

mod lane;
mod meeting;
mod port;
mod reports;
mod silent;

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use madrigal_adapters::stack::Stack;
use madrigal_base::ids::Reach;
use madrigal_base::node::NodeId;
use madrigal_progress::driver::{Driver, Facts, Place};
use madrigal_progress::message::{MessageDriver, Port};

use super::made_of::{MadeOf, MakeTls, StackRefused};
use port::StackedPort;

/// How long a port that goes waits for a peer that takes nothing of what was sent: it may be computing, and what the kernel has taken
/// arrives without us.
const LINGER: u64 = 1_000_000_000;

/// A driver of messages whose links have the adapters of a stack.
pub struct StackedMessages {
    below: &'static dyn Driver,
    made_of: MadeOf,
    name: &'static str,
}

impl StackedMessages {
    /// The driver `below`, whose locators are internet addresses, with a stack, of whose last element, which says `tcp`, it takes the place.
    /// `tls` is needed for a stack that has one: it is asked for an end at once, to see that there is a certificate.
    pub fn new(below: &'static dyn Driver, stack: Stack, tls: Option<MakeTls>) -> Result<Self, StackRefused> {
        let name = kept(stack.to_string());
        Ok(Self { below, made_of: MadeOf::new(stack, tls, LINGER)?, name })
    }
}

/// A name that lives as long as the process. There are less than three hundred stacks.
fn kept(name: String) -> &'static str {
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = names.get(name.as_str()) {
        return known;
    }
    let name: &'static str = Box::leak(name.into_boxed_str());
    names.insert(name);
    name
}

impl MessageDriver for StackedMessages {
    /// The stack, such as `adoc/stripe(4)/tcp`.
    fn name(&self) -> &'static str {
        self.name
    }

    fn facts(&self) -> Facts {
        Facts { reach: Reach::Network, one_user: false, takes: "addresses and a port" }
    }

    fn usable(&self, place: &Place) -> Result<(), String> {
        self.below.usable(place)
    }

    fn open(&self, me: NodeId, place: &Place) -> Result<Box<dyn Port>, String> {
        Ok(Box::new(StackedPort::open(me, (self.below, self.made_of.clone(), self.name), place)?))
    }
}
