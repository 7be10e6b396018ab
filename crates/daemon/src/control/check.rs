//! A question whose answer takes time.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use crate::poll::Token;
use crate::streams::egress::Answer;

/// A question whose answer takes time.
pub(crate) struct Check {
    pub(crate) asker: Answer,
    pub(crate) to: usize,
    pub(crate) tries: Vec<Try>,
    pub(crate) deadline: u64,
}

pub(crate) struct Try {
    pub(crate) address: SocketAddr,
    pub(crate) began: u64,
    /// While nothing is known.
    pub(crate) socket: Option<(Token, OwnedFd)>,
    pub(crate) result: Result<u64, String>,
}
