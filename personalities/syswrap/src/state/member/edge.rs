//! What is reported of a member, by its trigger mode, and what of it is an edge.

use libc::{EPOLLERR, EPOLLET, EPOLLHUP, EPOLLONESHOT, EPOLLRDHUP, epoll_event};
use madrigal_base::sync::Ordering;

use super::{Member, bit};

pub(crate) const READABLE: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
pub(crate) const WRITABLE: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
pub(crate) const ENDED: u32 = (EPOLLRDHUP | EPOLLHUP | EPOLLERR) as u32;
pub(crate) const URGENT: u32 = libc::EPOLLPRI as u32;

/// How far the bytes of either direction have come: a change is an edge.
pub(crate) struct Stamps {
    /// By ring and kernel.
    pub(crate) bytes: (u64, u64),
    /// By the kernel's reports alone: behind the end of both directions only the kernel has new events, whatever the session comes to.
    pub(crate) kernel: (u64, u64),
}

impl Member {
    /// What is reported of it now. `check` returns what is ready of the wanted events.
    pub(crate) fn report(
        &self,
        stamps: impl FnOnce() -> Stamps,
        check: impl FnOnce(u32) -> u32,
    ) -> Option<epoll_event> {
        let wanted = self.events.load(Ordering::Relaxed);
        // Taken before the check: what comes in between is reported now and counts as an edge once more. It never gets lost.
        let stamps = if wanted & EPOLLET as u32 != 0 { Some(stamps()) } else { None };
        let seen = check(wanted);
        let ready = seen & (wanted | (EPOLLERR | EPOLLHUP) as u32);
        let edge = stamps.is_none_or(|stamps| self.is_edge(wanted, seen, stamps));
        if ready == 0 || !edge {
            return None;
        }
        if wanted & EPOLLONESHOT as u32 != 0 {
            self.set_bit(bit::SPENT, true);
        }
        Some(epoll_event { events: ready, u64: self.data.load(Ordering::Relaxed) })
    }

    /// Whether a `report` would come now. The report is undone.
    pub(crate) fn would_report(&self, report: impl FnOnce() -> Option<epoll_event>) -> bool {
        let (seen_in, seen_out) = (self.seen_in.load(Ordering::Relaxed), self.seen_out.load(Ordering::Relaxed));
        let spent = self.has(bit::SPENT);
        let ready = report().is_some();
        self.seen_in.store(seen_in, Ordering::Relaxed);
        self.seen_out.store(seen_out, Ordering::Relaxed);
        self.set_bit(bit::SPENT, spent);
        ready
    }

    /// Whether an edge has reported that the stream has ended.
    pub(crate) fn knows_end(&self) -> bool {
        let (events, seen) = (self.events.load(Ordering::Relaxed), self.seen_in.load(Ordering::Relaxed));
        events & EPOLLET as u32 != 0 && seen != u64::MAX && seen >> 48 != 0
    }

    /// Whether an edge has reported that both directions have ended. Nothing more is reported behind that.
    pub(crate) fn knows_all(&self) -> bool {
        self.knows_end() && (self.seen_in.load(Ordering::Relaxed) >> 48) as u32 & EPOLLHUP as u32 != 0
    }

    /// Whether the kernel would have it on its ready list, for something happened that it asks for. Then whatever is ready is reported,
    /// though it may be something else by now. If nothing is ready, it leaves the list all the same. `seen`: what was found, asked for or
    /// not.
    fn is_edge(&self, wanted: u32, seen: u32, stamps: Stamps) -> bool {
        let (into, out) = if seen & EPOLLHUP as u32 != 0 { stamps.kernel } else { stamps.bytes };
        // The end is an edge once it is seen. A reported error is none.
        let into = into | u64::from(seen & ENDED & !(EPOLLERR as u32)) << 48;
        let was_in = self.seen_in.swap(into, Ordering::Relaxed);
        // An end is an edge to every member; bytes are one to a member that asks for them. Behind the end of both directions no byte wakes.
        let part = if wanted & (READABLE | URGENT) != 0 || seen & EPOLLHUP as u32 != 0 { 0 } else { 48 };
        // Room is an edge only once it is there.
        let edge_out = seen & WRITABLE != 0 && self.seen_out.swap(out, Ordering::Relaxed) != out;
        was_in >> part != into >> part || edge_out
    }

    /// Whether a check that finds nothing to read changes nothing. It does if the member asks for room, too, or for edges, which each check
    /// notes.
    #[inline]
    pub(crate) fn may_be_passed_over(&self) -> bool {
        self.events.load(Ordering::Relaxed) & (WRITABLE | libc::EPOLLET as u32) == 0
    }

    /// A `check` of it where its registration is ours. A report of one event has all events: also what has come to the kernel since it was
    /// asked. (For a member that asks for edges that is an edge of its own.)
    pub(crate) fn check_whole(&self, wanted: u32, check: impl Fn() -> u32) -> u32 {
        let idle = self.has(bit::IDLE_IN | bit::IDLE_OUT);
        let seen = check();
        if !idle || seen & wanted == 0 || wanted & EPOLLET as u32 != 0 {
            return seen;
        }
        self.set_bit(bit::IDLE_IN | bit::IDLE_OUT, false);
        check()
    }

    /// The kernel's answer. After an empty answer it is not asked again before it has reported something new.
    pub(crate) fn ask_once(&self, idle: u32, ask: impl FnOnce() -> u32) -> u32 {
        if self.has(idle) {
            return 0;
        }
        // SYNC: SeqCst, before the check: an event in between finds the bit set and clears it (`registration::notified`).
        self.set_bit(idle, true);
        let ready = ask();
        if ready != 0 {
            self.set_bit(idle, false);
        }
        ready
    }
}
