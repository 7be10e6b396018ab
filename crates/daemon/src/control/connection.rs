//! A connection to the control socket.

use std::os::fd::OwnedFd;

use crate::poll::Token;

/// A connection whose request is not complete, whose answer is not, or for which a port is forwarded.
pub(crate) struct ControlConnection {
    pub(crate) socket: OwnedFd,
    /// What came of the request.
    pub(crate) inbox: Vec<u8>,
    /// A descriptor that came with it.
    pub(crate) passed: Option<OwnedFd>,
    /// What its socket has not taken of the answer.
    pub(crate) outbox: Vec<u8>,
    pub(crate) deadline: u64,
    /// The listener of the forwarded port.
    pub(crate) forward: Option<Token>,
}
