//! A grid on one machine: hosts, sites, switches, NAT, firewalls and WAN links, from a file.
//!
//! ```text
//!  file    what is written             plan    what that means: nodes, cables, commands
//!  keeper  the process that builds it  wan     long lines, carried by processes of ours
//!  exec    commands on hosts           state   what is kept of a lab outside its processes
//! ```
//!
//! Each host is a network, pid, mount, UTS and IPC namespace, whose first process is a child of one keeper; all of them die with it,
//! and the kernel takes away what they had. Needs root, or a kernel that lets users make namespaces.
//!
//! [`up()`] and [`exec()`] fork: they are for programs of one thread, such as the command `madrigal`.
#![forbid(unsafe_code)]

pub mod control;
mod error;
mod exec;
pub mod file;
mod keeper;
pub mod net;
pub mod plan;
pub mod state;
pub mod wan;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

pub use error::LabError;
pub use state::OWN_DIRECTORY;

use control::{LinkStatus, Request};
use state::{Directory, Node, Process, State};
use wan::settings::Settings;

/// How long the processes of a lab have to end by themselves.
const PATIENCE: Duration = Duration::from_secs(10);

/// Builds the lab that `file` describes, under `name` or the file's.
pub fn up(file: &Path, name: Option<&str>) -> Result<State, LabError> {
    let shown = file.display().to_string();
    let text = std::fs::read_to_string(file).map_err(|error| LabError::Unreadable(shown.clone(), error))?;
    let grid = file::read(&shown, &text)?;
    let plan = plan::plan(&grid).map_err(|wrong| LabError::Plan(shown.clone(), wrong))?;
    let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let directory = Directory::of(name.unwrap_or(&stem))?;
    let is_up = || LabError::IsUp(directory.name.clone());
    // Where the keeper was killed the others are about to end.
    if directory.read().is_some_and(|earlier| !earlier.keeper.alive()) {
        await_end(&directory, PATIENCE);
    }
    // The files of an earlier lab whose processes are gone are removed for the new one.
    drop(directory.claim()?.ok_or_else(is_up)?);
    directory.remove()?;
    let lock = directory.claim()?.ok_or_else(is_up)?;
    let started = keeper::start(&directory, lock, &shown, &grid, &plan);
    if started.is_err() {
        await_end(&directory, PATIENCE);
        directory.remove()?;
    }
    started?;
    directory.read().ok_or_else(|| LabError::NotUp(directory.name.clone()))
}

/// The names of the labs that are up.
pub fn names() -> Vec<String> {
    let held = |name: &String| Directory::of(name).is_ok_and(|directory| directory.is_held());
    state::names().into_iter().filter(held).collect()
}

/// The directory of the lab `name`, or of the only one that is up.
fn choose(name: Option<&str>) -> Result<Directory, LabError> {
    if let Some(name) = name {
        return Directory::of(name);
    }
    let mut names = names();
    match (names.pop(), names.is_empty()) {
        (Some(only), true) => Directory::of(&only),
        (Some(last), false) => Err(LabError::WhichOne(names.into_iter().chain([last]).collect())),
        (None, _) => Err(LabError::NoneUp),
    }
}

/// The lab `name`, or the only one, with its directory.
fn find(name: Option<&str>) -> Result<(Directory, State), LabError> {
    let directory = choose(name)?;
    let state = directory.read().filter(|_| directory.is_held());
    let state = state.ok_or_else(|| LabError::NotUp(directory.name.clone()))?;
    Ok((directory, state))
}

/// The lab `name`, or the only one that is up.
pub fn state(name: Option<&str>) -> Result<State, LabError> {
    find(name).map(|(_, state)| state)
}

/// The directory of the lab `name`, or of the only one: mode 0700, and removed with the lab.
pub fn directory(name: Option<&str>) -> Result<PathBuf, LabError> {
    find(name).map(|(directory, _)| directory.path().to_owned())
}

/// A directory of a host, as it is seen from outside.
pub fn from_outside(node: &Node, directory: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{}/root{directory}", node.process.pid))
}

/// From now on `MADRIGAL_CONFIG_DIR` is `config` for commands on hosts of the lab.
pub fn configure(name: Option<&str>, config: &str) -> Result<(), LabError> {
    let (directory, mut state) = find(name)?;
    state.config = Some(config.to_owned());
    directory.write(&state)
}

/// Runs a command on a host or a router; its exit status, or 128 and the signal that ended it.
pub fn exec(name: Option<&str>, host: &str, command: &[OsString]) -> Result<i32, LabError> {
    let (_, state) = find(name)?;
    let Some(node) = state.nodes.iter().find(|node| node.name == host) else {
        let known = state.nodes.iter().map(|node| node.name.clone()).collect();
        return Err(LabError::NoHost { lab: state.name, host: host.to_owned(), known });
    };
    exec::run(&state, node, command)
}

/// Asks a link.
pub fn ask(name: Option<&str>, link: &str, request: &Request) -> Result<LinkStatus, LabError> {
    let (directory, state) = find(name)?;
    let Some(known) = state.links.iter().find(|known| known.name == link) else {
        let known = state.links.iter().map(|link| link.name.clone()).collect();
        return Err(LabError::NoLink { lab: state.name, link: link.to_owned(), known });
    };
    if let Request::Set(assignments) = request {
        // An assignment that is wrong for every state of the link is reported here.
        for text in assignments {
            let (key, value) = text.split_once('=').ok_or_else(|| wan::settings::BadSetting::Shape(text.clone()))?;
            Settings::default().set(key.trim(), value.trim())?;
        }
    }
    if !known.process.alive() {
        return Err(LabError::Ended(known.name.clone(), state.name));
    }
    let reply = control::ask(directory.path(), &keeper::socket_name(link), request);
    let reply = reply.map_err(LabError::system(format!("ask link {link}")))?;
    reply.map_err(|why| LabError::Refused(link.to_owned(), why))
}

/// Ends a lab and removes what is left of it. Returns whether there was anything. Without a name: the only lab, or what is left of it.
pub fn down(name: Option<&str>) -> Result<Option<String>, LabError> {
    let directory = match (name, names().as_slice(), state::names().as_slice()) {
        (None, [], [left]) => Directory::of(left)?,
        (None, [], []) => return Ok(None),
        _ => choose(name)?,
    };
    if !directory.path().exists() {
        return Ok(None);
    }
    if directory.is_held() {
        end(&directory)?;
    }
    directory.remove()?;
    Ok(Some(directory.name))
}

/// Ends all processes of a lab.
fn end(directory: &Directory) -> Result<(), LabError> {
    let state = directory.read();
    let keeper = state.as_ref().map(|state| state.keeper);
    if keeper.is_some_and(|keeper| signal(keeper, Signal::TERM)) && await_end(directory, PATIENCE) {
        return Ok(());
    }
    // A lab that does not answer, or whose keeper is gone and whose children are about to follow it.
    let all = || {
        let state = state.iter();
        state.flat_map(|state| {
            [state.keeper]
                .into_iter()
                .chain(state.links.iter().map(|link| link.process))
                .chain(state.nodes.iter().map(|node| node.process))
        })
    };
    for process in all() {
        signal(process, Signal::KILL);
    }
    if await_end(directory, PATIENCE) {
        return Ok(());
    }
    Err(LabError::Stuck(directory.name.clone(), all().filter(Process::alive).map(|process| process.pid).collect()))
}

/// Sends a signal to exactly this process; whether it was there.
fn signal(process: Process, signal: Signal) -> bool {
    let Some(pid) = Pid::from_raw(process.pid as i32) else { return false };
    let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
    // With the handle it is certain which process gets the signal.
    process.alive() && pidfd_send_signal(handle, signal).is_ok()
}

/// Waits until no process holds the lab; whether that came to be.
fn await_end(directory: &Directory, patience: Duration) -> bool {
    let end = Instant::now() + patience;
    while directory.is_held() {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}
