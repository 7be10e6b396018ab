//! An epoll set with checked calls.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, OwnedFd};

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, epoll_event};
use madrigal_tests::net::{self, Fd};

/// An epoll set.
pub(crate) struct Set(pub(crate) OwnedFd);

impl Set {
    pub(crate) fn new() -> Self {
        // SAFETY: no pointers.
        Self(net::new_fd(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }))
    }

    pub(crate) fn control(&self, op: i32, fd: impl Fd, events: i32, data: u64) -> Result<(), i32> {
        let mut event = epoll_event { events: events as u32, u64: data };
        // SAFETY: our own event.
        match unsafe { libc::epoll_ctl(self.0.as_raw_fd(), op, fd.raw(), &raw mut event) } {
            0 => Ok(()),
            _ => Err(net::errno()),
        }
    }

    pub(crate) fn add(&self, fd: impl Fd, events: i32, data: u64) {
        self.control(EPOLL_CTL_ADD, fd, events, data).expect("EPOLL_CTL_ADD");
    }

    pub(crate) fn modify(&self, fd: impl Fd, events: i32, data: u64) {
        self.control(EPOLL_CTL_MOD, fd, events, data).expect("EPOLL_CTL_MOD");
    }

    pub(crate) fn delete(&self, fd: impl Fd) {
        self.control(EPOLL_CTL_DEL, fd, 0, 0).expect("EPOLL_CTL_DEL");
    }

    /// epoll_wait(2): data and events, sorted.
    pub(crate) fn wait(&self, max: usize, ms: i32) -> Vec<(u64, i32)> {
        let mut events = vec![epoll_event { events: 0, u64: 0 }; max];
        // SAFETY: room for `max` events.
        let n = unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), max as i32, ms) };
        let n = net::count(n as isize).expect("epoll_wait");
        let mut seen: Vec<_> = events[..n].iter().map(|e| (e.u64, e.events as i32)).collect();
        seen.sort_unstable();
        seen
    }

    /// Waits until all of this has been reported, in one call or several, and nothing else.
    pub(crate) fn await_all(&self, want: &[(u64, i32)]) {
        let mut seen = std::collections::BTreeSet::new();
        while seen.len() < want.len() {
            let got = self.wait(16, -1);
            assert!(got.iter().all(|e| want.contains(e)), "{got:x?} beyond {want:x?}");
            seen.extend(got);
        }
    }

    /// Waits until exactly this is reported; other answers on the way are let pass (level-triggered sets only).
    pub(crate) fn await_exactly(&self, want: &[(u64, i32)]) {
        while self.wait(16, 1000) != want {
            net::sleep_ms(1);
        }
    }
}
