//! How the processes of a job find each other: which connect, which are let in, and which connection between two is kept.
//!
//! ```text
//!   seek, accepted, connected, failed, bytes, tick --> Reach --> Action: dial, send, close, up, unreachable
//! ```
//! Either side may open: a node that cannot be dialled from here may dial us. The connection that comes first is reported with the node's
//! id. Connections are known by a key. Once one is up it is the owner's, and the machine forgets it; [`Reach::gone`] reports its end. A
//! connection that is up may be a makeshift ([`Reach::makeshift`]): a direct one that comes takes its place.

use std::collections::{BTreeMap, VecDeque};

use madrigal_base::error::Os;
use madrigal_base::node::NodeId;

use crate::race::{Act, Race, Way, Why, Wish};
use crate::talk::{Next, Talk};

/// A connection that is not up yet.
pub type Key = u64;

/// The limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Nanoseconds after which an attempt to reach a peer is given up.
    pub patience: u64,
    /// Nanoseconds an accepted connection may take to prove its node id.
    pub introduction: u64,
    /// How many of them there may be at once; of more, the oldest is closed.
    pub unauthenticated: usize,
}

/// What the owner must do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Begin to connect; then call [`Reach::connected`] or [`Reach::failed`].
    Dial {
        /// What the connection is called.
        key: Key,
        /// Whereto.
        to: Way,
        /// Nanoseconds in which a daemon must do it, or answer why not.
        within: u64,
    },
    /// Send these bytes on it: there is always room.
    Send {
        /// On which.
        key: Key,
        /// What.
        bytes: Vec<u8>,
    },
    /// Close it.
    Close {
        /// Which.
        key: Key,
    },
    /// It is the connection with that node from now on; the next byte on it, either way, is no longer ours.
    Up {
        /// Which.
        key: Key,
        /// The node at the other end.
        node: NodeId,
    },
    /// Nothing worked in time.
    Unreachable {
        /// The node.
        node: NodeId,
        /// Address by address.
        tried: String,
        /// Every address refused at last, and nothing else leads there: most likely its process is not there any more.
        absent: bool,
    },
}

/// Why a connection ended before it was up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// It could not be made.
    System(Os),
    /// The daemon did not make it, for this reason.
    Refused(String),
    /// There is no daemon.
    NoDaemon,
    /// The other side closed or reset it.
    Closed,
}

/// The machine.
pub struct Reach {
    me: NodeId,
    limits: Limits,
    random: Box<dyn FnMut() -> u64 + Send>,
    peers: BTreeMap<NodeId, Peer>,
    /// Those of the peers that are sought.
    sought: Vec<NodeId>,
    talks: BTreeMap<Key, Connection>,
    unauthenticated: VecDeque<(Key, u64)>,
    last: Key,
    actions: VecDeque<Action>,
}

#[derive(Default)]
struct Peer {
    up: bool,
    /// What is up would better be another connection.
    makeshift: bool,
    race: Option<Race>,
    /// Connections it has made to us, and proved to be its own.
    callers: usize,
    rejected: Vec<(String, String)>,
}

struct Connection {
    talk: Option<Talk>,
    role: Role,
    /// Nobody carries it, as far as is known.
    direct: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// We dialled that node by that way.
    Dialed(NodeId, usize),
    /// Somebody dialled us.
    Unauthenticated,
    /// It proved to be that node.
    Caller(NodeId),
}

impl Peer {
    /// Whether such a connection is not wanted.
    fn is_served(&self, direct: bool) -> bool {
        self.up && !(self.makeshift && direct)
    }
}

impl Reach {
    /// A machine for this process; `random` makes nonces.
    pub fn new(me: NodeId, limits: Limits, random: Box<dyn FnMut() -> u64 + Send>) -> Self {
        Self {
            me,
            limits,
            random,
            peers: BTreeMap::new(),
            sought: Vec::new(),
            talks: BTreeMap::new(),
            unauthenticated: VecDeque::new(),
            last: 0,
            actions: VecDeque::new(),
        }
    }

    /// Begins to dial a node by these ways, likeliest first. Nothing happens if it is dialled or up already.
    pub fn seek(&mut self, node: NodeId, ways: &[(Way, Wish)], now: u64) {
        let peer = self.peers.entry(node).or_default();
        if peer.up || peer.race.is_some() || node == self.me {
            return;
        }
        peer.race = Some(Race::new(ways, self.limits.patience, now));
        self.sought.push(node);
        self.advance(node, now);
    }

    /// Begins to dial a node whose connection was lost. If a daemon answers that there is no way, this ends soon: the process has most
    /// likely ended.
    pub fn seek_again(&mut self, node: NodeId, ways: &[(Way, Wish)], now: u64) {
        self.seek(node, ways, now);
        if let Some(race) = self.peers.get_mut(&node).and_then(|peer| peer.race.as_mut()) {
            race.hurry();
        }
    }

    /// Whether the connection that is up with a node is a makeshift.
    pub fn makeshift(&mut self, node: NodeId, makeshift: bool) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.makeshift = makeshift;
        }
    }

    /// Looks for a better connection with a node, by these ways, for `patience`. Nothing happens where the one that is up is none that
    /// should be replaced. It is [`Action::Unreachable`] where there is none; what is up stays.
    pub fn improve(&mut self, node: NodeId, ways: &[(Way, Wish)], patience: u64, now: u64) {
        let Some(peer) = self.peers.get_mut(&node).filter(|peer| peer.up && peer.makeshift) else { return };
        if peer.race.is_none() {
            peer.race = Some(Race::new(ways, patience, now));
            self.sought.push(node);
            self.advance(node, now);
        }
    }

    /// Gives the attempt to reach a node its whole patience again, if there is one.
    pub fn renew(&mut self, node: NodeId, now: u64) {
        if let Some(race) = self.peers.get_mut(&node).and_then(|peer| peer.race.as_mut()) {
            race.renew(now);
        }
    }

    /// A connection was accepted; `direct`: without a daemon.
    pub fn accepted(&mut self, direct: bool, now: u64) -> Key {
        while self.unauthenticated.len() >= self.limits.unauthenticated.max(1) {
            self.refuse_oldest();
        }
        let talk = Some(Talk::listen(self.me, (self.random)()));
        let key = self.add(Connection { talk, role: Role::Unauthenticated, direct });
        self.unauthenticated.push_back((key, now));
        key
    }

    /// A connection we dialled stands, and the process at its other end has not answered yet: it may be computing, and is waited for longer.
    pub fn stands(&mut self, key: Key) {
        let Some(Connection { role: Role::Dialed(node, i), .. }) = self.talks.get(&key) else { return };
        if let Some(race) = self.peers.get_mut(node).and_then(|peer| peer.race.as_mut()) {
            race.connected(*i);
        }
    }

    /// A connection we dialled stands, and can be talked on.
    pub fn connected(&mut self, key: Key) {
        let Some(Connection { talk, role: Role::Dialed(node, i), .. }) = self.talks.get_mut(&key) else { return };
        let (begun, hello) = Talk::call(self.me, *node, (self.random)());
        *talk = Some(begun);
        if let Some(race) = self.peers.get_mut(node).and_then(|peer| peer.race.as_mut()) {
            race.connected(*i);
        }
        self.actions.push_back(Action::Send { key, bytes: hello.to_vec() });
    }

    /// A connection could not be made, or ended. The owner has closed it.
    pub fn failed(&mut self, key: Key, end: End, now: u64) {
        let Some(Connection { talk, role, .. }) = self.remove(key) else { return };
        if let Role::Dialed(node, i) = role {
            let why = match (end, talk) {
                (End::System(os), None) => Why::System(os),
                (End::Refused(why), None) => Why::Refused(why),
                (End::NoDaemon, None) => Why::NoDaemon,
                (End::Closed, None) => Why::Silent,
                (_, Some(talk)) if talk.is_known() => Why::Lost,
                (_, Some(_)) => Why::OtherNode,
            };
            self.missed(node, i, why, now);
        }
    }

    /// How many bytes may be given to [`Reach::bytes`] now: not one more may be taken from the connection.
    pub fn wants(&self, key: Key) -> usize {
        self.talks.get(&key).and_then(|connection| connection.talk.as_ref()).map_or(0, Talk::wants)
    }

    /// Bytes came.
    pub fn bytes(&mut self, key: Key, bytes: &[u8], now: u64) {
        let Some(connection) = self.talks.get_mut(&key) else { return };
        let (role, Some(talk)) = (connection.role, connection.talk.as_mut()) else { return };
        let mut out = Vec::new();
        let next = talk.take(bytes, &mut out);
        match (next, role) {
            (Ok(Next::Wait), _) => {}
            (Ok(Next::Caller(node)), Role::Unauthenticated) => return self.introduced(key, node),
            (Ok(Next::Answered), _) => {}
            (Ok(Next::Choose), Role::Dialed(node, _) | Role::Caller(node)) => return self.choose(key, node, true),
            (Ok(Next::Chosen), Role::Dialed(node, _) | Role::Caller(node)) => {
                return self.choose(key, node, false);
            }
            (Ok(Next::Taken), Role::Dialed(node, i)) => {
                self.close(key);
                self.missed(node, i, Why::Lost, now);
            }
            (Err(_), Role::Dialed(node, i)) => {
                self.close(key);
                self.missed(node, i, Why::OtherNode, now);
            }
            _ => self.close(key),
        }
        if !out.is_empty() && self.talks.contains_key(&key) {
            self.actions.push_back(Action::Send { key, bytes: out });
        }
    }

    /// The time is `now`.
    pub fn tick(&mut self, now: u64) {
        let introduction = self.limits.introduction;
        let late = |since: u64| since + introduction <= now;
        while self.unauthenticated.front().is_some_and(|&(_, since)| late(since)) {
            self.refuse_oldest();
        }
        for i in (0..self.sought.len()).rev() {
            if let Some(&node) = self.sought.get(i) {
                self.advance(node, now);
            }
        }
    }

    /// When [`Reach::tick`] must be called if nothing happens before.
    pub fn deadline(&self) -> Option<u64> {
        let race = |node| {
            let peer: &Peer = self.peers.get(node)?;
            Some(peer.race.as_ref()?.deadline(peer.callers > 0))
        };
        let unauthenticated = self.unauthenticated.front().map(|&(_, since)| since + self.limits.introduction);
        self.sought.iter().filter_map(race).chain(unauthenticated).min()
    }

    /// The next thing to do.
    pub fn action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The connection with that node has ended, or it is not wanted any more. It may come again, or be sought again.
    pub fn gone(&mut self, node: NodeId) {
        if let Some(peer) = self.peers.get_mut(&node) {
            (peer.up, peer.makeshift, peer.race) = (false, false, None);
            peer.rejected.clear();
            self.end_race(node);
        }
        self.forget(node);
    }

    /// What was tried for a node and did not do, with the reasons.
    pub fn rejected(&self, node: NodeId) -> Vec<(String, String)> {
        let Some(peer) = self.peers.get(&node) else { return Vec::new() };
        peer.race.as_ref().map_or_else(|| peer.rejected.clone(), |race| race.rejected(None, false))
    }

    /// Connections that are not up yet.
    pub fn pending(&self) -> usize {
        self.talks.len()
    }

    fn add(&mut self, connection: Connection) -> Key {
        self.last += 1;
        self.talks.insert(self.last, connection);
        self.last
    }

    fn remove(&mut self, key: Key) -> Option<Connection> {
        let connection = self.talks.remove(&key)?;
        match connection.role {
            Role::Unauthenticated => self.unauthenticated.retain(|(unauthenticated, _)| *unauthenticated != key),
            Role::Caller(node) => {
                if let Some(peer) = self.peers.get_mut(&node) {
                    peer.callers = peer.callers.saturating_sub(1);
                }
                self.forget(node);
            }
            Role::Dialed(..) => {}
        }
        Some(connection)
    }

    /// Removes the entry of a node without connection, race or callers.
    fn forget(&mut self, node: NodeId) {
        if self.peers.get(&node).is_some_and(|peer| !peer.up && peer.race.is_none() && peer.callers == 0) {
            self.peers.remove(&node);
        }
    }

    fn close(&mut self, key: Key) {
        if self.remove(key).is_some() {
            self.actions.push_back(Action::Close { key });
        }
    }

    /// Closes the oldest unauthenticated connection.
    fn refuse_oldest(&mut self) {
        if let Some((key, _)) = self.unauthenticated.pop_front() {
            self.close(key);
        }
    }

    fn missed(&mut self, node: NodeId, i: usize, why: Why, now: u64) {
        if let Some(race) = self.peers.get_mut(&node).and_then(|peer| peer.race.as_mut()) {
            race.failed(i, why, now);
            self.advance(node, now);
        }
    }

    /// An unauthenticated peer proved to be that node: it is answered, and sent away where there is a connection already.
    fn introduced(&mut self, key: Key, node: NodeId) {
        let Some(mut connection) = self.remove(key) else { return };
        let peer = self.peers.entry(node).or_default();
        let mut bytes = Vec::new();
        if let Some(talk) = connection.talk.as_mut() {
            talk.welcome(peer.is_served(connection.direct), &mut bytes);
        }
        self.actions.push_back(Action::Send { key, bytes });
        if peer.is_served(connection.direct) {
            return self.actions.push_back(Action::Close { key });
        }
        peer.callers += 1;
        connection.role = Role::Caller(node);
        self.talks.insert(key, connection);
    }

    /// The leader chooses a connection, or its choice has come: it is kept, unless there is one already.
    fn choose(&mut self, key: Key, node: NodeId, lead: bool) {
        let peer = self.peers.entry(node).or_default();
        // The leader has chosen well.
        let direct = !lead || self.talks.get(&key).is_some_and(|connection| connection.direct);
        if peer.is_served(direct) {
            return self.close(key);
        }
        (peer.up, peer.makeshift) = (true, false);
        let Some(connection) = self.remove(key) else { return };
        if let Some(talk) = connection.talk.filter(|_| lead) {
            let mut bytes = Vec::new();
            talk.go(&mut bytes);
            self.actions.push_back(Action::Send { key, bytes });
        }
        let won = if let Role::Dialed(_, i) = connection.role { Some(i) } else { None };
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.rejected = peer.race.take().map_or_else(Vec::new, |race| race.rejected(won, true));
        }
        self.end_race(node);
        self.actions.push_back(Action::Up { key, node });
    }

    /// Closes every other connection with a node.
    fn end_race(&mut self, node: NodeId) {
        self.sought.retain(|sought| *sought != node);
        let of = |role| matches!(role, Role::Dialed(n, _) | Role::Caller(n) if n == node);
        let others: Vec<Key> = self.talks.iter().filter(|(_, c)| of(c.role)).map(|(&key, _)| key).collect();
        others.into_iter().for_each(|key| self.close(key));
    }

    /// Does what is due for a node that is sought.
    fn advance(&mut self, node: NodeId, now: u64) {
        loop {
            let Some(peer) = self.peers.get_mut(&node) else { return };
            let Some(race) = peer.race.as_mut() else { return };
            match race.next(now, peer.callers > 0) {
                None => return,
                Some(Act::Dial(i)) => {
                    let Some(to) = race.way(i).cloned() else { return };
                    let within = race.left();
                    let direct = matches!(to, Way::At(_));
                    let key = self.add(Connection { talk: None, role: Role::Dialed(node, i), direct });
                    self.actions.push_back(Action::Dial { key, to, within });
                }
                Some(Act::Abandon(i)) => {
                    let role = Role::Dialed(node, i);
                    let dialed = self.talks.iter().find(|(_, c)| c.role == role).map(|(&key, _)| key);
                    dialed.into_iter().for_each(|key| self.close(key));
                }
                Some(Act::GiveUp) => {
                    let (tried, absent) = (race.tried(), race.is_absent());
                    peer.race = None;
                    self.end_race(node);
                    self.forget(node);
                    self.actions.push_back(Action::Unreachable { node, tried, absent });
                    return;
                }
            }
        }
    }
}
