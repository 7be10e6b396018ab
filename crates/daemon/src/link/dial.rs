//! Dials other hosts. Each daemon dials every host that it has no link with, at every address in the grid, with growing pauses. One direction
//! that works is enough: the link serves both.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use madrigal_sys::process;

use crate::daemon::Daemon;
use crate::descriptor::Thing;
use crate::link::Link;
use crate::link::channel::Channel;
use crate::link::peer::Dial;
use crate::poll::Token;
use crate::socket;
use crate::units::SECOND;

/// How long an address has to answer.
const PATIENCE: u64 = 4 * SECOND;
/// Calls to ourselves that are remembered.
const MOST_OWN: usize = 256;
/// What an address of another host is that leads to this one.
const OURSELVES: &str = "that is an address of this host, too";

impl Daemon {
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

    pub(crate) fn dial(&mut self, peer: usize) {
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

    pub(crate) fn dial_failed(&mut self, token: Token, why: &str) {
        self.things.remove(&token);
        if let Some(dial) = self.dials.remove(&token) {
            self.peers[dial.peer].told.insert(dial.address, why.to_owned());
            self.judge_direct(dial.peer);
        }
    }

    /// Whether a host would be dialled if there were no link with it.
    pub(crate) fn is_dialled(&self, peer: usize) -> bool {
        let Some(host) = self.grid.hosts.get(peer) else { return false };
        peer != self.me && !host.addresses.is_empty() && (self.credentials.is_ok() || self.is_plain(peer))
    }

    /// Whether links with a host are not enciphered.
    fn is_plain(&self, peer: usize) -> bool {
        self.grid.hosts.get(peer).is_some_and(|host| self.grid.is_trusted_between(self.own(), host))
    }

    /// Whether a link with a host is to be made: there is none, or only one by a command, and there might be a better one; or one that came
    /// from there, and says nothing of the way from here.
    fn is_wanted(&self, peer: usize) -> bool {
        match self.link_to(peer).and_then(|link| self.links.get(&link)) {
            None => self.is_dialled(peer) || self.has_command(peer),
            Some(link) => self.is_dialled(peer) && (link.method() == "command" || self.peers[peer].direct.is_none()),
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
}
