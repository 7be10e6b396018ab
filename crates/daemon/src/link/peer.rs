//! Another host of the grid, and a connection to it that is being made.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use crate::link::backoff::Pace;

/// Another host.
pub(crate) struct Peer {
    /// When it may be dialled.
    pub(crate) pace: Pace,
    /// How many connections were begun.
    pub(crate) number: u64,
    /// What became of the last attempt at each address.
    pub(crate) told: BTreeMap<SocketAddr, String>,
    /// Why the last link ended.
    pub(crate) lost: Option<String>,
    /// What became of the last command that was to lead there.
    pub(crate) command: Option<String>,
    /// Addresses to which long packets seem to vanish.
    pub(crate) short: BTreeSet<SocketAddr>,
    /// Whether connections from here to there are known to work, or not to.
    pub(crate) direct: Option<bool>,
}

/// A connection that is being made.
pub(crate) struct Dial {
    pub(crate) socket: OwnedFd,
    pub(crate) peer: usize,
    pub(crate) address: SocketAddr,
    pub(crate) deadline: u64,
}

impl Peer {
    pub(crate) fn new(now: u64) -> Self {
        Self {
            pace: Pace::new(now),
            number: 0,
            told: BTreeMap::new(),
            lost: None,
            command: None,
            short: BTreeSet::new(),
            direct: None,
        }
    }
}
