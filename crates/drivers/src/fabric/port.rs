//! A process's port: one endpoint of the provider's, its buffers, and a link for each peer.
//!
//! Receive buffers are always posted. What is sent is copied into buffers of our own, for a provider takes its time. A peer may send only
//! so much before it is notified that it was taken, so no peer floods a process that does not poll.

use std::collections::{HashMap, VecDeque};
use std::io::IoSlice;
use std::os::fd::{AsFd as _, BorrowedFd};

use madrigal_base::error::Os;
use madrigal_base::node::{Foreign, NodeAddress, NodeId};
use madrigal_progress::driver::Place;
use madrigal_progress::message::{Explained, LinkError, LinkIndex, Placement, Port, Sent, Sink};
use madrigal_sys::fd::Fd;
use madrigal_sys::{Errno, time};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::ffi::{DATA, Event, Offer, Posted, Wire};
use super::own::Own;
use super::packet::{self, Greeting, Head, Kind, LinkId, gather};
use super::peer::{End, Peer, Phase, SHORT};

/// Buffers for what comes, which are the first ones, and for what is sent.
const RX: usize = 128;
const TX: usize = 64;
/// Buffers kept for control messages between the drivers.
const RESERVE: usize = 8;
/// Events taken in one poll.
const BATCH: usize = 64;
/// After an event so many polls query the provider each. Of the others one in so many does.
const EAGER: u32 = 1024;
const SELDOM: u32 = 16;
/// Polls between two reads of the clock.
const STRIDE: u32 = 16;
/// How often links are checked (nanoseconds).
const TICK_NS: u64 = 100_000_000;
/// How often a sleeper polls: seldom where the provider rings, often where it cannot.
const SLEEP_NS: i64 = 20_000_000;
const SHORT_SLEEP_NS: i64 = 500_000;
/// How long the end of a port may take to deliver what was taken.
const LEAVE_NS: u64 = 5_000_000_000;

/// The port.
pub(super) struct FabricPort {
    pub(super) me: NodeId,
    pub(super) wire: Wire,
    pub(super) provider: String,
    domain: String,
    /// How long a node is dialled (nanoseconds).
    pub(super) patience: u64,
    pub(super) peers: Vec<Peer>,
    pub(super) known: HashMap<NodeId, u32>,
    /// Send buffers that are free.
    free: Vec<usize>,
    /// By buffer: the link it was sent on.
    owners: Vec<Option<u32>>,
    /// Buffers to receive into that the provider did not take.
    spare: Vec<usize>,
    /// Links on which a control message must be sent.
    pub(super) urgent: VecDeque<u32>,
    /// Peers that must be notified that a link ended.
    pub(super) byes: VecDeque<(u64, LinkId)>,
    /// Links that ended outside of a poll.
    pub(super) unreported: Vec<(u32, LinkError)>,
    epoll: Fd,
    timer: Fd,
    pub(super) own: Own,
    /// An error of the provider that belongs to no link.
    trouble: Option<String>,
    eager: u32,
    polls: u32,
    tick: u64,
}

impl FabricPort {
    pub(super) fn open(me: NodeId, place: &Place, offer: Offer<'_>) -> Result<Self, String> {
        let wire = Wire::open(offer, RX + TX)?;
        let watch = |errno: Errno| format!("cannot wait: {}", Os(errno.raw_os_error()));
        let epoll = Fd::from(epoll::create(epoll::CreateFlags::CLOEXEC).map_err(watch)?);
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = Fd::from(timerfd_create(TimerfdClockId::Monotonic, flags).map_err(watch)?);
        epoll::add(&epoll, &timer, EventData::new_u64(0), EventFlags::IN).map_err(watch)?;
        if let Some(descriptor) = wire.descriptor() {
            epoll::add(&epoll, descriptor, EventData::new_u64(1), EventFlags::IN).map_err(watch)?;
        }
        let mut port = Self {
            me,
            provider: offer.provider(),
            domain: offer.domain(),
            wire,
            patience: u64::from(place.network.connect_timeout) * 1_000_000_000,
            peers: Vec::new(),
            known: HashMap::new(),
            free: (RX..RX + TX).collect(),
            owners: vec![None; RX + TX],
            spare: (0..RX).collect(),
            urgent: VecDeque::new(),
            byes: VecDeque::new(),
            unreported: Vec::new(),
            epoll,
            timer,
            own: Own::find(),
            trouble: None,
            eager: EAGER,
            polls: 0,
            tick: 0,
        };
        port.post();
        if port.spare.len() == RX { Err("the provider takes no buffer".to_owned()) } else { Ok(port) }
    }

    /// Posts our free buffers to the provider to receive into.
    fn post(&mut self) {
        while let Some(&slot) = self.spare.last() {
            match self.wire.receive(slot) {
                Posted::Done => drop(self.spare.pop()),
                Posted::Later | Posted::Failed(_) => return,
            }
        }
    }

    pub(super) fn stir(&mut self) {
        self.eager = EAGER;
    }

    pub(super) fn peer(&mut self, link: u32) -> Option<&mut Peer> {
        self.peers.get_mut(link as usize)
    }

    /// Sends what `fill` writes, if a buffer is free besides those kept back.
    pub(super) fn ship(
        &mut self,
        link: Option<u32>,
        to: u64,
        kept: usize,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Posted {
        let Some(&slot) = self.free.last().filter(|_| self.free.len() > kept) else { return Posted::Later };
        let len = fill(self.wire.bytes_mut(slot));
        let posted = self.wire.send(slot, len, to);
        if let Posted::Done = posted {
            self.free.pop();
            if let Some(owner) = self.owners.get_mut(slot) {
                *owner = link;
            }
            self.stir();
        }
        posted
    }

    /// Takes the events of the provider.
    fn take_events(&mut self, sink: &mut dyn Sink) -> usize {
        let mut found = 0;
        while found < BATCH {
            let Some(event) = self.wire.event() else { break };
            found += 1;
            match event {
                Event::Done { slot, len } if slot < RX => {
                    self.came(slot, len, sink);
                    self.spare.push(slot);
                    self.post();
                }
                Event::Failed { slot, .. } if slot < RX => self.spare.push(slot),
                Event::Done { slot, .. } => self.free.push(slot),
                Event::Failed { slot, why } => {
                    self.free.push(slot);
                    if let Some(link) = self.owners.get(slot).copied().flatten() {
                        self.troubled(link, why);
                    }
                }
                Event::Other(why) => self.trouble = Some(why),
            }
        }
        if !self.spare.is_empty() {
            self.post();
        }
        if found > 0 {
            self.stir();
        }
        found
    }

    /// A message is in a buffer.
    #[inline]
    fn came(&mut self, slot: usize, len: usize, sink: &mut dyn Sink) {
        let Some((head, rest)) = Head::read(self.wire.bytes(slot, len)) else { return };
        if let Kind::Hello | Kind::Welcome = head.kind {
            if let Some(greeting) = Greeting::read(rest) {
                self.greeted(&head, &greeting, sink);
            }
            return;
        }
        let link = head.to.link;
        let peer = self.peers.get_mut(link as usize).filter(|peer| peer.is_up() && peer.session == head.to.session);
        let Some(peer) = peer else { return };
        let node = peer.node;
        match peer.handle(LinkIndex(link), &head, rest, sink) {
            Ok(()) if peer.is_owed() => self.queue(link),
            Ok(()) => {}
            Err(End::Closed) => self.end(link, LinkError::Gone { node, why: "it closed".to_owned() }, sink),
            Err(End::Corrupt(what)) => {
                let link_id = peer.link_id.map(|link_id| (peer.at, link_id));
                self.byes.extend(link_id);
                self.end(link, LinkError::Corrupt { node, what: what.to_owned() }, sink);
            }
        }
    }

    /// Sends what is owed, and checks links now and then.
    fn work(&mut self, sink: &mut dyn Sink) -> usize {
        let mut done = 0;
        for _ in 0..self.urgent.len() {
            let Some(link) = self.urgent.pop_front() else { break };
            if let Some(peer) = self.peer(link) {
                peer.queued = false;
            }
            if self.pay(link) {
                done += 1;
            } else {
                self.queue(link);
            }
        }
        self.send_closes();
        if self.polls.is_multiple_of(STRIDE) {
            let now = time::now_ns();
            if now >= self.tick {
                self.tick = now + TICK_NS;
                self.keep_alive(now);
            }
        }
        for (link, why) in core::mem::take(&mut self.unreported) {
            done += 1;
            sink.down(LinkIndex(link), why);
        }
        done
    }

    /// Makes progress until nothing comes and every buffer was sent, or it is that late.
    fn drain(&mut self, until: u64) {
        loop {
            let found = self.take_events(&mut Nobody);
            self.send_closes();
            if time::now_ns() >= until || (found == 0 && self.free.len() >= TX && self.byes.is_empty()) {
                return;
            }
            if found == 0 {
                madrigal_sys::raw::sched_yield();
            }
        }
    }
}

impl Port for FabricPort {
    fn publish(&self, address: &mut NodeAddress) {
        let kind = Foreign::kind_of(&self.provider);
        address.foreign.push(Foreign { kind, bytes: self.wire.name().to_vec() });
    }

    fn link(&mut self, to: &NodeAddress) -> Result<LinkIndex, String> {
        if to.id == self.me {
            return Err("it is this process".to_owned());
        }
        if let Some(&link) = self.known.get(&to.id) {
            let until = time::now_ns() + self.patience;
            if let Some(Phase::Linking { until: old, .. }) = self.peer(link).map(|peer| &mut peer.phase) {
                *old = until;
            }
            return Ok(LinkIndex(link));
        }
        let kind = Foreign::kind_of(&self.provider);
        let missing = || format!("node {} has published no address of {}", to.id, self.provider);
        let name = &to.foreign.iter().find(|foreign| foreign.kind == kind).ok_or_else(missing)?.bytes;
        let link = self.meet(to.id, name)?;
        self.queue(link);
        Ok(LinkIndex(link))
    }

    #[inline]
    fn send(&mut self, link: LinkIndex, head: &[u8], body: &[IoSlice<'_>], skip: usize) -> Result<Sent, LinkError> {
        let link = link.0;
        let len = head.len() + body.iter().map(|piece| piece.len()).sum::<usize>();
        let whole = len - head.len() <= SHORT;
        let mut at = skip;
        loop {
            let Some(peer) = self.peers.get(link as usize) else { return Ok(Sent::Part(0)) };
            let link_id = match (&peer.phase, peer.link_id) {
                (Phase::Down(why), _) => return Err(why.clone()),
                // Before it has its answer it would take no frame.
                (Phase::Up, Some(link_id)) if peer.credits > 0 && !peer.welcome => link_id,
                _ => return Ok(Sent::Part(at - skip)),
            };
            let kind = match at {
                0 if whole => Kind::Frame,
                0 => Kind::Begin,
                _ => Kind::More,
            };
            let begins = if at == 0 { head.len() as u8 } else { 0 };
            let packet =
                Head { head: begins, credit: peer.owed, len: (len - head.len()) as u64, ..Head::new(kind, link_id) };
            let (to, mut taken) = (peer.at, 0);
            let posted = self.ship(Some(link), to, RESERVE, |buffer| {
                let Some((front, room)) = buffer.split_at_mut_checked(packet::HEAD) else { return 0 };
                front.copy_from_slice(&packet.bytes());
                taken = gather(room, head, body, at);
                packet::HEAD + taken
            });
            match posted {
                Posted::Done => {}
                Posted::Later => return Ok(Sent::Part(at - skip)),
                Posted::Failed(why) => {
                    let node = self.peers.get(link as usize).map_or(self.me, |peer| peer.node);
                    self.troubled(link, why.clone());
                    return Err(LinkError::Gone { node, why });
                }
            }
            if let Some(peer) = self.peer(link) {
                peer.credits -= 1;
                peer.owed -= packet.credit;
                peer.quiet = false;
            }
            at += taken;
            if at >= len {
                return Ok(Sent::All);
            }
        }
    }

    #[inline]
    fn poll(&mut self, sink: &mut dyn Sink) -> usize {
        self.polls = self.polls.wrapping_add(1);
        if self.eager == 0 {
            if !self.polls.is_multiple_of(SELDOM) {
                return 0;
            }
        } else {
            self.eager -= 1;
        }
        self.work(sink) + self.take_events(sink)
    }

    fn short(&self) -> usize {
        SHORT
    }

    fn cut(&mut self, link: LinkIndex) {
        let Some(peer) = self.peer(link.0) else { return };
        let (node, bye) = (peer.node, peer.link_id.filter(|_| peer.is_up()).map(|link_id| (peer.at, link_id)));
        if self.close(link.0, LinkError::Gone { node, why: "the link was cut here".to_owned() }) {
            self.byes.extend(bye);
            self.send_closes();
        }
        self.unreported.retain(|(unreported, _)| *unreported != link.0);
    }

    fn arm(&mut self) -> bool {
        let waits =
            self.urgent.is_empty() && self.byes.is_empty() && self.unreported.is_empty() && self.spare.is_empty();
        if !waits || self.wire.must_poll() {
            self.stir();
            return true;
        }
        let ns = if self.wire.descriptor().is_some() { SLEEP_NS } else { SHORT_SLEEP_NS };
        let time = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec { tv_sec: 0, tv_nsec: ns },
        };
        // Without a timer no thread may sleep.
        let failed = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &time).is_err();
        if failed {
            self.stir();
        }
        failed
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }

    fn woken(&mut self) {
        // Empty means that something else woke us.
        let _ = rustix::io::read(&self.timer, &mut [0u8; 8]);
        // The next poll queries the provider and reads the clock.
        self.eager = self.eager.max(1);
        self.polls = STRIDE - 1;
    }

    fn deadline(&self) -> Option<u64> {
        (!self.known.is_empty()).then_some(self.tick)
    }

    fn explain(&self, link: LinkIndex) -> Explained {
        let Some(peer) = self.peers.get(link.0 as usize) else { return Explained::default() };
        let rejected =
            peer.trouble.iter().chain(&self.trouble).map(|why| (self.provider.clone(), why.clone())).collect();
        if !peer.is_up() {
            return Explained { path: String::new(), rejected };
        }
        let (own, theirs) = (self.wire.text(self.wire.name()), self.wire.text(&peer.name));
        Explained { path: format!("{} through {}, {own} -> {theirs}", self.provider, self.domain), rejected }
    }
}

/// The sink while the port is dropped: nobody listens any more.
struct Nobody;

impl Sink for Nobody {
    fn up(&mut self, _link: LinkIndex, _node: NodeId) {}
    fn down(&mut self, _link: LinkIndex, _why: LinkError) {}
    fn frame(&mut self, _link: LinkIndex, _head: &[u8], _body: &[u8]) {}
    fn place(&mut self, _link: LinkIndex, _head: &[u8], _len: usize, _placement: &mut Placement) {}
    fn arrived(&mut self, _link: LinkIndex, _head: &[u8]) {}
}

impl Drop for FabricPort {
    /// What was taken is sent, and peers are notified, if that can be done soon. Peers that closed first are not: if they were in this
    /// process, the provider `shm` would touch freed memory.
    fn drop(&mut self) {
        self.drain(time::now_ns() + LEAVE_NS);
        let up = self.peers.iter().filter(|peer| peer.is_up());
        let byes: Vec<_> = up.filter_map(|peer| Some((peer.at, peer.link_id?))).collect();
        self.byes.extend(byes);
        self.send_closes();
        self.drain(time::now_ns() + LEAVE_NS / 5);
    }
}

/// Head, a short frame and what is in front of it are one message.
const _: () = assert!(packet::HEAD + madrigal_progress::message::MAX_HEAD + SHORT <= DATA);
