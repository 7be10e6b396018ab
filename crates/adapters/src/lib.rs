//! Adapters: state machines that make one link of several streams, or a shorter one of a compressible one; and the stacks that combine
//! them. No unsafe code, no system call, no clock.
//!
//! * [`contract`]: the interface of an adapter to the owner of sockets and a clock;
//! * [`adoc`]: adaptive compression;
//! * [`stripe`]: several streams as one ordered link;
//! * [`vrp`]: messages of which some bytes may be lost, over datagrams; no adapter of the table, for it carries no stream;
//! * [`chain()`]: the adapters of a stack, as one;
//! * [`stack`]: `adoc/tls/stripe(8)/tcp`, read, printed, and agreed on by both ends.
//!
//! To add one: a folder here, a line in [`ADAPTERS`], an element of [`stack`], a section in `docs/adapters.md`. `tests/contract.rs` runs
//! over the table and reports what is missing here, the compiler what is in the daemon. `CONTRIBUTING.md` has the files in order.
#![forbid(unsafe_code)]

pub mod adoc;
mod chain;
pub mod contract;
mod ranges;
pub mod stack;
pub mod stripe;
pub mod vrp;

pub use chain::chain;

use adoc::Adoc;
use contract::{Adapter, ONLY};
use stack::{Known, Versions};
use stripe::{Limits, Stripe};

/// An adapter of the table.
pub struct Entry {
    /// Its name in stacks; its folder's, too.
    pub name: &'static str,
    /// The versions of its format that are spoken here.
    pub versions: Versions,
    /// An end of a new link, over the stream [`ONLY`].
    pub make: fn() -> Box<dyn Adapter>,
}

/// Every adapter.
pub static ADAPTERS: &[Entry] = &[
    Entry { name: "adoc", versions: Versions { oldest: 1, newest: 1 }, make: || Box::new(Adoc::new()) },
    Entry { name: "stripe", versions: Versions { oldest: 1, newest: 1 }, make: || Box::new(stripe_of_one()) },
];

/// What this end can offer: see [`stack::Offer`].
pub fn known() -> Known {
    ADAPTERS.iter().map(|entry| (entry.name.to_owned(), entry.versions)).collect()
}

fn stripe_of_one() -> Stripe {
    let mut stripe = Stripe::new(Limits::default());
    // The first stream of a new link is no second one, nor one too many.
    let _ = stripe.add(0, ONLY);
    stripe
}
