//! A parked connect: a program's socket in SYN_SENT, until the far end is known.

use std::os::fd::OwnedFd;

use crate::streams::origin::Origin;
use crate::streams::pipe::End;

/// A program's connect that waits.
pub(crate) struct Parked {
    pub(crate) theirs: OwnedFd,
    pub(crate) ours: Option<OwnedFd>,
    pub(crate) outcome: Outcome,
    pub(crate) since: u64,
    pub(crate) next: u64,
}

/// What is to become of it.
pub(crate) enum Outcome {
    /// It is joined with another end.
    Join {
        far: End,
        /// Came from there already.
        rest: Vec<u8>,
        /// The number of its route.
        route: u64,
        /// How its stream is called.
        origin: Option<Origin>,
        /// What the log said of it.
        line: String,
    },
    /// Its connect fails.
    Refuse,
}
