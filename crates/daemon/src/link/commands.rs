//! Links over commands. A command runs as long as its link.

use std::os::fd::OwnedFd;

use madrigal_selector::route::Rule;
use rustix::io::Errno;

use crate::daemon::Daemon;
use crate::descriptor::Descriptor;
use crate::link::Link;
use crate::link::channel::Channel;
use crate::link::command::LinkCommand;
use crate::link::peer::Dialled;
use crate::poll::Token;

impl Daemon {
    /// Whether a command leads to a host, and no rule forbids it.
    pub(crate) fn has_command(&self, peer: usize) -> bool {
        let forbids = |rule: &Rule| rule.forbid.iter().any(|word| word == "command");
        let via = self.grid.hosts.get(peer).is_some_and(|host| host.via.is_some());
        via && peer != self.own_index && !self.grid.rules_for(peer, None).iter().any(forbids)
    }

    /// Why there is no link over a command.
    pub(crate) fn why_no_command(&self, peer: usize) -> String {
        if !self.has_command(peer) {
            return "a rule forbids it".to_owned();
        }
        match self.peers.get(peer).and_then(|peer| peer.command_failure.clone()) {
            Some(why) => why,
            None if self.runs_command(peer) => "no answer yet".to_owned(),
            None => "not tried: another link is up".to_owned(),
        }
    }

    /// Whether a command that leads to a host runs.
    pub(crate) fn runs_command(&self, peer: usize) -> bool {
        self.links.values().any(|link| link.command.is_some() && link.leads_to(peer))
    }

    /// Runs the command that leads to a host.
    pub(crate) fn run_command(&mut self, peer: usize) {
        let Some(via) = self.grid.hosts.get(peer).and_then(|host| host.via.clone()) else { return };
        let token = self.new_token();
        match self.start_command(&via, token) {
            Ok((socket, command)) => {
                self.log_line(&format!("to {}: {via}", self.name(peer)));
                let number = self.next_number(peer);
                self.descriptors.insert(command.token, Descriptor::CommandErrors(token));
                // The command, such as ssh, encrypts and authenticates.
                self.add_link(Channel::plain(socket), Some(Dialled { peer, number, token, joins: None }), None);
                if let Some(link) = self.links.get_mut(&token) {
                    link.command = Some(command);
                }
            }
            Err(errno) => self.peers[peer].command_failure = Some(errno.to_string()),
        }
    }

    /// Starts a command, and registers both descriptors: its socket under `token`.
    fn start_command(&mut self, via: &str, token: Token) -> Result<(OwnedFd, LinkCommand), Errno> {
        let (socket, command) = LinkCommand::start(via, self.new_token())?;
        let added = self.poll.add(&socket, token).and_then(|()| self.poll.add(&command.stderr, command.token));
        match added {
            Ok(()) => Ok((socket, command)),
            Err(errno) => {
                self.end_command(command);
                Err(errno)
            }
        }
    }

    /// The standard error of a link's command is readable.
    pub(crate) fn read_command_errors(&mut self, link: Token) {
        if let Some(command) = self.links.get_mut(&link).and_then(|link| link.command.as_mut()) {
            command.read_stderr();
        }
    }

    /// Ends the command of a link that ended. Returns `why` with the command's error, if there was a command.
    pub(crate) fn end_link_command(&mut self, link: &mut Link, why: &str) -> Option<String> {
        let mut command = link.command.take()?;
        self.descriptors.remove(&command.token);
        let failure = command.failure();
        self.end_command(command);
        Some(failure.map_or_else(|| why.to_owned(), |failure| format!("{why} ({failure})")))
    }

    fn end_command(&mut self, command: LinkCommand) {
        self.children.push(command.terminate());
        self.next_measurement = self.next_measurement.min(self.now);
    }

    /// Waits for commands that have exited.
    pub(crate) fn reap_commands(&mut self) {
        self.children.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        if !self.children.is_empty() {
            self.measure_soon();
        }
    }
}
