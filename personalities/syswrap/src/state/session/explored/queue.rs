//! One direction of a model's connection: its bytes, and how it ends.

use std::collections::VecDeque;

use madrigal_sys::Errno;

/// One direction.
#[derive(Default)]
pub(super) struct Queue {
    pub(super) bytes: VecDeque<u8>,
    pub(super) given: u64,
    pub(super) taken: u64,
    /// The writer has closed.
    pub(super) fin: bool,
    /// How the connection broke; reported once.
    pub(super) error: Option<Errno>,
    /// It was reset.
    pub(super) closed: bool,
    /// The reader is gone: no byte is taken any more.
    pub(super) deaf: bool,
    /// The reader has reset the connection.
    pub(super) aborted: bool,
}

impl Queue {
    /// What a receive finds behind the last byte (tcp_recvmsg: a FIN comes before an error).
    pub(super) fn end(&mut self) -> Result<usize, Errno> {
        match self.error.take_if(|_| !self.fin) {
            Some(e) => Err(e),
            None if self.fin || self.closed => Ok(0),
            None => Err(Errno::AGAIN),
        }
    }

    /// The peer's reset has come.
    pub(super) fn reset(&mut self) {
        self.closed = true;
        self.error = Some(if self.fin { Errno::PIPE } else { Errno::CONNRESET });
    }
}
