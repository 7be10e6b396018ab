//! A call: a caller on this host waits for a stream to a port of another host.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use madrigal_proto::mux::StreamId;

use crate::poll::Token;
use crate::units::{MILLISECOND, SECOND};
use crate::wire::Target;

/// How long a call may take.
pub(crate) const LIMIT: u64 = 12 * SECOND;
/// A way that did not work is tried again after this time.
pub(crate) const AGAIN: u64 = 300 * MILLISECOND;
/// What a way said that said nothing.
pub(crate) const SILENT: &str = "no answer";

/// Who calls.
pub(crate) struct Caller {
    pub(crate) socket: OwnedFd,
    pub(crate) token: Token,
    pub(crate) kind: Kind,
    /// What it sent already, for the other end.
    pub(crate) staged: Vec<u8>,
}

/// What a caller's socket is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A client's, which is told what became of it, and goes on with it.
    Client,
    /// The accepted one of a forwarded port.
    Forward,
    /// A copy of a program's own, whose connect is parked; the number of its route.
    Program(u64),
}

/// A call that waits.
pub(crate) struct Call {
    pub(crate) caller: Caller,
    /// What its stream is called, should it move.
    pub(crate) id: String,
    pub(crate) target: Target,
    pub(crate) host: usize,
    pub(crate) end: u64,
    pub(crate) next: u64,
    pub(crate) ask: Option<Ask>,
    /// When each way may be tried again, and what it said, by its name.
    pub(crate) tried: BTreeMap<String, (u64, String)>,
    /// A port of this host is being connected to.
    pub(crate) egress: bool,
}

/// A way that is being tried.
pub(crate) struct Ask {
    pub(crate) stream: (Token, StreamId),
    pub(crate) way: String,
    pub(crate) received: Vec<u8>,
    pub(crate) deadline: u64,
}

impl Call {
    /// When it is due.
    pub(crate) fn deadline(&self) -> u64 {
        let next = self.ask.as_ref().map_or(self.next, |ask| ask.deadline);
        if self.egress { self.end } else { self.end.min(next) }
    }
}
