//! Another host of the grid, and a connection to it: one that is being made, and one that is made.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use madrigal_adapters::contract::Lane;

use crate::link::backoff::Backoff;
use crate::poll::Token;
use crate::units::SECOND;

/// The pause after both ends tried to connect at once, in vain: it doubles from the first to the longest.
const PAUSES: (u64, u64) = (30 * SECOND, 600 * SECOND);

/// Another host.
pub(crate) struct Peer {
    /// When it is dialled next.
    pub(crate) backoff: Backoff,
    /// The number of connections that we began.
    pub(crate) dial_count: u64,
    /// Why the last attempt failed, by address.
    pub(crate) failures: BTreeMap<SocketAddr, String>,
    /// Why the last link ended.
    pub(crate) last_loss: Option<String>,
    /// Why the last command failed.
    pub(crate) command_failure: Option<String>,
    /// Addresses behind a PMTU black hole: connections to them have short segments.
    pub(crate) short_segments: BTreeSet<SocketAddr>,
    /// Whether connections from here to there work, if that is known.
    pub(crate) direct: Option<bool>,
    /// When both ends may try to connect at once, and the pause after that.
    pub(crate) punch_at: u64,
    punch_pause: u64,
    /// The connection that we dialled last for a link of urgent streams; when the next one may be, and the next request that the other end
    /// dials one.
    pub(crate) urgent_dial: Option<Token>,
    pub(crate) urgent_dial_at: u64,
    pub(crate) urgent_request_at: u64,
}

/// A connection to another host that is being made.
pub(crate) struct Dial {
    pub(crate) socket: OwnedFd,
    pub(crate) peer: usize,
    pub(crate) address: SocketAddr,
    pub(crate) deadline: u64,
    /// It is for one more connection of a link, by this number.
    pub(crate) joins: Option<(Token, Lane)>,
}

/// A connection that we made, whose token is registered already.
#[derive(Clone, Copy)]
pub(crate) struct Dialled {
    pub(crate) peer: usize,
    /// The count of our connections to that host.
    pub(crate) number: u64,
    pub(crate) token: Token,
    /// It is for one more connection of a link, by this number.
    pub(crate) joins: Option<(Token, Lane)>,
}

impl Peer {
    pub(crate) fn new(now: u64) -> Self {
        Self {
            backoff: Backoff::new(now),
            dial_count: 0,
            failures: BTreeMap::new(),
            last_loss: None,
            command_failure: None,
            short_segments: BTreeSet::new(),
            direct: None,
            punch_at: now,
            punch_pause: PAUSES.0,
            urgent_dial: None,
            urgent_dial_at: now,
            urgent_request_at: now,
        }
    }

    /// Both ends connected at once.
    pub(crate) fn punched(&mut self) {
        self.punch_pause = PAUSES.0;
    }

    /// They tried in vain.
    pub(crate) fn not_punched(&mut self, now: u64) {
        self.punch_at = now + self.punch_pause;
        self.punch_pause = (self.punch_pause * 2).min(PAUSES.1);
    }
}
