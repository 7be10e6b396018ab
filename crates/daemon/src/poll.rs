//! The epoll. A descriptor is registered once, edge-triggered, for every change: its handler goes on until it would block. The calls go
//! through the C library, as those on sockets to programs do ([`crate::local::libc_socket`]).

use std::os::fd::AsFd;

use madrigal_sys::time::now_ns;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use rustix::io::Errno;

use crate::local::libc_socket::to_errno;

/// The name of a registered descriptor, or of another entry of the daemon's tables.
pub(crate) type Token = u64;

/// The longest sleep, in milliseconds.
const LONGEST_MS: u64 = 3_600_000;

/// Every change, by edges.
const ALL: EpollFlags =
    EpollFlags::EPOLLIN.union(EpollFlags::EPOLLOUT).union(EpollFlags::EPOLLRDHUP).union(EpollFlags::EPOLLET);

/// The epoll.
pub(crate) struct Poll(Epoll);

impl Poll {
    pub(crate) fn new() -> Result<Self, Errno> {
        Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map(Self).map_err(to_errno)
    }

    /// Registers a descriptor. The kernel removes it when it is closed.
    pub(crate) fn add(&self, fd: impl AsFd, token: Token) -> Result<(), Errno> {
        self.0.add(fd, EpollEvent::new(ALL, token)).map_err(to_errno)
    }

    /// Gives a descriptor another token. What it is ready for is reported again.
    pub(crate) fn rename(&self, fd: impl AsFd, token: Token) -> Result<(), Errno> {
        self.0.modify(fd, &mut EpollEvent::new(ALL, token)).map_err(to_errno)
    }

    /// Removes a descriptor that stays open.
    pub(crate) fn remove(&self, fd: impl AsFd) {
        let _ = self.0.delete(fd);
    }

    /// Registers a listener, level-triggered: reported while connections wait.
    pub(crate) fn add_listener(&self, fd: impl AsFd, token: Token) -> Result<(), Errno> {
        self.0.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, token)).map_err(to_errno)
    }

    /// Sleeps until something changes, or until a time of [`now_ns`]. Adds what changed to `changed`.
    pub(crate) fn wait(&self, until: u64, changed: &mut Vec<Token>) -> Result<(), Errno> {
        let mut events = [EpollEvent::empty(); 256];
        // Rounded up: a wake-up too early would only sleep again.
        let left = until.saturating_sub(now_ns()).div_ceil(1_000_000);
        let limit = EpollTimeout::try_from(left.min(LONGEST_MS)).unwrap_or(EpollTimeout::ZERO);
        match self.0.wait(&mut events, limit) {
            Ok(count) => changed.extend(events.iter().take(count).map(EpollEvent::data)),
            Err(nix::Error::EINTR) => {}
            Err(errno) => return Err(to_errno(errno)),
        }
        Ok(())
    }
}
