//! Bytes of one pipe that go to its socket in one write.

use crate::poll::Token;

/// So much is brought on at once.
const LONG: usize = 256 << 10;

/// What came to a pipe whose other end is a socket, and goes there together.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) pipe: Token,
    pub(crate) bytes: Vec<u8>,
}

impl Batch {
    /// Whether it should be brought on before there is more.
    pub(crate) fn is_long(&self) -> bool {
        self.bytes.len() >= LONG
    }
}
