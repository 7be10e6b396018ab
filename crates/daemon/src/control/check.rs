//! A question whose answer takes time.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use crate::poll::Token;
use crate::streams::egress::Requester;

/// A check of the addresses of a host.
pub(crate) struct Check {
    pub(crate) requester: Requester,
    /// The host.
    pub(crate) to: usize,
    pub(crate) tries: Vec<AddressCheck>,
    pub(crate) deadline: u64,
}

/// The check of one address.
pub(crate) struct AddressCheck {
    pub(crate) address: SocketAddr,
    pub(crate) began: u64,
    /// Until the result is known.
    pub(crate) socket: Option<(Token, OwnedFd)>,
    /// Microseconds until there was a connection, or why there was none.
    pub(crate) result: Result<u64, String>,
}
