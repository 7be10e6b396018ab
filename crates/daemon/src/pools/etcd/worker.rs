//! The thread that asks etcd, one request after the other, and tells what comes of it.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use madrigal_pools::record::{Entry, Record, Refusal};
use madrigal_sys::time::boot_ns;
use serde_json::{Value, json};

use super::client::{Client, Failed, bytes, nanoseconds, number};
use super::command::{Changed, Command, Ways};
use super::keys::{Key, Keys};
use super::lease::{self, LIFE_S, Life};
use super::pools::Watched;
use super::watcher::Watcher;
use crate::grid::EtcdSettings;
use crate::pools::store::Told;

/// The time that a request has at one endpoint.
const WITHIN: Duration = Duration::from_secs(2);
/// The pause behind one that was not answered.
const PAUSE: Duration = Duration::from_millis(100);
/// The time that a lease, and this daemon's own key, have to come.
const BEGIN: Duration = Duration::from_secs(4);
/// How long a pool is tried to be read, or its log to be replaced: other pools wait meanwhile.
const PATIENCE: Duration = Duration::from_secs(6);
/// Records that one transaction adds; etcd allows 128 operations (`--max-txn-ops`).
const AT_ONCE: usize = 64;
/// Bytes of their values; etcd allows 1.5 MiB in all (`--max-request-bytes`).
const BYTES: usize = 512 << 10;

struct Worker {
    client: Arc<Client>,
    keys: Keys,
    ways: Ways,
    /// This daemon's time, while it has a lease; the number of the last one that was lost.
    life: Option<Arc<Life>>,
    lost: Option<u64>,
    pools: BTreeMap<String, Watched>,
    /// The records that this daemon has added.
    count: u64,
    /// The version of this daemon's own key: its transactions.
    version: u64,
}

impl Drop for Worker {
    /// Nobody is kept for living by a thread that is left over.
    fn drop(&mut self) {
        if let Some(life) = self.life.clone() {
            self.lose(life.daemon, "the thread for etcd has ended: see the daemon's log");
        }
    }
}

/// Begins the thread.
pub(super) fn begin(settings: EtcdSettings, told: Sender<Told>, bell: Arc<OwnedFd>) -> Result<Sender<Command>, String> {
    let (commands, received) = channel();
    let (keys, client) = (Keys::new(&settings.prefix), Arc::new(Client::new(settings)?));
    let ways = Ways { told, bell, commands: commands.clone() };
    let mut worker =
        Worker { client, keys, ways, life: None, lost: None, pools: BTreeMap::new(), count: 0, version: 0 };
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
                    Command::End => return,
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
        let own = self.life.as_ref().map(|life| life.daemon);
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
            Command::Changed(daemon, changed) if own == Some(daemon) => {
                let pools: BTreeSet<String> = changed.iter().filter_map(Changed::pool).collect();
                changed.into_iter().for_each(|changed| self.change(changed));
                pools.iter().for_each(|pool| self.settle(pool));
            }
            Command::Touch(daemon) if own == Some(daemon) => self.touch(),
            Command::Lost(daemon) if own == Some(daemon) => self.end_life(),
            Command::Changed(..) | Command::Touch(_) | Command::Lost(_) | Command::Append(..) | Command::End => {}
        }
    }

    fn end_life(&mut self) {
        if let Some(life) = self.life.take() {
            life.end();
            self.lost = Some(life.daemon);
        }
        self.pools.clear();
    }

    fn lose(&mut self, daemon: u64, why: &str) {
        self.end_life();
        self.lost = Some(daemon);
        self.ways.lost(daemon, why);
    }

    /// Asks until etcd answers, or refuses for good, or a time is over that may be put off.
    fn ask(&self, path: &str, body: &Value, until: impl Fn() -> u64) -> Result<Value, Failed> {
        loop {
            let answer = self.client.post(path, body, WITHIN, until());
            if matches!(answer, Ok(_) | Err(Failed::Refused(_))) || boot_ns() + nanoseconds(PAUSE) >= until() {
                return answer;
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Begins to watch a pool, as this daemon. An error: why the daemon is lost.
    fn watch(&mut self, daemon: u64, pool: String) -> Result<(), String> {
        let life = match &self.life {
            Some(life) if life.daemon == daemon => Arc::clone(life),
            _ => self.begin_life(daemon).map_err(|failed| failed.to_string())?,
        };
        let end = boot_ns() + nanoseconds(PATIENCE);
        let read = match self.ask("/v3/kv/txn", &Watched::request(&self.keys, &pool), || life.until().min(end)) {
            Ok(answer) => Watched::read(&answer),
            Err(failed) if boot_ns() < life.until() => Err(failed.to_string()),
            Err(failed) => return Err(failed.to_string()),
        };
        let (watched, daemons) = match read {
            Ok(read) => read,
            Err(why) => {
                self.refuse(pool, &why);
                return Ok(());
            }
        };
        let mut gone: Vec<u64> = watched.pool.daemons().collect();
        gone.dedup();
        gone.retain(|member| !daemons.contains(&self.keys.daemon(*member)));
        self.ways.tell(Told::Snapshot(pool.clone(), watched.pool.clone()));
        self.pools.insert(pool.clone(), watched);
        gone.into_iter().for_each(|lost| self.add_lost(&pool, lost));
        Ok(())
    }

    /// A pool cannot be read: that is no matter of the others.
    fn refuse(&mut self, pool: String, why: &str) {
        self.pools.remove(&pool);
        let why = format!("pool {pool} in etcd cannot be read: {why}");
        self.ways.tell(Told::Refused(pool, Refusal::Store(why)));
    }

    /// Takes a lease for this daemon, and watches everything from then on.
    fn begin_life(&mut self, daemon: u64) -> Result<Arc<Life>, Failed> {
        self.end_life();
        let end = boot_ns() + nanoseconds(BEGIN);
        let ttl = json!({"TTL": LIFE_S.to_string()});
        let (sent, granted) = loop {
            // The lease counts from when it was asked for.
            let sent = boot_ns();
            match self.ask("/v3/lease/grant", &ttl, || sent + nanoseconds(WITHIN)) {
                Ok(granted) => break (sent, granted),
                Err(Failed::Unanswered(_) | Failed::Login(_)) if boot_ns() < end => std::thread::sleep(PAUSE),
                Err(failed) => return Err(failed),
            }
        };
        let life = Arc::new(Life::new(daemon, number(&granted["ID"]), sent));
        lease::begin(&self.client, &life, &self.ways).map_err(Failed::Refused)?;
        // Whatever fails from here on ends it.
        (self.life, self.version, self.count) = (Some(Arc::clone(&life)), 1, 0);
        let own = bytes(self.keys.daemon(daemon));
        let put = json!({
            "compare": [version(&self.keys.daemon(daemon), 0)],
            "success": [{"request_put": {"key": own, "value": "", "lease": life.lease.to_string()}}],
            "failure": [{"request_range": {"key": own, "keys_only": true}}],
        });
        let answer = self.ask("/v3/kv/txn", &put, || life.until().min(end))?;
        let revision = number(&answer["header"]["revision"]) + 1;
        let watcher = Watcher::new(&self.client, &self.keys, revision, &life, &self.ways);
        watcher.begin().map_err(Failed::Refused)?;
        Ok(life)
    }

    /// Adds records, in their order.
    fn append(&mut self, records: &mut Vec<(String, Record)>) {
        let Some(life) = self.life.clone() else { return records.clear() };
        let mut puts = Vec::new();
        for (pool, record) in records.drain(..) {
            // Of a pool that was refused nobody is to be a member.
            if record.daemon == life.daemon && self.pools.contains_key(&pool) {
                self.count += 1;
                puts.push((self.keys.record(&pool, life.daemon, self.count), value(&record)));
            }
        }
        for some in cut(&puts) {
            if let Err(why) = self.put(&life, some, None) {
                return self.lose(life.daemon, &why);
            }
        }
    }

    /// Puts records, if etcd has not given this daemon up; unless that key is there already. The daemon's own key counts these transactions,
    /// so that one is not done twice when its answer was lost. An error: why the daemon is lost.
    fn put(&mut self, life: &Life, records: &[Put], unless: Option<&str>) -> Result<(), String> {
        let own = self.keys.daemon(life.daemon);
        let mut compare = vec![version(&own, self.version)];
        compare.extend(unless.map(|key| version(key, 0)));
        let puts =
            records.iter().map(|(key, value)| json!({"request_put": {"key": bytes(key), "value": bytes(value)}}));
        let counted = json!({"request_put": {"key": bytes(&own), "ignore_lease": true}});
        let success: Vec<Value> = puts.chain([counted]).collect();
        let look = json!({"request_range": {"key": bytes(&own), "keys_only": true}});
        let request = json!({"compare": compare, "success": success, "failure": [look]});
        let answer = self.ask("/v3/kv/txn", &request, || life.until()).map_err(|failed| failed.to_string())?;
        let there = number(&answer["responses"][0]["response_range"]["kvs"][0]["version"]);
        if answer["succeeded"].as_bool() == Some(true) || there == self.version + 1 {
            self.version += 1;
            Ok(())
        } else if there == self.version && unless.is_some() {
            Ok(())
        } else {
            Err("etcd has let the lease of this daemon run out".to_owned())
        }
    }

    /// Adds that a daemon is lost, unless another one has.
    fn add_lost(&mut self, pool: &str, lost: u64) {
        let Some(life) = self.life.clone() else { return };
        let record = Record { daemon: life.daemon, session: 0, request: 0, entry: Entry::Lost { daemon: lost } };
        let key = self.keys.lost(pool, lost);
        if let Err(why) = self.put(&life, &[(key.clone(), value(&record))], Some(&key)) {
            self.lose(life.daemon, &why);
        }
    }

    /// Changes the daemon's own key, and nothing else.
    fn touch(&mut self) {
        let Some(life) = self.life.clone() else { return };
        if let Err(why) = self.put(&life, &[], None) {
            self.lose(life.daemon, &why);
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
            (Key::Record(pool), value) => {
                let watched = self.pools.get_mut(&pool).filter(|watched| changed.revision > watched.read_at);
                match (watched, value) {
                    (Some(watched), Some(value)) => {
                        if let Some(record) = watched.add(changed.key, changed.revision, &value) {
                            self.ways.tell(Told::Record(pool, record));
                        }
                    }
                    (Some(watched), None) => watched.remove(),
                    (None, _) => {}
                }
            }
            (Key::Daemon(_), Some(_)) => {}
        }
    }

    /// Replaces a log that is long, and lets go of a pool that is forgotten, once no program of this host is in it.
    fn settle(&mut self, name: &str) {
        let Some(life) = self.life.clone() else { return };
        let daemon = life.daemon;
        let own = self.keys.record(name, daemon, 0);
        let request = self.pools.get_mut(name).and_then(|watched| watched.shorten(&self.keys, name, &own));
        if let Some(request) = request {
            // Refused where another daemon has done it, or something was added: then the next changes tell whether it is to be done still.
            let end = boot_ns() + nanoseconds(PATIENCE);
            let _ = self.ask("/v3/kv/txn", &request, || life.until().min(end));
        }
        let is_done = |watched: &Watched| watched.forgotten && !watched.pool.daemons().any(|other| other == daemon);
        if self.pools.get(name).is_some_and(is_done) {
            self.pools.remove(name);
        }
    }
}

/// Demands that a key has this version; 0 where it is not there.
fn version(key: &str, version: u64) -> Value {
    json!({"key": bytes(key), "target": "VERSION", "result": "EQUAL", "version": version.to_string()})
}

/// A key, and what is put there.
type Put = (String, Vec<u8>);

fn value(record: &Record) -> Vec<u8> {
    // Numbers, texts and lists of them: this cannot fail.
    postcard::to_stdvec(record).unwrap_or_default()
}

/// Cuts them into what one transaction takes.
fn cut(mut puts: &[Put]) -> Vec<&[Put]> {
    let mut all = Vec::new();
    while !puts.is_empty() {
        let mut bytes = 0;
        let fits = puts.iter().take(AT_ONCE).take_while(|(_, value)| {
            bytes += value.len();
            bytes <= BYTES
        });
        let (some, rest) = puts.split_at(fits.count().max(1));
        all.push(some);
        puts = rest;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_has_so_many_records_and_bytes() {
        let puts = |sizes: &[usize]| sizes.iter().map(|size| (String::new(), vec![0; *size])).collect::<Vec<Put>>();
        let cuts = |puts: &[Put]| cut(puts).iter().map(|some| some.len()).collect::<Vec<_>>();
        assert_eq!(cuts(&puts(&[10; 150])), [64, 64, 22]);
        assert_eq!(cuts(&puts(&[60 << 10; 20])), [8, 8, 4]);
        assert_eq!(cuts(&puts(&[1, BYTES + 1, 1])), [1, 1, 1]);
        assert!(cuts(&[]).is_empty());
    }
}
