//! A socket that both ends of a connection hold, and its errors.

use core::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use madrigal_base::error::Os;
use madrigal_progress::driver::Signal;
use madrigal_sys::Errno;
use madrigal_sys::fd::Fd;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// The driver's name.
pub(super) const NAME: &str = "tcp";

/// A socket, and how one waits for it.
pub(super) struct Socket {
    pub(super) fd: Fd,
    /// A send is being made.
    sends: AtomicBool,
    /// A send was told of the peer's reset.
    reset: AtomicBool,
}

impl Socket {
    pub(super) fn new(fd: Fd) -> Arc<Self> {
        Arc::new(Self { fd, sends: AtomicBool::new(false), reset: AtomicBool::new(false) })
    }

    /// Makes a send, and notes a reset that it is told of. One thread sends at a time.
    pub(super) fn send(&self, send: impl FnOnce() -> Result<usize, Errno>) -> Result<usize, Errno> {
        self.sends.store(true, Ordering::Release);
        let sent = send();
        if sent == Err(Errno::CONNRESET) {
            self.reset.store(true, Ordering::Relaxed);
        }
        // SYNC: with the load in `was_reset`, which then sees what was noted.
        self.sends.store(false, Ordering::Release);
        sent
    }

    /// Whether the end of the stream, which a receive has just found, is a reset. The kernel tells of that once, to whichever call comes first:
    /// to a receive behind a send it is the end. A send that was told, and has not noted it yet, is waited for; it does not sleep.
    #[cold]
    pub(super) fn was_reset(&self) -> bool {
        while self.sends.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        self.reset.load(Ordering::Relaxed)
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

/// A new socket: non-blocking, close-on-exec.
pub(super) fn socket(family: AddressFamily) -> Result<Fd, Errno> {
    rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)
        .map(Fd::from)
}

/// Its own address.
pub(super) fn own(socket: impl AsFd) -> Option<SocketAddr> {
    rustix::net::getsockname(socket).ok()?.try_into().ok()
}

/// The other end's; none where it is not connected.
pub(super) fn peer_of(socket: impl AsFd) -> Option<SocketAddr> {
    rustix::net::getpeername(socket).ok()??.try_into().ok()
}
