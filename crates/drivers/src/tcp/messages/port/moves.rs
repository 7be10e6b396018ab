//! Links by the daemon: they go on over another connection where theirs is lost, and move to a direct one once there can be one.

use madrigal_base::node::{NodeAddress, NodeId};
use madrigal_progress::message::{LinkError, Port as _, Sink};
use madrigal_proto::race::{Way, Wish};
use madrigal_sys::fd::Fd;
use madrigal_sys::time;
use rustix::event::epoll;

use super::better::Better;
use super::{TcpPort, events, flow};

/// How long each time.
const PATIENCE: u64 = 3_000_000_000;

impl TcpPort {
    /// Where we can be dialled.
    pub(super) fn own_address(&self) -> NodeAddress {
        let mut own = NodeAddress::bare(self.me);
        self.publish(&mut own);
        own
    }

    /// Checks whether the link's connection is a makeshift, and notes a change.
    pub(super) fn tend(&mut self, link: u32) {
        let Some(peer) = self.links.get_mut(link as usize) else { return };
        let Some(lane) = peer.lane.as_deref_mut() else { return };
        lane.send_ack();
        let makeshift = lane.is_makeshift();
        if core::mem::replace(&mut peer.makeshift, makeshift) == makeshift {
            return;
        }
        self.handshakes.makeshift(peer.node, makeshift);
        if makeshift {
            self.better = Better::soon();
        } else {
            flow::settle(&lane.socket);
        }
    }

    /// Reading a link's connection failed.
    #[cold]
    pub(super) fn lose(&mut self, link: u32, why: LinkError, sink: &mut dyn Sink) {
        let Some(peer) = self.links.get_mut(link as usize) else { return };
        let can = peer.lane.as_ref().is_some_and(|lane| lane.can_go_on()) && !matches!(why, LinkError::Corrupt { .. });
        let Some(lane) = peer.lane.as_deref_mut().filter(|_| can) else { return self.end(link, why, sink) };
        let _ = epoll::delete(&self.epoll, &lane.socket);
        lane.part();
        (peer.makeshift, peer.by) = (false, None);
        let node = peer.node;
        let ways = self.address_of(link).map_or_else(Vec::new, |address| self.ways(&address));
        self.handshakes.gone(&self.epoll, node);
        self.handshakes.seek_again(&self.epoll, node, &ways, time::now_ns());
        self.pace.forget(link);
        self.pace.stir();
    }

    /// Another connection for a link that has, or had, one.
    pub(super) fn go_on(&mut self, link: u32, socket: Fd, by: Option<Box<str>>) {
        let watched = epoll::modify(&self.epoll, &socket, events::link_token(link), events::ALL);
        let Some(peer) = self.links.get_mut(link as usize) else { return };
        let Some(lane) = peer.lane.as_deref_mut().filter(|lane| lane.can_go_on() && watched.is_ok()) else { return };
        self.silent.watch(&socket, time::now_ns());
        let _ = epoll::delete(&self.epoll, &lane.socket);
        lane.go_on(socket, by.is_some());
        (peer.by, peer.makeshift) = (by, false);
        lane.queued = true;
        self.ready.push_back(link);
    }

    /// No way was found to a node: what was tried, and whether every address refused.
    pub(super) fn unreachable(&mut self, node: NodeId, (tried, absent): (String, bool), sink: &mut dyn Sink) {
        let link = self.link_of(node);
        match self.links.get(link as usize).and_then(|peer| peer.lane.as_ref()) {
            None => self.end(link, LinkError::Unreachable { node, tried, absent }, sink),
            Some(lane) if lane.is_away() => {
                let why = format!("the connection through the daemon was lost, and there is no other: {tried}");
                self.end(link, LinkError::Gone { node, why }, sink);
            }
            // There is no better connection.
            Some(_) => {}
        }
    }

    fn address_of(&self, link: u32) -> Option<NodeAddress> {
        let peer = self.links.get(link as usize)?;
        let declared = peer.lane.as_ref().and_then(|lane| lane.about.as_deref());
        peer.address.as_deref().or(declared).cloned()
    }

    /// Tries direct ways, if it is time.
    pub(super) fn improve(&mut self, now: u64) {
        if now < self.better.at {
            return;
        }
        self.better.at = u64::MAX;
        for link in 0..self.links.len() as u32 {
            if !self.links.get(link as usize).is_some_and(|peer| peer.makeshift) {
                continue;
            }
            self.better.at = now + self.better.gap;
            let Some(address) = self.address_of(link) else { continue };
            let mut ways = self.ways(&address);
            ways.retain(|(way, _)| matches!(way, Way::At(_)));
            if ways.iter().any(|(_, wish)| *wish == Wish::Wanted) {
                self.handshakes.improve(&self.epoll, address.id, &ways, (PATIENCE, now));
            }
        }
        self.better.later();
    }
}
