//! A model of the kernel: sockets whose queues hold doorbells and bytes, and event sets that watch them, with the rules of epoll(7).

use std::collections::VecDeque;

use core::ffi::c_int;

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLET, EPOLLEXCLUSIVE, EPOLLIN, EPOLLONESHOT, EPOLLOUT};
use madrigal_sys::Errno;
use shuttle::sync::{Condvar, Mutex};

use super::world::{SETS, SOCKS};

const IN: u32 = EPOLLIN as u32;
const OUT: u32 = EPOLLOUT as u32;
/// What an entry keeps when it is disarmed.
const MODE: u32 = (EPOLLET | EPOLLONESHOT | EPOLLEXCLUSIVE) as u32;
/// A descriptor that reports that all is over, and its data; only in the first set.
pub(super) const OVER: c_int = 90;
pub(super) const OVER_DATA: u64 = 7;

/// The descriptor of a socket.
pub(super) fn fd_of(sock: usize) -> c_int {
    10 + sock as c_int
}

#[derive(Clone, Copy, Default)]
struct File {
    bells: u64,
    bytes: u64,
    /// How often something happened that an edge-triggered entry may report.
    edges: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    fd: c_int,
    events: u32,
    data: u64,
}

#[derive(Default)]
struct Epoll {
    entries: Vec<Entry>,
    ready: VecDeque<c_int>,
    closed: bool,
}

#[derive(Default)]
struct State {
    files: [File; SOCKS],
    over: bool,
    sets: [Epoll; SETS],
}

impl State {
    fn file(&mut self, fd: c_int) -> &mut File {
        &mut self.files[(fd - 10) as usize]
    }

    /// What poll(2) shows.
    fn poll(&self, fd: c_int) -> u32 {
        if fd == OVER {
            return if self.over { IN } else { 0 };
        }
        let file = &self.files[(fd - 10) as usize];
        OUT | if file.bells + file.bytes > 0 { IN } else { 0 }
    }

    fn entry(&mut self, set: usize, fd: c_int) -> Option<&mut Entry> {
        self.sets[set].entries.iter_mut().find(|entry| entry.fd == fd)
    }

    /// Queues an entry as ready, if it wants this event. True: a sleeper must be woken.
    fn queue(&mut self, set: usize, fd: c_int, what: u32) -> bool {
        let wanted = self.entry(set, fd).map_or(0, |entry| entry.events & !MODE);
        let ready = &mut self.sets[set].ready;
        let reports = wanted & what != 0;
        if reports && !ready.contains(&fd) {
            ready.push_back(fd);
        }
        reports
    }
}

#[derive(Default)]
pub(super) struct Kernel {
    state: Mutex<State>,
    woken: [Condvar; SETS],
}

impl Kernel {
    pub(super) fn new() -> Self {
        let this = Self::default();
        this.ctl(0, EPOLL_CTL_ADD, OVER, IN, OVER_DATA).unwrap();
        this
    }

    fn with<T>(&self, part: impl FnOnce(&mut State) -> T) -> T {
        part(&mut self.state.lock().unwrap())
    }

    /// Something comes that makes a descriptor readable. Of exclusive entries in several sets one reports it.
    fn arrive(&self, fd: c_int, what: impl FnOnce(&mut State)) {
        let mut state = self.state.lock().unwrap();
        what(&mut state);
        let mut one = false;
        for set in 0..SETS {
            let exclusive = state.entry(set, fd).is_some_and(|entry| entry.events & EPOLLEXCLUSIVE as u32 != 0);
            if !(exclusive && one) && state.queue(set, fd, IN) {
                one |= exclusive;
                self.woken[set].notify_one();
            }
        }
    }

    pub(super) fn bell(&self, fd: c_int) {
        self.arrive(fd, |state| {
            state.file(fd).bells += 1;
            state.file(fd).edges += 1;
        });
    }

    pub(super) fn send(&self, fd: c_int, n: u64) {
        self.arrive(fd, |state| {
            state.file(fd).bytes += n;
            state.file(fd).edges += 1;
        });
    }

    /// All is over: reports that to the sleepers of the first set.
    pub(super) fn finish(&self) {
        self.arrive(OVER, |state| state.over = true);
    }

    /// Takes up to `n` bytes of the program's; how many.
    pub(super) fn receive(&self, fd: c_int, n: u64) -> u64 {
        self.with(|state| {
            let file = state.file(fd);
            let n = n.min(file.bytes);
            file.bytes -= n;
            n
        })
    }

    /// Takes all doorbells; whether there were any.
    pub(super) fn take_bells(&self, fd: c_int) -> bool {
        self.with(|state| core::mem::take(&mut state.file(fd).bells) > 0)
    }

    pub(super) fn bells(&self, fd: c_int) -> u64 {
        self.with(|state| state.file(fd).bells)
    }

    pub(super) fn bytes(&self, fd: c_int) -> u64 {
        self.with(|state| state.file(fd).bytes)
    }

    pub(super) fn poll(&self, fd: c_int) -> u32 {
        self.with(|state| state.poll(fd))
    }

    /// Something else happened that may be reported as an edge.
    pub(super) fn note_event(&self, fd: c_int) {
        self.with(|state| state.file(fd).edges += 1);
    }

    pub(super) fn edges(&self, fd: c_int) -> u64 {
        self.with(|state| state.file(fd).edges)
    }

    /// The descriptor is closed: entries and queue are gone.
    pub(super) fn close(&self, fd: c_int) -> u64 {
        self.with(|state| {
            for set in &mut state.sets {
                set.entries.retain(|entry| entry.fd != fd);
                set.ready.retain(|&ready| ready != fd);
            }
            let file = state.file(fd);
            let lost = file.bytes;
            *file = File { edges: file.edges, ..File::default() };
            lost
        })
    }

    /// An event set is closed.
    pub(super) fn close_set(&self, set: usize) {
        self.with(|state| state.sets[set] = Epoll { closed: true, ..Epoll::default() });
    }

    /// Events and data of a set's entry for a descriptor.
    pub(super) fn entry(&self, set: usize, fd: c_int) -> Option<(u32, u64)> {
        self.with(|state| state.entry(set, fd).map(|entry| (entry.events, entry.data)))
    }

    /// epoll_ctl(2).
    pub(super) fn ctl(&self, set: usize, op: c_int, fd: c_int, events: u32, data: u64) -> Result<(), Errno> {
        let mut state = self.state.lock().unwrap();
        if state.sets[set].closed {
            return Err(Errno::BADF);
        }
        let known = state.entry(set, fd).copied();
        let exclusive = |events: u32| events & EPOLLEXCLUSIVE as u32 != 0;
        match (op, known) {
            (EPOLL_CTL_ADD, Some(_)) => return Err(Errno::EXIST),
            (EPOLL_CTL_MOD | EPOLL_CTL_DEL, None) => return Err(Errno::NOENT),
            (EPOLL_CTL_MOD, Some(entry)) if exclusive(entry.events | events) => return Err(Errno::INVAL),
            (EPOLL_CTL_ADD, None) => state.sets[set].entries.push(Entry { fd, events, data }),
            (EPOLL_CTL_MOD, Some(_)) => *state.entry(set, fd).unwrap() = Entry { fd, events, data },
            _ => {
                state.sets[set].entries.retain(|entry| entry.fd != fd);
                state.sets[set].ready.retain(|&ready| ready != fd);
                return Ok(());
            }
        }
        if fd != OVER {
            state.file(fd).edges += 1;
        }
        let shown = state.poll(fd);
        if state.queue(set, fd, shown) {
            self.woken[set].notify_one();
        }
        Ok(())
    }

    /// epoll_wait(2): events and data of at most `most` entries; `sleeps`: until there are any.
    pub(super) fn wait(&self, set: usize, most: usize, sleeps: bool) -> Vec<(u32, u64)> {
        let mut state = self.state.lock().unwrap();
        loop {
            let reported = take_ready(&mut state, set, most);
            if !reported.is_empty() && !state.sets[set].ready.is_empty() {
                self.woken[set].notify_one();
            }
            if !reported.is_empty() || !sleeps {
                return reported;
            }
            state = self.woken[set].wait(state).unwrap();
        }
    }
}

fn take_ready(state: &mut State, set: usize, most: usize) -> Vec<(u32, u64)> {
    let mut reported = Vec::new();
    for _ in 0..state.sets[set].ready.len() {
        if reported.len() == most {
            break;
        }
        let Some(fd) = state.sets[set].ready.pop_front() else { break };
        let shown = state.poll(fd);
        let Some(entry) = state.entry(set, fd) else { continue };
        let events = shown & entry.events;
        if events == 0 {
            continue;
        }
        reported.push((events, entry.data));
        if entry.events & EPOLLONESHOT as u32 != 0 {
            entry.events &= MODE;
        } else if entry.events & EPOLLET as u32 == 0 {
            state.sets[set].ready.push_back(fd);
        }
    }
    reported
}
