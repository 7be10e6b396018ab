//! Workers: the drivers of messages, the settings and the place put together.

use std::sync::Arc;

use madrigal_base::config::{ConfigError, Settings};
use madrigal_drivers::{MESSAGE_DRIVERS, message_driver};
use madrigal_message::Worker;
use madrigal_message::worker::{OpenError, Options};
use madrigal_progress::driver::Place;

/// Opens a worker as the environment's `MADRIGAL_*` keys configure it; keys that do not parse are ignored, and returned.
pub fn worker() -> Result<(Arc<Worker>, Vec<ConfigError>), OpenError> {
    let pairs =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let (settings, warnings) = Settings::from_pairs(pairs);
    Ok((worker_with(&settings)?, warnings))
}

/// Opens a worker with these settings. A process always reaches itself, whatever methods are allowed.
pub fn worker_with(settings: &Settings) -> Result<Arc<Worker>, OpenError> {
    let directory = settings.directory(rustix::process::geteuid().as_raw());
    let place = Place { directory, network: settings.network.clone(), daemons: daemons(settings) };
    let allowed = |name: &str| name == "loopback" || settings.methods.allows(name);
    let mut drivers: Vec<_> = MESSAGE_DRIVERS.iter().copied().filter(|driver| allowed(driver.name())).collect();
    // Providers of libfabric's that are configured by name come where a fabric comes.
    let named = settings.methods.listed().iter().filter(|name| name.starts_with("fabric:"));
    let at = drivers.iter().position(|driver| driver.name() == "tcp").unwrap_or(drivers.len());
    drivers.splice(at..at, named.filter_map(|name| message_driver(name)));
    Worker::open(&Options { drivers: &drivers, place, max_spin_ns: u64::from(settings.spin_us) * 1_000 })
}

/// Where this user's daemon may be, as `madrigal up` has it; none where it is not to be used.
pub fn daemons(settings: &Settings) -> Vec<String> {
    if settings.daemon == "none" || !settings.methods.allows("daemon") {
        return Vec::new();
    }
    let uid = rustix::process::geteuid().as_raw();
    let given = Some(settings.daemon.clone()).filter(|given| !given.is_empty());
    let session = std::env::var("XDG_RUNTIME_DIR").ok().filter(|path| path.starts_with('/'));
    // What was given may come from another host, where the session's directory is another one.
    let usual = session.map(|path| format!("{path}/madrigal")).into_iter();
    let usual = usual.chain([format!("/run/user/{uid}/madrigal"), format!("/dev/shm/madrigal-run-{uid}")]);
    given.into_iter().chain(usual).collect()
}
