//! A parked connect: a program's socket in SYN_SENT, until the far end is known.

use std::os::fd::OwnedFd;

use crate::streams::origin::Origin;
use crate::streams::pipe::End;

/// A program's connect that is parked.
pub(crate) struct Parked {
    /// A copy of the program's socket.
    pub(crate) theirs: OwnedFd,
    /// The socket that connects to it.
    pub(crate) ours: Option<OwnedFd>,
    pub(crate) outcome: Outcome,
    pub(crate) since: u64,
    /// When it is checked next.
    pub(crate) next: u64,
}

/// The outcome of a program's call.
pub(crate) enum Outcome {
    /// It is joined with the far end.
    Join {
        far: End,
        /// Bytes that came from there already.
        rest: Vec<u8>,
        /// The id of the program's connection.
        connection: u64,
        /// The identity of its stream.
        origin: Option<Origin>,
        /// The log line of its beginning.
        line: String,
    },
    /// Its connect fails.
    Refuse,
}
