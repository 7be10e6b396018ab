//! A socket that both ends of a connection hold, and its errors.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use madrigal_base::error::Os;
use madrigal_progress::driver::Signal;
use madrigal_sys::Errno;
use madrigal_sys::fd::Fd;

/// A socket, and how one waits for it.
pub(super) struct Socket {
    pub(super) fd: Fd,
    /// A send was told of the peer's reset. The kernel tells it once: to a receive behind that it is the end of the stream.
    pub(super) reset: AtomicBool,
}

impl Socket {
    pub(super) fn new(fd: Fd) -> Arc<Self> {
        Arc::new(Self { fd, reset: AtomicBool::new(false) })
    }
}

impl Signal for Socket {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn woken(&self) {}

    fn by_output(&self) -> bool {
        true
    }
}

pub(super) fn os(errno: Errno) -> Os {
    Os(errno.raw_os_error())
}
