//! Processes that seek each other in a virtual network with virtual time: random delays, firewalls, addresses that several hosts
//! have, connections that break. However it goes, two processes end up with one connection, the same one, and lose no byte.
#![allow(missing_docs)]

use std::collections::BTreeMap;

use madrigal_base::error::Os;
use madrigal_base::node::NodeId;
use madrigal_proto::race::{Way, Wish};
use madrigal_proto::reach::{Action, End, Key, Limits, Reach};

const MS: u64 = 1_000_000;
const PATIENCE: u64 = 15_000 * MS;
const LIMITS: Limits = Limits { patience: PATIENCE, introduction: 5_000 * MS, unauthenticated: 16 };

struct Noise(u64);

impl Noise {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 8) % bound
    }
}

/// One end of a connection: its node, and its key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct EndOf {
    node: usize,
    key: Key,
}

/// What an address, or a daemon, leads to, seen from one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Leads {
    To(usize),
    Refused,
    Nowhere,
}

enum Event {
    Connected { from: EndOf, to: usize },
    Refused { from: EndOf },
    Bytes { to: EndOf, bytes: Vec<u8> },
    Closed { to: EndOf },
    Seek { node: usize, whom: usize },
}

struct Node {
    id: NodeId,
    reach: Reach,
    /// Connections that are up, and what came on them since.
    up: BTreeMap<NodeId, (Key, Vec<u8>)>,
    ups: usize,
    unreachable: Vec<(NodeId, String)>,
}

struct World {
    noise: Noise,
    now: u64,
    nodes: Vec<Node>,
    /// The addresses of all nodes, and what each leads to from each.
    addresses: Vec<Vec<Way>>,
    leads: Vec<BTreeMap<Way, Leads>>,
    events: BTreeMap<(u64, u64), Event>,
    count: u64,
    peers: BTreeMap<(usize, Key), EndOf>,
    /// When the last bytes of a connection arrive: they keep their order.
    busy: BTreeMap<(usize, Key), u64>,
    slowest: u64,
}

impl World {
    fn new(seed: u64, nodes: usize) -> Self {
        let mut noise = Noise(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let node = |i: usize, noise: &mut Noise| {
            let id = NodeId::new(noise.below(1 << 47) * 8 + i as u64 + 1).unwrap();
            let mut nonces = Noise(seed ^ (i as u64 + 7) << 40 | 1);
            let random = Box::new(move || nonces.below(1 << 55));
            Node { id, reach: Reach::new(id, LIMITS, random), up: BTreeMap::new(), ups: 0, unreachable: vec![] }
        };
        Self {
            nodes: (0..nodes).map(|i| node(i, &mut noise)).collect(),
            slowest: 1 + noise.below(200),
            noise,
            now: 0,
            addresses: vec![vec![]; nodes],
            leads: vec![BTreeMap::new(); nodes],
            events: BTreeMap::new(),
            count: 0,
            peers: BTreeMap::new(),
            busy: BTreeMap::new(),
        }
    }

    fn at(&mut self, time: u64, event: Event) {
        self.count += 1;
        self.events.insert((time, self.count), event);
    }

    fn delay(&mut self) -> u64 {
        1 + self.noise.below(self.slowest * MS)
    }

    /// Sends something to the other end of a connection, behind whatever was sent before.
    fn deliver(&mut self, from: EndOf, what: impl FnOnce(EndOf) -> Event) {
        let Some(&to) = self.peers.get(&(from.node, from.key)) else { return };
        let at = (self.now + self.delay()).max(self.busy.get(&(to.node, to.key)).copied().unwrap_or(0));
        self.busy.insert((to.node, to.key), at);
        self.at(at, what(to));
    }

    /// Does what the machine of a node wants done.
    fn act(&mut self, i: usize) {
        while let Some(action) = self.nodes[i].reach.action() {
            match action {
                Action::Dial { key, to, .. } => {
                    let from = EndOf { node: i, key };
                    let at = self.now + self.delay();
                    match self.leads[i].get(&to).copied().unwrap_or(Leads::Nowhere) {
                        Leads::To(to) => self.at(at, Event::Connected { from, to }),
                        Leads::Refused => self.at(at, Event::Refused { from }),
                        Leads::Nowhere => {}
                    }
                }
                Action::Send { key, bytes } => {
                    // In two pieces, somewhere cut.
                    let cut = self.noise.below(bytes.len() as u64) as usize;
                    for piece in [&bytes[..cut], &bytes[cut..]] {
                        let bytes = piece.to_vec();
                        self.deliver(EndOf { node: i, key }, |to| Event::Bytes { to, bytes });
                    }
                }
                Action::Close { key } => self.shut(EndOf { node: i, key }),
                Action::Up { key, node } => {
                    let old = self.nodes[i].up.insert(node, (key, vec![]));
                    assert!(old.is_none(), "told twice");
                    self.nodes[i].ups += 1;
                    let bytes = self.nodes[i].id.number().to_le_bytes().to_vec();
                    self.deliver(EndOf { node: i, key }, |to| Event::Bytes { to, bytes });
                }
                Action::Unreachable { node, tried, .. } => self.nodes[i].unreachable.push((node, tried)),
            }
        }
    }

    fn shut(&mut self, end: EndOf) {
        self.deliver(end, |to| Event::Closed { to });
        self.peers.remove(&(end.node, end.key));
    }

    fn handle(&mut self, event: Event) {
        let now = self.now;
        let node = match event {
            Event::Connected { from, to } => {
                if self.nodes[from.node].reach.pending() == 0 {
                    return;
                }
                let key = self.nodes[to].reach.accepted(true, now);
                self.peers.insert((from.node, from.key), EndOf { node: to, key });
                self.peers.insert((to, key), from);
                self.nodes[from.node].reach.connected(from.key);
                self.act(to);
                from.node
            }
            Event::Refused { from } => {
                self.nodes[from.node].reach.failed(from.key, End::System(Os(111)), now);
                from.node
            }
            Event::Bytes { to, bytes } => {
                self.handle_bytes(to, &bytes);
                to.node
            }
            Event::Closed { to } => {
                let lost = self.nodes[to.node].up.values().any(|(key, _)| *key == to.key);
                assert!(!lost, "the connection that was kept is closed");
                self.nodes[to.node].reach.failed(to.key, End::Closed, now);
                self.peers.remove(&(to.node, to.key));
                to.node
            }
            Event::Seek { node, whom } => {
                let ways: Vec<_> = self.addresses[whom].iter().map(|way| (way.clone(), Wish::Wanted)).collect();
                let whom = self.nodes[whom].id;
                self.nodes[node].reach.seek(whom, &ways, now);
                node
            }
        };
        self.act(node);
    }

    /// What came on a connection: the machine's, as far as it wants, then the owner's.
    fn handle_bytes(&mut self, to: EndOf, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let node = &mut self.nodes[to.node];
            let wants = node.reach.wants(to.key).min(bytes.len());
            if wants == 0 {
                if let Some((_, got)) = node.up.values_mut().find(|(key, _)| *key == to.key) {
                    got.extend(bytes);
                }
                return;
            }
            let (now, rest) = bytes.split_at(wants);
            node.reach.bytes(to.key, now, self.now);
            self.act(to.node);
            bytes = rest;
        }
    }

    /// Runs until nothing happens any more or the time is over.
    fn run(&mut self, until: u64) {
        loop {
            let event = self.events.first_key_value().map(|(&(at, _), _)| at);
            let deadline = self.nodes.iter().filter_map(|node| node.reach.deadline()).min();
            let Some(next) = event.into_iter().chain(deadline).min().filter(|&at| at <= until) else { return };
            self.now = self.now.max(next);
            while let Some(entry) = self.events.first_entry().filter(|entry| entry.key().0 <= self.now) {
                let event = entry.remove();
                self.handle(event);
            }
            for i in 0..self.nodes.len() {
                self.nodes[i].reach.tick(self.now);
                self.act(i);
            }
        }
    }

    /// Both have one connection, the same, and on it came what the other sent.
    fn assert_joined(&self, a: usize, b: usize) {
        for (i, j) in [(a, b), (b, a)] {
            let (key, got) = &self.nodes[i].up[&self.nodes[j].id];
            assert_eq!(self.nodes[i].ups, 1, "ups of {i}");
            assert_eq!(self.peers[&(i, *key)].node, j);
            assert_eq!(self.peers[&(j, self.peers[&(i, *key)].key)], EndOf { node: i, key: *key });
            let kept = self.nodes[j].up[&self.nodes[i].id].0;
            assert_eq!(self.peers[&(i, *key)].key, kept, "different connections are kept");
            assert_eq!(got[..], self.nodes[j].id.number().to_le_bytes(), "bytes were lost");
            assert_eq!(self.nodes[i].reach.pending(), 0);
            assert_eq!(self.nodes[i].reach.deadline(), None);
        }
    }
}

fn address(host: u64, n: u64) -> Way {
    Way::At(format!("10.{host}.0.{n}:4000").parse().unwrap())
}

/// Two nodes with some addresses; each way of each is open, refused or nowhere, one at least is open.
fn two(seed: u64) -> World {
    let mut world = World::new(seed, 3);
    for (i, j) in [(0, 1), (1, 0)] {
        for n in 0..1 + world.noise.below(4) {
            let at = address(j as u64, n);
            let leads = match world.noise.below(6) {
                0 | 1 => Leads::To(j),
                2 => Leads::Refused,
                3 => Leads::To(i),
                4 => Leads::To(2),
                _ => Leads::Nowhere,
            };
            world.addresses[j].push(at.clone());
            world.leads[i].insert(at, leads);
        }
    }
    let (i, j) = if world.noise.below(2) == 0 { (0, 1) } else { (1, 0) };
    let open = match world.noise.below(3) {
        0 => Way::Daemon { host: format!("h{j}"), port: 4000 },
        _ => address(j as u64, 77),
    };
    world.addresses[j].push(open.clone());
    world.leads[i].insert(open, Leads::To(j));
    let spread = 1 + world.noise.below(500);
    for (node, whom) in [(i, j), (j, i)] {
        // The node that can dial does; the other one perhaps.
        if node == i || world.noise.below(3) > 0 {
            let at = world.noise.below(spread * MS);
            world.at(at, Event::Seek { node, whom });
        }
    }
    world
}

#[test]
fn whatever_the_delays_there_is_one_connection() {
    for seed in 1..6_000 {
        let caught = std::panic::catch_unwind(|| {
            let mut world = two(seed);
            world.run(20 * PATIENCE);
            world.assert_joined(0, 1);
            assert!(world.nodes.iter().all(|node| node.unreachable.is_empty()));
        });
        assert!(caught.is_ok(), "seed {seed}");
    }
}

#[test]
fn many_nodes_at_once_make_one_connection_each() {
    for seed in 1..60 {
        let mut world = World::new(seed, 8);
        for j in 0..8 {
            let at = address(j as u64, 1);
            world.addresses[j].push(at.clone());
            for i in (0..8).filter(|&i| i != j) {
                world.leads[i].insert(at.clone(), Leads::To(j));
            }
        }
        for i in 0..8 {
            for j in (0..8).filter(|&j| j != i) {
                let at = world.noise.below(3 * MS);
                world.at(at, Event::Seek { node: i, whom: j });
            }
        }
        world.run(20 * PATIENCE);
        for i in 0..8 {
            assert_eq!((world.nodes[i].ups, world.nodes[i].reach.pending()), (7, 0), "seed {seed}");
            for j in (0..8).filter(|&j| j != i) {
                let key = world.nodes[i].up[&world.nodes[j].id].0;
                assert_eq!(world.peers[&(i, key)].node, j, "seed {seed}");
            }
        }
    }
}

#[test]
fn nothing_possible_is_an_error_in_time_that_names_everything() {
    for seed in 1..300 {
        let mut world = World::new(seed, 3);
        let ways = [Leads::Nowhere, Leads::Refused, Leads::To(2), Leads::To(0)];
        for (n, leads) in ways.into_iter().enumerate() {
            let at = address(1, n as u64);
            world.addresses[1].push(at.clone());
            world.leads[0].insert(at, leads);
        }
        let daemon = Way::Daemon { host: "h1".to_owned(), port: 4000 };
        world.addresses[1].push(daemon.clone());
        world.leads[0].insert(daemon, Leads::Refused);
        world.at(0, Event::Seek { node: 0, whom: 1 });
        world.run(2 * PATIENCE);
        let [(node, tried)] = &world.nodes[0].unreachable[..] else { panic!("told once") };
        assert_eq!(*node, world.nodes[1].id);
        let daemon = "through the daemon: Connection refused";
        for part in ["10.1.0.0:4000: no answer", "10.1.0.1:4000: Connection refused", daemon, "not connect to us"] {
            assert!(tried.contains(part), "{tried}");
        }
        for part in ["10.1.0.2:4000: answered by another node", "10.1.0.3:4000: answered by another node"] {
            assert!(tried.contains(part), "{tried}");
        }
        assert_eq!((world.nodes[0].reach.pending(), world.nodes[0].reach.deadline()), (0, None), "seed {seed}");
        assert!(world.now <= PATIENCE + 1_000 * MS, "{}", world.now);
    }
}

#[test]
fn an_unauthenticated_peer_that_says_nothing_goes_and_a_crowd_of_them_harms_nobody() {
    let mut world = two(4);
    for _ in 0..100 {
        world.nodes[0].reach.accepted(true, 0);
        world.act(0);
        assert!(world.nodes[0].reach.pending() <= LIMITS.unauthenticated);
    }
    world.run(20 * PATIENCE);
    world.assert_joined(0, 1);
}
