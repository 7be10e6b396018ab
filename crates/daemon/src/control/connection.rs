//! A connection to the control socket.

use std::os::fd::OwnedFd;

use crate::poll::Token;

/// A connection: its request is incomplete, its answer is not sent completely, or a port is forwarded for it.
pub(crate) struct ControlConnection {
    pub(crate) socket: OwnedFd,
    /// The received part of the request.
    pub(crate) inbox: Vec<u8>,
    /// A descriptor that came with it.
    pub(crate) passed: Option<OwnedFd>,
    /// The part of the answer that its socket has not taken.
    pub(crate) outbox: Vec<u8>,
    pub(crate) deadline: u64,
    /// The listener of the forwarded port.
    pub(crate) forward: Option<Token>,
}
