//! What the worker is told: by the thread of pools, by the watch, and by who keeps the lease.

use madrigal_pools::record::Record;

use super::keys::Key;

/// What the thread is told.
pub(super) enum Command {
    Watch(u64, String),
    Forget(String),
    Append(String, Record),
    /// Keys have changed, as the watch of this daemon's time has it.
    Changed(u64, Vec<Changed>),
    /// The lease of this daemon's time is lost, and why.
    Lost(u64, String),
}

/// A key that changed.
pub(super) struct Changed {
    pub(super) revision: u64,
    pub(super) key: String,
    pub(super) of: Key,
    /// `None`: it is gone.
    pub(super) value: Option<Vec<u8>>,
}

impl Changed {
    /// The pool of a record.
    pub(super) fn pool(&self) -> Option<String> {
        match &self.of {
            Key::Record(pool) => Some(pool.clone()),
            Key::Daemon(_) => None,
        }
    }
}
