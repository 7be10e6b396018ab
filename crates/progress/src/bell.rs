//! A doorbell: what wakes a thread that sleeps for something inside its own process.

use std::os::fd::{AsFd, BorrowedFd};

use madrigal_sys::Errno;
use madrigal_sys::fd::Fd;
use rustix::event::{EventfdFlags, eventfd};

use crate::driver::Signal;

/// A [`Signal`] that is rung by hand.
pub struct Bell(Fd);

impl Bell {
    /// A new one. The kernel may have no descriptor left.
    pub fn new() -> Result<Self, Errno> {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(|fd| Self(fd.into()))
    }

    /// Reports it. Does not block.
    pub fn ring(&self) {
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
