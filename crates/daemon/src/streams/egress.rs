//! A connection from the end of a stream to a port of this host.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use madrigal_proto::mux::StreamId;

use crate::poll::Token;
use crate::streams::origin::Origin;

/// Who wants it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// Another daemon, on this stream.
    Stream((Token, StreamId)),
    /// A call of this host.
    Call(Token),
}

/// A connection that is being made.
pub(crate) struct Egress {
    pub(crate) socket: Option<OwnedFd>,
    /// Where it goes, and what is tried after that, last first.
    pub(crate) at: SocketAddr,
    pub(crate) rest: Vec<SocketAddr>,
    pub(crate) told: Vec<String>,
    pub(crate) answer: Answer,
    pub(crate) from: String,
    /// What its stream is called, if it can be moved.
    pub(crate) origin: Option<Origin>,
    /// The hosts that carry it to this one.
    pub(crate) hops: Vec<String>,
    pub(crate) deadline: u64,
}
