//! Watches all pools, and hands what changes to the worker, in the order of etcd's revisions.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::client::{Client, bytes, decoded, number};
use super::command::{Changed, Command, Ways};
use super::keys::{Keys, range_end};
use super::lease::Life;

/// The pause after a watch that failed.
const PAUSE: Duration = Duration::from_millis(200);

/// Watches from a revision on, for a daemon's time.
pub(super) struct Watcher {
    pub(super) client: Arc<Client>,
    pub(super) keys: Keys,
    pub(super) revision: u64,
    pub(super) life: Arc<Life>,
    pub(super) ways: Ways,
}

impl Watcher {
    /// Begins the thread.
    pub(super) fn begin(mut self) -> Result<(), String> {
        let run = move || {
            while self.watch() && !self.life.is_ended() {
                std::thread::sleep(PAUSE);
            }
        };
        let begun = std::thread::Builder::new().name("pools-watch".to_owned()).spawn(run);
        begun.map(drop).map_err(|error| error.to_string())
    }

    /// Watches once. Returns whether to go on.
    fn watch(&mut self) -> bool {
        let all = self.keys.all();
        let create = json!({
            "key": bytes(all), "range_end": bytes(range_end(all)), "start_revision": self.revision.to_string(),
        });
        let client = Arc::clone(&self.client);
        let mut goes_on = true;
        let ended = client.watch(&json!({"create_request": create}), |line| {
            goes_on = self.handle(&line["result"]);
            Ok(goes_on)
        });
        // That etcd does not answer is noticed by who keeps the lease.
        let _ = ended;
        goes_on
    }

    /// Takes a line. Returns whether to go on.
    fn handle(&mut self, result: &Value) -> bool {
        let daemon = self.life.daemon;
        if result["canceled"].as_bool() == Some(true) {
            let why = result["cancel_reason"].as_str().unwrap_or("it was compacted");
            self.ways.lost(daemon, &format!("etcd does not show what has changed: {why}"));
            return false;
        }
        let changed = changes(&self.keys, result);
        if let Some(last) = result["events"].as_array().and_then(|events| events.last()) {
            self.revision = number(&last["kv"]["mod_revision"]) + 1;
        }
        self.ways.commands.send(Command::Changed(daemon, changed)).is_ok()
    }
}

fn changes(keys: &Keys, result: &Value) -> Vec<Changed> {
    let events = result["events"].as_array().map(Vec::as_slice).unwrap_or_default();
    let changed = events.iter().filter_map(|event| {
        let kv = &event["kv"];
        let key = String::from_utf8(decoded(&kv["key"])).ok()?;
        let of = keys.parse(&key)?;
        let value = (event["type"].as_str() != Some("DELETE")).then(|| decoded(&kv["value"]));
        Some(Changed { revision: number(&kv["mod_revision"]), key, of, value })
    });
    let mut changed: Vec<Changed> = changed.collect();
    changed.sort_by(|one, other| (one.revision, &one.key).cmp(&(other.revision, &other.key)));
    changed
}
