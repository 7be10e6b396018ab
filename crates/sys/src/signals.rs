//! Signals held back for a moment: what a handler must not interrupt.

mod ignored;

use core::cell::Cell;
use core::ffi::c_int;

use libc::sigset_t;

use crate::{Errno, critical, raw, time};
pub(crate) use ignored::all_but;
pub use ignored::{OF_LIBC, check, check_all, may_handle};

/// Blocks every signal of the calling thread until this is dropped, except those that the process ignores, and those that the kernel does
/// not allow to be blocked. Two system calls.
pub struct Blocked(Option<u64>);

impl Blocked {
    /// Blocks them.
    pub fn all() -> Self {
        Self(block_all_but(&[]).ok())
    }

    /// The same against the program's handlers alone. In a critical part those are deferred anyway, and nothing is done. But a handler set
    /// by a system call of the program's own, after its first socket, is called by the kernel at any time.
    #[inline]
    pub fn handlers() -> Self {
        if critical::is_inside() { Self(None) } else { Self::all() }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        if let Some(before) = self.0 {
            critical::set_mask(before);
        }
    }
}

/// Blocks every signal of the calling thread that can be blocked, but for these; returns those that were.
fn block_all_but(others: &[c_int]) -> Result<u64, Errno> {
    critical::block(all_but(others))
}

/// The signals of a call that sleeps several times, held back from before its first sleep to its end. Handlers run only in its sleeps, and
/// end them, as in a call of the kernel. One that ran in between would end nothing. No `Drop`: a thread may be cancelled meanwhile, and the
/// code that allows that releases them first.
#[derive(Default)]
pub struct Held(Cell<Option<u64>>);

impl Held {
    /// Holds them back from now on.
    pub fn hold(&self) {
        if self.0.get().is_none() {
            // The C library's own stay open: when one of them comes as a sleep ends, pthread_cancel waits for it before it goes on to us.
            self.0.set(block_all_but(&OF_LIBC).ok());
        }
    }

    /// Whether they are.
    pub fn holds(&self) -> bool {
        self.0.get().is_some()
    }

    /// What the program has blocked: the mask of a sleep. `None`: nothing is held back.
    pub fn mask(&self) -> Option<u64> {
        self.0.get()
    }

    /// Whether one is waiting for the next sleep, which it ends.
    pub fn has_some(&self) -> bool {
        self.mask().is_some_and(|mask| critical::keeps_one() || raw::pending_signals() & !mask != 0)
    }

    /// Sleeps, and lets handlers run; false when one did.
    pub fn sleep(&self, ns: u64) -> bool {
        let mask = self.mask().map(as_set);
        let mask = mask.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
        // SAFETY: no descriptors, and a mask of our own.
        critical::outside(|| unsafe { raw::ppoll(&mut [], Some(time::timespec(ns)), mask) }).is_ok()
    }

    /// The call is over: what waits runs now.
    pub fn release(&self) {
        if let Some(before) = self.0.take() {
            critical::set_mask(before);
        }
    }
}

/// A mask as the C library has it.
pub fn as_set(mask: u64) -> sigset_t {
    // SAFETY: a signal set is an array of words; the kernel uses the first.
    unsafe {
        let mut set: sigset_t = core::mem::zeroed();
        (&raw mut set).cast::<u64>().write(mask);
        set
    }
}
