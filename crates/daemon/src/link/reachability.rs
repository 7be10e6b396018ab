//! What is known of the connections to other hosts: which attempts failed and why, and whether the direct way is open.

use std::net::SocketAddr;

use madrigal_sys::process;
use rustix::io::Errno;

use crate::daemon::Daemon;

impl Daemon {
    /// There is a link with a host, which we dialled or it did: calls may have waited for it.
    pub(crate) fn peer_is_up(&mut self, peer: usize, dialled: bool) {
        let known = &mut self.peers[peer];
        known.pace.up();
        (known.lost, known.command) = (None, None);
        if dialled {
            known.told.clear();
            known.direct = Some(true);
        } else if known.direct == Some(false) {
            // Its daemon may not have been up when we dialled: once more.
            known.direct = None;
            known.told.clear();
        }
        self.write_hosts();
        self.wake_calls();
    }

    /// A connection with a host ended, which had been a link or not; `address` where we dialled it.
    pub(crate) fn peer_lost(&mut self, peer: usize, address: Option<SocketAddr>, why: &str, was_up: bool) {
        let now = self.now;
        let known = &mut self.peers[peer];
        if let Some(address) = address.filter(|_| was_up || known.direct != Some(true)) {
            known.told.insert(address, why.to_owned());
        }
        if was_up {
            known.lost = Some(why.to_owned());
            known.pace.lost(now, process::random());
        } else {
            self.judge_direct(peer);
        }
    }

    /// Whether the way from here is known to be shut by now: nothing works at any address. Where a host refuses, its daemon may not be up;
    /// where that is known to be, somebody in between refuses.
    pub(crate) fn judge_direct(&mut self, peer: usize) {
        let (known, addresses) = (&self.peers[peer], &self.grid.hosts[peer].addresses);
        let (all, linked) = (addresses.iter().all(|at| known.told.contains_key(at)), self.link_to(peer).is_some());
        if !all || addresses.is_empty() || (linked && known.direct == Some(true)) {
            return;
        }
        let before = self.how(peer);
        self.peers[peer].direct = if !linked && self.is_refused(peer) { None } else { Some(false) };
        if self.how(peer) != before {
            self.write_hosts();
        }
    }

    /// Whether a host was tried at every address, or there is a link with it: what is there now is what can be had.
    pub(crate) fn is_settled(&self, peer: usize) -> bool {
        let host = self.grid.hosts.get(peer);
        let known = self.peers.get(peer);
        let is_told = |at| known.is_some_and(|known| known.told.contains_key(at));
        !self.is_dialled(peer)
            || self.link_to(peer).is_some()
            || host.is_some_and(|host| host.addresses.iter().all(is_told))
    }

    /// Whether somebody at an address of a host says that there is no daemon.
    pub(crate) fn is_refused(&self, peer: usize) -> bool {
        let refused = Errno::CONNREFUSED.to_string();
        self.peers.get(peer).is_some_and(|known| known.told.values().any(|why| *why == refused))
    }

    /// Why the way from here is thought to be shut.
    pub(crate) fn why_no_direct(&self, peer: usize) -> String {
        let Some(known) = self.peers.get(peer) else { return String::new() };
        let told: Vec<String> = known.told.iter().map(|(at, why)| format!("{at}: {why}")).collect();
        match self.grid.hosts.get(peer) {
            Some(host) if host.addresses.is_empty() => "the grid has no address of it".to_owned(),
            _ if known.direct.is_none() => "it is not known yet whether it is open".to_owned(),
            _ => told.join(", "),
        }
    }

    /// Why there is no link with a host: every attempt.
    pub(crate) fn why_no_link(&self, peer: usize) -> String {
        let mut tries = vec![self.why_no_connection(peer)];
        if self.grid.hosts.get(peer).is_some_and(|host| host.via.is_some()) {
            tries.push(format!("by a command: {}", self.why_no_command(peer)));
        }
        tries.push("it has not called either".to_owned());
        if let Some(lost) = self.peers.get(peer).and_then(|peer| peer.lost.as_ref()) {
            tries.push(format!("the last link ended: {lost}"));
        }
        tries.join(", ")
    }

    /// Why there is no connection of ours to a host.
    pub(crate) fn why_no_connection(&self, peer: usize) -> String {
        let Some(known) = self.peers.get(peer) else { return "unknown".to_owned() };
        if self.link_to(peer).is_some() && known.told.is_empty() {
            return "not needed: another link with it is up".to_owned();
        }
        let host = &self.grid.hosts[peer];
        let dialling = |at: &SocketAddr| self.dials.values().any(|dial| dial.peer == peer && dial.address == *at);
        let attempt = |at: &SocketAddr| match known.told.get(at) {
            Some(why) => format!("{at}: {why}"),
            None if dialling(at) => format!("{at}: no answer yet"),
            None => format!("{at}: not tried yet"),
        };
        let mut tries: Vec<String> = host.addresses.iter().map(attempt).collect();
        if host.addresses.is_empty() {
            tries.push("the grid has no address of it".to_owned());
        } else if let Err(lack) = self.credentials.as_ref()
            && !self.is_dialled(peer)
        {
            tries = vec![format!("links with it must be enciphered, and this host cannot show who it is: {lack}")];
        }
        tries.join(", ")
    }
}
