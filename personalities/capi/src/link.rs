//! A link, and a failure of its with both ends named.

use core::task::Poll;
use std::sync::Arc;

use madrigal::{Choice, VLink};
use madrigal_sys::piece::Piece;

use crate::codes::MDG_ETIMEDOUT;
use crate::failure::Failure;
use crate::runtime::{Runtime, deadline};

/// A link.
pub(crate) struct VLinkHandle {
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) api: VLink,
    /// The choice of its path, if Madrigal chose it.
    pub(crate) choice: Option<Choice>,
}

impl VLinkHandle {
    /// Reads into the memory; how many bytes, 0 at the end. The memory is free when this returns.
    #[inline]
    pub(crate) fn read(&self, piece: Piece, timeout_ns: i64) -> Result<i64, Failure> {
        let mut op = self.api.read_lent(piece);
        let done = if timeout_ns == 0 { op.poll() } else { op.wait_until(deadline(timeout_ns)) };
        let outcome = match done {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => op.cancel().ok_or_else(|| self.late("nothing to read came in time"))?,
        };
        outcome.map(|filled| filled.len as i64).map_err(|error| self.named(error))
    }

    /// Writes the memory; how many bytes were taken, less than all only if the time passed. The memory is free when this returns.
    #[inline]
    pub(crate) fn write(&self, piece: Piece, timeout_ns: i64) -> Result<i64, Failure> {
        let mut op = self.api.write_lent(piece);
        let done = if timeout_ns == 0 { op.poll() } else { op.wait_until(deadline(timeout_ns)) };
        let taken = match done {
            Poll::Ready(outcome) => outcome.map(|_| None),
            Poll::Pending => op.cancel(),
        };
        match taken.map_err(|error| self.named(error))? {
            None => Ok(piece.len() as i64),
            Some(0) => Err(self.late("there was no room to write in time")),
            Some(taken) => Ok(taken as i64),
        }
    }

    /// An error of the link, with both ends.
    #[cold]
    pub(crate) fn named(&self, error: impl Into<Failure>) -> Failure {
        named(&self.api, error)
    }

    #[cold]
    fn late(&self, what: &str) -> Failure {
        self.named(Failure::new(MDG_ETIMEDOUT, what))
    }
}

/// An error of a link, with both ends.
#[cold]
pub(crate) fn named(link: &VLink, error: impl Into<Failure>) -> Failure {
    error.into().between(link.local(), link.peer())
}
