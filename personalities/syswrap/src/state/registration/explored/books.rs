//! What the program has requested and what was reported to it, in the order of a clock; and checks of both.

use std::sync::Mutex;

use libc::{EPOLLET, EPOLLONESHOT};

use super::world::SOCKS;

/// Data of the first request.
const FIRST: u64 = 1000;

/// Events the kernel may have found before the request: one for each waiting thread, and one already queued.
const LATE: u64 = 3;

/// One ADD or MOD of the program's: its data in the kernel is its number.
#[derive(Clone, Copy, Debug)]
struct Asked {
    sock: usize,
    set: usize,
    events: u32,
    /// How many edges the socket had before it.
    edges: u64,
    returned: Option<u64>,
    refused: bool,
    /// From when on it must not be reported any more.
    retired: Option<u64>,
    reported: u64,
}

#[derive(Default)]
struct Inner {
    clock: u64,
    asked: Vec<Asked>,
    sent: u64,
    read: u64,
    lost: u64,
    done: bool,
}

impl Inner {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// A change that began at `since` has returned: requests that had returned before `since` are retired.
    fn retire(&mut self, (sock, set): (usize, Option<usize>), since: u64) {
        let now = self.tick();
        for old in &mut self.asked {
            let same = old.sock == sock && set.is_none_or(|set| old.set == set);
            if same && old.returned.is_some_and(|at| at < since) {
                old.retired = old.retired.or(Some(now));
            }
        }
    }
}

#[derive(Default)]
pub(super) struct Books(Mutex<Inner>);

/// A change that is being made.
#[derive(Clone, Copy)]
pub(super) struct Change {
    pub(super) data: u64,
    since: u64,
}

impl Books {
    fn with<T>(&self, part: impl FnOnce(&mut Inner) -> T) -> T {
        part(&mut self.0.lock().unwrap())
    }

    pub(super) fn now(&self) -> u64 {
        self.with(Inner::tick)
    }

    // --- registrations ----------------------------------------------------------------------------------------------------------

    /// The program is about to make a request.
    pub(super) fn ask(&self, sock: usize, set: usize, events: u32, edges: u64) -> Change {
        self.with(|books| {
            let since = books.tick();
            let data = FIRST + books.asked.len() as u64;
            let (returned, refused, retired, reported) = (None, false, None, 0);
            books.asked.push(Asked { sock, set, events, edges, returned, refused, retired, reported });
            Change { data, since }
        })
    }

    /// It has made it; `taken`: it was not refused.
    pub(super) fn asked(&self, change: Change, taken: bool) {
        self.with(|books| {
            let at = (change.data - FIRST) as usize;
            if taken {
                let Asked { sock, set, .. } = books.asked[at];
                books.retire((sock, Some(set)), change.since);
                let now = books.tick();
                books.asked[at].returned = Some(now);
            } else {
                books.asked[at].refused = true;
            }
        });
    }

    /// A deletion, or a close, that began at `since` has returned.
    pub(super) fn took_out(&self, sock: usize, set: Option<usize>, since: u64) {
        self.with(|books| books.retire((sock, set), since));
    }

    /// A wait that began at `since` reports it; returns socket, set and requested events. `edges`: of the sockets, by now.
    pub(super) fn note_report(&self, data: u64, since: u64, edges: [u64; SOCKS]) -> (usize, usize, u32) {
        self.with(|books| {
            let place = data.checked_sub(FIRST).map(|at| at as usize);
            let Some(asked) = place.and_then(|at| books.asked.get_mut(at)) else {
                panic!("data that nobody has asked for: {data:#x}");
            };
            assert!(!asked.refused, "told of what was refused: {asked:?}");
            assert!(asked.retired.is_none_or(|at| at > since), "told at {since} of the past: {asked:?}");
            asked.reported += 1;
            if asked.events & EPOLLONESHOT as u32 != 0 {
                assert_eq!(asked.reported, 1, "told of once armed: {asked:?}");
            } else if asked.events & EPOLLET as u32 != 0 {
                let edges = 1 + LATE + edges[asked.sock] - asked.edges;
                assert!(asked.reported <= edges, "told without any edge: {asked:?}, {edges}");
            }
            (asked.sock, asked.set, asked.events)
        })
    }

    /// Whether the request is not retired yet.
    pub(super) fn may_stand(&self, data: u64) -> bool {
        self.with(|books| books.asked[(data - FIRST) as usize].retired.is_none())
    }

    // --- bytes ------------------------------------------------------------------------------------------------------------------

    pub(super) fn sent(&self) {
        self.with(|books| books.sent += 1);
    }

    pub(super) fn read(&self, n: u64) {
        self.with(|books| books.read += n);
    }

    pub(super) fn lost(&self, n: u64) {
        self.with(|books| books.lost += n);
    }

    /// No thread sends or closes any more.
    pub(super) fn done(&self) {
        self.with(|books| books.done = true);
    }

    /// Whether all that was sent, and ever will be, is read.
    pub(super) fn are_even(&self) -> bool {
        self.with(|books| books.done && books.sent == books.read + books.lost)
    }

    pub(super) fn describe(&self) -> String {
        self.with(|books| {
            format!("sent {} read {} lost {}, asked {:#?}", books.sent, books.read, books.lost, books.asked)
        })
    }
}
