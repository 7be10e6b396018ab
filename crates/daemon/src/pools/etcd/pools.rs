//! The pools that the worker watches: how far each is in its log.

use madrigal_pools::pool::Pool;
use madrigal_pools::record::Record;
use serde_json::{Value, json};

use super::client::{bytes, decoded, number};
use super::keys::{Keys, range_end};

/// Records in a log before a snapshot replaces them.
const LOGGED: usize = 512;
/// Records behind an attempt at that before the next one.
const AGAIN: usize = 64;

/// A pool as the worker knows it.
pub(super) struct Watched {
    pub(super) pool: Pool,
    /// It was read at this revision of etcd's: records of that one, and of earlier ones, are in it.
    pub(super) read_at: u64,
    /// No program of this host wants it any more; it stays until the last of them has ended in the log.
    pub(super) forgotten: bool,
    /// The key and revision of the last record, and how many there are in the log.
    last: (String, u64),
    logged: usize,
    /// How many are long.
    long: usize,
}

impl Watched {
    /// The request for a pool and the daemons, at one revision.
    pub(super) fn request(keys: &Keys, pool: &str) -> Value {
        let (log, daemons) = (keys.log(pool), keys.daemons());
        let all = |prefix: &str, keys_only: bool| {
            let (key, end) = (bytes(prefix), bytes(range_end(prefix)));
            json!({"request_range": {"key": key, "range_end": end, "keys_only": keys_only}})
        };
        let snap = json!({"request_range": {"key": bytes(keys.snap(pool))}});
        json!({"success": [snap, all(&log, false), all(&daemons, true)]})
    }

    /// The pool of an answer, and the numbers of the daemons that etcd has.
    pub(super) fn read(answer: &Value) -> Result<(Self, Vec<String>), String> {
        let kvs = |at: usize| {
            let kvs = answer["responses"][at]["response_range"]["kvs"].as_array();
            kvs.map(Vec::as_slice).unwrap_or_default()
        };
        let nonsense = |error: postcard::Error| format!("etcd has what is no pool: {error}");
        let mut pool = match kvs(0).first() {
            Some(snap) => postcard::from_bytes(&decoded(&snap["value"])).map_err(nonsense)?,
            None => Pool::default(),
        };
        let log = kvs(1).iter().map(|kv| (number(&kv["mod_revision"]), decoded(&kv["key"]), decoded(&kv["value"])));
        let mut log: Vec<(u64, Vec<u8>, Vec<u8>)> = log.collect();
        log.sort();
        // What is no record is passed over by all alike.
        for record in log.iter().filter_map(|(_, _, value)| postcard::from_bytes::<Record>(value).ok()) {
            pool.apply(&record);
        }
        let daemons = kvs(2).iter().filter_map(|kv| String::from_utf8(decoded(&kv["key"])).ok());
        let read_at = number(&answer["header"]["revision"]);
        let last = log.last().map(|(revision, key, _)| (String::from_utf8_lossy(key).into_owned(), *revision));
        let (last, logged) = (last.unwrap_or_default(), log.len());
        Ok((Self { pool, read_at, forgotten: false, last, logged, long: LOGGED }, daemons.collect()))
    }

    /// Takes what was added to the log. Returns the record, which is applied; none, if it is none.
    pub(super) fn add(&mut self, key: String, revision: u64, value: &[u8]) -> Option<Record> {
        self.logged += 1;
        self.last = (key, revision);
        let record = postcard::from_bytes(value).ok()?;
        self.pool.apply(&record);
        Some(record)
    }

    /// A key of the log is gone: a snapshot has replaced it.
    pub(super) fn remove(&mut self) {
        self.logged = self.logged.saturating_sub(1);
        self.long = LOGGED;
    }

    /// Whether the same daemon has written the last record as one with this key.
    fn last_is_of(&self, key: &str) -> bool {
        let daemon = |key: &str| key.rsplit_once('-').map(|(daemon, _)| daemon.to_owned());
        daemon(&self.last.0) == daemon(key)
    }

    /// The request that replaces the log, if that is long or the pool has ended; unless something was added since, or another daemon has
    /// replaced it: the last record is there. Of a living pool it is for who wrote that, by a key of whose records it is known.
    pub(super) fn shorten(&mut self, keys: &Keys, pool: &str, own: &str) -> Option<Value> {
        let has_ended = self.pool.is_empty() && self.logged > 0;
        if !has_ended && (self.logged < self.long || !self.last_is_of(own)) {
            return None;
        }
        // If others are quicker now, it is tried again, but not at once: it may be large.
        self.long = self.logged + AGAIN;
        let log = keys.log(pool);
        let (key, end, snap) = (bytes(&log), bytes(range_end(&log)), bytes(keys.snap(pool)));
        let (last, revision) = &self.last;
        let nothing_since = json!({
            "key": key, "range_end": end, "target": "MOD", "result": "LESS", "mod_revision": (revision + 1).to_string(),
        });
        let is_there = json!({"key": bytes(last), "target": "VERSION", "result": "GREATER", "version": "0"});
        let state = postcard::to_stdvec(&self.pool).unwrap_or_default();
        let kept = match self.pool.is_empty() {
            true => json!({"request_delete_range": {"key": snap}}),
            false => json!({"request_put": {"key": snap, "value": bytes(state)}}),
        };
        let emptied = json!({"request_delete_range": {"key": key, "range_end": end}});
        Some(json!({"compare": [nothing_since, is_there], "success": [kept, emptied]}))
    }
}
