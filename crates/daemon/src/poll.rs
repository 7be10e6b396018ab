//! One epoll. Every descriptor is registered once, for every change: who is told tries until there is nothing more. It is the C library's,
//! as the sockets of local programs are ([`crate::local::libc_socket`]).

use std::os::fd::AsFd;

use madrigal_sys::time::now_ns;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use rustix::io::Errno;

use crate::local::libc_socket::of;

/// What a registered descriptor is called.
pub(crate) type Token = u64;

/// The loop looks at the time again after that, whatever it waits for.
const LONGEST_MS: u64 = 3_600_000;

/// The epoll.
pub(crate) struct Poll(Epoll);

impl Poll {
    pub(crate) fn new() -> Result<Self, Errno> {
        Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map(Self).map_err(of)
    }

    /// Registers a descriptor; it goes when it is closed.
    pub(crate) fn add(&self, fd: impl AsFd, token: Token) -> Result<(), Errno> {
        let all = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET;
        self.0.add(fd, EpollEvent::new(all, token)).map_err(of)
    }

    /// Forgets a descriptor, which lives on.
    pub(crate) fn remove(&self, fd: impl AsFd) {
        let _ = self.0.delete(fd);
    }

    /// Registers a descriptor that somebody listens on: told again and again while connections wait.
    pub(crate) fn add_listener(&self, fd: impl AsFd, token: Token) -> Result<(), Errno> {
        self.0.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, token)).map_err(of)
    }

    /// Sleeps until something changed or the time has come (nanoseconds of [`now_ns`]); what changed is added to `changed`.
    pub(crate) fn wait(&self, until: u64, changed: &mut Vec<Token>) -> Result<(), Errno> {
        let mut events = [EpollEvent::empty(); 256];
        // Not too early: then it would be waited for again, and again.
        let left = until.saturating_sub(now_ns()).div_ceil(1_000_000);
        let limit = EpollTimeout::try_from(left.min(LONGEST_MS)).unwrap_or(EpollTimeout::ZERO);
        match self.0.wait(&mut events, limit) {
            Ok(count) => changed.extend(events.iter().take(count).map(EpollEvent::data)),
            Err(nix::Error::EINTR) => {}
            Err(errno) => return Err(of(errno)),
        }
        Ok(())
    }
}
