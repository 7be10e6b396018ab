//! One epoll. Every descriptor is registered once, for every change: who is told tries until there is nothing more.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use madrigal_sys::time::now_ns;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::time::Timespec;

/// What a registered descriptor is called.
pub(crate) type Token = u64;

/// The epoll.
pub(crate) struct Poll(OwnedFd);

impl Poll {
    pub(crate) fn new() -> Result<Self, Errno> {
        epoll::create(epoll::CreateFlags::CLOEXEC).map(Self)
    }

    /// Registers a descriptor; it goes when it is closed.
    pub(crate) fn add(&self, fd: impl AsFd, token: Token) -> Result<(), Errno> {
        use epoll::EventFlags as E;
        epoll::add(&self.0, fd, epoll::EventData::new_u64(token), E::IN | E::OUT | E::RDHUP | E::ET)
    }

    /// Forgets a descriptor, which lives on.
    pub(crate) fn remove(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.0, fd);
    }

    /// Registers a descriptor that somebody listens on: told again and again while connections wait.
    pub(crate) fn add_listener(&self, fd: impl AsFd, token: Token) -> Result<(), Errno> {
        epoll::add(&self.0, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)
    }

    /// Sleeps until something changed or the time has come (nanoseconds of [`now_ns`]); what changed is added to `changed`.
    pub(crate) fn wait(&self, until: u64, changed: &mut Vec<Token>) -> Result<(), Errno> {
        let mut events = [const { MaybeUninit::uninit() }; 256];
        let left = until.saturating_sub(now_ns());
        let limit = Timespec { tv_sec: (left / 1_000_000_000) as i64, tv_nsec: (left % 1_000_000_000) as i64 };
        match epoll::wait(&self.0, &mut events, Some(&limit)) {
            Ok((events, _)) => changed.extend(events.iter().map(|event| event.data.u64())),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        Ok(())
    }
}
