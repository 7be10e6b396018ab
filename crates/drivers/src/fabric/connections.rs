//! Links: how they come about, what is sent on them besides frames, and how they end.

use madrigal_base::node::NodeId;
use madrigal_progress::message::{LinkError, LinkIndex, Sink};
use madrigal_sys::time;
use std::io::IoSlice;

use super::ffi::Posted;
use super::own::Own;
use super::packet::{Greeting, Head, Kind, LinkId, gather};
use super::peer::{Peer, Phase};
use super::port::FabricPort;
use super::provider::may_be_there;

/// How often a greeting is repeated to a peer that does not answer (nanoseconds).
const AGAIN_NS: u64 = 250_000_000;

impl FabricPort {
    /// Queues a link for a control message.
    pub(super) fn queue(&mut self, link: u32) {
        if let Some(peer) = self.peer(link)
            && !core::mem::replace(&mut peer.queued, true)
        {
            self.urgent.push_back(link);
        }
    }

    /// A new link to a node at that address.
    pub(super) fn meet(&mut self, node: NodeId, name: &[u8]) -> Result<u32, String> {
        may_be_there(&self.provider, name)?;
        let at = self.wire.insert(name)?;
        let link = u32::try_from(self.peers.len()).map_err(|_| "too many links")?;
        self.peers.push(Peer::new(node, name, at, time::now_ns() + self.patience));
        self.known.insert(node, link);
        self.stir();
        Ok(link)
    }

    /// Sends a control message to a peer.
    fn send_control(&mut self, link: u32, head: Head, rest: &[u8]) -> Posted {
        let Some(to) = self.peer(link).map(|peer| peer.at) else { return Posted::Later };
        let posted = self.ship(Some(link), to, 0, |buffer| gather(buffer, &head.bytes(), &[IoSlice::new(rest)], 0));
        if let (Posted::Done, Some(peer)) = (&posted, self.peer(link)) {
            peer.owed = peer.owed.saturating_sub(head.credit);
            peer.quiet = false;
        }
        posted
    }

    /// Sends what is owed on a link. False: not now.
    pub(super) fn pay(&mut self, link: u32) -> bool {
        let now = time::now_ns();
        let Some(peer) = self.peers.get_mut(link as usize) else { return true };
        let posted = match (&peer.phase, peer.link_id) {
            (Phase::Linking { ask, .. }, None) if *ask <= now => {
                let greeting = self.greeting(link);
                self.send_control(link, Head::new(Kind::Hello, LinkId::default()), &greeting)
            }
            (Phase::Up, Some(link_id)) if peer.welcome => {
                let greeting = self.greeting(link);
                self.send_control(link, Head::new(Kind::Welcome, link_id), &greeting)
            }
            (Phase::Up, Some(link_id)) if peer.is_owed() => {
                let head = Head { credit: peer.owed, ..Head::new(Kind::Credit, link_id) };
                self.send_control(link, head, &[])
            }
            (Phase::Up, Some(link_id)) if peer.quiet => self.send_control(link, Head::new(Kind::Ping, link_id), &[]),
            _ => return true,
        };
        let Some(peer) = self.peer(link) else { return true };
        match posted {
            Posted::Done => {
                peer.welcome = false;
                if let Phase::Linking { ask, .. } = &mut peer.phase {
                    *ask = now + AGAIN_NS;
                }
                // It may owe more than one message.
                !peer.is_owed()
            }
            Posted::Later => false,
            Posted::Failed(why) => {
                self.troubled(link, why);
                true
            }
        }
    }

    fn greeting(&self, link: u32) -> Vec<u8> {
        let Some(peer) = self.peers.get(link as usize) else { return Vec::new() };
        let link_id = LinkId { link, session: peer.session };
        let Own { place, pid, start } = self.own;
        Greeting { from: self.me, to: peer.node, link_id, place, pid, start, name: self.wire.name().to_vec() }.bytes()
    }

    /// A send on a link failed: a link that is up ends, one that is not may still come up.
    #[cold]
    pub(super) fn troubled(&mut self, link: u32, why: String) {
        let Some(peer) = self.peers.get_mut(link as usize) else { return };
        match &mut peer.phase {
            Phase::Linking { ask, .. } => {
                *ask = time::now_ns() + AGAIN_NS;
                peer.trouble = Some(why);
            }
            Phase::Up => {
                let why = LinkError::Gone { node: peer.node, why };
                self.unreported.push((link, why.clone()));
                self.close(link, why);
            }
            Phase::Down(_) => {}
        }
    }

    /// Ends a link. False: it had ended.
    pub(super) fn close(&mut self, link: u32, why: LinkError) -> bool {
        let Some(peer) = self.peers.get_mut(link as usize) else { return false };
        if !peer.end(why) {
            return false;
        }
        if self.known.get(&peer.node) == Some(&link) {
            self.known.remove(&peer.node);
        }
        self.stir();
        true
    }

    pub(super) fn end(&mut self, link: u32, why: LinkError, sink: &mut dyn Sink) {
        if self.close(link, why.clone()) {
            sink.down(LinkIndex(link), why);
        }
    }

    /// A peer sent a greeting: a hello, or the answer to ours.
    #[cold]
    pub(super) fn greeted(&mut self, head: &Head, greeting: &Greeting, sink: &mut dyn Sink) {
        let node = greeting.from;
        if greeting.to != self.me || node == self.me {
            return;
        }
        let known = self.known.get(&node).copied();
        let link = if head.kind == Kind::Welcome {
            let asked = |link: &u32| self.peers.get(*link as usize).is_some_and(|peer| peer.session == head.to.session);
            known.filter(|link| *link == head.to.link).filter(asked)
        } else {
            let link_id = known.and_then(|link| self.peers.get(link as usize)?.link_id);
            if let (Some(link), Some(link_id)) = (known, link_id)
                && link_id != greeting.link_id
            {
                self.end(link, LinkError::Gone { node, why: "it began anew".to_owned() }, sink);
            }
            self.known.get(&node).copied().or_else(|| self.meet(node, &greeting.name).ok())
        };
        let Some(link) = link else { return };
        let near = greeting.place == self.own.place && greeting.pid != 0;
        let Some(peer) = self.peer(link) else { return };
        if head.kind == Kind::Hello {
            peer.welcome = true;
        }
        if peer.link_id.is_none() {
            peer.link_id = Some(greeting.link_id);
            peer.process = near.then_some((greeting.pid, greeting.start));
            peer.phase = Phase::Up;
            sink.up(LinkIndex(link), node);
        }
        self.queue(link);
    }

    /// Sends peers the end of links, as far as that goes now.
    pub(super) fn send_closes(&mut self) {
        while let Some(&(at, link_id)) = self.byes.front() {
            let head = Head::new(Kind::Bye, link_id);
            match self.ship(None, at, 0, |buffer| gather(buffer, &head.bytes(), &[], 0)) {
                Posted::Later => return,
                Posted::Done | Posted::Failed(_) => drop(self.byes.pop_front()),
            }
        }
    }

    /// Repeats greetings, gives up links, checks whether peers live.
    #[cold]
    pub(super) fn keep_alive(&mut self, now: u64) {
        for link in 0..self.peers.len() as u32 {
            let Some(peer) = self.peers.get_mut(link as usize) else { return };
            let node = peer.node;
            let dead = peer.is_up() && peer.is_dead();
            match peer.phase {
                Phase::Linking { until, .. } if until <= now => {
                    let why = peer.trouble.clone().unwrap_or_else(|| "no answer".to_owned());
                    let at = self.wire.text(&peer.name);
                    let tried = format!("{} at {at}: {why}", self.provider);
                    let why = LinkError::Unreachable { node, tried, absent: false };
                    self.unreported.push((link, why.clone()));
                    self.close(link, why);
                }
                Phase::Linking { ask, .. } if ask <= now => self.queue(link),
                Phase::Up if dead => self.troubled(link, "its process is gone".to_owned()),
                Phase::Up if core::mem::replace(&mut peer.quiet, true) => self.queue(link),
                _ => {}
            }
        }
    }
}
