//! Keeps the lease of a daemon. When that did not work for so long that etcd may let it run out, the daemon counts as lost here before it
//! does there: so no winner of this host believes that it is one when another one may be.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use madrigal_sys::time::boot_ns;
use serde_json::json;

use super::client::{Client, nanoseconds, number};
use super::command::{Command, Ways};

/// How long etcd keeps a daemon that is silent, in seconds.
pub(super) const LIFE_S: u64 = 5;
/// How long this daemon counts on it, from when the last renewal was sent.
pub(super) const COUNTED: Duration = Duration::from_millis(LIFE_S * 1000 - 1000);
const EVERY: Duration = Duration::from_millis(1000);
/// The pause behind a renewal that failed.
const AGAIN: Duration = Duration::from_millis(250);
const WITHIN: Duration = Duration::from_millis(1000);
/// Renewals after which the daemon's own key is touched.
pub(super) const TOUCHED: u64 = 5;

/// A daemon's time in etcd, under one number and one lease.
pub(super) struct Life {
    pub(super) daemon: u64,
    pub(super) lease: u64,
    /// When this daemon counts as lost, unless the lease is renewed ([`boot_ns`]: etcd's clock goes on in a suspend); 0 when it is over.
    until: Mutex<u64>,
}

impl Life {
    /// Of a lease that was asked for at that time.
    pub(super) fn new(daemon: u64, lease: u64, sent: u64) -> Self {
        Self { daemon, lease, until: Mutex::new(sent + nanoseconds(COUNTED)) }
    }

    pub(super) fn until(&self) -> u64 {
        *self.lock()
    }

    /// Ends it: the threads that belong to it end, and the lease is given back.
    pub(super) fn end(&self) {
        *self.lock() = 0;
    }

    pub(super) fn is_ended(&self) -> bool {
        self.until() == 0
    }

    fn renew(&self, sent: u64) {
        let mut until = self.lock();
        if *until != 0 {
            *until = sent + nanoseconds(COUNTED);
        }
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Begins a thread that renews the lease: until that fails for long, or until the daemon's time is over.
pub(super) fn begin(client: &Arc<Client>, life: &Arc<Life>, ways: &Ways) -> Result<(), String> {
    let (client, life, ways) = (Arc::clone(client), Arc::clone(life), ways.clone());
    let begun = std::thread::Builder::new().name("pools-lease".to_owned());
    begun.spawn(move || keep(&client, &life, &ways)).map_err(|error| error.to_string())?;
    Ok(())
}

fn keep(client: &Client, life: &Life, ways: &Ways) {
    let id = json!({"ID": life.lease.to_string()});
    let mut why = format!("this process did not run for {} s", COUNTED.as_secs());
    let (mut pause, mut renewals) = (EVERY, 0);
    loop {
        let left = life.until().saturating_sub(boot_ns());
        std::thread::sleep(pause.min(Duration::from_nanos(left)));
        let (until, sent) = (life.until(), boot_ns());
        if life.is_ended() {
            // Or it runs out.
            let _ = client.post("/v3/lease/revoke", &id, WITHIN, sent + nanoseconds(WITHIN));
            return;
        }
        if sent >= until {
            break;
        }
        pause = AGAIN;
        match client.post("/v3/lease/keepalive", &id, WITHIN, until) {
            Ok(answer) if number(&answer["result"]["TTL"]) > 0 => {
                life.renew(sent);
                pause = EVERY;
                renewals += 1;
                if renewals % TOUCHED == 0 {
                    let _ = ways.commands.send(Command::Touch(life.daemon));
                }
            }
            Ok(_) => {
                "etcd has let its lease run out".clone_into(&mut why);
                break;
            }
            Err(error) => why = error.to_string(),
        }
    }
    ways.lost(life.daemon, &why);
}
