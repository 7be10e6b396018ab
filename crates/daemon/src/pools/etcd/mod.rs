//! Pools in etcd: they outlive any host. This daemon is the client, and its programs know nothing of it.
//!
//! ```text
//!   PREFIX daemons/ID              a daemon that has members; a lease keeps it, so that etcd removes it when the daemon is silent
//!   PREFIX pools/NAME/log/ID-N     a record of that daemon; etcd's revisions are the order of the log
//!   PREFIX pools/NAME/snap         the pool without the records that are left in the log
//!
//!   the thread of pools -- commands --> worker -- Told --> the thread of pools
//!   watcher -- what changed --> worker          keeper of the lease -- that it is lost --> worker, and the thread of pools
//! ```
//! A record is put by a transaction that demands the daemon's own key: who was given up can write nothing more. The same transaction puts
//! that key anew: its version counts them, so that one whose answer was lost is not done twice. A snapshot replaces the log by
//! a transaction that demands that nothing was added since. Where a daemon's key is gone, whoever sees it adds that it is lost, under a key of
//! that name, so that it is in the log once.
//!
//! A daemon touches its own key now and then: so a watch is never far behind the revisions that an etcd may forget that others use, too.
//!
//! etcd speaks gRPC, and JSON over HTTP 1.1 by its own gateway (etcd.io, "Why gRPC gateway"). The latter needs no async runtime: `ureq`.

mod client;
mod command;
mod keys;
mod lease;
mod pools;
mod watcher;
mod worker;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use madrigal_pools::record::Record;

use self::command::Command;
use super::connections::Connections;
use super::store::{Store, Told};
use crate::grid::EtcdSettings;
use crate::poll::Token;

/// The store.
pub(super) struct Etcd {
    settings: EtcdSettings,
    /// Rung when something is told.
    bell: Arc<OwnedFd>,
    /// The worker, once a pool was watched.
    worker: Option<(Sender<Command>, Receiver<Told>)>,
    /// The number of this daemon, as it watched last.
    daemon: u64,
    /// What could not be handed to the worker.
    untold: Vec<Told>,
}

impl Etcd {
    pub(super) fn new(settings: EtcdSettings, bell: Arc<OwnedFd>) -> Self {
        Self { settings, bell, worker: None, daemon: 0, untold: Vec::new() }
    }

    fn command(&mut self, command: Command) {
        let ended = self.worker.as_ref().is_some_and(|(commands, _)| commands.send(command).is_err());
        if ended {
            self.worker = None;
            self.untold.push(Told::Lost(self.daemon, "the thread for etcd has ended: see the daemon's log".to_owned()));
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }
}

impl Drop for Etcd {
    /// Its members die.
    fn drop(&mut self) {
        self.command(Command::End);
    }
}

impl Store for Etcd {
    fn watch(&mut self, daemon: u64, pool: &str, _: &mut Connections) -> Result<(), String> {
        if self.worker.is_none() {
            let (told_tx, told_rx) = channel();
            let commands = worker::begin(self.settings.clone(), told_tx, Arc::clone(&self.bell))?;
            self.worker = Some((commands, told_rx));
        }
        self.daemon = daemon;
        self.command(Command::Watch(daemon, pool.to_owned()));
        Ok(())
    }

    fn forget(&mut self, pool: &str, _: &mut Connections) {
        self.command(Command::Forget(pool.to_owned()));
    }

    fn append(&mut self, pool: &str, record: Record, _: &mut Connections) {
        self.command(Command::Append(pool.to_owned(), record));
    }

    fn take_told(&mut self, stream: Option<(Token, bool)>, connections: &mut Connections) -> Vec<Told> {
        if let Some((token, _)) = stream {
            connections.close(token);
        }
        let mut told = core::mem::take(&mut self.untold);
        told.extend(self.worker.iter().flat_map(|(_, told)| told.try_iter()));
        told
    }

    fn place(&self) -> String {
        format!("etcd at {}", self.settings.endpoints.join(", "))
    }
}
