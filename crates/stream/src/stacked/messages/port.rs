//! A process's port: its listener, its links, one engine for all of them.

use std::collections::{HashMap, VecDeque};
use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use madrigal_base::locator::Address;
use madrigal_base::node::{NodeAddress, NodeId};
use madrigal_progress::driver::{Driver, Place};
use madrigal_progress::engine::Engine;
use madrigal_progress::message::{Explained, LinkError, LinkIndex, Port, Sent, Sink};
use madrigal_progress::pace::Pace;
use madrigal_progress::wait::Waiter;
use madrigal_proto::race::{Way, Wish};
use madrigal_sys::time;

use super::super::made_of::MadeOf;
use super::lane::{BUFFER, Lane, SHORT};
use super::meeting::{Line, Meeting, Outcome};
use super::reports::{Reports, Whom};

/// Links visited in one poll.
const VISITS: usize = 64;
/// A rendezvous costs a round trip and three small frames; keeping an unexpected body of this size costs as much.
const UNASKED: usize = 1 << 20;
/// How often links are checked for silence.
pub(super) const CHECK_NS: u64 = 2_000_000_000;
/// How long the end of a port may take to deliver what was taken, while peers take some of it.
const LEAVE_NS: u64 = 12_000_000_000;
/// Turns of the engine in which connections end that have nothing more to deliver.
const MOST_PASSES: u32 = 1000;

/// The port.
pub(super) struct StackedPort {
    me: NodeId,
    stack: &'static str,
    below: &'static dyn Driver,
    pub(super) place: Place,
    addresses: Vec<IpAddr>,
    engine: Arc<Engine>,
    reports: Arc<Reports>,
    meeting: Meeting,
    pub(super) links: Vec<Peer>,
    known: HashMap<NodeId, u32>,
    /// Links on which something may have come.
    ready: VecDeque<u32>,
    /// Where something came last: an answer is found there before it is reported.
    hot: Option<u32>,
    /// A link that was full has room.
    room: bool,
    buffer: Box<[u8]>,
    pace: Pace,
    /// When links are checked for silence.
    pub(super) check_at: u64,
}

/// A peer: being dialled while it has neither a lane nor an end.
pub(super) struct Peer {
    node: NodeId,
    lane: Option<Box<Lane>>,
    end: Option<LinkError>,
}

impl StackedPort {
    pub(super) fn open(
        me: NodeId,
        (below, made_of, stack): (&'static dyn Driver, MadeOf, &'static str),
        place: &Place,
    ) -> Result<Self, String> {
        let engine = Engine::new().map_err(|errno| format!("cannot start an engine: {errno}"))?;
        let reports = Arc::new(Reports::default());
        let meeting = Meeting::new((me, place), (below, made_of), &engine, &reports)?;
        Ok(Self {
            me,
            stack,
            below,
            place: place.clone(),
            addresses: below.addresses(place),
            engine,
            reports,
            meeting,
            links: Vec::new(),
            known: HashMap::new(),
            ready: VecDeque::new(),
            hot: None,
            room: false,
            buffer: vec![0; BUFFER].into_boxed_slice(),
            pace: Pace::default(),
            check_at: u64::MAX,
        })
    }

    pub(super) fn lane(&mut self, link: u32) -> Option<&mut Lane> {
        self.links.get_mut(link as usize)?.lane.as_deref_mut()
    }

    /// The link to a node: the one there is, or a new one.
    fn link_of(&mut self, node: NodeId) -> u32 {
        let next = self.links.len() as u32;
        let link = *self.known.entry(node).or_insert(next);
        if link == next {
            self.links.push(Peer { node, lane: None, end: None });
        }
        link
    }

    /// The ways to a node, and whether each is wanted. What goes by the daemon is enciphered where the grid says so.
    fn ways(&self, to: &NodeAddress) -> Vec<(Way, Wish)> {
        let detour = self.below.detour(to, &self.place);
        let is_guarded = detour.as_ref().is_some_and(|detour| detour.is_guarded) && !self.enciphers();
        let mut ways: Vec<(Way, Wish)> = Vec::new();
        for &ip in to.addresses.iter().filter(|_| to.port != 0) {
            let way = Way::At(SocketAddr::new(ip, to.port));
            let wish = match self.place.network.nets.refuses(ip) {
                true => Wish::NotWanted,
                false if is_guarded => Wish::Barred,
                false => Wish::Wanted,
            };
            if ways.iter().all(|(known, _)| *known != way) {
                ways.push((way, wish));
            }
        }
        if let Some(Address::Host(host, port)) = detour.as_ref().map(|detour| detour.to.address()) {
            ways.push((Way::Daemon { host: host.clone(), port: *port }, Wish::Wanted));
        }
        ways
    }

    fn enciphers(&self) -> bool {
        self.stack.split('/').any(|element| element == "tls")
    }

    /// Takes what the engine has reported.
    fn collect(&mut self) {
        while let Some(whom) = self.reports.take() {
            match whom {
                Whom::Listener => self.meeting.note(None),
                Whom::Half(key) => self.meeting.note(Some(key)),
                Whom::Link(link) => self.note(link),
            }
        }
    }

    /// Something happened on a link.
    fn note(&mut self, link: u32) {
        let Some(lane) = self.lane(link) else { return };
        let was_full = core::mem::take(&mut lane.full);
        // A failure shows when it is read.
        let room = was_full && lane.flush() == Ok(true);
        if !core::mem::replace(&mut lane.queued, true) {
            self.ready.push_back(link);
        }
        self.room |= room;
    }

    /// Reads what has come on a link.
    fn visit(&mut self, link: u32, sink: &mut dyn Sink) -> usize {
        let Some(lane) = self.links.get_mut(link as usize).and_then(|peer| peer.lane.as_deref_mut()) else { return 0 };
        match lane.receive(LinkIndex(link), &mut self.buffer, sink) {
            Ok(visit) => {
                if visit.again && !core::mem::replace(&mut lane.queued, true) {
                    self.ready.push_back(link);
                }
                if visit.found > 0 {
                    self.hot = Some(link);
                }
                visit.found
            }
            Err(why) => {
                self.end(link, why, sink);
                1
            }
        }
    }

    /// Reads every link on which something may have come.
    fn read_ready(&mut self, sink: &mut dyn Sink) -> usize {
        let mut found = self.hot.map_or(0, |hot| self.visit(hot, sink));
        for _ in 0..self.ready.len().min(VISITS) {
            let Some(link) = self.ready.pop_front() else { break };
            if let Some(lane) = self.lane(link) {
                lane.queued = false;
                found += self.visit(link, sink);
            }
        }
        found
    }

    /// A link is down.
    #[cold]
    pub(super) fn end(&mut self, link: u32, why: LinkError, sink: &mut dyn Sink) {
        if self.close(link, why.clone()) {
            sink.down(LinkIndex(link), why);
        }
    }

    /// Ends a link, unless it has ended.
    #[cold]
    fn close(&mut self, link: u32, why: LinkError) -> bool {
        let Some(peer) = self.links.get_mut(link as usize).filter(|peer| peer.end.is_none()) else { return false };
        peer.lane = None;
        peer.end = Some(why);
        let node = peer.node;
        self.known.remove(&node);
        self.hot = self.hot.filter(|hot| *hot != link);
        self.meeting.gone(node);
        self.pace.stir();
        true
    }

    /// Handles links that are not up.
    fn progress_meeting(&mut self, sink: &mut dyn Sink) -> usize {
        let deadline = self.meeting.deadline().unwrap_or(u64::MAX).min(self.check_at);
        if deadline == u64::MAX && !self.meeting.is_busy() {
            return 0;
        }
        let now = time::now_ns();
        if now < deadline && !self.meeting.is_busy() {
            return 0;
        }
        self.end_silent(now, sink);
        self.meeting.progress(now);
        let mut found = 0;
        while let Some(outcome) = self.meeting.outcome() {
            found += 1;
            match outcome {
                Outcome::Up(node, line) => self.up(node, line, sink),
                Outcome::Unreachable(node, tried, absent) => {
                    let link = self.link_of(node);
                    self.end(link, LinkError::Unreachable { node, tried, absent }, sink);
                }
            }
        }
        found
    }

    fn up(&mut self, node: NodeId, line: Line, sink: &mut dyn Sink) {
        let link = self.link_of(node);
        let mut lane = Box::new(Lane::new(line, (link, node)));
        // Frames may have come with the last words of the meeting.
        lane.queued = true;
        if let Some(peer) = self.links.get_mut(link as usize) {
            peer.lane = Some(lane);
        }
        self.ready.push_back(link);
        self.check_at = self.check_at.min(time::now_ns() + CHECK_NS);
        sink.up(LinkIndex(link), node);
    }

    /// Whether there is something to do before one sleeps.
    fn has_work(&mut self) -> bool {
        self.collect();
        !self.ready.is_empty() || self.meeting.is_busy() || core::mem::take(&mut self.room)
    }
}

impl Port for StackedPort {
    fn publish(&self, address: &mut NodeAddress) {
        let Some(at) = self.meeting.at() else { return };
        address.port = at.port();
        address.set_stack(self.stack);
        self.below.publish(address, &self.place);
        for own in self.addresses.iter().filter(|own| own.is_ipv4() || at.is_ipv6()) {
            if !address.addresses.contains(own) {
                address.addresses.push(*own);
            }
        }
    }

    fn link(&mut self, to: &NodeAddress) -> Result<LinkIndex, String> {
        if to.id == self.me {
            return Err("it is this process".to_owned());
        }
        if let Some(&link) = self.known.get(&to.id) {
            self.meeting.renew(to.id, time::now_ns());
            return Ok(LinkIndex(link));
        }
        let ours = self.stack;
        match to.stack() {
            Some(theirs) if theirs == ours => {}
            Some(theirs) => {
                return Err(format!("links with node {} have the stack `{theirs}`, and ours `{ours}`", to.id));
            }
            None => return Err(format!("links with node {} have no stack, and ours `{ours}`", to.id)),
        }
        let ways = self.ways(to);
        if ways.is_empty() {
            return Err(format!("node {} has published no address", to.id));
        }
        let link = self.link_of(to.id);
        self.meeting.seek(to.id, &ways, time::now_ns());
        self.pace.stir();
        Ok(LinkIndex(link))
    }

    fn send(&mut self, link: LinkIndex, head: &[u8], body: &[IoSlice<'_>], skip: usize) -> Result<Sent, LinkError> {
        let Some(peer) = self.links.get_mut(link.0 as usize) else { return Ok(Sent::Part(0)) };
        let Some(lane) = peer.lane.as_deref_mut() else {
            return peer.end.clone().map_or(Ok(Sent::Part(0)), Err);
        };
        let sent = lane.send(head, body, skip);
        if (sent.is_err() || lane.is_broken()) && !core::mem::replace(&mut lane.queued, true) {
            // What has come is read before the end is reported.
            self.ready.push_back(link.0);
        }
        self.pace.stir();
        sent
    }

    fn poll(&mut self, sink: &mut dyn Sink) -> usize {
        if self.ready.is_empty() && self.reports.is_empty() && !self.pace.is_due() {
            return 0;
        }
        self.room = false;
        let worked = self.engine.do_work();
        self.collect();
        let found = self.read_ready(sink) + self.progress_meeting(sink);
        if worked + found > 0 {
            self.pace.stir();
        }
        found
    }

    fn short(&self) -> usize {
        SHORT
    }

    fn unasked(&self) -> usize {
        UNASKED
    }

    fn cut(&mut self, link: LinkIndex) {
        if let Some(node) = self.links.get(link.0 as usize).map(|peer| peer.node) {
            self.close(link.0, LinkError::Gone { node, why: "the link was cut here".to_owned() });
        }
    }

    fn arm(&mut self) -> bool {
        let found = self.has_work() || self.engine.begin_sleep();
        if found {
            self.pace.stir();
        }
        found
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.engine.descriptor())
    }

    fn woken(&mut self) {
        self.engine.end_sleep();
        self.pace.stir();
    }

    fn deadline(&self) -> Option<u64> {
        let ours = (self.check_at < u64::MAX).then_some(self.check_at);
        self.meeting.deadline().into_iter().chain(self.engine.first_timer()).chain(ours).min()
    }

    fn explain(&self, link: LinkIndex) -> Explained {
        let Some(peer) = self.links.get(link.0 as usize) else { return Explained::default() };
        let path = peer.lane.as_ref().map_or_else(String::new, |lane| lane.path());
        Explained { path, rejected: self.meeting.rejected(peer.node) }
    }
}

impl Drop for StackedPort {
    /// Frames that were taken are still delivered: waits, a little, for peers that have not taken them yet.
    fn drop(&mut self) {
        let mut leaving: Vec<_> = self.links.iter_mut().filter_map(|peer| peer.lane.take()).collect();
        let until = time::now_ns() + LEAVE_NS;
        self.engine.wait_until(&Waiter::default(), Some(until), || {
            leaving.retain_mut(|lane| !lane.leave());
            leaving.is_empty()
        });
        drop(leaving);
        self.links.clear();
        self.meeting.close();
        // What has ended ends what is below it: reads that are posted hold connections, and those hold the engine.
        (0..MOST_PASSES).take_while(|_| self.engine.do_work() > 0).for_each(drop);
    }
}
