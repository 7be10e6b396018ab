//! What the worker is told: by the thread of pools, by the watch, and by who keeps the lease; and what these threads tell.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use madrigal_pools::record::Record;

use super::keys::Key;
use crate::pools::store::Told;

/// What the thread is told.
pub(super) enum Command {
    Watch(u64, String),
    Forget(String),
    Append(String, Record),
    /// Keys have changed, as the watch of this daemon's time has it.
    Changed(u64, Vec<Changed>),
    /// It is time that something changes: see [`super::watcher`].
    Touch(u64),
    /// The threads are to end.
    End,
    /// The lease of this daemon's time is lost. The thread of pools knows.
    Lost(u64),
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

/// The ways to the thread of pools, and to the worker.
#[derive(Clone)]
pub(super) struct Ways {
    pub(super) told: Sender<Told>,
    /// Rung when something is told.
    pub(super) bell: Arc<OwnedFd>,
    pub(super) commands: Sender<Command>,
}

impl Ways {
    pub(super) fn tell(&self, told: Told) {
        if self.told.send(told).is_ok() {
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    /// A daemon's time is over: the thread of pools is told at once, for the worker may wait for an answer.
    pub(super) fn lost(&self, daemon: u64, why: &str) {
        self.tell(Told::Lost(daemon, format!("etcd, where the pools are, is lost: {why}")));
        let _ = self.commands.send(Command::Lost(daemon));
    }
}
