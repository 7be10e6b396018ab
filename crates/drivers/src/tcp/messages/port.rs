//! A process's port: its listener, its links, one epoll for all of them.

mod better;
mod moves;
mod silent;

use core::mem::MaybeUninit;
use core::net::{IpAddr, SocketAddr};
use std::collections::{HashMap, VecDeque};
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};

use madrigal_base::network::Network;
use madrigal_base::node::{NodeAddress, NodeId};
use madrigal_progress::message::{Explained, LinkError, LinkIndex, Port, Sent, Sink};
use madrigal_proto::race::{Way, Wish};
use madrigal_sys::fd::Fd;
use madrigal_sys::{Errno, tcp, time};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

use self::better::{Better, LOST};
use self::silent::Silent;
use super::super::silence;
use super::super::sites::Sites;
use super::super::socket::os;
use super::super::socket::{own, peer_of};
use super::events::{self, Whom};
use super::flow;
use super::handshakes::{Handshakes, Outcome};
use super::lane::{BUFFER, Lane, SHORT};
use super::listener::Listener;
use super::pace::Pace;
use super::place;

/// Events taken at once.
const EVENTS: usize = 64;
/// Links visited in one poll.
const VISITS: usize = 64;
/// A rendezvous costs a round trip and three small frames; keeping an unexpected body of this size costs as much.
const UNASKED: usize = 1 << 20;
/// How long the end of a port may take to deliver what was taken.
const LEAVE_NS: u64 = 5_000_000_000;

/// The port.
pub(super) struct TcpPort {
    me: NodeId,
    network: Network,
    addresses: Vec<IpAddr>,
    epoll: Fd,
    handshakes: Handshakes,
    links: Vec<Peer>,
    known: HashMap<NodeId, u32>,
    /// Links on which something may have come.
    ready: VecDeque<u32>,
    buffer: Box<[u8]>,
    pace: Pace,
    /// A link that was full has room.
    room: bool,
    /// The last read emptied a socket. Callers read until they find nothing. Another read would only show that, and cost a system call
    /// between a message and its answer.
    drained: bool,
    better: Better,
    silent: Silent,
}

/// A peer: being dialled while it has neither a lane nor an end.
struct Peer {
    node: NodeId,
    lane: Option<Box<Lane>>,
    end: Option<LinkError>,
    /// How the daemon carries it, where it does.
    by: Option<Box<str>>,
    /// Where it can be found, where a daemon may carry it.
    address: Option<Box<NodeAddress>>,
    /// A better connection is wanted.
    makeshift: bool,
}

impl TcpPort {
    pub(super) fn new(me: NodeId, network: &Network, addresses: Vec<IpAddr>, sites: Sites) -> Result<Self, String> {
        let failed = |errno| format!("cannot watch sockets: {}", os(errno));
        let listener = Listener::open(network)?;
        let epoll = Fd::from(epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?);
        epoll::add(&epoll, &listener.fd, events::listener_token(), events::LISTENER).map_err(failed)?;
        let patience = u64::from(network.connect_timeout) * 1_000_000_000;
        Ok(Self {
            me,
            network: network.clone(),
            addresses,
            epoll,
            handshakes: Handshakes::new(me, listener, sites, patience),
            links: Vec::new(),
            known: HashMap::new(),
            ready: VecDeque::new(),
            buffer: vec![0; BUFFER + place::MOST_OFFSET].into_boxed_slice(),
            pace: Pace::new(),
            room: false,
            drained: false,
            better: Better::default(),
            silent: Silent::new(u64::from(network.connect_timeout)),
        })
    }

    fn lane(&mut self, link: u32) -> Option<&mut Lane> {
        self.links.get_mut(link as usize)?.lane.as_deref_mut()
    }

    /// The link to a node: the one there is, or a new one.
    fn link_of(&mut self, node: NodeId) -> u32 {
        let next = self.links.len() as u32;
        let link = *self.known.entry(node).or_insert(next);
        if link == next {
            self.links.push(Peer { node, lane: None, end: None, by: None, address: None, makeshift: false });
        }
        link
    }

    /// Reads every socket on which something may have come.
    fn read_ready(&mut self, sink: &mut dyn Sink) -> usize {
        match self.pace.hot() {
            Some(hot) if self.ready.is_empty() => {
                let found = self.visit(hot, sink);
                if found > 0 || !self.handshakes.is_busy() {
                    return found;
                }
            }
            Some(_) => {}
            // Also while one link is never empty: others would starve.
            None => self.collect(),
        }
        let mut found = 0;
        for _ in 0..self.ready.len().min(VISITS) {
            let Some(link) = self.ready.pop_front() else { break };
            if let Some(lane) = self.lane(link) {
                lane.queued = false;
                found += self.visit(link, sink);
            }
        }
        found + self.progress_handshakes(sink)
    }

    /// Takes events from the kernel.
    fn collect(&mut self) {
        let mut space = [MaybeUninit::uninit(); EVENTS];
        loop {
            let Ok((events, _)) = epoll::wait(&self.epoll, &mut space[..], Some(&Timespec::default())) else { return };
            for event in &*events {
                match events::whom(event.data) {
                    Whom::Listener => self.handshakes.note(None),
                    Whom::Half(key) => self.handshakes.note(Some(key)),
                    Whom::Link(link) => self.note(link, event.flags),
                }
            }
            if events.len() < EVENTS {
                return;
            }
        }
    }

    /// Something happened on a link.
    fn note(&mut self, link: u32, flags: epoll::EventFlags) {
        let Some(lane) = self.lane(link) else { return };
        let mut room = false;
        if lane.full && flags.intersects(epoll::EventFlags::OUT | events::END) {
            lane.full = false;
            lane.flush();
            room = !lane.full;
        }
        lane.ending |= flags.intersects(events::END);
        let come = flags.intersects(epoll::EventFlags::IN | events::END) || lane.is_broken();
        if come && !core::mem::replace(&mut lane.queued, true) {
            self.ready.push_back(link);
        }
        self.room |= room;
    }

    /// Reads what has come on a link.
    fn visit(&mut self, link: u32, sink: &mut dyn Sink) -> usize {
        let Some(peer) = self.links.get_mut(link as usize) else { return 0 };
        let Some(lane) = peer.lane.as_deref_mut() else { return 0 };
        let offset = place::offset(&self.buffer);
        match lane.receive(LinkIndex(link), self.buffer.get_mut(offset..).unwrap_or_default(), sink) {
            Ok(visit) => {
                if visit.again && !core::mem::replace(&mut lane.queued, true) {
                    self.ready.push_back(link);
                }
                if visit.found > 0 {
                    self.pace.found(link);
                    self.drained = !visit.again;
                }
                if lane.resumption.is_some() || peer.makeshift {
                    self.tend(link);
                }
                visit.found
            }
            Err(why) => {
                self.lose(link, why, sink);
                1
            }
        }
    }

    /// A link is down.
    #[cold]
    fn end(&mut self, link: u32, why: LinkError, sink: &mut dyn Sink) {
        if self.close(link, why.clone()) {
            sink.down(LinkIndex(link), why);
        }
    }

    /// Ends a link, unless it has ended.
    #[cold]
    fn close(&mut self, link: u32, why: LinkError) -> bool {
        let Some(peer) = self.links.get_mut(link as usize).filter(|peer| peer.end.is_none()) else { return false };
        if let Some(mut lane) = peer.lane.take() {
            lane.send_close();
        }
        peer.end = Some(why);
        self.known.remove(&peer.node);
        self.handshakes.gone(&self.epoll, peer.node);
        self.pace.forget(link);
        self.pace.stir();
        true
    }

    /// Handles connections that are not up.
    fn progress_handshakes(&mut self, sink: &mut dyn Sink) -> usize {
        let deadline = self.deadline();
        if deadline.is_none() && !self.handshakes.is_busy() {
            return 0;
        }
        let now = time::now_ns();
        if !self.handshakes.is_busy() && deadline.is_some_and(|deadline| deadline > now) {
            return 0;
        }
        self.improve(now);
        self.end_silent(now, sink);
        self.handshakes.progress(&self.epoll, now);
        self.pace.stir();
        let mut found = 0;
        while let Some(outcome) = self.handshakes.outcome() {
            found += 1;
            match outcome {
                Outcome::Up(node, socket, by) => self.up(node, socket, by, sink),
                Outcome::Unreachable(node, tried, absent) => self.unreachable(node, (tried, absent), sink),
            }
        }
        found
    }

    fn up(&mut self, node: NodeId, socket: Fd, by: Option<Box<str>>, sink: &mut dyn Sink) {
        let link = self.link_of(node);
        if self.lane(link).is_some() {
            return self.go_on(link, socket, by);
        }
        let watched = epoll::modify(&self.epoll, &socket, events::link_token(link), events::ALL);
        if by.is_none() {
            flow::settle(&socket);
        }
        self.silent.watch(&socket, time::now_ns());
        let mut lane = Box::new(Lane::new(socket, node));
        // Frames may have come with the last words of the handshake.
        lane.queued = true;
        if by.is_some() {
            lane.make_resumable(self.own_address());
        } else if peer_of(&lane.socket).is_some_and(|from| self.handshakes.sites.is_daemon(from.ip())) {
            lane.suspect();
        }
        if let Some(peer) = self.links.get_mut(link as usize) {
            (peer.lane, peer.by) = (Some(lane), by);
        }
        self.ready.push_back(link);
        sink.up(LinkIndex(link), node);
        if let Err(errno) = watched {
            let why = format!("cannot watch its socket: {}", os(errno));
            self.end(link, LinkError::Gone { node, why }, sink);
        }
    }

    /// The ways to a node, and whether the user wants each.
    fn ways(&mut self, to: &NodeAddress) -> Vec<(Way, Wish)> {
        let daemon = self.handshakes.sites.way(to, time::now_ns());
        let wish = daemon.as_ref().map_or(Wish::Wanted, |(_, wish)| *wish);
        let mut ways: Vec<(Way, Wish)> = Vec::new();
        for &address in &to.addresses {
            let way = Way::At(SocketAddr::new(address, to.port));
            if ways.iter().all(|(known, _)| *known != way) {
                ways.push((way, if self.network.nets.refuses(address) { Wish::NotWanted } else { wish }));
            }
        }
        ways.extend(daemon.map(|(way, _)| (way, Wish::Wanted)));
        ways
    }
}

impl Port for TcpPort {
    fn publish(&self, address: &mut NodeAddress) {
        address.port = self.handshakes.listener.port;
        self.handshakes.sites.publish(address);
        let usable = self.addresses.iter().filter(|address| address.is_ipv4() || !self.handshakes.listener.v4_only);
        for own in usable {
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
            self.handshakes.renew(to.id, time::now_ns());
            return Ok(LinkIndex(link));
        }
        if let Some(stack) = to.stack() {
            return Err(format!("links with node {} have the stack `{stack}`, and those of this driver none", to.id));
        }
        let ways = if to.port == 0 { Vec::new() } else { self.ways(to) };
        if ways.is_empty() {
            return Err(format!("node {} has published no address", to.id));
        }
        let link = self.link_of(to.id);
        if let Some(peer) =
            self.links.get_mut(link as usize).filter(|_| matches!(ways.last(), Some((Way::Daemon { .. }, _))))
        {
            peer.address = Some(Box::new(to.clone()));
        }
        self.handshakes.seek(&self.epoll, to.id, &ways, time::now_ns());
        self.pace.stir();
        Ok(LinkIndex(link))
    }

    #[inline]
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
        match sent {
            Ok(Sent::Part(0)) => self.pace.stuck(),
            _ => self.pace.sent(link.0),
        }
        sent
    }

    #[inline]
    fn poll(&mut self, sink: &mut dyn Sink) -> usize {
        if self.ready.is_empty() && (core::mem::take(&mut self.drained) || !self.pace.is_due()) {
            return 0;
        }
        self.room = false;
        self.read_ready(sink)
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
        if self.ready.is_empty() && !self.handshakes.is_busy() {
            self.collect();
        }
        let found = !self.ready.is_empty() || self.handshakes.is_busy() || core::mem::take(&mut self.room);
        if found {
            self.pace.stir();
        }
        found
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }

    fn woken(&mut self) {
        self.collect();
        // A sleep that ended by itself is no reason to read often: sleepers would spend their time here.
        if !self.ready.is_empty() || self.handshakes.is_busy() || self.room {
            self.pace.stir();
        }
    }

    fn deadline(&self) -> Option<u64> {
        let ours = [self.better.at, self.silent.at].into_iter().filter(|at| *at < u64::MAX);
        self.handshakes.deadline().into_iter().chain(ours).min()
    }

    fn explain(&self, link: LinkIndex) -> Explained {
        let Some(peer) = self.links.get(link.0 as usize) else { return Explained::default() };
        let path = match (&peer.lane, &peer.by) {
            (Some(lane), _) if lane.is_away() => LOST.to_owned(),
            (Some(_), Some(by)) => by.to_string(),
            (Some(lane), None) => {
                let from = peer_of(&lane.socket).is_some_and(|from| self.handshakes.sites.is_daemon(from.ip()));
                format!("{}{}", if from { "through the daemon: " } else { "" }, path(&lane.socket))
            }
            (None, _) => String::new(),
        };
        Explained { path, rejected: self.handshakes.rejected(peer.node) }
    }
}

/// `10.0.0.1:4000 -> 10.0.0.2:4001, round trip 0.12 ms`.
fn path(socket: &Fd) -> String {
    let text = |address: Option<SocketAddr>| {
        let canonical = |a: SocketAddr| SocketAddr::new(a.ip().to_canonical(), a.port()).to_string();
        address.map_or_else(|| "?".to_owned(), canonical)
    };
    let (own, peer) = (text(own(socket)), text(peer_of(socket)));
    match tcp::info(socket.as_raw_fd()) {
        Ok(info) => format!("{own} -> {peer}, round trip {:.2} ms", f64::from(info.rtt) / 1000.0),
        Err(_) => format!("{own} -> {peer}"),
    }
}

impl Drop for TcpPort {
    /// Frames that were taken are still delivered: waits, a little, for a peer whose system has not acknowledged them yet.
    fn drop(&mut self) {
        let lanes = self.links.iter_mut().filter_map(|peer| peer.lane.take());
        let mut leaving: Vec<_> = lanes.map(|lane| (lane, false)).collect();
        let until = time::now_ns() + LEAVE_NS;
        loop {
            leaving.retain_mut(|(lane, closed)| !lane.leave(closed));
            if leaving.is_empty() || time::now_ns() >= until {
                return;
            }
            let flags = |closed| if closed { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
            let watched = leaving.iter().take(EVENTS);
            let mut fds: Vec<_> = watched.map(|(lane, closed)| PollFd::new(&lane.socket, flags(*closed))).collect();
            // An acknowledgement wakes no poll: try again soon.
            match poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 1_000_000 })) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }
}

impl TcpPort {
    /// Ends links that are silent, if the check is due.
    fn end_silent(&mut self, now: u64, sink: &mut dyn Sink) {
        if now < self.silent.at {
            return;
        }
        self.silent.at = u64::MAX;
        for link in 0..self.links.len() as u32 {
            let Some(lane) = self.lane(link).filter(|lane| !lane.is_away()) else { continue };
            let (node, seconds) = (lane.node, silence::unanswered_s(&lane.socket));
            let silent = seconds >= silent::REPORTED_S;
            let is_new = !core::mem::replace(&mut lane.silent, silent) && silent;
            self.silent.at = now + silent::CHECK_NS;
            if seconds >= self.silent.limit_s {
                let tried = format!("no answer from its host for {seconds} s");
                self.lose(link, LinkError::Unreachable { node, tried, absent: false }, sink);
            } else if is_new {
                sink.silent(LinkIndex(link), seconds);
            }
        }
    }
}
