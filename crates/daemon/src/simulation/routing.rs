//! Route updates by `routing/table.rs` while links come up and end. No stream ever runs in a loop. When nothing changes any more, every host
//! with a way to it is reached.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use madrigal_selector::route::{Figures, Route, Way, order};

use super::{Random, run_seeds};
use crate::grid::{Grid, Host as Place};
use crate::routing::table::{self, Advertised, MOST_RELAYS};
use crate::units::{MILLISECOND, SECOND};
use crate::wire::RouteUpdate;

/// The state of one host.
#[derive(Default)]
struct Host {
    /// The links that it has, by the host at the other end: the count of each.
    links: BTreeMap<usize, u64>,
    advertised: HashMap<usize, Vec<Advertised>>,
    /// When it advertises next.
    next: u64,
}

/// An event at a host.
enum Event {
    RouteUpdate { from: usize, link: u64, update: RouteUpdate },
    Lost { peer: usize, link: u64 },
}

struct World {
    grid: Grid,
    hosts: Vec<Host>,
    /// The links that work, and the cost of each pair with or without a link.
    links: BTreeMap<(usize, usize), u64>,
    cost: BTreeMap<(usize, usize), u64>,
    count: u64,
    events: BTreeMap<(u64, u64), (usize, Event)>,
    /// When the last update on each link arrives: they keep their order.
    last: HashMap<(usize, usize), u64>,
    now: u64,
    random: Random,
}

fn pair(one: usize, other: usize) -> (usize, usize) {
    (one.min(other), one.max(other))
}

impl World {
    fn new(mut random: Random) -> Self {
        let count = 3 + random.below(7) as usize;
        let relays = 1 + random.below(4) as usize;
        let place = |n: usize| Place {
            name: format!("h{n}"),
            site: 0,
            port: 7780,
            addresses: Vec::new(),
            relay: n < relays,
            allow: None,
            via: None,
            ssh: None,
        };
        let grid = Grid { trusted: true, hosts: (0..count).map(place).collect(), ..Grid::default() };
        let pairs = (0..count).flat_map(|one| (one + 1..count).map(move |other| (one, other)));
        let cost = pairs.map(|pair| (pair, 1 + random.below(50_000))).collect();
        let hosts = (0..count).map(|_| Host { next: u64::MAX, ..Host::default() }).collect();
        let (links, events, last) = (BTreeMap::new(), BTreeMap::new(), HashMap::new());
        Self { grid, hosts, links, cost, count: 0, events, last, now: 0, random }
    }

    fn figures(&self, one: usize, other: usize) -> Figures {
        Figures { round_trip_us: self.cost.get(&pair(one, other)).copied(), ..Figures::default() }
    }

    fn add(&mut self, at: u64, host: usize, event: Event) {
        self.count += 1;
        self.events.insert((at, self.count), (host, event));
    }

    fn advertise_soon(&mut self, host: usize) {
        if self.grid.hosts[host].relay {
            self.hosts[host].next = self.hosts[host].next.min(self.now + 150 * MILLISECOND);
        }
    }

    fn up(&mut self, one: usize, other: usize) {
        self.count += 1;
        let link = self.count;
        self.links.insert(pair(one, other), link);
        for (here, there) in [(one, other), (other, one)] {
            self.hosts[here].links.insert(there, link);
            self.advertise_soon(here);
        }
    }

    /// A link ends. Its hosts notice it soon, or late by its silence.
    fn down(&mut self, one: usize, other: usize) {
        let Some(link) = self.links.remove(&pair(one, other)) else { return };
        for (here, there) in [(one, other), (other, one)] {
            let late = if self.random.once_in(3) { 12 * SECOND } else { 300 * MILLISECOND };
            let at = self.now + self.random.below(late);
            self.add(at, here, Event::Lost { peer: there, link });
        }
    }

    fn routes(&self, host: usize, to: usize) -> Vec<Route> {
        let direct = self.hosts[host].links.contains_key(&to).then(|| Route {
            way: Way::Direct,
            closed: None,
            doubtful: false,
            figures: self.figures(host, to),
        });
        let relays = self.hosts[host].links.keys().filter(|peer| self.grid.hosts[**peer].relay && **peer != to);
        let by = |relay: &usize| {
            let advertised = self.hosts[host].advertised.get(relay).map(Vec::as_slice).unwrap_or_default();
            table::ways_by(&self.grid.hosts[*relay].name, self.figures(host, *relay), advertised, to)
        };
        direct.into_iter().chain(relays.flat_map(by)).collect()
    }

    fn first(&self, way: &Way, to: usize) -> usize {
        if let Way::Through(relays) = way { self.grid.host(&relays[0]).unwrap().0 } else { to }
    }

    /// Sends a stream by the best way that a host has. Returns whether it arrives.
    fn send(&self, from: usize, to: usize) -> bool {
        let routes = self.routes(from, to);
        let Some(best) = order(&routes, &[]).0.first().map(|at| &routes[*at]) else { return false };
        let (mut at, mut next) = (from, self.first(&best.way, to));
        let mut through: Vec<String> = Vec::new();
        loop {
            if self.hosts[at].links.get(&next) != self.links.get(&pair(at, next)) {
                return false;
            }
            at = next;
            if at == to {
                return true;
            }
            let own = &self.grid.hosts[at].name;
            assert!(!through.contains(own) && at != from, "from {from} to {to}: by {through:?} to {own} again");
            assert!(through.len() < usize::from(MOST_RELAYS), "{through:?}");
            let passed: Vec<String> = through.iter().chain([&self.grid.hosts[from].name]).cloned().collect();
            let routes = self.routes(at, to);
            let Some(place) = table::next_hop(own, &routes, &passed) else { return false };
            next = self.first(&routes[place].way, to);
            through.push(own.clone());
        }
    }

    fn advertise(&mut self, host: usize) {
        let to = |to: usize| table::reach(&self.grid.hosts[to].name, self.routes(host, to));
        let all: Vec<_> = (0..self.hosts.len()).filter(|to| *to != host).filter_map(to).collect();
        let links = self.hosts[host].links.clone();
        for (peer, link) in links {
            let update = table::update_for(&self.grid.hosts[peer].name, &all);
            let soonest = self.last.get(&(host, peer)).copied().unwrap_or(0);
            let at = soonest.max(self.now + self.random.below(200 * MILLISECOND)) + 1;
            self.last.insert((host, peer), at);
            if self.links.get(&pair(host, peer)) == Some(&link) {
                self.add(at, peer, Event::RouteUpdate { from: host, link, update });
            }
        }
    }

    fn handle(&mut self, host: usize, event: Event) {
        match event {
            Event::Lost { peer, link } if self.hosts[host].links.get(&peer) == Some(&link) => {
                self.hosts[host].links.remove(&peer);
                self.hosts[host].advertised.remove(&peer);
                self.advertise_soon(host);
            }
            Event::RouteUpdate { from, link, update } if self.links.get(&pair(host, from)) == Some(&link) => {
                let Some(advertised) = table::filter_update(&self.grid, host, from, update) else { return };
                if self.hosts[host]
                    .advertised
                    .insert(from, advertised.clone())
                    .is_none_or(|before| before != advertised)
                {
                    self.advertise_soon(host);
                }
            }
            _ => {}
        }
    }

    /// Runs until a time.
    fn until(&mut self, end: u64) {
        loop {
            let sender = (0..self.hosts.len()).min_by_key(|host| self.hosts[*host].next).unwrap();
            let sends_at = self.hosts[sender].next;
            let event = self.events.first_key_value().map_or(u64::MAX, |((at, _), _)| *at);
            if sends_at.min(event) > end {
                self.now = end;
                return;
            }
            self.now = self.now.max(sends_at.min(event));
            if event <= sends_at {
                let Some((_, (host, event))) = self.events.pop_first() else { return };
                self.handle(host, event);
            } else {
                self.hosts[sender].next = self.now + 30 * SECOND;
                self.advertise(sender);
            }
        }
    }

    /// The hosts that one can reach, by relays.
    fn reachable(&self, from: usize) -> BTreeSet<usize> {
        let (mut seen, mut todo) = (BTreeSet::new(), vec![from]);
        while let Some(at) = todo.pop() {
            for next in (0..self.hosts.len()).filter(|next| self.links.contains_key(&pair(at, *next))) {
                if seen.insert(next) && self.grid.hosts[next].relay {
                    todo.push(next);
                }
            }
        }
        seen.remove(&from);
        seen
    }
}

fn one(random: Random) {
    let mut world = World::new(random);
    let count = world.hosts.len() as u64;
    for _ in 0..10 + world.random.below(50) {
        let (one, other) = (world.random.below(count) as usize, world.random.below(count) as usize);
        if one != other && !world.links.contains_key(&pair(one, other)) {
            world.up(one, other);
        } else {
            world.down(one, other);
        }
        let longest = if world.random.once_in(4) { 20 * SECOND } else { SECOND };
        let pause = world.random.below(longest);
        world.until(world.now + pause);
        // Some arrive and some do not; none runs in a loop.
        for _ in 0..3 {
            let (from, to) = (world.random.below(count) as usize, world.random.below(count) as usize);
            if from != to {
                world.send(from, to);
            }
        }
    }
    world.until(world.now + 60 * SECOND);
    for from in 0..world.hosts.len() {
        let reachable = world.reachable(from);
        for to in (0..world.hosts.len()).filter(|to| *to != from) {
            assert_eq!(world.send(from, to), reachable.contains(&to), "from {from} to {to}, {:?}", world.links);
        }
    }
}

#[test]
fn no_stream_runs_in_a_loop_and_all_arrive_in_the_end() {
    run_seeds(3000, one);
}
