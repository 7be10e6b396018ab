//! Ways to another host, as this one knows them: links with it, and relays, of which each tells its neighbours where it leads and by whom
//! (`table.rs`).

use std::collections::HashMap;

use madrigal_proto::mux::{Class, StreamId};
use madrigal_selector::route::{Figures, Route, Way, order};

use crate::daemon::{Daemon, Holder, MILLISECOND, SECOND};
use crate::knowledge::seconds;
use crate::links::{Link, Stage};
use crate::poll::Token;
use crate::socket::Got;
use crate::status::{Explanation, WayStatus};
use crate::table::{self, Told};
use crate::wire::{About, Reach, RouteUpdate};

pub(crate) use crate::table::HOPS;

/// What changed is told after this time, and all of it again after that.
const PACE: (u64, u64) = (150 * MILLISECOND, 30 * SECOND);
/// The longest update; what does not fit is not told.
const LONGEST: usize = 48 << 10;

/// What all relays say, and when to tell others.
pub(crate) struct Ways {
    told: HashMap<usize, Vec<Told>>,
    /// When to tell where this host leads; never, where it is no relay.
    pub(crate) next: u64,
}

/// A way that a stream might take.
pub(crate) struct Candidate {
    pub(crate) route: Route,
    pub(crate) link: Option<Token>,
    /// For figures of an earlier time: how many seconds ago.
    pub(crate) ago: Option<u64>,
}

impl Ways {
    pub(crate) fn new() -> Self {
        Self { told: HashMap::new(), next: u64::MAX }
    }
}

impl Daemon {
    /// All ways to a host that there might be.
    pub(crate) fn candidates(&self, host: usize) -> Vec<Candidate> {
        let mut all: Vec<Candidate> = [Way::Direct, Way::Reverse].map(|way| self.link_by(host, way)).into();
        if self.grid.hosts.get(host).is_some_and(|host| host.via.is_some())
            || self.method_link(host, "command").is_some()
        {
            all.push(self.link_by(host, Way::Command));
        }
        for (relay, known) in self.grid.hosts.iter().enumerate() {
            if known.relay && relay != host && relay != self.me {
                self.ways_by(relay, &known.name, host, &mut all);
            }
        }
        all.iter_mut().for_each(|candidate| self.recall(host, candidate));
        all
    }

    /// The link with a host that is made in one of the ways.
    fn link_by(&self, host: usize, way: Way) -> Candidate {
        let link = self.method_link(host, way.method());
        let closed = match (&link, &way) {
            (Some(_), _) => None,
            (None, Way::Direct) => Some(self.why_no_connection(host)),
            (None, Way::Command) => Some(self.why_no_command(host)),
            (None, _) => Some(format!("{} has not called", self.name(host))),
        };
        let doubtful = link.is_some() && link != self.link_to(host);
        let figures = link.map_or_else(Figures::default, |link| self.figures(link));
        Candidate { route: Route { way, closed, doubtful, figures }, link, ago: None }
    }

    /// The best link with a host of those made in one way.
    fn method_link(&self, host: usize, method: &str) -> Option<Token> {
        let with = self.links.iter().filter(|(_, link)| link.method() == method);
        let with = with.filter_map(|(token, link)| Some((link.up()?, *token)));
        with.filter(|(up, _)| up.peer == host).min_by_key(|(up, _)| &up.rank).map(|(_, token)| token)
    }

    /// The ways that begin at a relay.
    fn ways_by(&self, relay: usize, name: &str, host: usize, all: &mut Vec<Candidate>) {
        let closed = |why: String| Route {
            way: Way::Through(vec![name.to_owned()]),
            closed: Some(why),
            doubtful: true,
            figures: Figures::default(),
        };
        let own = &self.own().name;
        if self.grid.hosts.get(relay).is_some_and(|known| !self.grid.carries(known.site, own)) {
            let route = closed(crate::egress::carries_not(name, own));
            return all.push(Candidate { route, link: None, ago: None });
        }
        let Some(link) = self.link_to(relay) else {
            let route = closed(format!("no link with {name}: {}", self.why_no_link(relay)));
            return all.push(Candidate { route, link: None, ago: None });
        };
        let first = self.figures(link);
        let before = all.len();
        let told = self.ways.told.get(&relay).map(Vec::as_slice).unwrap_or_default();
        let routes = table::ways_by(name, first, told, host).into_iter();
        all.extend(routes.map(|route| Candidate { route, link: Some(link), ago: None }));
        if all.len() == before {
            // It may not have told yet, or be about to find a way.
            let says_no =
                self.ways.told.contains_key(&relay).then(|| format!("{name} has no way to {}", self.name(host)));
            let route = Route { closed: says_no, ..closed(String::new()) };
            all.push(Candidate { route, link: Some(link), ago: None });
        }
    }

    /// Of a way that is not open, what was measured when it was.
    fn recall(&self, host: usize, candidate: &mut Candidate) {
        let route = &mut candidate.route;
        if route.closed.is_some()
            && let Some(known) = self.memory.known.way(self.name(host), &route.way.to_string())
        {
            route.figures = known.figures;
            candidate.ago = Some(seconds().saturating_sub(known.at));
        }
    }

    /// The ways of a connection to a port of a host that may be tried, the best first, each with its link.
    pub(crate) fn ways_to(&self, host: usize, port: Option<u16>) -> Vec<(Token, Way)> {
        let candidates = self.candidates(host);
        let routes: Vec<Route> = candidates.iter().map(|candidate| candidate.route.clone()).collect();
        let rules = self.grid.rules_for(host, port);
        let (usable, _) = order(&routes, &rules);
        // At last those who say that they lead nowhere: they may know better by now, and say why not.
        let allowed = |way: &Way| !rules.iter().any(|rule| rule.forbid.iter().any(|word| way.is(word)));
        let closed = candidates.iter().filter(|one| one.route.closed.is_some() && allowed(&one.route.way));
        let chosen = usable.into_iter().filter_map(|at| candidates.get(at)).chain(closed);
        chosen.filter_map(|candidate| Some((candidate.link?, candidate.route.way.clone()))).collect()
    }

    /// Why a connection to a port of a host goes the way it goes.
    pub(crate) fn explain(&self, host: usize, port: Option<u16>) -> Explanation {
        let candidates = self.candidates(host);
        let routes: Vec<Route> = candidates.iter().map(|candidate| candidate.route.clone()).collect();
        let rules = self.grid.rules_for(host, port);
        let (usable, why) = order(&routes, &rules);
        let ways = candidates.into_iter().zip(why).enumerate().map(|(at, (candidate, why))| {
            let link = candidate.link.and_then(|link| self.links.get(&link));
            WayStatus {
                way: candidate.route.way.to_string(),
                chosen: usable.first() == Some(&at),
                usable: usable.contains(&at),
                figures: candidate.route.figures,
                measured_ago_s: candidate.ago,
                address: link.and_then(|link| link.address).map(|at| at.to_string()),
                tls: link.map(|link| link.channel.is_enciphered()),
                why,
            }
        });
        let mut ways: Vec<WayStatus> = ways.collect();
        ways.sort_by_key(|way| (!way.chosen, !way.usable));
        Explanation {
            from: self.own().name.clone(),
            to: self.name(host).to_owned(),
            port,
            chosen: ways.iter().find(|way| way.chosen).map(|way| way.way.clone()),
            ways,
            last: self.memory.known.last(self.name(host)).map(str::to_owned),
            rules: rules.into_iter().map(|rule| rule.name).collect(),
            staying: self.staying(host),
        }
    }

    /// The link by which a relay carries a stream on: with the host itself, or with another relay that says it leads there.
    pub(crate) fn next_hop(&self, host: usize, passed: &[String]) -> Option<Token> {
        let candidates = self.candidates(host);
        let routes: Vec<Route> = candidates.iter().map(|candidate| candidate.route.clone()).collect();
        candidates.get(table::next_hop(&self.own().name, &routes, passed)?)?.link
    }

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
