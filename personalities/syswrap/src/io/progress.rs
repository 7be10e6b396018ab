//! How far a call is that may wait several times.

use core::cell::Cell;
use core::ffi::c_int;

use madrigal_sys::signals::Held;
use madrigal_sys::{Errno, raw};

use super::plain;
use crate::outcome::Outcome;
use crate::state::sock::{Sock, flag};

/// Bytes moved so far, when the call's time ends, and whether it waits at all.
#[derive(Default)]
pub(crate) struct Progress {
    done: Cell<usize>,
    /// When a time-out of the socket ends the call, once it waits; 0 before.
    deadline: Cell<u64>,
    /// As it was when the call began.
    waits: Cell<Option<bool>>,
    /// It has found a session with nothing for it.
    waited: Cell<bool>,
    /// Signals held back between its sleeps. Whoever makes the call releases them at its end.
    pub(crate) signals: Held,
}

impl Progress {
    pub(crate) fn done(&self) -> usize {
        self.done.get()
    }

    pub(crate) fn add(&self, n: usize) {
        self.done.set(self.done.get() + n);
    }

    /// The end of the call: what it has moved, or else this.
    pub(crate) fn end(&self, otherwise: Result<usize, Errno>) -> Outcome {
        if self.done() > 0 { Outcome::Done(self.done()) } else { otherwise.into() }
    }

    /// Whether the call returns at once instead of waiting.
    pub(crate) fn nonblocking(&self, s: &Sock, flags: c_int) -> bool {
        let waits = self.waits.get().unwrap_or_else(|| !plain::nonblocking(s, flags));
        self.waits.set(Some(waits));
        !waits
    }

    /// The call is about to wait in a session.
    pub(crate) fn note_wait(&self) {
        self.waited.set(true);
    }

    pub(crate) fn has_waited(&self) -> bool {
        self.waited.get()
    }

    /// Whether it waits on by itself, where the kernel might return at once or too early: on a socket that is, or will be, made non-blocking
    /// meanwhile, by whomever, or that was given a time-out.
    pub(crate) fn is_to_wait_on(&self, s: &Sock) -> bool {
        let limited_late = self.deadline.get() == u64::MAX && s.has(flag::RCVTIMEO);
        s.has(flag::NONBLOCK) || limited_late || self.waited.get()
    }

    /// The call restarts, behind a signal handler with `SA_RESTART`: on a socket that another thread, or process, may have made
    /// non-blocking.
    pub(crate) fn begin_again(&self, s: &Sock) {
        s.learn_nonblocking();
        self.waits.set(None);
        self.waited.set(false);
        self.deadline.set(0);
    }

    /// When a call that began to wait at `since` ends by a time-out of its socket (`SO_RCVTIMEO`, `SO_SNDTIMEO`); very late without one. It
    /// is what was set then, as in the kernel.
    pub(crate) fn deadline(&self, s: &Sock, fd: c_int, receiving: bool, since: u64) -> u64 {
        let (limited, option) =
            if receiving { (flag::RCVTIMEO, libc::SO_RCVTIMEO) } else { (flag::SNDTIMEO, libc::SO_SNDTIMEO) };
        if self.deadline.get() == 0 {
            let end = || since.saturating_add(timeout(fd, option));
            self.deadline.set(if s.has(limited) { end() } else { u64::MAX });
        }
        self.deadline.get()
    }
}

/// A socket time-out in nanoseconds; very long when none is set.
fn timeout(fd: c_int, name: c_int) -> u64 {
    let mut tv = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let set = raw::sockopt(fd, libc::SOL_SOCKET, name, &mut tv).is_ok() && (tv.tv_sec, tv.tv_usec) != (0, 0);
    if set { tv.tv_sec as u64 * 1_000_000_000 + tv.tv_usec as u64 * 1000 } else { u64::MAX / 4 }
}
