//! The station of this process: one for all domains, while any of them has an endpoint.

use std::sync::{Arc, Mutex, Weak};

use madrigal::station_with;
use madrigal_base::config::Settings;
use madrigal_links::station::Station;

use crate::lock;

static STATION: Mutex<Weak<Station>> = Mutex::new(Weak::new());

/// The station there is, or a new one. `Err`: why not, in one sentence.
pub(crate) fn station() -> Result<Arc<Station>, String> {
    let mut kept = lock(&STATION);
    if let Some(station) = kept.upgrade() {
        return Ok(station);
    }
    let station = station_with(&settings()).map_err(|error| error.to_string())?;
    *kept = Arc::downgrade(&station);
    Ok(station)
}

/// The environment's `MADRIGAL_*` keys. What does not read leaves the default in force; `madrigal exec` has said so.
pub(crate) fn settings() -> Settings {
    let texts = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    Settings::from_pairs(std::env::vars_os().filter_map(texts)).0
}

/// Tells the user of the rank why something failed: the one thing this library prints, each text once.
#[cold]
pub(crate) fn complain(text: &str) {
    static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());
    const ENOUGH: usize = 64;
    let mut said = lock(&SAID);
    if said.len() < ENOUGH && !said.iter().any(|known| known == text) {
        said.push(text.into());
        let line = format!("madrigal: {text}\n");
        let _ = rustix::io::write(rustix::stdio::stderr(), line.as_bytes());
    }
}
