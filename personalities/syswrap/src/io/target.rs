//! The target of a receive or a send: the program's descriptor until the call sleeps, and the socket from then on.
//!
//! Another thread may close that number while the call sleeps, and the number may soon be another file's. So the call goes on by any
//! descriptor of the socket ([`callers`]). A call that restarts behind a signal handler uses its number again, as in the kernel.

use core::cell::Cell;
use core::ffi::c_int;

use crate::lifecycle::close;
use crate::state::callers;
use crate::state::sock::{self, Ref, Sock};

/// A call's socket.
pub(crate) struct Target {
    number: c_int,
    fd: Cell<c_int>,
    /// Index and generation of the socket, once the call pins it.
    pinned: Cell<Option<(u32, u32)>>,
}

impl Target {
    pub(crate) fn new(number: c_int) -> Self {
        Self { number, fd: Cell::new(number), pinned: Cell::new(None) }
    }

    /// A descriptor of it, by which the call goes on.
    #[inline]
    pub(crate) fn fd(&self) -> c_int {
        self.fd.get()
    }

    /// Whether that is another one than the program named.
    pub(crate) fn has_moved(&self) -> bool {
        self.fd.get() != self.number
    }

    /// The socket, if it is one we know.
    #[inline]
    pub(crate) fn enter(&self) -> Option<Ref> {
        match self.pinned.get() {
            None => sock::enter(self.number),
            Some(pinned) => self.come_back(pinned),
        }
    }

    #[cold]
    fn come_back(&self, (index, generation): (u32, u32)) -> Option<Ref> {
        let s = sock::by_index(index)?;
        if s.generation() != generation || s.is_closed() {
            drop(s);
            self.begin_again();
            return sock::enter(self.number);
        }
        self.find(&s);
        Some(s)
    }

    /// The thread is back: the number may be another file's by now.
    pub(crate) fn find(&self, s: &Sock) {
        let own = s.has_fd(self.fd()).then(|| self.fd());
        let retained = s.retained.fd().map(|fd| fd as c_int);
        self.fd.set(retained.or(own).unwrap_or_else(|| s.fd()));
    }

    /// The call is about to sleep: it pins the socket.
    #[cold]
    pub(crate) fn pin(&self, s: &Sock) {
        self.pinned.set(Some((s.index(), s.generation())));
        callers::enter(s.index()).into_iter().for_each(unpin);
    }

    /// It restarts, by its number.
    pub(crate) fn begin_again(&self) {
        self.leave();
        self.fd.set(self.number);
    }

    /// It is over, or its thread is.
    pub(crate) fn leave(&self) {
        if self.pinned.take().is_some() {
            callers::leave().into_iter().for_each(unpin);
        }
    }
}

/// A call has left this socket.
#[cold]
fn unpin(index: u32) {
    if let Some(s) = sock::by_index(index) {
        close::release(&s);
    }
}
