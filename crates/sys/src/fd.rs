//! A descriptor of ours, closed by a system call of ours: the standard library's passes through the C library, and so through the
//! hooks of whoever is preloaded - possibly us.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// An open descriptor. Dropping it closes it.
#[derive(Debug)]
pub struct Fd(ManuallyDrop<OwnedFd>);

impl From<OwnedFd> for Fd {
    #[inline]
    fn from(fd: OwnedFd) -> Self {
        Self(ManuallyDrop::new(fd))
    }
}

impl AsFd for Fd {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Fd {
    #[inline]
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        crate::raw::close(self.0.as_raw_fd());
    }
}
