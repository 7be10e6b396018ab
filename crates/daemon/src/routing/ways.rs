//! The ways to another host, and what relays advertised.

use std::collections::HashMap;

use madrigal_selector::route::Route;

use crate::poll::Token;
use crate::routing::table::Told;

/// What all relays say, and when to tell others.
pub(crate) struct Ways {
    pub(crate) told: HashMap<usize, Vec<Told>>,
    /// When to tell where this host leads; never, where it is no relay.
    pub(crate) next: u64,
}

/// A way that a stream might take.
pub(crate) struct Candidate {
    pub(crate) route: Route,
    pub(crate) link: Option<Token>,
    /// For figures of an earlier time: how many seconds ago.
    pub(crate) ago: Option<u64>,
}

impl Ways {
    pub(crate) fn new() -> Self {
        Self { told: HashMap::new(), next: u64::MAX }
    }
}

/// What is said of a relay that carries nothing of a host.
pub(crate) fn carries_not(relay: &str, host: &str) -> String {
    format!("{relay} carries nothing of {host}: see `carries` and `deny` in its grid.toml")
}
