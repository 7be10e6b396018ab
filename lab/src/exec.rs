//! Runs a command on a host: in all of its namespaces, with the terminal, the directory and the signals of the calling shell.

use std::ffi::{CStr, CString, OsString};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

use madrigal_sys::Errno;
use madrigal_sys::namespace::{Caught, Forked, Signals, fork_into, ignore_signal};
use madrigal_sys::process::become_program;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, kill_process, kill_process_group};
use rustix::thread::{ThreadNameSpaceType, UnshareFlags};

use crate::error::LabError;
use crate::state::{Node, State};

/// Exit status: no such program.
const MISSING: i32 = 127;
/// Exit status: it cannot be executed.
const FORBIDDEN: i32 = 126;

/// Where a host has its identity and its description of the grid.
const CONFIG: &str = "MADRIGAL_CONFIG_DIR";

/// Signals that go on to the command when a process sent them; what a terminal sends goes to the command anyway.
const PASSED_ON: [Signal; 8] =
    [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2, Signal::WINCH, Signal::CONT];

/// Runs `command` (its program first) on a host, as a child of this process; returns its exit status, or 128 and the signal that ended it.
pub(crate) fn run(state: &State, node: &Node, command: &[OsString]) -> Result<i32, LabError> {
    let here = std::env::current_dir().ok();
    let variables = variables(state, node);
    let pid = Pid::from_raw(node.process.pid as i32).filter(|_| node.process.alive());
    let ended = || LabError::Ended(node.name.clone(), state.name.clone());
    let host = rustix::process::pidfd_open(pid.ok_or_else(ended)?, PidfdFlags::empty()).map_err(|_| ended())?;
    enter(&host, node.process.pid).map_err(LabError::system(format!("enter {}", node.name)))?;
    let watched: Vec<i32> = PASSED_ON.iter().chain(&[Signal::CHILD]).map(|signal| signal.as_raw()).collect();
    let watched = Signals::of(&watched);
    let before = watched.block().map_err(LabError::system("block signals"))?;
    let terminal = Terminal::find();
    match fork_into(UnshareFlags::empty()).map_err(LabError::system("start a process"))? {
        Forked::Child => {
            let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
            terminal.give(None);
            let _ = before.block();
            let _ = here.map(|here| rustix::process::chdir(here.as_path()));
            let status = become_command(command, &variables);
            madrigal_sys::raw::exit_group(status)
        }
        Forked::Parent(child) => {
            terminal.give(Some(child));
            let ended = wait(child, watched, &terminal);
            terminal.take();
            ended.map_err(LabError::system("wait for the command"))
        }
    }
}

/// The terminal, if this process has it. A process group cannot extend into a pid namespace: a shell there would not find its own group. So
/// the command gets a group of its own, which has the terminal while it runs.
struct Terminal {
    has: bool,
}

impl Terminal {
    fn find() -> Self {
        let input = rustix::stdio::stdin();
        let has = rustix::termios::tcgetpgrp(input).is_ok_and(|group| group == rustix::process::getpgrp());
        // Who takes the terminal from the background is not to be stopped.
        if has {
            let _ = ignore_signal(Signal::TTOU.as_raw(), true);
        }
        Self { has }
    }

    /// Gives it to a child, or in the child (`None`) takes it: whichever comes first.
    fn give(&self, child: Option<Pid>) {
        if !self.has {
            return;
        }
        let group = child.unwrap_or_else(rustix::process::getpid);
        let _ = rustix::process::setpgid(child, child);
        let _ = rustix::termios::tcsetpgrp(rustix::stdio::stdin(), group);
        if child.is_none() {
            let _ = ignore_signal(Signal::TTOU.as_raw(), false);
        }
    }

    fn take(&self) {
        if self.has {
            let _ = rustix::termios::tcsetpgrp(rustix::stdio::stdin(), rustix::process::getpgrp());
        }
    }
}

/// Moves this process into the namespaces of the process `host`; for pid namespaces, its future children.
fn enter(host: &OwnedFd, pid: u32) -> Result<(), Errno> {
    let mut kinds = ThreadNameSpaceType::NETWORK
        | ThreadNameSpaceType::PROCESS_ID
        | ThreadNameSpaceType::MOUNT
        | ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME
        | ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION;
    let user = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/user")).ok();
    if user("self") != user(&pid.to_string()) {
        kinds |= ThreadNameSpaceType::USER;
    }
    rustix::thread::move_into_thread_name_spaces(host.as_fd(), kinds)
}

/// The environment of a command: that of this process, with where it is.
fn variables(state: &State, node: &Node) -> Vec<(OsString, OsString)> {
    let config = state.config.as_ref().filter(|_| !node.router);
    let mut ours = vec!["MADRIGAL_LAB", "MADRIGAL_LAB_HOST", "XDG_RUNTIME_DIR", "HOSTNAME"];
    ours.extend(config.map(|_| CONFIG));
    let mut all: Vec<_> = std::env::vars_os().filter(|(key, _)| !ours.iter().any(|our| key == our)).collect();
    all.push(("MADRIGAL_LAB".into(), state.name.clone().into()));
    all.push(("MADRIGAL_LAB_HOST".into(), node.name.clone().into()));
    all.extend(config.map(|config| (CONFIG.into(), config.into())));
    all.push(("XDG_RUNTIME_DIR".into(), crate::state::OWN_DIRECTORY.into()));
    all
}

/// Becomes the command, or reports why it cannot and returns the exit status for that.
fn become_command(command: &[OsString], variables: &[(OsString, OsString)]) -> i32 {
    let Some(program) = command.first() else { return MISSING };
    let text = |text: &OsString| CString::new(text.as_bytes()).unwrap_or_default();
    let args: Vec<CString> = command.iter().map(text).collect();
    let assignment = |(key, value): &(OsString, OsString)| {
        CString::new([key.as_bytes(), b"=", value.as_bytes()].concat()).unwrap_or_default()
    };
    let env: Vec<CString> = variables.iter().map(assignment).collect();
    let args: Vec<&CStr> = args.iter().map(CString::as_c_str).collect();
    let env: Vec<&CStr> = env.iter().map(CString::as_c_str).collect();
    let mut found = Errno::NOENT;
    for file in candidates(program) {
        let Ok(path) = CString::new(file.into_os_string().into_vec()) else { continue };
        let errno = become_program(&path, &args, &env);
        if errno != Errno::NOENT && errno != Errno::NOTDIR {
            found = errno;
        }
    }
    let error = std::io::Error::from(found);
    eprintln!("madrigal: cannot run {}: {error}", program.display());
    if found == Errno::NOENT { MISSING } else { FORBIDDEN }
}

/// The files that a shell would try.
fn candidates(program: &OsString) -> Vec<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return vec![program.into()];
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    // What configures networks is of use here, and not on the path of every user.
    let more = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(more).map(|directory| directory.join(program)).collect()
}

/// Passes signals on until the child ends; its exit status.
fn wait(child: Pid, watched: Signals, terminal: &Terminal) -> Result<i32, Errno> {
    loop {
        let caught = watched.wait()?;
        if caught.signal != Signal::CHILD.as_raw() {
            pass_on(child, caught);
            continue;
        }
        while let Some((_, status)) =
            rustix::process::waitpid(Some(child), WaitOptions::NOHANG | WaitOptions::UNTRACED)?
        {
            if let Some(ended) = status_of(status) {
                return Ok(ended);
            }
            // It was stopped: this process stops, too, until it is continued, so that a shell takes the terminal back.
            terminal.take();
            let _ = kill_process(rustix::process::getpid(), Signal::STOP);
            terminal.give(Some(child));
            let all = if terminal.has { kill_process_group(child, Signal::CONT) } else { Err(Errno::SRCH) };
            let _ = all.or_else(|_| kill_process(child, Signal::CONT));
        }
    }
}

fn pass_on(child: Pid, caught: Caught) {
    let signal = PASSED_ON.iter().find(|signal| signal.as_raw() == caught.signal);
    if let Some(signal) = signal.filter(|_| caught.sent) {
        // If it has ended, the next wait reports that.
        let _ = kill_process(child, *signal);
    }
}

/// The exit status of a process as a shell shows it; `None` while it has not ended.
fn status_of(status: WaitStatus) -> Option<i32> {
    status.exit_status().or_else(|| Some(128 + status.terminating_signal()?))
}
