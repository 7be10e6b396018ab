//! Ends a process that hangs, naming the trial: a generous limit for all, instead of a tight one for each.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// How long one trial may take, on the slowest machine under the heaviest load.
const PATIENCE: Duration = Duration::from_secs(300);

/// Ends the process unless it is dropped in time.
pub struct Watchdog {
    _alive: Sender<()>,
}

impl Watchdog {
    /// Begins to watch the trial of that name.
    pub fn set(name: &str) -> Self {
        let (alive, gone) = channel::<()>();
        let name = name.to_owned();
        std::thread::spawn(move || {
            if gone.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                eprintln!("watchdog: {name} hangs");
                std::process::abort();
            }
        });
        Self { _alive: alive }
    }
}
