//! The thread that asks etcd, one request after the other, and tells what comes of it.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use madrigal_pools::record::{Entry, Record};
use serde_json::json;

use super::client::{Client, bytes, number};
use super::command::{Changed, Command};
use super::keys::{Key, Keys};
use super::lease::{self, LIFE_S};
use super::pools::Watched;
use super::watcher;
use crate::grid::EtcdSettings;
use crate::pools::store::Told;

/// The time that a request has: less than a lease.
const WITHIN: Duration = Duration::from_secs(2);
/// Records that one transaction adds; etcd allows 128 operations (`--max-txn-ops`).
const AT_ONCE: usize = 64;

struct Worker {
    client: Arc<Client>,
    keys: Keys,
    told: Sender<Told>,
    bell: Arc<OwnedFd>,
    /// For the threads that it begins.
    commands: Sender<Command>,
    /// The number of this daemon, while it has a lease; the last one that was lost.
    daemon: Option<u64>,
    lost: Option<u64>,
    /// Dropped with the lease: the threads that belong to it end.
    life: Arc<()>,
    pools: BTreeMap<String, Watched>,
    /// The records that this daemon has added.
    count: u64,
}

/// Begins the thread.
pub(super) fn begin(settings: EtcdSettings, told: Sender<Told>, bell: Arc<OwnedFd>) -> Result<Sender<Command>, String> {
    let (commands, received) = channel();
    let (keys, client) = (Keys::new(&settings.prefix), Arc::new(Client::new(settings)?));
    let mut worker = Worker {
        client,
        keys,
        told,
        bell,
        commands: commands.clone(),
        daemon: None,
        lost: None,
        life: Arc::default(),
        pools: BTreeMap::new(),
        count: 0,
    };
    let begun = std::thread::Builder::new().name("pools-etcd".to_owned()).spawn(move || worker.run(&received));
    begun.map_err(|error| error.to_string())?;
    Ok(commands)
}

impl Worker {
    fn run(&mut self, received: &Receiver<Command>) {
        while let Ok(command) = received.recv() {
            // What is there already goes together: a transaction costs etcd a write to its disk.
            let mut all = vec![command];
            all.extend(received.try_iter());
            let mut records = Vec::new();
            for command in all {
                match command {
                    Command::Append(pool, record) => records.push((pool, record)),
                    other => {
                        self.append(&mut records);
                        self.handle(other);
                    }
                }
            }
            self.append(&mut records);
        }
    }

    fn handle(&mut self, command: Command) {
        match command {
            Command::Watch(daemon, _) if self.lost == Some(daemon) => {}
            Command::Watch(daemon, pool) => {
                if let Err(why) = self.watch(daemon, pool) {
                    self.lose(daemon, &why);
                }
            }
            Command::Forget(pool) => {
                if let Some(watched) = self.pools.get_mut(&pool) {
                    watched.forgotten = true;
                }
                self.settle(&pool);
            }
            Command::Changed(daemon, changed) if self.daemon == Some(daemon) => {
                let pools: BTreeSet<String> = changed.iter().filter_map(Changed::pool).collect();
                changed.into_iter().for_each(|changed| self.change(changed));
                pools.iter().for_each(|pool| self.settle(pool));
            }
            Command::Lost(daemon, why) if self.daemon == Some(daemon) => self.lose(daemon, &why),
            Command::Changed(..) | Command::Lost(..) | Command::Append(..) => {}
        }
    }

    fn tell(&self, told: Told) {
        if self.told.send(told).is_ok() {
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    fn lose(&mut self, daemon: u64, why: &str) {
        (self.daemon, self.lost, self.life) = (None, Some(daemon), Arc::default());
        self.pools.clear();
        self.tell(Told::Lost(format!("etcd, where the pools are, is lost: {why}")));
    }

    /// Begins to watch a pool, as this daemon.
    fn watch(&mut self, daemon: u64, pool: String) -> Result<(), String> {
        if self.daemon != Some(daemon) {
            self.begin_life(daemon)?;
        }
        let answer = self.client.post("/v3/kv/txn", &Watched::request(&self.keys, &pool), WITHIN)?;
        let (watched, daemons) = Watched::read(&answer)?;
        let mut gone: Vec<u64> = watched.pool.daemons().collect();
        gone.dedup();
        gone.retain(|member| !daemons.contains(&self.keys.daemon(*member)));
        self.tell(Told::Snapshot(pool.clone(), watched.pool.clone()));
        self.pools.insert(pool.clone(), watched);
        gone.into_iter().for_each(|lost| self.add_lost(&pool, lost));
        Ok(())
    }

    /// Takes a lease for this daemon, and watches everything from then on.
    fn begin_life(&mut self, daemon: u64) -> Result<(), String> {
        (self.daemon, self.life) = (None, Arc::default());
        self.pools.clear();
        let granted = self.client.post("/v3/lease/grant", &json!({"TTL": LIFE_S.to_string()}), WITHIN)?;
        let lease = number(&granted["ID"]);
        let put = json!({"key": bytes(self.keys.daemon(daemon)), "value": "", "lease": lease.to_string()});
        let answer = self.client.post("/v3/kv/put", &put, WITHIN)?;
        let revision = number(&answer["header"]["revision"]) + 1;
        let life = || Arc::downgrade(&self.life);
        lease::begin(&self.client, lease, (daemon, life()), &self.commands)?;
        watcher::begin(&self.client, &self.keys, revision, (daemon, life()), &self.commands)?;
        (self.daemon, self.count) = (Some(daemon), 0);
        Ok(())
    }

    /// Adds records, in their order.
    fn append(&mut self, records: &mut Vec<(String, Record)>) {
        let Some(daemon) = self.daemon else { return records.clear() };
        let mut puts = Vec::new();
        for (pool, record) in records.drain(..).filter(|(_, record)| record.daemon == daemon) {
            self.count += 1;
            puts.push((self.keys.record(&pool, daemon, self.count), record));
        }
        for some in puts.chunks(AT_ONCE) {
            if let Err(why) = self.put(daemon, some) {
                return self.lose(daemon, &why);
            }
        }
    }

    /// Puts records under keys that are new, if etcd has not given this daemon up.
    fn put(&self, daemon: u64, records: &[(String, Record)]) -> Result<(), String> {
        let is = |key: &str, result: &str, version: &str| json!({"key": bytes(key), "target": "VERSION", "result": result, "version": version});
        let own = self.keys.daemon(daemon);
        let mut compare = vec![is(&own, "GREATER", "0")];
        compare.extend(records.iter().take(1).map(|(key, _)| is(key, "EQUAL", "0")));
        let success = records.iter().map(|(key, record)| {
            let value = postcard::to_stdvec(record).unwrap_or_default();
            json!({"request_put": {"key": bytes(key), "value": bytes(value)}})
        });
        let look = json!({"request_range": {"key": bytes(&own), "keys_only": true}});
        let request = json!({"compare": compare, "success": success.collect::<Vec<_>>(), "failure": [look]});
        let answer = self.client.post("/v3/kv/txn", &request, WITHIN)?;
        // Else the records are there: an endpoint had done it, and its answer was lost.
        let is_known = number(&answer["responses"][0]["response_range"]["count"]) > 0;
        if answer["succeeded"].as_bool() == Some(true) || is_known {
            Ok(())
        } else {
            Err("etcd has let the lease of this daemon run out".to_owned())
        }
    }

    /// Adds that a daemon is lost, unless another one has.
    fn add_lost(&mut self, pool: &str, lost: u64) {
        let Some(daemon) = self.daemon else { return };
        let record = Record { daemon, session: 0, request: 0, entry: Entry::Lost { daemon: lost } };
        if let Err(why) = self.put(daemon, &[(self.keys.lost(pool, lost), record)]) {
            self.lose(daemon, &why);
        }
    }

    fn change(&mut self, changed: Changed) {
        match (changed.of, changed.value) {
            (Key::Daemon(gone), None) => {
                let has = |watched: &Watched| watched.pool.daemons().any(|daemon| daemon == gone);
                let pools: Vec<String> =
                    self.pools.iter().filter(|(_, watched)| has(watched)).map(|(name, _)| name.clone()).collect();
                pools.iter().for_each(|pool| self.add_lost(pool, gone));
            }
            (Key::Record(pool), Some(value)) => {
                let watched = self.pools.get_mut(&pool).filter(|watched| changed.revision > watched.read_at);
                // What is no record is passed over by all alike.
                let (Some(watched), Ok(record)) = (watched, postcard::from_bytes::<Record>(&value)) else { return };
                watched.apply(changed.key, changed.revision, &record);
                self.tell(Told::Record(pool, record));
            }
            (Key::Daemon(_), Some(_)) | (Key::Record(_), None) => {}
        }
    }

    /// Replaces a log that is long, and lets go of a pool that is forgotten, once no program of this host is in it.
    fn settle(&mut self, name: &str) {
        let Some(daemon) = self.daemon else { return };
        let Some(watched) = self.pools.get_mut(name) else { return };
        let wrote_last = watched.last_is_of(&self.keys.record(name, daemon, 0));
        if watched.is_long() && (wrote_last || watched.pool.is_empty()) {
            let request = watched.shorten(&self.keys, name);
            // Whether it was done or not: another daemon does it, or this one with the next records.
            let _ = self.client.post("/v3/kv/txn", &request, WITHIN);
        }
        if watched.forgotten && !watched.pool.daemons().any(|other| other == daemon) {
            self.pools.remove(name);
        }
    }
}
