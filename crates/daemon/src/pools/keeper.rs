//! Keeps the logs of pools for the daemons of the grid, in memory. It gives records their order, and has no log: a daemon that begins to
//! watch gets the pool as it is. A daemon whose stream ends is lost, with all its members.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use madrigal_pools::pool::Pool;
use madrigal_pools::record::{Entry, Record};
use madrigal_pools::wire;
use serde::{Deserialize, Serialize};

use super::connections::Connections;
use crate::poll::Token;

/// The most pools.
const POOLS: usize = 4096;
/// A daemon that lets more bytes wait is given up.
const WAITING: usize = 64 << 20;

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
                if watches && record.daemon == daemon {
                    self.append(&pool, record, connections);
                }
                watches
            }
            (ToKeeper::Hello(_), _) | (_, None) => false,
        }
    }

    fn watch(&mut self, peer: Token, pool: String, connections: &mut Connections) -> bool {
        if !madrigal_pools::limits::is_name(&pool) || (self.pools.len() >= POOLS && !self.pools.contains_key(&pool)) {
            return false;
        }
        let kept = self.pools.entry(pool.clone()).or_default();
        kept.watchers.insert(peer);
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

    /// Gives up the daemons that do not read.
    pub(super) fn end_slow(&mut self, connections: &mut Connections) {
        let slow: Vec<Token> =
            self.peers.keys().filter(|peer| connections.waiting(**peer) > WAITING).copied().collect();
        slow.into_iter().for_each(|peer| self.end(peer, connections));
    }

    fn drop_empty(&mut self, pool: &str) {
        if self.pools.get(pool).is_some_and(|kept| kept.watchers.is_empty() && kept.pool.is_empty()) {
            self.pools.remove(pool);
        }
    }
}
