//! How a job ends: what its processes are sent, when, and the exit status.

use std::time::{Duration, Instant};

/// Exit status of a job that took too long, as timeout(1) has it.
pub(super) const TIME_IS_UP: i32 = 124;
/// From the first signal to SIGTERM, from there to SIGKILL, and from there until the launcher stops waiting.
const TO_TERM: Duration = Duration::from_secs(2);
const TO_KILL: Duration = Duration::from_secs(5);
const TO_GIVE_UP: Duration = Duration::from_secs(10);
/// Two interrupts in this time mean now.
const TWICE: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct Ending {
    /// Of the job: the first bad end's.
    pub(super) status: Option<i32>,
    since: Option<Instant>,
    interrupted: Option<Instant>,
    termed: bool,
    killed: Option<Instant>,
}

impl Ending {
    pub(super) fn begin(&mut self, status: i32) {
        self.status.get_or_insert(status);
        self.since.get_or_insert_with(Instant::now);
    }

    pub(super) fn is_under_way(&self) -> bool {
        self.since.is_some()
    }

    /// Notes an interrupt; whether it is the second one within a second.
    pub(super) fn interrupted_twice(&mut self) -> bool {
        self.interrupted.replace(Instant::now()).is_some_and(|before| before.elapsed() < TWICE)
    }

    pub(super) fn killed(&mut self) {
        self.killed.get_or_insert_with(Instant::now);
    }

    /// The signal that is due now.
    pub(super) fn due(&mut self) -> Option<i32> {
        let since = self.since?.elapsed();
        if since > TO_KILL && self.killed.is_none() {
            return Some(libc::SIGKILL);
        }
        let term = since > TO_TERM && !self.termed && self.killed.is_none();
        self.termed |= term;
        term.then_some(libc::SIGTERM)
    }

    /// Whether killed processes that were not reported as gone are waited for no longer.
    pub(super) fn is_given_up(&self) -> bool {
        self.killed.is_some_and(|since| since.elapsed() > TO_GIVE_UP)
    }
}
