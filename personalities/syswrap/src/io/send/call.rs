//! One send of the program's: what it sends, and how far it is.

use core::ffi::c_int;

use libc::iovec;
use madrigal_sys::Errno;
use madrigal_sys::signals::Held;

use crate::io::buffers::{Buffers, NOWHERE, message};
use crate::io::progress::Progress;
use crate::io::target::Target;
use crate::outcome::Outcome;
use crate::state::sock::Sock;

/// One send, whichever function the program called.
pub(crate) struct Send {
    pub(super) at: Target,
    pub(super) buffers: Buffers,
    pub(super) flags: c_int,
    pub(super) progress: Progress,
}

/// Pieces that one call of the kernel's takes.
pub(super) const PIECES: usize = 64;

impl Send {
    pub(crate) fn new(fd: c_int, buffers: Buffers, flags: c_int) -> Self {
        Self { at: Target::new(fd), buffers, flags, progress: Progress::default() }
    }

    pub(crate) fn fd(&self) -> c_int {
        self.at.fd()
    }

    /// The socket it goes by.
    pub(crate) fn target(&self) -> &Target {
        &self.at
    }

    /// Bytes sent so far.
    pub(crate) fn done(&self) -> usize {
        self.progress.done()
    }

    /// `n` more bytes are sent; true: the call is over.
    pub(crate) fn add(&self, n: usize) -> bool {
        self.progress.add(n);
        self.left() == 0
    }

    /// Those it holds back; released when the call is over.
    pub(crate) fn signals(&self) -> &Held {
        &self.progress.signals
    }

    /// It restarts behind a signal handler.
    pub(super) fn begin_again(&self, s: &Sock) {
        self.progress.begin_again(s);
        self.at.begin_again();
    }

    pub(super) fn left(&self) -> usize {
        self.buffers.total() - self.done()
    }

    /// The end of the call: what it has sent, or else this error.
    pub(super) fn end(&self, otherwise: Errno) -> Outcome {
        self.progress.end(Err(otherwise))
    }

    pub(super) fn nonblocking(&self, s: &Sock) -> bool {
        self.progress.nonblocking(s, self.flags)
    }

    /// A message for what is left of the buffers; lives as long as `pieces`.
    pub(crate) fn rest(&self, pieces: &mut [iovec; PIECES]) -> libc::msghdr {
        self.some(usize::MAX, pieces)
    }

    /// The same for at most `limit` bytes.
    pub(super) fn some(&self, limit: usize, pieces: &mut [iovec; PIECES]) -> libc::msghdr {
        if let Some((array, count)) = self.buffers.array()
            && self.done() == 0
            && self.buffers.total() <= limit
        {
            // In one call: behind the first of two a reset may come.
            let mut msg = message(&mut []);
            (msg.msg_iov, msg.msg_iovlen) = (array.cast_mut(), count);
            return msg;
        }
        let used = self.buffers.rest(self.done(), limit, pieces);
        message(&mut pieces[..used])
    }

    /// Room for [`Send::rest`].
    pub(crate) fn pieces() -> [iovec; PIECES] {
        [NOWHERE; PIECES]
    }

    /// The flags of a call for the rest: one that has sent something does not raise `SIGPIPE`.
    pub(crate) fn rest_flags(&self) -> c_int {
        self.flags | libc::MSG_NOSIGNAL
    }
}
