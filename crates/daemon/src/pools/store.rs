//! Where the logs of pools are. A store gives the records of a pool one order, the same for every daemon that watches it; it knows when a
//! daemon is gone, and then writes that it is lost.

use madrigal_pools::pool::Pool;
use madrigal_pools::record::{Record, Refusal};

use super::connections::Connections;
use crate::poll::Token;

/// A store, as a daemon uses it. None of it blocks: what comes of it is told ([`Told`]).
pub(super) trait Store: Send {
    /// From now on this daemon is told of a pool: a snapshot, then every record. The number is the daemon's own in its records. An error
    /// says why the store cannot be asked.
    fn watch(&mut self, daemon: u64, pool: &str, connections: &mut Connections) -> Result<(), String>;
    /// It is told no more of it.
    fn forget(&mut self, pool: &str, connections: &mut Connections);
    /// Adds a record. It is told with all others, unless the store is lost first.
    fn append(&mut self, pool: &str, record: Record, connections: &mut Connections);
    /// What it tells. With a stream of its own that has something, or has `ended`; without one at every pass of the thread.
    fn take_told(&mut self, stream: Option<(Token, bool)>, connections: &mut Connections) -> Vec<Told>;
    /// Where pools are kept, in words.
    fn place(&self) -> String;
}

/// What a store tells.
pub(super) enum Told {
    /// A pool as it is when a daemon begins to watch it.
    Snapshot(String, Pool),
    /// The next record of a pool.
    Record(String, Record),
    /// A pool cannot be watched: nobody can join it.
    Refused(String, Refusal),
    /// The store has given up the daemon of this number, or cannot be reached: its members are dead, or will be. The number is not used
    /// again.
    Lost(u64, String),
}
