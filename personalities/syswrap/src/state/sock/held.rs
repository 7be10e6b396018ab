//! Sockets that hooks are at work on, and those that a thread sleeps on.

use core::ffi::c_int;
use core::ops::Deref;

use super::{SOCKS, Sock};
use crate::state::{table, teardown};

/// A hook at work on a socket.
pub(crate) struct Ref(&'static Sock);

impl Deref for Ref {
    type Target = Sock;

    #[inline]
    fn deref(&self) -> &Sock {
        self.0
    }
}

impl Drop for Ref {
    #[inline]
    fn drop(&mut self) {
        if self.0.uses.leave() {
            teardown::finish(self.0, 0);
        }
    }
}

/// A socket on which a thread of the program is about to sleep: it is not freed, and that is all.
#[derive(Clone, Copy)]
pub(crate) struct Parked(u32);

impl Ref {
    /// Makes a call that sleeps: as parked.
    pub(crate) fn doze(&self) {
        if self.0.uses.park() {
            teardown::finish(self.0, 0);
        }
    }

    /// Undoes [`Ref::doze`].
    pub(crate) fn wake(&self) {
        self.0.uses.unpark();
        if self.0.is_closed() {
            self.0.uses.set_due();
        }
    }

    /// The thread is about to sleep.
    pub(crate) fn park(self) -> Parked {
        let parked = Parked(self.index());
        let due = self.0.uses.park();
        let sock = self.0;
        core::mem::forget(self);
        if due {
            teardown::finish(sock, 0);
        }
        parked
    }
}

impl Parked {
    /// The thread is back. A thread that is cancelled in between never is: the object is lost, nothing else.
    pub(crate) fn unpark(self) -> Option<Ref> {
        let sock = SOCKS.get(self.0)?;
        sock.uses.unpark();
        if sock.is_closed() {
            sock.uses.set_due();
        }
        Some(Ref(sock))
    }
}

/// The socket behind `fd`, if it is one we know.
#[inline]
pub(crate) fn enter(fd: c_int) -> Option<Ref> {
    loop {
        let word = table::get(fd)?;
        if !word.is_socket() {
            return None;
        }
        let sock = SOCKS.get(word.index())?;
        sock.uses.enter();
        let held = Ref(sock);
        // SYNC: behind the count, which is SeqCst: a close in between is seen here, or sees us.
        if table::peek(fd) == Some(word) {
            return Some(held);
        }
    }
}

/// The socket with this index, whatever its descriptors.
pub(crate) fn by_index(index: u32) -> Option<Ref> {
    let sock = SOCKS.get(index)?;
    sock.uses.enter();
    Some(Ref(sock))
}
