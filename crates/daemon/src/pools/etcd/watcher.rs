//! Watches all pools, and hands what changes to the worker, in the order of etcd's revisions.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Weak};
use std::time::Duration;

use serde_json::{Value, json};

use super::client::{Client, bytes, decoded, number};
use super::command::{Changed, Command};
use super::keys::{Keys, range_end};

/// The pause after a watch that failed.
const PAUSE: Duration = Duration::from_millis(200);

/// Begins a thread that watches from a revision on, for this time of the daemon.
pub(super) fn begin(
    client: &Arc<Client>,
    keys: &Keys,
    mut revision: u64,
    (daemon, life): (u64, Weak<()>),
    commands: &Sender<Command>,
) -> Result<(), String> {
    let (client, keys, commands) = (Arc::clone(client), keys.clone(), commands.clone());
    let run = move || {
        while watch(&client, &keys, &mut revision, daemon, &commands) && life.strong_count() > 0 {
            std::thread::sleep(PAUSE);
        }
    };
    let begun = std::thread::Builder::new().name("pools-watch".to_owned()).spawn(run);
    begun.map(drop).map_err(|error| error.to_string())
}

/// Watches once. Returns whether to go on.
fn watch(client: &Client, keys: &Keys, revision: &mut u64, daemon: u64, commands: &Sender<Command>) -> bool {
    let create = json!({
        "key": bytes(keys.all()), "range_end": bytes(range_end(keys.all())), "start_revision": revision.to_string(),
    });
    let mut goes_on = true;
    let ended = client.watch(&json!({"create_request": create}), |line| {
        let result = &line["result"];
        if result["canceled"].as_bool() == Some(true) {
            let why = result["cancel_reason"].as_str().unwrap_or("it was compacted").to_owned();
            let _ = commands.send(Command::Lost(daemon, format!("etcd does not show what has changed: {why}")));
            goes_on = false;
            return false;
        }
        let changed = changes(keys, result);
        if let Some(last) = result["events"].as_array().and_then(|events| events.last()) {
            *revision = number(&last["kv"]["mod_revision"]) + 1;
        }
        goes_on = commands.send(Command::Changed(daemon, changed)).is_ok();
        goes_on
    });
    // That etcd does not answer is noticed by who keeps the lease.
    let _ = ended;
    goes_on
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
