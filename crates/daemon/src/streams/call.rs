//! A call: a caller on this host waits for a stream to a port of another host.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use crate::poll::Token;
use crate::streams::stream::Stream;
use crate::units::{MILLISECOND, SECOND};
use crate::wire::Target;

/// The time limit of a call.
pub(crate) const CALL_TIMEOUT: u64 = 12 * SECOND;
/// The pause before a way that failed is tried again.
pub(crate) const RETRY_AFTER: u64 = 300 * MILLISECOND;
/// Why a way failed that did not answer in time.
pub(crate) const NO_ANSWER: &str = "no answer";

/// The local end that waits for the stream.
pub(crate) struct Caller {
    pub(crate) socket: OwnedFd,
    pub(crate) token: Token,
    pub(crate) kind: CallerKind,
    /// Bytes that it sent already, for the other end.
    pub(crate) staged: Vec<u8>,
}

/// What a caller's socket is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CallerKind {
    /// A connection to the control socket. It gets a reply, and carries the stream then.
    Client,
    /// A connection to a forwarded port.
    Forward,
    /// A copy of a program's socket, whose connect is parked; the id of its connection.
    Program(u64),
}

/// A call that is not connected yet.
pub(crate) struct Call {
    pub(crate) caller: Caller,
    /// The id of its stream.
    pub(crate) id: String,
    pub(crate) target: Target,
    pub(crate) host: usize,
    /// When it fails.
    pub(crate) end: u64,
    /// When the next way is tried.
    pub(crate) next: u64,
    pub(crate) attempt: Option<Attempt>,
    /// The ways that failed: when each may be tried again, and why it failed.
    pub(crate) tried: BTreeMap<String, (u64, String)>,
    /// The target is a port of this host.
    pub(crate) egress: bool,
}

/// A way on which a connect request was sent.
pub(crate) struct Attempt {
    pub(crate) stream: Stream,
    pub(crate) way: String,
    /// What came of the reply.
    pub(crate) received: Vec<u8>,
    pub(crate) deadline: u64,
}

impl Call {
    /// Its next deadline.
    pub(crate) fn deadline(&self) -> u64 {
        let next = self.attempt.as_ref().map_or(self.next, |attempt| attempt.deadline);
        if self.egress { self.end } else { self.end.min(next) }
    }
}
