//! What wakes a side, and the lock of what both share.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use madrigal_progress::driver::Signal;
use madrigal_sys::Errno;
use madrigal_sys::fd::Fd;
use rustix::event::{EventfdFlags, eventfd};

/// The doorbell of one side.
pub(super) struct Bell(Fd);

impl Bell {
    pub(super) fn new() -> Result<Self, Errno> {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(|fd| Self(fd.into()))
    }

    pub(super) fn ring(&self) {
        // Full means that it rings already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

impl Signal for Bell {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn woken(&self) {
        // Empty means that another thread took it out.
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

/// Locks; a thread that panicked inside left the data whole, for nothing inside calls out.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
