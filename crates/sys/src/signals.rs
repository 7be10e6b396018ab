//! Signals held back for a moment: what a handler must not interrupt.

use crate::raw;

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
}

impl Drop for Blocked {
    fn drop(&mut self) {
        if let Some(before) = self.0 {
            let _ = raw::signal_mask(before);
        }
    }
}
