//! The port: which links it polls, of which it is notified, and what it reports to the layer above.

use core::sync::atomic::Ordering;
use std::collections::{HashMap, VecDeque};
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd};

use madrigal_base::node::{NodeAddress, NodeId};
use madrigal_progress::message::{Explained, LinkError, LinkIndex, Port, Sent, SingleCopy, Sink};
use madrigal_progress::wait::Peer as Seen;
use madrigal_sys::fd::Fd;
use madrigal_sys::{cpu, time};

use super::copy::{self, Nonce};
use super::layout::BITS;
use super::link::{Peer, Phase, Up};
use super::pair::PageMap;
use super::writer::{Broken, SHORT};

/// Links the port polls. Of all others it is notified.
const WATCHED: usize = 8;
/// Frames taken from a link before the next one is visited.
const BUDGET: usize = 16;
/// One poll in so many reads the clock ...
const CLOCK_EVERY: u32 = 32;
/// ... for whether the descriptors are due to be checked (nanoseconds): for peers that want to link, and peers that are gone.
pub(super) const CHECK_NS: u64 = 200_000;
/// A watched link that was silent for so many of those is watched no more.
const SILENT: u32 = 64;

/// What the next poll reports or does.
pub(super) enum Event {
    /// A link is up.
    Up(u32),
    /// A link may have frames though no notice is due.
    Visit(u32),
    /// A peer is gone: its last frames, then the end.
    End(u32, String),
    /// A link is down.
    Down(u32, LinkError),
}

/// A process's place.
pub(super) struct Inbox {
    pub(super) me: NodeId,
    /// The socket on which others dial.
    pub(super) listener: Fd,
    pub(super) epoll: Fd,
    pub(super) page: PageMap,
    pub(super) page_fd: Fd,
    pub(super) nonce: Nonce,
    pub(super) peers: Vec<Peer>,
    pub(super) known: HashMap<NodeId, u32>,
    /// Connections whose greeting has not come.
    pub(super) halfway: Vec<(u64, Fd)>,
    pub(super) serial: u64,
    pub(super) events: VecDeque<Event>,
    /// When the descriptors are checked next.
    pub(super) next_check: u64,
    watched: [u32; WATCHED],
    watching: usize,
    /// Links on which something waits for room.
    blocked: Vec<u32>,
    polls: u32,
    rounds: u32,
}

impl Inbox {
    pub(super) fn new(me: NodeId, listener: Fd, epoll: Fd, page: (PageMap, Fd)) -> Self {
        Self {
            me,
            listener,
            epoll,
            page: page.0,
            page_fd: page.1,
            nonce: Nonce::new(),
            peers: Vec::new(),
            known: HashMap::new(),
            halfway: Vec::new(),
            serial: 0,
            events: VecDeque::new(),
            next_check: 0,
            watched: [0; WATCHED],
            watching: 0,
            blocked: Vec::new(),
            polls: 0,
            rounds: 0,
        }
    }

    #[inline]
    pub(super) fn up(&mut self, index: u32) -> Option<&mut Up> {
        match &mut self.peers.get_mut(index as usize)?.phase {
            Phase::Up(up) => Some(up),
            _ => None,
        }
    }

    /// Takes frames of a link.
    #[inline]
    fn visit(&mut self, index: u32, most: usize, sink: &mut dyn Sink) -> usize {
        let Some(up) = self.up(index) else { return 0 };
        let visit = up.visit(LinkIndex(index), most, sink);
        up.active |= visit.frames > 0;
        if let Some(what) = visit.nonsense {
            self.break_off(index, what);
        }
        visit.frames
    }

    #[cold]
    fn break_off(&mut self, index: u32, what: &str) {
        let Some(peer) = self.peers.get(index as usize) else { return };
        let error = LinkError::Corrupt { node: peer.node, what: what.to_owned() };
        self.events.push_back(Event::Down(index, error));
    }

    /// Handles the events since the last poll, and links that are not polled but sent a notice.
    #[cold]
    fn collect(&mut self, sink: &mut dyn Sink) -> usize {
        let mut done = 0;
        for _ in 0..self.events.len() {
            let Some(event) = self.events.pop_front() else { break };
            done += self.handle(event, sink);
        }
        let mut slots = Vec::new();
        self.page.get().take(|slot| slots.push(slot));
        for slot in slots {
            let links = (slot as usize..self.peers.len()).step_by(BITS);
            for index in links {
                // A notice may be about room, which is work, too.
                done += 1 + self.visit(index as u32, BUDGET, sink);
                self.settle(index as u32);
            }
        }
        done
    }

    fn handle(&mut self, event: Event, sink: &mut dyn Sink) -> usize {
        match event {
            Event::Up(index) => {
                if let Some(Peer { node, phase: Phase::Up(_) }) = self.peers.get(index as usize) {
                    sink.up(LinkIndex(index), *node);
                    self.events.push_back(Event::Visit(index));
                }
            }
            Event::Visit(index) => {
                let frames = self.visit(index, BUDGET, sink);
                self.settle(index);
                return frames;
            }
            Event::End(index, why) => {
                if let Some(up) = self.up(index) {
                    up.last_visit(LinkIndex(index), sink);
                }
                if let Some(peer) = self.peers.get(index as usize) {
                    let node = peer.node;
                    self.finish(index, LinkError::Gone { node, why }, sink);
                }
            }
            Event::Down(index, why) => self.finish(index, why, sink),
        }
        1
    }

    /// Ends a link and reports it.
    fn finish(&mut self, index: u32, why: LinkError, sink: &mut dyn Sink) {
        if self.end(index, &why) {
            sink.down(LinkIndex(index), why);
        }
    }

    /// Ends a link; false: there is none.
    fn end(&mut self, index: u32, why: &LinkError) -> bool {
        let Some(peer) = self.peers.get_mut(index as usize) else { return false };
        if matches!(peer.phase, Phase::Down(_)) {
            return false;
        }
        match core::mem::replace(&mut peer.phase, Phase::Down(why.clone())) {
            Phase::Up(up) => drop(rustix::event::epoll::delete(&self.epoll, up.descriptor())),
            Phase::Dialing { socket, .. } => drop(rustix::event::epoll::delete(&self.epoll, &socket)),
            Phase::Later | Phase::Down(_) => {}
        }
        self.unwatch(index);
        self.blocked.retain(|&blocked| blocked != index);
        true
    }

    /// From now on a link is watched, or its peer sends notices.
    fn settle(&mut self, index: u32) {
        let room = self.watching < WATCHED;
        let Some(up) = self.up(index) else { return };
        if up.watched {
            return;
        }
        if room {
            up.watched = true;
            up.active = true;
            self.watched[self.watching] = index;
            self.watching += 1;
        } else if up.listen() {
            self.events.push_back(Event::Visit(index));
        }
    }

    /// No longer watches a link.
    fn unwatch(&mut self, index: u32) {
        if let Some(at) = self.watched[..self.watching].iter().position(|&watched| watched == index) {
            self.watching -= 1;
            self.watched[at] = self.watched[self.watching];
        }
        if let Some(up) = self.up(index)
            && up.watched
        {
            up.watched = false;
            if up.listen() {
                self.events.push_back(Event::Visit(index));
            }
        }
    }

    /// From time to time: reads the clock, and does what is due.
    #[cold]
    fn tick(&mut self) {
        let now = time::now_ns();
        if now < self.next_check {
            return;
        }
        self.check_descriptors();
        self.page.get().cpu.0.store(cpu::current() + 1, Ordering::Relaxed);
        self.rounds += 1;
        if !self.rounds.is_multiple_of(SILENT) {
            return;
        }
        let watched = self.watched;
        for &index in watched.iter().take(self.watching) {
            match self.up(index) {
                Some(up) if up.active => up.active = false,
                _ => self.unwatch(index),
            }
        }
    }

    /// What became of a send that was not all.
    #[cold]
    fn held_up(&mut self, index: u32, sent: Result<Sent, Broken>) -> Result<Sent, LinkError> {
        let Some(peer) = self.peers.get_mut(index as usize) else { return Ok(Sent::Part(0)) };
        let node = peer.node;
        let Phase::Up(up) = &mut peer.phase else { return Ok(Sent::Part(0)) };
        let error = match sent {
            Ok(sent) => {
                if !core::mem::replace(&mut up.blocked, true) {
                    self.blocked.push(index);
                }
                return Ok(sent);
            }
            Err(Broken::Nonsense(what)) => LinkError::Corrupt { node, what: what.to_owned() },
            Err(Broken::NoMemory) => {
                LinkError::Gone { node, why: "this machine has no memory for its messages".to_owned() }
            }
        };
        up.broken = true;
        self.events.push_back(Event::Down(index, error.clone()));
        Err(error)
    }

    /// Reads the descriptors if that is due, so that no process number is used that another process has by now.
    fn refresh(&mut self) {
        if time::now_ns() >= self.next_check {
            self.check_descriptors();
        }
    }

    fn copy(&mut self, link: LinkIndex, local: &[(u64, usize)], remote: &[(u64, usize)], write: bool) -> SingleCopy {
        self.refresh();
        if self.events.iter().any(|event| matches!(event, Event::End(index, _) if *index == link.0)) {
            return SingleCopy::Failed;
        }
        let Some(peer) = self.peers.get(link.0 as usize) else { return SingleCopy::No };
        match &peer.phase {
            Phase::Up(up) => match up.copy {
                // SAFETY: the caller vouches for the local pieces (contract of `Port::pull` and `Port::push`).
                Ok(pid) => unsafe { copy::copy(pid, local, remote, write) },
                Err(_) => SingleCopy::No,
            },
            Phase::Down(_) => SingleCopy::Failed,
            _ => SingleCopy::No,
        }
    }
}

impl Port for Inbox {
    fn publish(&self, _address: &mut NodeAddress) {
        // Peers on this host find us by our id.
    }

    fn link(&mut self, to: &NodeAddress) -> Result<LinkIndex, String> {
        if let Some(&index) = self.known.get(&to.id) {
            return match self.peers.get(index as usize).map(|peer| &peer.phase) {
                Some(Phase::Down(why)) => Err(why.to_string()),
                _ => Ok(LinkIndex(index)),
            };
        }
        self.dial(to.id).map(LinkIndex)
    }

    #[inline]
    fn send(&mut self, link: LinkIndex, head: &[u8], body: &[IoSlice<'_>], skip: usize) -> Result<Sent, LinkError> {
        let Some(peer) = self.peers.get_mut(link.0 as usize) else {
            return Err(LinkError::Gone { node: self.me, why: "there is no such link".to_owned() });
        };
        match &mut peer.phase {
            Phase::Up(up) => match up.send(head, body, skip) {
                Ok(Sent::All) => Ok(Sent::All),
                sent => self.held_up(link.0, sent),
            },
            Phase::Down(why) => Err(why.clone()),
            Phase::Later | Phase::Dialing { .. } => Ok(Sent::Part(0)),
        }
    }

    #[inline]
    fn poll(&mut self, sink: &mut dyn Sink) -> usize {
        let mut done = 0;
        if self.page.get().has_notices() || !self.events.is_empty() {
            done += self.collect(sink);
        }
        for i in 0..self.watching {
            if let Some(&index) = self.watched.get(i) {
                done += self.visit(index, BUDGET, sink);
            }
        }
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(CLOCK_EVERY) {
            self.tick();
        }
        done
    }

    fn short(&self) -> usize {
        SHORT
    }

    fn pull(&mut self, link: LinkIndex, remote: &[(u64, usize)], local: &[(u64, usize)]) -> SingleCopy {
        self.copy(link, local, remote, false)
    }

    fn push(&mut self, link: LinkIndex, local: &[(u64, usize)], remote: &[(u64, usize)]) -> SingleCopy {
        self.copy(link, local, remote, true)
    }

    fn cut(&mut self, link: LinkIndex) {
        let Some(peer) = self.peers.get(link.0 as usize) else { return };
        let why = LinkError::Gone { node: peer.node, why: "it was cut off here".to_owned() };
        self.end(link.0, &why);
    }

    fn arm(&mut self) -> bool {
        while self.watching > 0 {
            self.unwatch(self.watched[self.watching - 1]);
        }
        while let Some(index) = self.blocked.pop() {
            let Some(up) = self.up(index) else { continue };
            if up.wait_for_room() {
                up.blocked = false;
                return true;
            }
            // A notice comes; requested again only after the next send that found no room.
            up.blocked = false;
        }
        if !self.events.is_empty() || self.page.get().sleep() {
            self.page.get().wake();
            return true;
        }
        false
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }

    fn woken(&mut self) {
        self.page.get().wake();
        self.check_descriptors();
        self.page.get().cpu.0.store(cpu::current() + 1, Ordering::Relaxed);
    }

    fn deadline(&self) -> Option<u64> {
        let later = self.peers.iter().any(|peer| matches!(peer.phase, Phase::Later));
        later.then_some(self.next_check)
    }

    fn peer(&self, link: LinkIndex) -> Seen {
        match self.peers.get(link.0 as usize).map(|peer| &peer.phase) {
            Some(Phase::Up(up)) => up.seen(),
            _ => Seen::Unknown,
        }
    }

    fn explain(&self, link: LinkIndex) -> Explained {
        let Some(peer) = self.peers.get(link.0 as usize) else { return Explained::default() };
        let rejected = |what: &str, why: &str| vec![(what.to_owned(), why.to_owned())];
        match &peer.phase {
            Phase::Up(up) => match &up.copy {
                Ok(_) => Explained { path: "inbox, single copy".to_owned(), rejected: Vec::new() },
                Err(why) => Explained { path: "inbox".to_owned(), rejected: rejected("single copy", why) },
            },
            Phase::Down(why) => Explained { path: String::new(), rejected: rejected("inbox", &why.to_string()) },
            Phase::Later => Explained { path: String::new(), rejected: rejected("inbox", "too many wait there") },
            Phase::Dialing { .. } => Explained::default(),
        }
    }
}
