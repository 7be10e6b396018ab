//! What the agent's loop waits for, and the processes that it names.

use rustix::process::Pid;

/// What has something to be done about.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Launcher,
    Room,
    Signals,
    Output(usize),
    Error(usize),
    Pmi(usize),
    Input(usize),
}

/// The number of a process, as a group that it leads.
pub(super) fn group(pid: u32) -> Option<Pid> {
    Pid::from_raw(pid.cast_signed())
}
