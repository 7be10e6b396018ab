//! Keeps the lease of a daemon. When that did not work for so long that etcd may let it run out, the daemon counts as lost here before it
//! does there: so no winner of this host believes that it is one when another one may be.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use serde_json::json;

use super::client::{Client, number};
use super::command::Command;

/// How long etcd keeps a daemon that is silent, in seconds.
pub(super) const LIFE_S: u64 = 5;
/// How long this daemon counts on it, from when the last renewal was sent.
const COUNTED: Duration = Duration::from_millis(LIFE_S * 1000 - 1000);
const EVERY: Duration = Duration::from_millis(1000);
const WITHIN: Duration = Duration::from_millis(1000);

/// Begins a thread that renews a lease: until that fails for long, or until the daemon's time is over, when it gives the lease back.
pub(super) fn begin(
    client: &Arc<Client>,
    lease: u64,
    of: (u64, Weak<()>),
    commands: &Sender<Command>,
) -> Result<(), String> {
    let (client, commands) = (Arc::clone(client), commands.clone());
    let begun = std::thread::Builder::new().name("pools-lease".to_owned());
    begun.spawn(move || keep(&client, lease, &of, &commands)).map_err(|error| error.to_string())?;
    Ok(())
}

fn keep(client: &Client, lease: u64, (daemon, life): &(u64, Weak<()>), commands: &Sender<Command>) {
    let (mut renewed, mut why) = (Instant::now(), String::new());
    let id = json!({"ID": lease.to_string()});
    while renewed.elapsed() < COUNTED {
        std::thread::sleep(EVERY.min(COUNTED.saturating_sub(renewed.elapsed())));
        if life.strong_count() == 0 {
            // Or it runs out.
            let _ = client.post("/v3/lease/revoke", &id, WITHIN);
            return;
        }
        let sent = Instant::now();
        match client.post("/v3/lease/keepalive", &id, WITHIN) {
            Ok(answer) if number(&answer["result"]["TTL"]) > 0 => renewed = sent,
            Ok(_) => {
                "etcd has let its lease run out".clone_into(&mut why);
                break;
            }
            Err(error) => why = error,
        }
    }
    let _ = commands.send(Command::Lost(*daemon, why));
}
