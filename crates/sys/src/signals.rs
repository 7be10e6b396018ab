//! Signals held back for a moment: what a handler must not interrupt.

use libc::sigset_t;

use crate::{raw, time};

/// Every signal of the calling thread is blocked until this is dropped, but for those that the kernel lets nobody block. Two system calls.
pub struct Blocked(Option<u64>);

impl Blocked {
    /// Blocks them.
    pub fn all() -> Self {
        // The thread's own faults stay as they are: blocked, they would kill the process where a handler might mend them.
        let faults = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];
        let mask = faults.iter().fold(u64::MAX, |mask, signal| mask & !(1 << (signal - 1)));
        Self(raw::block_signals(mask).ok())
    }

    /// Sleeps, and lets handlers run; false when one did.
    pub fn nap(&self, ns: u64) -> bool {
        let before = self.0.map(as_set);
        let mask = before.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
        // SAFETY: no descriptors, and a mask of our own.
        unsafe { raw::ppoll(&mut [], Some(time::timespec(ns)), mask) }.is_ok()
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        if let Some(before) = self.0 {
            let _ = raw::signal_mask(before);
        }
    }
}

/// A mask as the C library has it.
pub fn as_set(mask: u64) -> sigset_t {
    // SAFETY: a signal set is an array of words, of which the kernel uses the first.
    unsafe {
        let mut set: sigset_t = core::mem::zeroed();
        (&raw mut set).cast::<u64>().write(mask);
        set
    }
}
