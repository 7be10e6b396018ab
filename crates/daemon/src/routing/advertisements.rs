//! What relays advertised to this host, and when this host advertises.

use std::collections::HashMap;

use crate::routing::table::Advertised;

/// What all relays advertised, and when to advertise to them.
pub(crate) struct Advertisements {
    /// The hosts that each relay reaches.
    pub(crate) received: HashMap<usize, Vec<Advertised>>,
    /// When this host advertises next; never, where it is no relay.
    pub(crate) next: u64,
}

impl Advertisements {
    pub(crate) fn new() -> Self {
        Self { received: HashMap::new(), next: u64::MAX }
    }
}
