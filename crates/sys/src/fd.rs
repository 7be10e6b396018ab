//! A descriptor of ours, closed by a system call of ours: the standard library's passes through the C library, and so through the
//! hooks of whoever is preloaded - possibly us.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::DupFlags;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};

use crate::Errno;

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

/// Puts a socket in a descriptor's place whose peer has reset the connection: the next call on it says so. What the descriptor stood for
/// stays open by its other descriptors, here and in other processes.
pub fn replace_by_reset(fd: RawFd) -> Result<(), Errno> {
    let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let (reset, peer) = (Fd::from(pair.0), Fd::from(pair.1));
    // unix(7): a peer that closes with bytes unread resets the connection.
    rustix::net::send(&reset, &[0], SendFlags::NOSIGNAL)?;
    drop(peer);
    // SAFETY: no memory; what becomes of the number is the caller's matter, who named it.
    let mut place = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(fd) });
    rustix::io::dup3(&reset, &mut place, DupFlags::empty())
}
