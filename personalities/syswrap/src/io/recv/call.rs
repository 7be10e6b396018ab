//! One receive of the program's: what it asks for, and how far it is.

use core::cell::Cell;
use core::ffi::c_int;

use libc::iovec;
use madrigal_sys::Errno;
use madrigal_sys::signals::Held;

use crate::io::buffers::{Buffers, NOWHERE, message};
use crate::io::handlers;
use crate::io::progress::Progress;
use crate::io::target::Target;
use crate::outcome::Outcome;
use crate::state::sock::{Sock, flag};

/// One receive, whichever function the program called.
pub(crate) struct Receive {
    pub(super) at: Target,
    pub(super) buffers: Buffers,
    pub(super) flags: c_int,
    pub(super) progress: Progress,
    /// Bytes that a peek has seen which waits for more; 0 before.
    pub(super) seen: Cell<usize>,
    /// How often it has tried again to pass over an urgent byte.
    passes: Cell<u32>,
}

/// Tries again to pass over an urgent byte, at most: one that came out of order is reported before it is in the stream.
const PASSES: u32 = 3;

/// Pieces that one call of the kernel's takes.
pub(super) const PIECES: usize = 64;

impl Receive {
    pub(crate) fn new(fd: c_int, buffers: Buffers, flags: c_int) -> Self {
        Self {
            at: Target::new(fd),
            buffers,
            flags,
            progress: Progress::default(),
            seen: Cell::new(0),
            passes: Cell::new(0),
        }
    }

    pub(crate) fn fd(&self) -> c_int {
        self.at.fd()
    }

    /// The socket it goes by.
    pub(crate) fn target(&self) -> &Target {
        &self.at
    }

    /// Bytes received so far.
    pub(crate) fn done(&self) -> usize {
        self.progress.done()
    }

    /// The end of the call: what it has, or else this.
    pub(crate) fn end(&self, otherwise: Result<usize, Errno>) -> Outcome {
        self.progress.end(otherwise)
    }

    /// Its descriptor is not ours, or no longer: closed while it waited for more to peek at.
    pub(super) fn passed(&self) -> Outcome {
        if self.seen.get() > 0 { Outcome::Done(self.seen.get()) } else { Outcome::Pass }
    }

    /// Whether a peek that has seen something has seen enough.
    pub(super) fn wants_no_more(&self) -> bool {
        !self.is_whole() || self.seen.get() >= self.buffers.total()
    }

    pub(super) fn is_peek(&self) -> bool {
        self.flags & libc::MSG_PEEK != 0
    }

    /// Whether it is to take an urgent byte that is next out of the stream, and go on (tcp_recvmsg).
    pub(super) fn passes_over_urgent(&self) -> bool {
        let may = self.done() == 0 && !self.is_peek() && self.buffers.total() > 0;
        may && self.passes.replace(self.passes.get() + 1) < PASSES
    }

    /// Whether it waits for all it asked for.
    pub(super) fn is_whole(&self) -> bool {
        self.flags & libc::MSG_WAITALL != 0
    }

    /// It is about to wait, maybe several times: it may be woken for nothing, or for a part of the whole. Then a handler ends it that runs
    /// between two of its sleeps, or in the moment that wakes it, as it would end the one sleep of the kernel's. One with `SA_RESTART`
    /// changes nothing, but where there is a part.
    pub(super) fn hold_signals(&self, s: &Sock) {
        let parts = self.is_whole() && self.buffers.total() > 1;
        if parts || !s.has(flag::LOW_WATER) && handlers::some_end_calls() {
            self.progress.signals.hold();
        }
    }

    /// Those it holds back; released when the call is over.
    pub(crate) fn signals(&self) -> &Held {
        &self.progress.signals
    }

    pub(super) fn nonblocking(&self, s: &Sock) -> bool {
        self.progress.nonblocking(s, self.flags)
    }

    /// It restarts behind a signal handler.
    pub(super) fn begin_again(&self, s: &Sock) {
        self.progress.begin_again(s);
        self.at.begin_again();
    }

    /// The kernel got `n` more bytes; true: the call is over.
    pub(crate) fn add(&self, n: usize) -> bool {
        self.progress.add(n);
        n == 0 || self.done() >= self.buffers.total() || !self.is_whole()
    }

    /// A message for up to `most` bytes of what is left of the buffers; lives as long as `pieces`.
    pub(super) fn rest(&self, most: usize, pieces: &mut [iovec; PIECES]) -> libc::msghdr {
        let used = self.buffers.rest(self.done(), most, pieces);
        message(&mut pieces[..used])
    }

    /// Room for [`Receive::rest`].
    pub(crate) fn pieces() -> [iovec; PIECES] {
        [NOWHERE; PIECES]
    }

    /// The flags of a call for the rest.
    pub(super) fn rest_flags(&self) -> c_int {
        self.flags & (libc::MSG_WAITALL | libc::MSG_TRUNC | libc::MSG_PEEK)
    }

    /// A receive of 0 bytes that has slept: it returns at any wake-up, without another check (tcp_recvmsg).
    pub(super) fn is_woken_for_nothing(&self) -> bool {
        self.buffers.total() == 0 && self.progress.has_waited()
    }
}
