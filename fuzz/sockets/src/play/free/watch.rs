//! The ways of an event loop to wait, behind one face.

use core::ptr;

use libc::{c_int, epoll_event, pollfd};
use madrigal_fuzz_sockets::via::FreeWait;

use crate::c;

/// What a descriptor is ready for.
#[derive(Clone, Copy)]
pub(super) struct Ready {
    pub(super) token: u64,
    pub(super) input: bool,
    pub(super) output: bool,
}

/// Descriptors that are waited for.
pub(super) struct Watch {
    wait: FreeWait,
    /// The set in which they are, or -1.
    set: c_int,
    /// A set around that one, or -1.
    around: c_int,
    /// What each is waited for: descriptor, token, input, output.
    entries: Vec<(c_int, u64, bool, bool)>,
}

const IN: u32 = libc::EPOLLIN as u32;
const OUT: u32 = libc::EPOLLOUT as u32;
const HUP: u32 = (libc::EPOLLHUP | libc::EPOLLERR | libc::EPOLLRDHUP) as u32;

impl Watch {
    pub(super) fn new(wait: FreeWait) -> Self {
        let (mut set, mut around) = (-1, -1);
        // SAFETY: no memory is passed, but an event of our own.
        unsafe {
            if !matches!(wait, FreeWait::Poll | FreeWait::Ppoll | FreeWait::Select) {
                set = c::epoll_create1(0);
            }
            if wait == FreeWait::Nested {
                around = c::epoll_create1(0);
                let mut event = epoll_event { events: IN, u64: 77 };
                c::epoll_ctl(around, libc::EPOLL_CTL_ADD, set, &raw mut event);
            }
        }
        Self { wait, set, around, entries: Vec::new() }
    }

    /// Whether a descriptor is reported only once for everything that comes.
    pub(super) fn is_edge(&self) -> bool {
        self.wait == FreeWait::Edge
    }

    fn events(&self, input: bool, output: bool) -> u32 {
        let wanted = if input { IN } else { 0 } | if output { OUT } else { 0 };
        match self.wait {
            FreeWait::Edge => IN | OUT | libc::EPOLLRDHUP as u32 | libc::EPOLLET as u32,
            FreeWait::OneShot => wanted | libc::EPOLLONESHOT as u32,
            _ => wanted,
        }
    }

    pub(super) fn add(&mut self, fd: c_int, token: u64, input: bool, output: bool) {
        self.entries.push((fd, token, input, output));
        let exclusive = self.wait == FreeWait::Exclusive;
        let mut event =
            epoll_event { events: self.events(input, output) | if exclusive { 1 << 28 } else { 0 }, u64: token };
        if self.set >= 0 {
            // SAFETY: an event of our own.
            unsafe { c::epoll_ctl(self.set, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        }
    }

    /// Sets the events for a descriptor. One-shot registrations must be renewed after each report.
    pub(super) fn change(&mut self, fd: c_int, input: bool, output: bool) {
        let events = self.events(input, output);
        let Some(entry) = self.entries.iter_mut().find(|entry| entry.0 == fd) else { return };
        let same = entry.2 == input && entry.3 == output;
        entry.2 = input;
        entry.3 = output;
        if self.set < 0 || self.wait == FreeWait::Edge || same && self.wait != FreeWait::OneShot {
            return;
        }
        let mut event = epoll_event { events, u64: entry.1 };
        // SAFETY: an event of our own.
        unsafe {
            if self.wait == FreeWait::Exclusive {
                // Such an entry cannot be changed.
                c::epoll_ctl(self.set, libc::EPOLL_CTL_DEL, fd, &raw mut event);
                event.events |= 1 << 28;
                c::epoll_ctl(self.set, libc::EPOLL_CTL_ADD, fd, &raw mut event);
            } else {
                c::epoll_ctl(self.set, libc::EPOLL_CTL_MOD, fd, &raw mut event);
            }
        }
    }

    pub(super) fn remove(&mut self, fd: c_int) {
        self.entries.retain(|entry| entry.0 != fd);
    }

    /// Waits until something is ready.
    pub(super) fn wait(&mut self) -> Vec<Ready> {
        match self.wait {
            FreeWait::Poll | FreeWait::Ppoll => self.by_poll(),
            FreeWait::Select => self.by_select(),
            _ => self.by_set(),
        }
    }

    fn by_set(&self) -> Vec<Ready> {
        let mut events = [epoll_event { events: 0, u64: 0 }; 8];
        // SAFETY: room for as many events as are asked for.
        let n = unsafe {
            if self.around >= 0 {
                c::epoll_wait(self.around, events.as_mut_ptr(), 1, -1);
                c::epoll_wait(self.set, events.as_mut_ptr(), 8, 0)
            } else {
                c::epoll_wait(self.set, events.as_mut_ptr(), 8, -1)
            }
        };
        let told = events.iter().take(usize::try_from(n).unwrap_or(0));
        told.map(|event| Ready {
            token: event.u64,
            input: event.events & (IN | HUP) != 0,
            output: event.events & (OUT | HUP) != 0,
        })
        .collect()
    }

    fn by_poll(&self) -> Vec<Ready> {
        let bits = |input, output| if input { libc::POLLIN } else { 0 } | if output { libc::POLLOUT } else { 0 };
        let mut list: Vec<pollfd> =
            self.entries.iter().map(|e| pollfd { fd: e.0, events: bits(e.2, e.3), revents: 0 }).collect();
        let (at, n) = (list.as_mut_ptr(), list.len() as libc::nfds_t);
        // SAFETY: a list of our own.
        unsafe {
            if self.wait == FreeWait::Poll { c::poll(at, n, -1) } else { c::ppoll(at, n, ptr::null(), ptr::null()) }
        };
        let hup = libc::POLLHUP | libc::POLLERR;
        let ready = self.entries.iter().zip(&list).filter(|(_, polled)| polled.revents != 0);
        ready
            .map(|(entry, polled)| Ready {
                token: entry.1,
                input: polled.revents & (libc::POLLIN | hup) != 0,
                output: polled.revents & (libc::POLLOUT | hup) != 0,
            })
            .collect()
    }

    fn by_select(&self) -> Vec<Ready> {
        // SAFETY: all-zero sets are empty; descriptors of these programs are small.
        unsafe {
            let mut sets: [libc::fd_set; 2] = core::mem::zeroed();
            for entry in &self.entries {
                if entry.2 {
                    libc::FD_SET(entry.0, &raw mut sets[0]);
                }
                if entry.3 {
                    libc::FD_SET(entry.0, &raw mut sets[1]);
                }
            }
            let most = self.entries.iter().map(|entry| entry.0).max().unwrap_or(-1);
            let none = ptr::null_mut();
            if c::select(most + 1, &raw mut sets[0], &raw mut sets[1], none, ptr::null_mut()) <= 0 {
                return Vec::new();
            }
            let all = self.entries.iter().map(|entry| Ready {
                token: entry.1,
                input: libc::FD_ISSET(entry.0, &raw const sets[0]),
                output: libc::FD_ISSET(entry.0, &raw const sets[1]),
            });
            all.filter(|ready| ready.input || ready.output).collect()
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        for set in [self.set, self.around] {
            if set >= 0 {
                // SAFETY: no memory is passed.
                unsafe { c::close(set) };
            }
        }
    }
}
