//! How long a wait may last, and the signals that may end it.

use core::cell::Cell;
use core::ptr;

use libc::sigset_t;
use madrigal_sys::signals::{Held, as_set};
use madrigal_sys::time;

use super::handlers;

/// Of one sleep of a wait, or of all.
#[derive(Clone, Copy)]
pub(crate) struct Limits<'a> {
    /// Nanoseconds since boot; `None` for ever, 0 not at all.
    pub(crate) end: Option<u64>,
    pub(crate) signals: &'a Signals,
}

impl Limits<'_> {
    /// What is left of the time; `None` for ever.
    pub(crate) fn left(&self) -> Option<u64> {
        self.end.map(|end| end.saturating_sub(time::now_ns()))
    }

    pub(crate) fn at_once(&self) -> bool {
        self.end == Some(0)
    }
}

/// The signals of a wait, which may sleep several times. Handlers run in its sleeps only, and end it: one that ran in between, or in the
/// moment that wakes it for nothing, would end nothing. Where the program has no handlers nothing is held back before the first sleep.
pub(crate) struct Signals {
    held: Held,
    /// What the program has blocked: the mask of a sleep, unless the program gave one.
    blocked: Cell<sigset_t>,
    given: *const sigset_t,
}

impl Signals {
    /// Of a wait with this mask of the program's, which may be null.
    pub(crate) fn new(given: *const sigset_t) -> Self {
        Self { held: Held::default(), blocked: Cell::new(as_set(0)), given }
    }

    /// Those it holds back; released when the wait is over.
    pub(crate) fn held(&self) -> &Held {
        &self.held
    }

    /// The mask of a sleep; null: the thread's own.
    pub(crate) fn mask(&self) -> *const sigset_t {
        let own = self.held.holds() && self.given.is_null();
        if own { self.blocked.as_ptr() } else { self.given }
    }

    /// The mask of a sleep that is about to begin, and that may end for nothing.
    pub(crate) fn sleep(&self) -> *const sigset_t {
        if handlers::are_some() {
            self.hold();
        }
        self.mask()
    }

    /// The wait goes on behind a sleep, or a poll.
    pub(crate) fn resume(&self) {
        self.hold();
    }

    fn hold(&self) {
        self.held.hold();
        if let Some(blocked) = self.held.mask() {
            self.blocked.set(as_set(blocked));
        }
    }
}

impl Default for Signals {
    fn default() -> Self {
        Self::new(ptr::null())
    }
}
