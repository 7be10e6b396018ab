//! Watches all pools, and hands what changes to the worker, in the order of etcd's revisions.

use std::sync::Arc;
use std::time::Duration;

use madrigal_sys::time::boot_ns;
use serde_json::{Value, json};

use super::client::{Client, Failed, bytes, decoded, nanoseconds, number};
use super::command::{Changed, Command, Ways};
use super::keys::{Keys, range_end};
use super::lease::Life;

/// The pause after a watch that failed.
const PAUSE: Duration = Duration::from_millis(200);
/// The time behind which a watch is made anew, at the next change: the new one begins there, so that a compaction takes nothing from it. There
/// is a change at least every [`super::lease::TOUCHED`] s.
const RENEWED: Duration = Duration::from_secs(10);
/// How long the daemon may be without a watch.
const DEAF: Duration = Duration::from_secs(20);

/// Watches from a revision on, for a daemon's time.
pub(super) struct Watcher {
    client: Arc<Client>,
    keys: Keys,
    revision: u64,
    life: Arc<Life>,
    ways: Ways,
    /// When the last line came.
    heard: u64,
}

impl Watcher {
    pub(super) fn new(client: &Arc<Client>, keys: &Keys, revision: u64, life: &Arc<Life>, ways: &Ways) -> Self {
        let (client, life) = (Arc::clone(client), Arc::clone(life));
        Self { client, keys: keys.clone(), revision, life, ways: ways.clone(), heard: boot_ns() }
    }

    /// Begins the thread.
    pub(super) fn begin(self) -> Result<(), String> {
        let begun = std::thread::Builder::new().name("pools-watch".to_owned()).spawn(move || self.run());
        begun.map(drop).map_err(|error| error.to_string())
    }

    fn run(mut self) {
        while !self.life.is_ended() {
            let began = boot_ns();
            let ended = self.watch(began);
            let is_deaf = boot_ns() > self.heard + nanoseconds(DEAF);
            match ended {
                Ok(()) if boot_ns() > began + nanoseconds(RENEWED) => {}
                Err(failed) if is_deaf || matches!(failed, Failed::Refused(_)) => {
                    let why = format!("it does not show what has changed: {failed}");
                    return self.ways.lost(self.life.daemon, &why);
                }
                Ok(()) | Err(_) => std::thread::sleep(PAUSE),
            }
        }
    }

    /// Watches once.
    fn watch(&mut self, began: u64) -> Result<(), Failed> {
        let all = self.keys.all();
        let create = json!({
            "key": bytes(all), "range_end": bytes(range_end(all)), "start_revision": self.revision.to_string(),
        });
        let client = Arc::clone(&self.client);
        client.watch(&json!({"create_request": create}), |line| self.handle(&line["result"], began))
    }

    /// Takes a line. Returns whether to go on.
    fn handle(&mut self, result: &Value, began: u64) -> Result<bool, Failed> {
        if result["canceled"].as_bool() == Some(true) {
            let reason = result["cancel_reason"].as_str().unwrap_or("no word of why");
            return Err(match number(&result["compact_revision"]) {
                // The token may be out of date.
                0 => Failed::Login(reason.to_owned()),
                _ => Failed::Refused(format!("it was compacted: {reason}")),
            });
        }
        self.heard = boot_ns();
        let changed = changes(&self.keys, result);
        let last = result["events"].as_array().and_then(|events| events.last());
        if let Some(last) = last {
            self.revision = number(&last["kv"]["mod_revision"]) + 1;
        }
        let goes_on = self.ways.commands.send(Command::Changed(self.life.daemon, changed)).is_ok();
        let is_old = last.is_some() && boot_ns() > began + nanoseconds(RENEWED);
        Ok(goes_on && !is_old && !self.life.is_ended())
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
