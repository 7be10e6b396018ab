//! Workers: the drivers of messages, the settings and the place put together.

use std::sync::Arc;

use madrigal_adapters::stack::Stack;
use madrigal_base::config::{ConfigError, Settings};
use madrigal_drivers::{MESSAGE_DRIVERS, driver, message_driver};
use madrigal_message::Worker;
use madrigal_message::worker::{MakeStack, OpenError, Options};
use madrigal_progress::driver::Place;
use madrigal_progress::message::MessageDriver;
use madrigal_stream::StackedMessages;

use crate::certificates::{GridTls, grid_tls};

/// What a stack takes the place of.
const CARRIER: &str = "tcp";

/// Opens a worker as the environment's `MADRIGAL_*` keys configure it, with stacks ([`stacked_worker`]) and the grid's certificates
/// ([`grid_tls`]); keys that do not parse are ignored, and returned.
pub fn worker() -> Result<(Arc<Worker>, Vec<ConfigError>), OpenError> {
    let pairs =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let (settings, warnings) = Settings::from_pairs(pairs);
    Ok((stacked_worker(&settings, Some(grid_tls()))?, warnings))
}

/// Opens a worker with these settings, but without any stack. A process always reaches itself, whatever methods are allowed.
pub fn worker_with(settings: &Settings) -> Result<Arc<Worker>, OpenError> {
    open(settings, &drivers(settings))
}

/// As [`worker_with`]; links with other hosts have the stack of `MADRIGAL_MESSAGE_STACK`, if there is one, in place of TCP alone, and types of
/// ports may name others. Links go by the daemons where nothing goes straight to the other host. `tls` makes the ends of those with `tls`.
pub fn stacked_worker(settings: &Settings, tls: Option<GridTls>) -> Result<Arc<Worker>, OpenError> {
    let text = settings.message_stack.as_str();
    let stacked = match text {
        "" | CARRIER => None,
        text => Some(
            stacked_messages(text, tls.clone())
                .map_err(|why| OpenError::Stack { stack: format!("MADRIGAL_MESSAGE_STACK={text}"), why })?,
        ),
    };
    let plain = drivers(settings);
    let put = |plain: &'static dyn MessageDriver| match &stacked {
        Some(stacked) if plain.name() == CARRIER => stacked as &dyn MessageDriver,
        _ => plain,
    };
    let worker = open(settings, &plain.into_iter().map(put).collect::<Vec<_>>())?;
    worker.set_stacks(stacks(settings.methods.allows(CARRIER), tls));
    Ok(worker)
}

/// The driver of messages with that stack, over TCP; or why there is none, in a sentence.
pub fn stacked_messages(text: &str, tls: Option<GridTls>) -> Result<StackedMessages, String> {
    let stack: Stack = text.parse().map_err(|error: madrigal_adapters::stack::StackError| error.to_string())?;
    if stack.to_string() != text {
        return Err(format!("write `{stack}`"));
    }
    let below = driver(CARRIER).ok_or("there is no driver of TCP")?;
    StackedMessages::new(below, stack, tls.as_ref().map(GridTls::ends)).map_err(|refused| refused.to_string())
}

fn stacks(is_allowed: bool, tls: Option<GridTls>) -> MakeStack {
    Arc::new(move |text| {
        if !is_allowed {
            return Err(format!("`{text}`: `{CARRIER}` is excluded by MADRIGAL_METHODS"));
        }
        Ok(Box::new(stacked_messages(text, tls.clone())?))
    })
}

fn drivers(settings: &Settings) -> Vec<&'static dyn MessageDriver> {
    let allowed = |name: &str| name == "loopback" || settings.methods.allows(name);
    let mut drivers: Vec<_> = MESSAGE_DRIVERS.iter().copied().filter(|driver| allowed(driver.name())).collect();
    // Providers of libfabric's that are configured by name come where a fabric comes.
    let named = settings.methods.listed().iter().filter(|name| name.starts_with("fabric:"));
    let at = drivers.iter().position(|driver| driver.name() == CARRIER).unwrap_or(drivers.len());
    drivers.splice(at..at, named.filter_map(|name| message_driver(name)));
    drivers
}

fn open(settings: &Settings, drivers: &[&dyn MessageDriver]) -> Result<Arc<Worker>, OpenError> {
    let directory = settings.directory(rustix::process::geteuid().as_raw());
    let place = Place { directory, network: settings.network.clone(), daemons: daemons(settings) };
    Worker::open(&Options { drivers, place, max_spin_ns: u64::from(settings.spin_us) * 1_000 })
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
