//! Route updates: a relay sends each neighbour the hosts that it reaches. Those of the neighbours are kept here.

use madrigal_proto::mux::{Class, StreamId};

use crate::daemon::Daemon;
use crate::link::{Link, Stage};
use crate::poll::Token;
use crate::routing::table::{self, Told};
use crate::socket::Got;
use crate::streams::stream::Holder;
use crate::units::{MILLISECOND, SECOND};
use crate::wire::{About, Reach, RouteUpdate};

/// What changed is told after this time, and all of it again after that.
const PACE: (u64, u64) = (150 * MILLISECOND, 30 * SECOND);
/// The longest update; what does not fit is not told.
const LONGEST: usize = 48 << 10;

impl Daemon {
    /// Links came or went, or others told something new: so will this host, if it is a relay.
    pub(crate) fn tell_soon(&mut self) {
        if self.own().relay {
            self.ways.next = self.ways.next.min(self.now + PACE.0);
        }
    }

    /// Tells all neighbours where this host leads.
    pub(crate) fn tell_routes(&mut self) {
        if self.ways.next > self.now {
            return;
        }
        self.ways.next = self.now + PACE.1;
        let neighbours: Vec<(usize, Token)> =
            (0..self.grid.hosts.len()).filter_map(|host| Some((host, self.link_to(host)?))).collect();
        let all: Vec<Reach> = (0..self.grid.hosts.len()).filter_map(|host| self.reach(host)).collect();
        for (neighbour, link) in neighbours {
            let update = table::update_for(self.name(neighbour), &all);
            self.send_update(link, update);
        }
    }

    /// The best way from here to a host, for others to use.
    fn reach(&self, host: usize) -> Option<Reach> {
        let routes = self.candidates(host).into_iter().map(|candidate| candidate.route).collect();
        if host == self.me { None } else { table::reach(self.name(host), routes) }
    }

    fn send_update(&mut self, link: Token, mut update: RouteUpdate) {
        let mut body = serde_json::to_vec(&update).unwrap_or_default();
        while body.len() > LONGEST {
            update.reach.truncate(update.reach.len() / 2);
            body = serde_json::to_vec(&update).unwrap_or_default();
        }
        let Some(mux) = self.links.get_mut(&link).and_then(Link::mux) else { return };
        if let Ok(stream) = mux.open(Class::Urgent, &About::RouteUpdate.bytes()) {
            let _ = mux.write(stream, &body);
            let _ = mux.finish(stream);
            self.streams.insert((link, stream), Holder::Probe);
            self.dirty.insert(link);
        }
    }

    /// A neighbour opened a stream to tell where it leads.
    pub(crate) fn accept_update(&mut self, link: Token, stream: StreamId) {
        if let Some(Link { stage: Stage::Up(up), .. }) = self.links.get_mut(&link)
            && let Some((old, _)) = up.update.replace((stream, Vec::new()))
        {
            self.reset_stream((link, old));
        }
        self.streams.insert((link, stream), Holder::RouteUpdate);
    }

    /// A part of an update came.
    pub(crate) fn handle_update(&mut self, link: Token, stream: StreamId) {
        let mut buffer = [0; 4096];
        loop {
            let got = self.read_stream((link, stream), &mut buffer);
            let Some(Link { stage: Stage::Up(up), .. }) = self.links.get_mut(&link) else { return };
            let Some((_, received)) = up.update.as_mut().filter(|(of, _)| *of == stream) else { return };
            match got {
                Ok(Got::Nothing) => return,
                Ok(Got::Bytes(count)) if received.len() + count <= LONGEST => {
                    received.extend_from_slice(buffer.get(..count).unwrap_or_default());
                }
                Ok(Got::End) => {
                    let (peer, received) = (up.peer, std::mem::take(received));
                    up.update = None;
                    self.streams.remove(&(link, stream));
                    self.finish_stream((link, stream));
                    return self.believe(peer, &received);
                }
                Ok(Got::Bytes(_)) | Err(_) => {
                    up.update = None;
                    return self.reset_stream((link, stream));
                }
            }
        }
    }

    /// What a relay says replaces what it said before.
    fn believe(&mut self, relay: usize, received: &[u8]) {
        let Ok(update) = serde_json::from_slice::<RouteUpdate>(received) else { return };
        let Some(told) = table::believed(&self.grid, self.me, relay, update) else { return };
        let ways = |told: &[Told]| told.iter().map(|one| (one.to, one.through.clone())).collect::<Vec<_>>();
        let new = ways(&told);
        let old = self.ways.told.insert(relay, told);
        if old.is_none_or(|old| ways(&old) != new) {
            self.tell_soon();
            self.wake_calls();
        }
    }

    /// There is no link with a host any more: what it said is void.
    pub(crate) fn forget_routes(&mut self, host: usize) {
        if self.link_to(host).is_none() {
            self.ways.told.remove(&host);
        }
        self.tell_soon();
    }
}
