//! A socket that both ends of a connection hold, and its errors.

use std::os::fd::{AsFd, BorrowedFd};

use madrigal_base::error::Os;
use madrigal_progress::driver::Signal;
use madrigal_sys::Errno;
use madrigal_sys::fd::Fd;

/// A socket, and how one waits for it.
pub(super) struct Socket(pub(super) Fd);

impl Signal for Socket {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn woken(&self) {}

    fn by_output(&self) -> bool {
        true
    }
}

pub(super) fn os(errno: Errno) -> Os {
    Os(errno.raw_os_error())
}
