//! Links over the input and output of a command that leads to another host's daemon: `via` in grid.toml, for instance
//! `ssh {host} madrigal link`. The command runs as long as the link; what it says on standard error is why it failed.

use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Pid, Signal};

use crate::channel::Channel;
use crate::daemon::{Daemon, Thing};
use crate::links::Link;
use crate::poll::Token;
use crate::socket::{self, Got};

/// What is kept of what a command says.
const LONGEST: usize = 300;

/// A command that runs.
pub(crate) struct Running {
    child: Child,
    errors: OwnedFd,
    token: Token,
    said: Vec<u8>,
}

impl Running {
    /// The last line that it said.
    fn last_line(&self) -> Option<String> {
        let said = String::from_utf8_lossy(&self.said).into_owned();
        said.lines().map(str::trim).rfind(|line| !line.is_empty()).map(str::to_owned)
    }
}

impl Link {
    /// How it was made, as rules call it.
    pub(crate) fn method(&self) -> &'static str {
        match (self.command.is_some() || self.by_command, self.dialled) {
            (true, _) => "command",
            (_, Some(_)) => "direct",
            _ => "reverse",
        }
    }

    /// The address at the other end, for people.
    pub(crate) fn spoken_address(&self) -> String {
        match self.address {
            Some(at) => at.to_string(),
            None if self.method() == "command" => "by a command".to_owned(),
            None => "?".to_owned(),
        }
    }

    /// Whether that host is at the other end, or is to be.
    pub(crate) fn leads_to(&self, host: usize) -> bool {
        self.up().map(|up| up.peer).or(self.dialled.map(|(host, _)| host)) == Some(host)
    }
}

impl Daemon {
    /// Whether a command leads to a host, and may.
    pub(crate) fn has_command(&self, peer: usize) -> bool {
        let forbids = |rule: &madrigal_selector::route::Rule| rule.forbid.iter().any(|word| word == "command");
        let via = self.grid.hosts.get(peer).is_some_and(|host| host.via.is_some());
        via && peer != self.me && !self.grid.rules_for(peer, None).iter().any(forbids)
    }

    /// Why there is no link by a command.
    pub(crate) fn why_no_command(&self, peer: usize) -> String {
        if !self.has_command(peer) {
            return "a rule forbids it".to_owned();
        }
        match self.peers.get(peer).and_then(|peer| peer.command.clone()) {
            Some(why) => why,
            None if self.runs_command(peer) => "no answer yet".to_owned(),
            None => "not tried: another link is up".to_owned(),
        }
    }

    /// Whether one is on its way.
    pub(crate) fn runs_command(&self, peer: usize) -> bool {
        self.links.values().any(|link| link.command.is_some() && link.leads_to(peer))
    }

    /// Runs the command that leads to a host.
    pub(crate) fn run_command(&mut self, peer: usize) {
        let Some(via) = self.grid.hosts.get(peer).and_then(|host| host.via.clone()) else { return };
        let token = self.token();
        match self.start_command(&via, token) {
            Ok((socket, running)) => {
                self.note(&format!("to {}: {via}", self.name(peer)));
                let number = self.next_number(peer);
                let errors = running.token;
                // What the command leads through is enciphered by it, as by ssh; and it proves who is there.
                self.things.insert(errors, Thing::Errors(token));
                self.add_link(Channel::plain(socket), Some((peer, number, token)), None);
                if let Some(link) = self.links.get_mut(&token) {
                    link.command = Some(running);
                }
            }
            Err(errno) => self.peers[peer].command = Some(errno.to_string()),
        }
    }

    /// Starts a command; both descriptors are registered, its socket under `token`.
    fn start_command(&mut self, via: &str, token: Token) -> Result<(OwnedFd, Running), Errno> {
        let pair = || rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let ((ours, theirs), (errors, said)) = (pair()?, pair()?);
        let output = theirs.try_clone().map_err(|error| of(&error))?;
        let mut command = Command::new("/bin/sh");
        command.args(["-c", via]).stdin(Stdio::from(theirs)).stdout(Stdio::from(output)).stderr(Stdio::from(said));
        let child = command.process_group(0).spawn().map_err(|error| of(&error))?;
        let running = Running { child, errors, token: self.token(), said: Vec::new() };
        let added = self.poll.add(&ours, token).and_then(|()| self.poll.add(&running.errors, running.token));
        match added {
            Ok(()) => Ok((ours, running)),
            Err(errno) => {
                self.end_command(running);
                Err(errno)
            }
        }
    }

    /// A command says something on its standard error.
    pub(crate) fn handle_errors(&mut self, link: Token) {
        let Some(running) = self.links.get_mut(&link).and_then(|link| link.command.as_mut()) else { return };
        let mut buffer = [0; 1024];
        while let Ok(Got::Bytes(count)) = socket::recv(&running.errors, &mut buffer) {
            running.said.extend_from_slice(buffer.get(..count).unwrap_or_default());
            let long = running.said.len().saturating_sub(LONGEST);
            running.said.drain(..long);
        }
    }

    /// A link by a command ended: so does the command; what is known of why.
    pub(crate) fn command_over(&mut self, link: &mut Link, why: &str) -> Option<String> {
        let mut running = link.command.take()?;
        self.things.remove(&running.token);
        let mut buffer = [0; 1024];
        while let Ok(Got::Bytes(count)) = socket::recv(&running.errors, &mut buffer) {
            running.said.extend_from_slice(buffer.get(..count).unwrap_or_default());
        }
        let ended = running.child.try_wait().ok().flatten();
        let said = running.last_line().or_else(|| ended.map(|status| format!("the command ended: {status}")));
        self.end_command(running);
        Some(said.map_or_else(|| why.to_owned(), |said| format!("{why} ({said})")))
    }

    fn end_command(&mut self, running: Running) {
        if let Some(group) = i32::try_from(running.child.id()).ok().and_then(Pid::from_raw) {
            // Not yet waited for: the number is still its.
            let _ = rustix::process::kill_process_group(group, Signal::TERM);
        }
        self.children.push(running.child);
        self.next_look = self.next_look.min(self.now);
    }

    /// Waits for commands that have ended.
    pub(crate) fn reap(&mut self) {
        self.children.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        if !self.children.is_empty() {
            self.measure_soon();
        }
    }
}

fn of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
