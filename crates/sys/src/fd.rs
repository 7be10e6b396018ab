//! A descriptor of ours, closed by a system call of ours. The standard library would close it through the C library, and so through the
//! hooks of a preloaded library - possibly ours, where a thread may end (pthread_cancel(3)) that must not end here. So SysWrap drops no
//! [`OwnedFd`]: `tests/exports.rs` looks for such calls in its library.

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

impl Fd {
    /// The number, which stays open until [`Fd::from_number`].
    pub fn into_number(self) -> RawFd {
        ManuallyDrop::new(self).as_raw_fd()
    }

    /// # Safety
    /// The number is from [`Fd::into_number`], and comes back once; or it is of a descriptor that nobody else closes.
    pub unsafe fn from_number(fd: RawFd) -> Self {
        // SAFETY: the caller's contract.
        Self::from(unsafe { OwnedFd::from_raw_fd(fd) })
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

/// A socket whose peer has reset the connection: the next call on it returns that error.
pub fn reset_socket() -> Result<Fd, Errno> {
    let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let (reset, peer) = (Fd::from(pair.0), Fd::from(pair.1));
    // unix(7): a peer that closes with bytes unread resets the connection.
    rustix::net::send(&reset, &[0], SendFlags::NOSIGNAL)?;
    drop(peer);
    Ok(reset)
}

/// The number `fd` stands for what `by` does, and survives exec (dup3(2)). What it stood for stays open by its other descriptors.
pub fn replace(fd: RawFd, by: impl AsFd) -> Result<(), Errno> {
    // SAFETY: no memory is passed; the caller chose the number, and decides what it stands for.
    let mut place = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(fd) });
    rustix::io::dup3(by, &mut place, DupFlags::empty())
}

/// Another descriptor of what `fd` stands for, with a high number, closed on exec.
pub fn copy_high(fd: RawFd) -> Result<Fd, Errno> {
    let copy = crate::raw::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3)?;
    // SAFETY: fcntl just made this descriptor for us.
    Ok(move_high(unsafe { Fd::from_number(copy) }))
}

/// Moves a descriptor of ours to a high number, out of the way of programs that count on small ones; keeps close-on-exec.
pub fn move_high(fd: Fd) -> Fd {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(1024);
    let from = limit.saturating_sub(64).clamp(3, 960) as usize;
    match crate::raw::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, from) {
        // SAFETY: fcntl just made this descriptor for us.
        Ok(high) => unsafe { Fd::from_number(high) },
        Err(_) => fd,
    }
}
