//! A connection from the end of a stream to a port of this host.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use crate::poll::Token;
use crate::streams::origin::Origin;
use crate::streams::stream::Stream;

/// The origin of a request for a connection to a port of this host, or for an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Requester {
    /// Another daemon, on this stream.
    Stream(Stream),
    /// A call of this host.
    Call(Token),
}

/// A connection that is being made.
pub(crate) struct Egress {
    pub(crate) socket: Option<OwnedFd>,
    /// The address that is tried, and those that are tried next, last first.
    pub(crate) at: SocketAddr,
    pub(crate) untried: Vec<SocketAddr>,
    /// The addresses that failed, and why.
    pub(crate) failures: Vec<String>,
    pub(crate) requester: Requester,
    /// Where the stream comes from, in words.
    pub(crate) from: String,
    /// The identity of the stream, if it is resumable.
    pub(crate) origin: Option<Origin>,
    /// The hosts on its way to this one.
    pub(crate) hops: Vec<String>,
    pub(crate) deadline: u64,
}
