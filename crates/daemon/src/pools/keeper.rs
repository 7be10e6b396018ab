//! Keeps the logs of pools for the daemons of the grid, in memory. It gives records their order, and has no log: a daemon that begins to
//! watch gets the pool as it is. A daemon whose stream ends is lost, with all its members.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use madrigal_pools::pool::Pool;
use madrigal_pools::record::{Entry, Record};
use madrigal_pools::{limits, wire};
use serde::{Deserialize, Serialize};

use super::connections::Connections;
use crate::poll::Token;

/// The most pools.
const POOLS: usize = 4096;
/// A daemon that lets more bytes wait is given up.
const WAITING: usize = 64 << 20;
/// With more, nothing is read from it for now: what it asks for may be a thousand times as long as its question.
const UNREAD: usize = 4 << 20;

/// From a daemon to the one that keeps the pools.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub(super) enum ToKeeper {
    /// The number under which it writes records. Comes first, once.
    Hello(u64),
    /// It wants to be told of a pool.
    Watch(String),
    /// It wants to be told no more of it.
    Forget(String),
    /// It adds a record to a pool that it watches.
    Append(String, Record),
}

/// The other way.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub(super) enum FromKeeper {
    /// A pool as it is.
    Snapshot(String, Pool),
    /// The next record of a pool.
    Record(String, Record),
    /// There is no room for a pool that it wants to watch, and why.
    Refused(String, String),
}

/// A pool, and who watches it.
#[derive(Default)]
struct Kept {
    pool: Pool,
    watchers: BTreeSet<Token>,
}

/// The pools that this daemon keeps.
#[derive(Default)]
pub(super) struct Keeper {
    pools: BTreeMap<String, Kept>,
    /// The daemons, by their streams; their numbers, once they have said them.
    peers: HashMap<Token, Option<u64>>,
}

impl Keeper {
    pub(super) fn pools(&self) -> impl Iterator<Item = (&String, &Pool)> {
        self.pools.iter().map(|(name, kept)| (name, &kept.pool))
    }

    pub(super) fn begin(&mut self, peer: Token) {
        self.peers.insert(peer, None);
    }

    /// Takes what a daemon has sent. A daemon that breaks the protocol is given up.
    pub(super) fn handle(&mut self, peer: Token, connections: &mut Connections) {
        loop {
            let may = match connections.next(peer, wire::LONGEST_REPLY) {
                Ok(Some(message)) => self.handle_one(peer, message, connections),
                Ok(None) => return,
                Err(_) => false,
            };
            if !may {
                return self.end(peer, connections);
            }
            connections.pause(peer, connections.waiting(peer) > UNREAD);
        }
    }

    /// Returns whether it may say that.
    fn handle_one(&mut self, peer: Token, message: ToKeeper, connections: &mut Connections) -> bool {
        match (message, self.peers.get(&peer).copied().flatten()) {
            (ToKeeper::Hello(daemon), None) if !self.peers.values().any(|other| *other == Some(daemon)) => {
                self.peers.insert(peer, Some(daemon));
                true
            }
            (ToKeeper::Watch(pool), Some(_)) => self.watch(peer, pool, connections),
            (ToKeeper::Forget(pool), Some(_)) => {
                if let Some(kept) = self.pools.get_mut(&pool) {
                    kept.watchers.remove(&peer);
                }
                self.drop_empty(&pool);
                true
            }
            (ToKeeper::Append(pool, record), Some(daemon)) => {
                let watches = self.pools.get(&pool).is_some_and(|kept| kept.watchers.contains(&peer));
                // It has not heard yet that it is refused; and what no pool takes is not handed to all.
                if watches && record.daemon == daemon && limits::check(&record.entry).is_ok() {
                    self.append(&pool, record, connections);
                }
                true
            }
            (ToKeeper::Hello(_), _) | (_, None) => false,
        }
    }

    fn watch(&mut self, peer: Token, pool: String, connections: &mut Connections) -> bool {
        if !limits::is_name(&pool) {
            return false;
        }
        if self.pools.len() >= POOLS && !self.pools.contains_key(&pool) {
            let why = format!("the host that keeps the pools has {POOLS} of them");
            connections.send(peer, &FromKeeper::Refused(pool, why));
            return true;
        }
        let kept = self.pools.entry(pool.clone()).or_default();
        if !kept.watchers.insert(peer) {
            return false;
        }
        connections.send(peer, &FromKeeper::Snapshot(pool, kept.pool.clone()));
        true
    }

    fn append(&mut self, pool: &str, record: Record, connections: &mut Connections) {
        let Some(kept) = self.pools.get_mut(pool) else { return };
        kept.pool.apply(&record);
        let frame = wire::encode(&FromKeeper::Record(pool.to_owned(), record));
        kept.watchers.iter().for_each(|watcher| connections.send_bytes(*watcher, &frame));
    }

    /// The stream of a daemon has ended, or is ended.
    pub(super) fn end(&mut self, peer: Token, connections: &mut Connections) {
        connections.close(peer);
        let Some(daemon) = self.peers.remove(&peer) else { return };
        for kept in self.pools.values_mut() {
            kept.watchers.remove(&peer);
        }
        let Some(daemon) = daemon else { return };
        let had: Vec<String> = self.pools.keys().cloned().collect();
        for pool in had {
            if self.pools.get(&pool).is_some_and(|kept| kept.pool.daemons().any(|other| other == daemon)) {
                let record = Record { daemon, session: 0, request: 0, entry: Entry::Lost { daemon } };
                self.append(&pool, record, connections);
            }
            self.drop_empty(&pool);
        }
    }

    /// Gives up the daemons that do not read, and goes on with those that have.
    pub(super) fn settle(&mut self, connections: &mut Connections) {
        let peers: Vec<Token> = self.peers.keys().copied().collect();
        for peer in peers {
            let waiting = connections.waiting(peer);
            if waiting > WAITING {
                self.end(peer, connections);
            } else if waiting <= UNREAD && connections.is_paused(peer) {
                connections.pause(peer, false);
                self.handle(peer, connections);
            }
        }
    }

    fn drop_empty(&mut self, pool: &str) {
        if self.pools.get(pool).is_some_and(|kept| kept.watchers.is_empty() && kept.pool.is_empty()) {
            self.pools.remove(pool);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use rustix::event::epoll;

    use super::*;
    use crate::pools::connections::Kind;

    fn join(daemon: u64, blob: usize) -> Record {
        let entry = Entry::Join { size: None, rank: None, location: String::new(), blob: vec![1; blob] };
        Record { daemon, session: 1, request: 1, entry }
    }

    /// A daemon that has said its number; its end of the stream.
    fn peer(number: u64, keeper: &mut Keeper, connections: &mut Connections) -> (Token, UnixStream) {
        let (ours, its) = UnixStream::pair().unwrap();
        let token = connections.add(Kind::Peer, ours.into(), None, Vec::new()).unwrap();
        keeper.begin(token);
        assert!(keeper.handle_one(token, ToKeeper::Hello(number), connections));
        (token, its)
    }

    fn connections() -> Connections {
        Connections::new(Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC).unwrap()))
    }

    #[test]
    fn without_room_a_pool_is_refused_and_nothing_else() {
        let (mut keeper, mut connections) = (Keeper::default(), connections());
        let (many, _many) = peer(1, &mut keeper, &mut connections);
        let (one, _one) = peer(2, &mut keeper, &mut connections);
        for pool in 0..POOLS {
            assert!(keeper.handle_one(many, ToKeeper::Watch(format!("p{pool}")), &mut connections));
        }
        // A join comes right behind the question.
        for message in [ToKeeper::Watch("q".to_owned()), ToKeeper::Append("q".to_owned(), join(2, 0))] {
            assert!(keeper.handle_one(one, message, &mut connections));
        }
        assert!(keeper.handle_one(one, ToKeeper::Watch("p7".to_owned()), &mut connections));
        assert!(keeper.pools().all(|(name, _)| name != "q"));
        // What is too long for a pool is not handed on.
        let before = connections.waiting(many);
        assert!(keeper.handle_one(one, ToKeeper::Append("p7".to_owned(), join(2, limits::TEXT + 1)), &mut connections));
        assert_eq!(connections.waiting(many), before);
        assert!(!keeper.handle_one(one, ToKeeper::Watch("p7".to_owned()), &mut connections));
    }

    #[test]
    fn who_asks_faster_than_it_reads_is_not_read() {
        let (mut keeper, mut connections) = (Keeper::default(), connections());
        let (token, mut its) = peer(1, &mut keeper, &mut connections);
        let watch = || ToKeeper::Watch("p".to_owned());
        assert!(keeper.handle_one(token, watch(), &mut connections));
        for session in 0..200 {
            let record = Record { session, ..join(1, limits::TEXT) };
            assert!(keeper.handle_one(token, ToKeeper::Append("p".to_owned(), record), &mut connections));
        }
        // Each is answered with 800 kB.
        for _ in 0..100 {
            its.write_all(&wire::encode(&ToKeeper::Forget("p".to_owned()))).unwrap();
            its.write_all(&wire::encode(&watch())).unwrap();
        }
        connections.read(token);
        keeper.handle(token, &mut connections);
        assert!(connections.is_paused(token) && connections.waiting(token) < UNREAD + (2 << 20));
    }
}
