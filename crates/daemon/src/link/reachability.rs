//! What is known of the connections to other hosts: which attempts failed and why, and whether the direct way is open.

use std::net::SocketAddr;

use madrigal_sys::process;
use rustix::io::Errno;

use crate::daemon::Daemon;

impl Daemon {
    /// A link with a host came up; `dialled`: by a connection of ours.
    pub(crate) fn peer_is_up(&mut self, peer: usize, dialled: bool) {
        let known = &mut self.peers[peer];
        known.backoff.up();
        (known.last_loss, known.command_failure) = (None, None);
        if dialled {
            known.failures.clear();
            known.direct = Some(true);
        } else if known.direct == Some(false) {
            // Its daemon may not have run when we dialled: the direct way is tried again.
            known.direct = None;
            known.failures.clear();
        }
        self.write_hosts();
        self.wake_calls();
    }

    /// A connection with a host ended; `address` is that which we dialled, `was_up` whether it was a link.
    pub(crate) fn peer_lost(&mut self, peer: usize, address: Option<SocketAddr>, why: &str, was_up: bool) {
        let now = self.now;
        let known = &mut self.peers[peer];
        if let Some(address) = address.filter(|_| was_up || known.direct != Some(true)) {
            known.failures.insert(address, why.to_owned());
        }
        if was_up {
            known.last_loss = Some(why.to_owned());
            known.backoff.lost(now, process::random());
        } else {
            self.update_direct(peer);
        }
    }

    /// Updates whether the direct way works: it does not when every address has failed. A refused connection may only mean that no daemon runs
    /// there; if a link shows that one does, a firewall refuses.
    pub(crate) fn update_direct(&mut self, peer: usize) {
        let (known, addresses) = (&self.peers[peer], &self.grid.hosts[peer].addresses);
        let (all, linked) = (addresses.iter().all(|at| known.failures.contains_key(at)), self.link_to(peer).is_some());
        if !all || addresses.is_empty() || (linked && known.direct == Some(true)) {
            return;
        }
        let before = self.method_to(peer);
        self.peers[peer].direct = if !linked && self.is_refused(peer) { None } else { Some(false) };
        if self.method_to(peer) != before {
            self.write_hosts();
        }
    }

    /// Whether the first attempts are over: there is a link with a host, or every address has failed.
    pub(crate) fn is_settled(&self, peer: usize) -> bool {
        let host = self.grid.hosts.get(peer);
        let known = self.peers.get(peer);
        let is_failed = |at| known.is_some_and(|known| known.failures.contains_key(at));
        !self.can_dial(peer)
            || self.link_to(peer).is_some()
            || host.is_some_and(|host| host.addresses.iter().all(is_failed))
    }

    /// Whether an address of a host refused a connection.
    pub(crate) fn is_refused(&self, peer: usize) -> bool {
        let refused = Errno::CONNREFUSED.to_string();
        self.peers.get(peer).is_some_and(|known| known.failures.values().any(|why| *why == refused))
    }

    /// Why the direct way does not work.
    pub(crate) fn why_no_direct(&self, peer: usize) -> String {
        let Some(known) = self.peers.get(peer) else { return String::new() };
        let failures: Vec<String> = known.failures.iter().map(|(at, why)| format!("{at}: {why}")).collect();
        match self.grid.hosts.get(peer) {
            Some(host) if host.addresses.is_empty() => "the grid has no address of it".to_owned(),
            _ if known.direct.is_none() => "it is not known yet whether it is open".to_owned(),
            _ => failures.join(", "),
        }
    }

    /// Why there is no link with a host: every attempt.
    pub(crate) fn why_no_link(&self, peer: usize) -> String {
        let mut tries = vec![self.why_no_connection(peer)];
        if self.grid.hosts.get(peer).is_some_and(|host| host.via.is_some()) {
            tries.push(format!("by a command: {}", self.why_no_command(peer)));
        }
        tries.push("it has not called either".to_owned());
        if let Some(lost) = self.peers.get(peer).and_then(|peer| peer.last_loss.as_ref()) {
            tries.push(format!("the last link ended: {lost}"));
        }
        tries.join(", ")
    }

    /// Why there is no connection of ours to a host.
    pub(crate) fn why_no_connection(&self, peer: usize) -> String {
        let Some(known) = self.peers.get(peer) else { return "unknown".to_owned() };
        if self.link_to(peer).is_some() && known.failures.is_empty() {
            return "not needed: another link with it is up".to_owned();
        }
        let host = &self.grid.hosts[peer];
        let dialling = |at: &SocketAddr| self.dials.values().any(|dial| dial.peer == peer && dial.address == *at);
        let attempt = |at: &SocketAddr| match known.failures.get(at) {
            Some(why) => format!("{at}: {why}"),
            None if dialling(at) => format!("{at}: no answer yet"),
            None => format!("{at}: not tried yet"),
        };
        let mut tries: Vec<String> = host.addresses.iter().map(attempt).collect();
        if host.addresses.is_empty() {
            tries.push("the grid has no address of it".to_owned());
        } else if let Err(lack) = self.credentials.as_ref()
            && !self.can_dial(peer)
        {
            tries = vec![format!("links with it must be enciphered, and this host cannot show who it is: {lack}")];
        }
        tries.join(", ")
    }
}
