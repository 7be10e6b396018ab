//! A host of the job, as its launcher sees it: the agent there, and how far it has come.

use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::plain::plain;
use crate::frame::{Incoming, Outgoing};
use crate::job::Job;
use crate::words::{BEAT, Part, SILENCE, ToAgent};

/// How long an agent may take to answer, and to report whether it can start.
const TO_ANSWER: Duration = Duration::from_secs(30);
const TO_CHECK: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Contacting,
    Checking,
    Able,
    Starting,
    Running,
    Over,
}

pub(super) struct Host {
    pub(super) name: String,
    part: Part,
    command: String,
    child: Child,
    pub(super) to: Option<OwnedFd>,
    pub(super) from: Option<OwnedFd>,
    pub(super) errors: Option<OwnedFd>,
    pub(super) incoming: Incoming,
    pub(super) outgoing: Outgoing,
    pub(super) state: State,
    since: Instant,
    pub(super) last_received: Instant,
    last_sent: Instant,
    /// The last line that came instead of an agent's frames.
    pub(super) words: String,
    line: Vec<u8>,
}

impl Host {
    /// Starts what leads to the host's agent; an error has the command.
    pub(super) fn contact(
        name: &str,
        template: Option<&str>,
        own: &Path,
        part: Part,
    ) -> Result<Self, (String, String)> {
        let argv = command(name, template, own);
        let text = argv.join(" ");
        let failed = |error: &dyn std::fmt::Display| (text.clone(), error.to_string());
        let mut command = Command::new(&argv[0]);
        // A group of its own: what the terminal sends is for the launcher to pass on.
        command.args(&argv[1..]).process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // SAFETY: between fork and exec: one system call.
        unsafe { command.pre_exec(|| madrigal_sys::raw::signal_mask(0).map(drop).map_err(Into::into)) };
        let mut child = command.spawn().map_err(|error| failed(&error))?;
        let (to, from, errors) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let fds = [to.map(OwnedFd::from), from.map(OwnedFd::from), errors.map(OwnedFd::from)];
        for fd in fds.iter().flatten() {
            rustix::io::ioctl_fionbio(fd, true).map_err(|errno| failed(&errno))?;
        }
        let [to, from, errors] = fds;
        let now = Instant::now();
        Ok(Self {
            name: name.to_owned(),
            part,
            command: text,
            child,
            to,
            from,
            errors,
            incoming: Incoming::default(),
            outgoing: Outgoing::default(),
            state: State::Contacting,
            since: now,
            last_received: now,
            last_sent: now,
            words: String::new(),
            line: Vec::new(),
        })
    }

    pub(super) fn enter(&mut self, state: State) {
        self.state = state;
        self.since = Instant::now();
    }

    /// The agent has greeted.
    pub(super) fn check(&mut self) {
        self.enter(State::Checking);
        self.outgoing.words(&ToAgent::Check(self.part.clone()));
    }

    pub(super) fn start(&mut self) {
        self.enter(State::Starting);
        self.outgoing.words(&ToAgent::Start);
        self.flush();
    }

    pub(super) fn is_over(&self) -> bool {
        self.state == State::Over || self.from.is_none()
    }

    pub(super) fn has_more(&self) -> bool {
        !self.outgoing.is_empty()
    }

    pub(super) fn flush(&mut self) {
        if let Some(to) = &self.to
            && self.outgoing.flush(to.as_fd()).is_err()
        {
            // That it is lost is seen where it is read.
            self.to = None;
            self.outgoing = Outgoing::default();
        }
    }

    /// Reads what has come. False: nothing more will.
    pub(super) fn read(&mut self) -> bool {
        let Some(from) = &self.from else { return false };
        let mut bytes = vec![0; 64 << 10];
        match rustix::io::read(from, &mut bytes) {
            Ok(n @ 1..) => self.incoming.push(&bytes[..n]),
            Err(Errno::AGAIN | Errno::INTR) => return true,
            Ok(0) | Err(_) => {
                self.read_errors();
                return false;
            }
        }
        self.last_received = Instant::now();
        true
    }

    /// Errors of ssh, or of another command that leads there.
    pub(super) fn read_errors(&mut self) {
        let Some(errors) = &self.errors else { return };
        let mut bytes = [0; 4096];
        match rustix::io::read(errors, &mut bytes) {
            Ok(n @ 1..) => self.line.extend_from_slice(&bytes[..n]),
            Err(Errno::AGAIN | Errno::INTR) => return,
            Ok(0) | Err(_) => self.errors = None,
        }
        if let Some(last) = self.line.split(|&b| b == b'\n').rfind(|line| !line.is_empty()) {
            self.words = plain(&String::from_utf8_lossy(last));
        }
        let kept = self.line.len().saturating_sub(4096);
        self.line.drain(..kept);
    }

    pub(super) fn beat(&mut self) {
        if self.last_sent.elapsed() > Duration::from_secs(BEAT) && self.to.is_some() && self.outgoing.is_empty() {
            self.outgoing.words(&ToAgent::Beat);
            self.last_sent = Instant::now();
        }
    }

    pub(super) fn is_late(&self) -> bool {
        match self.state {
            State::Contacting => self.since.elapsed() > TO_ANSWER,
            State::Checking => self.since.elapsed() > TO_CHECK,
            State::Over => false,
            _ => self.from.is_some() && self.last_received.elapsed() > Duration::from_secs(SILENCE),
        }
    }

    /// The error of a host whose link is gone.
    pub(super) fn complaint(&self, state: State) -> String {
        let words = if self.words.is_empty() { String::new() } else { format!(": {}", self.words) };
        match state {
            State::Contacting => format!("no agent answers by `{}`{words}", self.command),
            State::Checking => format!("its agent does not say whether it can start{words}"),
            _ => format!("its agent is lost, and what it had started ends there{words}"),
        }
    }

    /// Nothing is read or written any more: an agent that is there ends, with what it has started.
    pub(super) fn drop_link(&mut self) {
        (self.to, self.from) = (None, None);
        if self.state == State::Contacting {
            let _ = self.child.kill();
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.drop_link();
        // It ends by itself, now that its link is closed.
        let _ = self.child.try_wait();
    }
}

/// What leads to an agent on a host.
fn command(name: &str, template: Option<&str>, own: &Path) -> Vec<String> {
    let own = own.to_string_lossy().into_owned();
    if is_here(name) {
        return vec![own, "agent".to_owned()];
    }
    if let Some(template) = template {
        let words = template.split_whitespace().map(|word| word.replace("{host}", name));
        return words.chain([own, "agent".to_owned()]).collect();
    }
    let quoted = format!("'{}'", own.replace('\'', r"'\''"));
    let there = format!("test -x {quoted} && exec {quoted} agent; exec madrigal agent");
    ["ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "--", name, &there].map(str::to_owned).to_vec()
}

/// This host, by a name that needs no way there.
fn is_here(name: &str) -> bool {
    ["localhost", "127.0.0.1", "::1"].contains(&name)
        || rustix::system::uname().nodename().to_bytes() == name.as_bytes()
}

/// Where torch's processes meet: the first host, at a port that is free here.
pub(super) fn meeting_point(job: &Job) -> String {
    let hosts = job.hosts_or_here();
    let first = hosts.first().map_or("localhost", |host| host.name.as_str());
    let address = match (is_here(first), hosts.len()) {
        (true, 1) => "127.0.0.1".to_owned(),
        (true, _) => rustix::system::uname().nodename().to_string_lossy().into_owned(),
        (false, _) => first.rsplit('@').next().unwrap_or(first).to_owned(),
    };
    let free = std::net::TcpListener::bind(("0.0.0.0", 0)).and_then(|listener| listener.local_addr());
    format!("{address}:{}", free.map_or(29_500, |address| address.port()))
}
