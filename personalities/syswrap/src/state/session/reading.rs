//! The right to take bytes out of a connection. It is the receive lock of this process; where a fork left unread bytes to several
//! processes, also a lock in the slot that all of them share.
//!
//! ```text
//!   family word:  0 --(a process takes it)--> its number --(it is done)--> 0
//!                                                 \--(it died: the next one takes it)--> the next one's number
//! ```
//! A reader that may take bytes in front of the ring keeps the writer from taking them ([`super::unmix`]).
//!
//! Only the count of bytes the kernel has ever given out separates doorbells from bytes, so a process that counts and then takes must be
//! alone. A process that died while it put unread bytes back (`handing`) has lost some of them. One that is stopped with the lock may go on
//! at any time. In both cases the connection is cut off: every process sees that, and none takes the kernel's rest for bytes of the
//! program.

use madrigal_base::sync::{AtomicU32, Ordering};
use madrigal_sys::Errno;

use super::limit::{HELD_NS, Limit};
use super::unmix::Before;
use super::{Session, View, Wire, phase};
use crate::state::lock::Guard;

/// The right; given back on drop.
pub(crate) struct Reading<'a> {
    // Before the guard: fields are dropped in this order.
    _before: Option<Before<'a>>,
    _family: Option<Family<'a>>,
    guard: Guard<'a>,
}

/// The word, and our number in it.
struct Family<'a>(&'a AtomicU32, u32);

impl Drop for Family<'_> {
    fn drop(&mut self) {
        let _ = self.0.compare_exchange(self.1, 0, Ordering::SeqCst, Ordering::Relaxed);
    }
}

impl Reading<'_> {
    /// Whether this is a signal handler that interrupted its own thread while that had the right.
    pub(crate) fn nested(&self) -> bool {
        self.guard.nested()
    }
}

impl Session {
    /// A fork is coming: parent and child will both read what is left.
    pub(crate) fn share(&self) {
        self.shared.store(1, Ordering::SeqCst);
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.shared.load(Ordering::Relaxed) != 0
    }
}

impl<'a, W: Wire> View<'a, W> {
    /// Waits for the right to take bytes.
    pub(crate) fn reading(&self) -> Reading<'a> {
        let guard = self.s.rlock.lock();
        let shared = self.s.is_shared() && !guard.nested();
        let family = shared.then(|| self.join()).flatten();
        let before = if !guard.nested() && self.is_before_ring() { self.before() } else { None };
        Reading { _before: before, _family: family, guard }
    }

    /// The same, if no other thread or process has it now.
    pub(crate) fn try_reading(&self) -> Option<Reading<'a>> {
        let guard = self.s.rlock.try_lock()?;
        let alone = guard.nested();
        let family = if !alone && self.s.is_shared() { Some(self.try_join(0)?) } else { None };
        let before = if !alone && self.is_before_ring() { Some(self.try_before()?) } else { None };
        Some(Reading { _before: before, _family: family, guard })
    }

    /// Waits until the writer has sent again what it has taken out. `None`: it never will, and the connection is cut off.
    fn before(&self) -> Option<Before<'a>> {
        let mut limit = Limit::new(self.wire, HELD_NS);
        loop {
            if let Some(before) = self.try_before() {
                return Some(before);
            }
            if limit.has_passed(self.wire) || !self.wire.peer_lives() {
                self.cut_off();
                return None;
            }
            self.wire.pause();
        }
    }

    /// Waits for the family's lock. `None`: it did not become free, and the connection is cut off.
    #[cold]
    fn join(&self) -> Option<Family<'a>> {
        let (mut other, mut limit) = (0, Limit::new(self.wire, HELD_NS));
        while !limit.has_passed(self.wire) {
            if let Some(family) = self.try_join(other) {
                return Some(family);
            }
            let holder = self.inn.r.family.load(Ordering::SeqCst);
            other = if self.wire.lives(holder) { 0 } else { holder };
            self.wire.pause();
        }
        self.cut_off();
        None
    }

    /// It is unknown which bytes are the program's: ends the connection.
    fn cut_off(&self) {
        self.wire.cut_off();
        self.saw_error(Errno::CONNABORTED);
        self.finish_in();
    }

    /// Takes the family's lock from `other`: 0 if it is free, else a process that died.
    fn try_join(&self, other: u32) -> Option<Family<'a>> {
        let (line, own) = (&self.inn.r, self.wire.own_pid());
        line.family.compare_exchange(other, own, Ordering::SeqCst, Ordering::SeqCst).ok()?;
        if line.handing.swap(0, Ordering::SeqCst) != 0 {
            self.cut_off();
        }
        if line.drained.load(Ordering::SeqCst) != 0 {
            // Another process has come to the end of the direction.
            self.s.rx.store(phase::DONE, Ordering::SeqCst);
        }
        Some(Family(&line.family, own))
    }

    /// Marks the time in which bytes are in this process's memory alone.
    pub(super) fn handing(&self, on: bool) {
        self.inn.r.handing.store(u32::from(on), Ordering::SeqCst);
    }
}
