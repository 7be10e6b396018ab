//! Route updates: a relay advertises to each neighbour the hosts that it reaches. Those that come are checked and stored.

use madrigal_proto::mux::{Class, StreamId};

use crate::daemon::Daemon;
use crate::link::{Link, Stage};
use crate::poll::Token;
use crate::routing::table::{self, Advertised};
use crate::socket::Recv;
use crate::streams::stream::StreamOwner;
use crate::units::{MILLISECOND, SECOND};
use crate::wire::{Reach, RouteUpdate, StreamHeader};

/// The time from a change to the update.
const CHANGE_DELAY: u64 = 150 * MILLISECOND;
/// The time after which everything is advertised again.
const REPEAT_AFTER: u64 = 30 * SECOND;
/// The longest update. Hosts that do not fit are left out.
const LONGEST_UPDATE: usize = 48 << 10;

impl Daemon {
    /// Links or advertisements changed: if this host is a relay, or was one until now, it advertises soon.
    pub(crate) fn advertise_soon(&mut self) {
        if self.own().relay || self.advertisements.next < u64::MAX {
            self.advertisements.next = self.advertisements.next.min(self.now + CHANGE_DELAY);
        }
    }

    /// Sends all neighbours an update, if it is time.
    pub(crate) fn advertise_routes(&mut self) {
        if self.advertisements.next > self.now {
            return;
        }
        // A host that is no relay any more takes back what it advertised.
        let is_relay = self.own().relay;
        self.advertisements.next = if is_relay { self.now + REPEAT_AFTER } else { u64::MAX };
        let neighbours: Vec<(usize, Token)> =
            (0..self.grid.hosts.len()).filter_map(|host| Some((host, self.link_to(host)?))).collect();
        let all: Vec<Reach> =
            (0..self.grid.hosts.len()).filter(|_| is_relay).filter_map(|host| self.reach(host)).collect();
        for (neighbour, link) in neighbours {
            let update = table::update_for(self.name(neighbour), &all);
            self.send_update(link, update);
        }
    }

    /// What this host advertises of a host.
    fn reach(&self, host: usize) -> Option<Reach> {
        let routes = self.candidates(host).into_iter().map(|candidate| candidate.route).collect();
        if host == self.own_index { None } else { table::reach(self.name(host), routes) }
    }

    fn send_update(&mut self, link: Token, mut update: RouteUpdate) {
        let mut body = serde_json::to_vec(&update).unwrap_or_default();
        while body.len() > LONGEST_UPDATE {
            update.reach.truncate(update.reach.len() / 2);
            body = serde_json::to_vec(&update).unwrap_or_default();
        }
        let Some(mux) = self.links.get_mut(&link).and_then(Link::mux) else { return };
        if let Ok(stream) = mux.open(Class::Urgent, &StreamHeader::RouteUpdate.bytes()) {
            let _ = mux.write(stream, &body);
            let _ = mux.finish(stream);
            self.streams.insert((link, stream), StreamOwner::Discard);
            self.unflushed.insert(link);
        }
    }

    /// A neighbour opened a stream for an update.
    pub(crate) fn accept_update(&mut self, link: Token, stream: StreamId) {
        if let Some(Link { stage: Stage::Up(up), .. }) = self.links.get_mut(&link)
            && let Some((old, _)) = up.update.replace((stream, Vec::new()))
        {
            self.reset_stream((link, old));
        }
        self.streams.insert((link, stream), StreamOwner::RouteUpdate);
    }

    /// An update comes, or a part of it.
    pub(crate) fn handle_update(&mut self, link: Token, stream: StreamId) {
        let mut buffer = [0; 4096];
        loop {
            let read = self.read_stream((link, stream), &mut buffer);
            let Some(Link { stage: Stage::Up(up), .. }) = self.links.get_mut(&link) else { return };
            let Some((_, received)) = up.update.as_mut().filter(|(of, _)| *of == stream) else { return };
            match read {
                Ok(Recv::WouldBlock) => return,
                Ok(Recv::Bytes(count)) if received.len() + count <= LONGEST_UPDATE => {
                    received.extend_from_slice(buffer.get(..count).unwrap_or_default());
                }
                Ok(Recv::End) => {
                    let (peer, received) = (up.peer, std::mem::take(received));
                    up.update = None;
                    self.streams.remove(&(link, stream));
                    self.finish_stream((link, stream));
                    return self.store_update(peer, &received);
                }
                Ok(Recv::Bytes(_)) | Err(_) => {
                    up.update = None;
                    return self.reset_stream((link, stream));
                }
            }
        }
    }

    /// Stores an update, in place of the last one of that relay.
    fn store_update(&mut self, relay: usize, received: &[u8]) {
        let Ok(update) = serde_json::from_slice::<RouteUpdate>(received) else { return };
        let Some(advertised) = table::filter_update(&self.grid, self.own_index, relay, update) else { return };
        let ways =
            |advertised: &[Advertised]| advertised.iter().map(|one| (one.to, one.through.clone())).collect::<Vec<_>>();
        let new = ways(&advertised);
        let old = self.advertisements.received.insert(relay, advertised);
        if old.is_none_or(|old| ways(&old) != new) {
            self.advertise_soon();
            self.wake_calls();
        }
    }

    /// A link with a host ended: without another one, its advertisements are void.
    pub(crate) fn forget_advertised(&mut self, host: usize) {
        if self.link_to(host).is_none() {
            self.advertisements.received.remove(&host);
        }
        self.advertise_soon();
    }
}
