//! Adapters: state machines that make one link of several streams, or a shorter one of a compressible one; and the stacks that combine
//! them. No unsafe code, no clock, and no system call but those by which certificates of `tls` are read again.
//!
//! * [`contract`]: the interface of an adapter to the owner of sockets and a clock;
//! * [`adoc`]: adaptive compression;
//! * [`stripe`]: several streams as one ordered link;
//! * [`tls`]: encryption, and who the other end is;
//! * [`vrp`]: messages of which some bytes may be lost, over datagrams; no adapter of the table, for it has no stream below it;
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
pub mod tls;
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
    /// The versions of its format that are spoken here; none where that is agreed on inside.
    pub versions: Option<Versions>,
    /// An end of a new link, over the stream [`ONLY`]; nothing where a part is missing.
    pub make: fn(&mut Parts) -> Option<Box<dyn Adapter>>,
}

/// What adapters are made of that need more than a stream.
#[derive(Default)]
pub struct Parts {
    /// The end of an enciphered link, made with the owner's certificate ([`tls::Tls::new`]).
    pub tls: Option<Box<dyn Adapter>>,
}

/// Every adapter.
pub static ADAPTERS: &[Entry] = &[
    Entry { name: "adoc", versions: FIRST, make: |_| Some(Box::new(Adoc::new())) },
    Entry { name: "stripe", versions: FIRST, make: |_| Some(Box::new(stripe_of_one())) },
    Entry { name: "tls", versions: None, make: |parts| parts.tls.take() },
];

/// The first version, and no other.
const FIRST: Option<Versions> = Some(Versions { oldest: 1, newest: 1 });

/// What this end can offer: see [`stack::Offer`].
pub fn known() -> Known {
    ADAPTERS.iter().filter_map(|entry| Some((entry.name.to_owned(), entry.versions?))).collect()
}

fn stripe_of_one() -> Stripe {
    let mut stripe = Stripe::new(Limits::default());
    // The first stream of a new link is no second one, nor one too many.
    let _ = stripe.add(0, ONLY);
    stripe
}
