//! The bytes between two daemons, as they go over the wire: plain, or (to come) enciphered. What is to be sent waits here, little of it:
//! the less lies between the mux and the wire, the sooner what is urgent arrives.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use crate::socket::{self, Got};

/// How the bytes look on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cipher {
    /// As they are.
    None,
}

/// A connection to another daemon.
pub(crate) struct Channel {
    socket: OwnedFd,
    cipher: Cipher,
    /// Waits to be sent, from `sent` on.
    out: Vec<u8>,
    sent: usize,
}

/// Bytes that may wait for the wire.
const MOST: usize = 64 << 10;

impl Channel {
    pub(crate) fn plain(socket: OwnedFd) -> Self {
        Self { socket, cipher: Cipher::None, out: Vec::new(), sent: 0 }
    }

    pub(crate) fn is_enciphered(&self) -> bool {
        self.cipher != Cipher::None
    }

    /// Reads what came.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Result<Got, Errno> {
        match self.cipher {
            Cipher::None => socket::recv(&self.socket, buffer),
        }
    }

    /// How many more bytes should be given to it now.
    pub(crate) fn room(&self) -> usize {
        MOST.saturating_sub(self.out.len() - self.sent)
    }

    /// Where bytes to be sent are added.
    pub(crate) fn out(&mut self) -> &mut Vec<u8> {
        if self.sent == self.out.len() || self.sent >= MOST {
            self.out.drain(..self.sent);
            self.sent = 0;
        }
        &mut self.out
    }

    /// Sends what the wire takes; whether that was all.
    pub(crate) fn flush(&mut self) -> Result<bool, Errno> {
        while let Some(rest) = self.out.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match socket::send(&self.socket, rest)? {
                0 => return Ok(false),
                count => self.sent += count,
            }
        }
        Ok(true)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
