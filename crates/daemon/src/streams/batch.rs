//! Payload of one pipe that goes to its socket in one write, since each write may wake a program.

use crate::poll::Token;

/// The size of a full batch.
const FULL: usize = 256 << 10;

/// Payload for the socket of a pipe.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) pipe: Token,
    pub(crate) bytes: Vec<u8>,
}

impl Batch {
    /// Whether it should be written now.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes.len() >= FULL
    }
}
