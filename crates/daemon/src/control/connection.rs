//! A connection to the control socket.

use std::os::fd::OwnedFd;

use crate::poll::Token;

/// A client that has not asked, or for which a port is held.
pub(crate) struct Client {
    pub(crate) socket: OwnedFd,
    pub(crate) inbox: Vec<u8>,
    /// A descriptor that came along.
    pub(crate) passed: Option<OwnedFd>,
    pub(crate) deadline: u64,
    pub(crate) forward: Option<Token>,
}
