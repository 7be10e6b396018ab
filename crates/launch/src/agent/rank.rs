//! One process of a job: how it is started, and what is carried to and from it.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::Pid;

use super::source::{Source, group};
use crate::frame::{Channel, Outgoing};
use crate::pmi;
use crate::words::{App, End, Part, Rank};

/// Read at once.
const PIECE: usize = 64 << 10;

pub(super) struct Running {
    pub(super) rank: u32,
    pub(super) pid: Pid,
    output: Option<OwnedFd>,
    error: Option<OwnedFd>,
    pmi: Option<OwnedFd>,
    line: Vec<u8>,
    answers: Outgoing,
    stdin: Option<OwnedFd>,
    pub(super) input: Outgoing,
    pub(super) input_ends: bool,
    pub(super) end: Option<(End, Instant)>,
    pub(super) reported: bool,
}

type At<'a> = (fn(usize) -> Source, BorrowedFd<'a>, PollFlags);

impl Running {
    pub(super) fn start(part: &Part, rank: &Rank, exec: &Path) -> Result<Self, String> {
        let app = part.apps.get(rank.app as usize).ok_or("a rank of no program")?;
        let name = app.argv.first().cloned().unwrap_or_default();
        let failed = |what: &str, error: &dyn std::fmt::Display| {
            format!("{what}: {error}: rank {} ({name}) is not started", rank.rank)
        };
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(|errno| failed("socketpair", &errno))?;
        let mut command = command(app, exec);
        environment(&mut command, part, rank, app, theirs.as_raw_fd());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let (number, agent) = (theirs.as_raw_fd(), rustix::process::getpid());
        // SAFETY: between fork and exec: system calls alone, no memory is allocated and no lock taken.
        unsafe { command.pre_exec(move || prepare(number, agent)) };
        let mut child = command.spawn().map_err(|error| failed("fork", &error))?;
        let fds = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(output), Some(error)) = fds else { return Err(failed("pipe", &"none was made")) };
        let (stdin, output, error) = (OwnedFd::from(stdin), OwnedFd::from(output), OwnedFd::from(error));
        for fd in [&ours, &stdin, &output, &error] {
            rustix::io::ioctl_fionbio(fd, true).map_err(|errno| failed("ioctl", &errno))?;
        }
        Ok(Self {
            rank: rank.rank,
            pid: group(child.id()).ok_or_else(|| failed("fork", &"no process"))?,
            output: Some(output),
            error: Some(error),
            pmi: Some(ours),
            line: Vec::new(),
            answers: Outgoing::default(),
            stdin: Some(stdin),
            input: Outgoing::default(),
            input_ends: false,
            end: None,
            reported: false,
        })
    }

    /// What is waited for. `has_room`: there is room for its output.
    pub(super) fn sources(&self, has_room: bool) -> impl Iterator<Item = At<'_>> {
        let output =
            self.output.as_ref().filter(|_| has_room).map(|fd| (Source::Output as _, fd.as_fd(), PollFlags::IN));
        let error = self.error.as_ref().filter(|_| has_room).map(|fd| (Source::Error as _, fd.as_fd(), PollFlags::IN));
        let answers = if self.answers.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
        let pmi = self.pmi.as_ref().map(|fd| (Source::Pmi as _, fd.as_fd(), answers));
        let input = self.stdin.as_ref().filter(|_| !self.input.is_empty());
        let input = input.map(|fd| (Source::Input as _, fd.as_fd(), PollFlags::OUT));
        [output, error, pmi, input].into_iter().flatten()
    }

    /// What it has written; nothing more comes once this is empty and the descriptor readable.
    pub(super) fn read(&mut self, channel: Channel) -> Vec<u8> {
        let from = if channel == Channel::Error { &mut self.error } else { &mut self.output };
        let Some(fd) = from else { return Vec::new() };
        let mut bytes = vec![0; PIECE];
        match rustix::io::read(&*fd, &mut bytes) {
            Ok(n @ 1..) => bytes.truncate(n),
            Err(Errno::AGAIN | Errno::INTR) => bytes.clear(),
            Ok(0) | Err(_) => {
                bytes.clear();
                *from = None;
            }
        }
        bytes
    }

    /// Whole lines of PMI that it has sent.
    pub(super) fn lines(&mut self) -> Vec<String> {
        let Some(fd) = &self.pmi else { return Vec::new() };
        let done = self.answers.flush(fd.as_fd());
        let mut bytes = [0; 4096];
        match rustix::io::read(fd, &mut bytes) {
            Ok(n @ 1..) => self.line.extend_from_slice(&bytes[..n]),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok(0) | Err(_) => self.pmi = None,
        }
        if done.is_err() || (self.line.len() > pmi::LINE && !self.line.contains(&b'\n')) {
            // It is no rank that speaks PMI: those that wait for it are notified when it ends.
            self.pmi = None;
        }
        let mut lines = Vec::new();
        while let Some(end) = self.line.iter().position(|&b| b == b'\n') {
            let line: Vec<u8> = self.line.drain(..=end).collect();
            lines.push(String::from_utf8_lossy(&line[..end]).into_owned());
        }
        lines
    }

    pub(super) fn answer(&mut self, line: &str) {
        if let Some(fd) = &self.pmi {
            self.answers.raw(line.as_bytes());
            self.answers.raw(b"\n");
            // What does not go now goes when there is room.
            let _ = self.answers.flush(fd.as_fd());
        }
    }

    /// Gives it more of its standard input. Whether it has taken all there was.
    pub(super) fn feed(&mut self) -> bool {
        let Some(fd) = &self.stdin else { return false };
        let lost = self.input.flush(fd.as_fd()).is_err();
        let all = self.input.is_empty();
        if lost || (all && self.input_ends) {
            self.stdin = None;
            self.input = Outgoing::default();
        }
        all && !lost
    }

    pub(super) fn ended(&mut self, end: End) {
        self.end = Some((end, Instant::now()));
        self.stdin = None;
        self.input = Outgoing::default();
    }

    /// Whether nothing more comes of it.
    pub(super) fn is_silent(&self) -> bool {
        self.output.is_none() && self.error.is_none()
    }
}

/// The program, by `madrigal exec` unless it is run plainly.
fn command(app: &App, exec: &Path) -> Command {
    let mut command = if app.plain {
        Command::new(app.argv.first().map_or("", String::as_str))
    } else {
        let mut command = Command::new(exec);
        command.args(["exec", "--rank", "--"]).arg(app.argv.first().map_or("", String::as_str));
        command
    };
    command.args(app.argv.iter().skip(1));
    if let Some(folder) = &app.folder {
        command.current_dir(folder);
    }
    command
}

/// Variables of other launchers for their own ranks; a rank of ours must not use them.
const FOREIGN: [&str; 8] = ["PMI_", "PMIX_", "OMPI_COMM_", "OMPI_UNIVERSE_", "PRTE_", "HYDI_", "HYDRA_", "MPI_LOCAL"];
const FOREIGN_OF_MANAGERS: [&str; 2] = ["SLURM_", "PALS_"];

fn environment(command: &mut Command, part: &Part, rank: &Rank, app: &App, pmi: i32) {
    for (name, _) in std::env::vars_os() {
        let starts = |prefix: &&str| name.as_encoded_bytes().starts_with(prefix.as_bytes());
        if FOREIGN.iter().chain(&FOREIGN_OF_MANAGERS).any(starts) {
            command.env_remove(&name);
        }
    }
    command.envs(app.env.iter().map(|(name, value)| (OsString::from(name), OsString::from(value))));
    let here = part.ranks.len();
    let mut set = |names: &[&str], value: String| names.iter().for_each(|name| _ = command.env(name, &value));
    set(&["PMI_FD"], pmi.to_string());
    set(&["PMI_RANK", "OMPI_COMM_WORLD_RANK"], rank.rank.to_string());
    set(&["PMI_SIZE", "OMPI_COMM_WORLD_SIZE"], part.size.to_string());
    set(&["MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_NODE_RANK"], rank.local.to_string());
    set(&["MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE"], here.to_string());
    if let Some(master) = &part.torch {
        set(&["RANK"], rank.rank.to_string());
        set(&["WORLD_SIZE"], part.size.to_string());
        set(&["LOCAL_RANK"], rank.local.to_string());
        set(&["LOCAL_WORLD_SIZE"], here.to_string());
        set(&["GROUP_RANK"], part.node.to_string());
        let (address, port) = master.rsplit_once(':').unwrap_or((master, "29500"));
        set(&["MASTER_ADDR"], address.to_owned());
        set(&["MASTER_PORT"], port.to_owned());
    }
}

/// In the child: a session of its own, an end with the agent, and its end of PMI.
fn prepare(pmi: i32, agent: Pid) -> io::Result<()> {
    rustix::process::setsid()?;
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    if rustix::process::getppid() != Some(agent) {
        // It has ended in between, and there will be no signal.
        return Err(io::Error::from(Errno::SRCH));
    }
    // The agent's own signals are held back, and a program's are not.
    madrigal_sys::raw::signal_mask(0)?;
    // SAFETY: the descriptor is open in this process, a copy of the agent's, until exec.
    let pmi = unsafe { BorrowedFd::borrow_raw(pmi) };
    Ok(rustix::io::fcntl_setfd(pmi, rustix::io::FdFlags::empty())?)
}
