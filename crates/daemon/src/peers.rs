//! The other hosts of the grid. Every daemon dials all it has no link with, at every address it knows, again and again with longer and
//! longer pauses; so does every other, so of two it is enough that one can open a connection to the other (that is what others call a
//! reverse connection), and which way round does not matter afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use madrigal_sys::process;
use rustix::io::Errno;

use crate::channel::Channel;
use crate::daemon::{Daemon, SECOND, Thing};
use crate::links::Link;
use crate::pace::Pace;
use crate::poll::Token;
use crate::socket;

/// How long an address has to answer.
const PATIENCE: u64 = 4 * SECOND;
/// Calls to ourselves that are remembered.
const MOST_OWN: usize = 256;

/// What an address of another host is that leads to this one.
const OURSELVES: &str = "that is an address of this host, too";

/// Another host.
pub(crate) struct Peer {
    /// When it may be dialled.
    pace: Pace,
    /// How many connections were begun.
    number: u64,
    /// What became of the last attempt at each address.
    pub(crate) told: BTreeMap<SocketAddr, String>,
    /// Why the last link ended.
    pub(crate) lost: Option<String>,
    /// What became of the last command that was to lead there.
    pub(crate) command: Option<String>,
    /// Addresses to which long packets seem to vanish.
    short: BTreeSet<SocketAddr>,
    /// Whether connections from here to there are known to work, or not to.
    pub(crate) direct: Option<bool>,
}

/// A connection that is being made.
pub(crate) struct Dial {
    socket: OwnedFd,
    pub(crate) peer: usize,
    pub(crate) address: SocketAddr,
    pub(crate) deadline: u64,
}

impl Peer {
    pub(crate) fn new(now: u64) -> Self {
        Self {
            pace: Pace::new(now),
            number: 0,
            told: BTreeMap::new(),
            lost: None,
            command: None,
            short: BTreeSet::new(),
            direct: None,
        }
    }
}

impl Daemon {
    /// Whether a host would be dialled if there were no link with it.
    fn is_dialled(&self, peer: usize) -> bool {
        let Some(host) = self.grid.hosts.get(peer) else { return false };
        peer != self.me && !host.addresses.is_empty() && (self.credentials.is_ok() || self.is_plain(peer))
    }

    /// Whether links with a host are not enciphered.
    fn is_plain(&self, peer: usize) -> bool {
        self.grid.hosts.get(peer).is_some_and(|host| self.grid.is_trusted_between(self.own(), host))
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

    /// Whether a link with a host is to be made: there is none, or only one by a command, and there might be a better one; or one that came
    /// from there, and says nothing of the way from here.
    fn is_wanted(&self, peer: usize) -> bool {
        match self.link_to(peer).and_then(|link| self.links.get(&link)) {
            None => self.is_dialled(peer) || self.has_command(peer),
            Some(link) => self.is_dialled(peer) && (link.method() == "command" || self.peers[peer].direct.is_none()),
        }
    }

    /// When the next attempt is due.
    pub(crate) fn next_dial(&self) -> u64 {
        let due =
            self.peers.iter().enumerate().filter(|(peer, _)| self.is_wanted(*peer)).map(|(_, peer)| peer.pace.next);
        due.min().unwrap_or(u64::MAX)
    }

    /// Dials whoever is due.
    pub(crate) fn dial_all(&mut self) {
        for peer in 0..self.peers.len() {
            if self.peers[peer].pace.next <= self.now && self.is_wanted(peer) {
                self.dial(peer);
            }
        }
    }

    fn dial(&mut self, peer: usize) {
        let now = self.now;
        let often = self.could_dial(peer) || self.grid.hosts[peer].relay;
        let first = self.peers[peer].pace.dial(now, often, process::random());
        let addresses = if self.is_dialled(peer) { self.grid.hosts[peer].addresses.clone() } else { Vec::new() };
        // A connection has a moment to be there before a command, unless a command it was before.
        let soon = !first || addresses.is_empty() || self.memory.known.last(self.name(peer)) == Some("command");
        if soon && self.link_to(peer).is_none() && self.has_command(peer) && !self.runs_command(peer) {
            self.run_command(peer);
        }
        for address in addresses {
            if !self.is_trying(peer, address) {
                self.dial_at(peer, address, self.peers[peer].short.contains(&address));
            }
        }
        self.judge_direct(peer);
    }

    /// Begins to connect to an address of a host, with short packets or with any.
    fn dial_at(&mut self, peer: usize, address: SocketAddr, short: bool) {
        let token = self.token();
        let made = socket::dial_with(address, short).and_then(|socket| self.poll.add(&socket, token).map(|()| socket));
        match made {
            Ok(socket) => {
                self.things.insert(token, Thing::Dial);
                self.dials.insert(token, Dial { socket, peer, address, deadline: self.now + PATIENCE });
            }
            Err(errno) => drop(self.peers[peer].told.insert(address, errno.to_string())),
        }
    }

    /// An address answered, and then nothing came: perhaps long packets vanish. A connection with short ones is tried beside it.
    pub(crate) fn dial_shortly(&mut self, peer: usize, address: SocketAddr) {
        if self.link_to(peer).is_none() && !self.peers[peer].short.contains(&address) {
            self.dial_at(peer, address, true);
        }
    }

    /// Whether a connection to an address of a host is on its way, or its handshake is.
    fn is_trying(&self, peer: usize, address: SocketAddr) -> bool {
        let greets = |link: &Link| {
            link.up().is_none() && link.leads_to(peer) && link.dialled.is_some() && link.address == Some(address)
        };
        self.dials.values().any(|dial| dial.peer == peer && dial.address == address) || self.links.values().any(greets)
    }

    /// Somebody wants to reach a host: it is dialled now, unless it just was.
    pub(crate) fn hurry(&mut self, peer: usize) {
        let now = self.now;
        if let Some(known) = self.peers.get_mut(peer) {
            known.pace.hurry(now);
        }
    }

    /// Something happened to a connection that is being made.
    pub(crate) fn poll_dial(&mut self, token: Token) {
        let Some(dial) = self.dials.get(&token) else { return };
        match socket::is_connected(&dial.socket) {
            Ok(false) => {}
            // A bridge, say, that has the same address on every host: who answers is this daemon.
            Ok(true) if dial.address.port() == self.own().port && socket::is_within_host(&dial.socket) => {
                let own = socket::own(&dial.socket);
                self.called_ourselves(own);
                self.dial_failed(token, OURSELVES);
            }
            Ok(true) => {
                let Some(Dial { socket, peer, address, .. }) = self.dials.remove(&token) else { return };
                let number = self.next_number(peer);
                match self.channel_to(peer, socket) {
                    Ok(channel) => drop(self.add_link(channel, Some((peer, number, token)), Some(address))),
                    Err(why) => {
                        self.things.remove(&token);
                        self.peers[peer].told.insert(address, why);
                    }
                }
            }
            Err(errno) => self.dial_failed(token, &errno.to_string()),
        }
    }

    /// A connection from this address ends soon, at the port of this daemon: nobody has to hear of it.
    fn called_ourselves(&mut self, from: Option<SocketAddr>) {
        if self.own_calls.len() >= MOST_OWN {
            self.own_calls.clear();
        }
        self.own_calls.extend(from.map(|at| (at.ip().to_canonical(), at.port())));
    }

    /// What was sent to an address, or was to come from there, vanished: the next connection has short packets; or long ones again, if
    /// that was no help.
    pub(crate) fn shorten(&mut self, peer: usize, address: SocketAddr) {
        let short = &mut self.peers[peer].short;
        if !short.remove(&address) {
            short.insert(address);
            self.hurry(peer);
        }
    }

    /// The number of the next connection to a host.
    pub(crate) fn next_number(&mut self, peer: usize) -> u64 {
        let number = &mut self.peers[peer].number;
        *number += 1;
        *number
    }

    /// A new connection to a host, plain or enciphered as it must be.
    pub(crate) fn channel_to(&self, peer: usize, socket: OwnedFd) -> Result<Channel, String> {
        match &self.credentials {
            Ok(credentials) if !self.is_plain(peer) => {
                Channel::tls(socket, credentials).map_err(|broken| broken.to_string())
            }
            _ => Ok(Channel::plain(socket)),
        }
    }

    pub(crate) fn dial_failed(&mut self, token: Token, why: &str) {
        self.things.remove(&token);
        if let Some(dial) = self.dials.remove(&token) {
            self.peers[dial.peer].told.insert(dial.address, why.to_owned());
            self.judge_direct(dial.peer);
        }
    }

    /// Whether the way from here is known to be shut by now: nothing works at any address. Where a host refuses, its daemon may not be up;
    /// where that is known to be, somebody in between refuses.
    fn judge_direct(&mut self, peer: usize) {
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
