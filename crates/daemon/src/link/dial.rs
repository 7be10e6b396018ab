//! Dials other hosts. Each daemon dials every host that it has no link with, at every address in the grid, with growing pauses. One direction
//! that works is enough: the link serves both.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use madrigal_adapters::contract::Lane;
use madrigal_sys::process;

use crate::daemon::Daemon;
use crate::descriptor::Descriptor;
use crate::link::channel::Channel;
use crate::link::peer::{Dial, Dialled};
use crate::link::{Link, Purpose};
use crate::poll::Token;
use crate::socket;
use crate::units::SECOND;

/// The time that an address has to answer.
const CONNECT_TIMEOUT: u64 = 4 * SECOND;
/// Connections to ourselves that are tracked.
const MOST_SELF_CONNECTIONS: usize = 256;
/// Why an address of another host fails: it leads to this host.
const OURSELVES: &str = "that is an address of this host, too";

impl Daemon {
    /// The deadline of the next attempt.
    pub(crate) fn next_dial(&self) -> u64 {
        let due =
            self.peers.iter().enumerate().filter(|(peer, _)| self.needs_dial(*peer)).map(|(_, peer)| peer.backoff.next);
        due.min().unwrap_or(u64::MAX)
    }

    /// Dials every host whose attempt is due.
    pub(crate) fn dial_all(&mut self) {
        for peer in 0..self.peers.len() {
            if self.peers[peer].backoff.next <= self.now && self.needs_dial(peer) {
                self.dial(peer);
            }
        }
    }

    /// Dials a host: at all its addresses, and by its command where there is no link after the first attempt.
    fn dial(&mut self, peer: usize) {
        let now = self.now;
        let often = self.has_dialled_before(peer) || self.grid.hosts[peer].relay;
        let first = self.peers[peer].backoff.dial(now, often, process::random());
        let addresses = if self.can_dial(peer) { self.grid.hosts[peer].addresses.clone() } else { Vec::new() };
        // Direct connections come first, unless a command was the last way that worked.
        let soon = !first || addresses.is_empty() || self.known_file.known.last(self.name(peer)) == Some("command");
        if soon && self.link_to(peer).is_none() && self.has_command(peer) && !self.runs_command(peer) {
            self.run_command(peer);
        }
        for address in addresses {
            if !self.is_dialling(peer, address) {
                self.dial_at(peer, address, self.peers[peer].short_segments.contains(&address), None);
            }
        }
        self.update_direct(peer);
    }

    /// Begins to connect to an address of a host; `short`: with short segments; `joins`: for one more connection of that link. Returns the
    /// token of the connection, if it could be begun.
    pub(crate) fn dial_at(
        &mut self,
        peer: usize,
        address: SocketAddr,
        short: bool,
        joins: Option<(Token, Lane)>,
    ) -> Option<Token> {
        let token = self.new_token();
        let made = socket::dial_with(address, short).and_then(|socket| self.poll.add(&socket, token).map(|()| socket));
        match made {
            Ok(socket) => {
                self.descriptors.insert(token, Descriptor::Dial);
                self.dials.insert(token, Dial { socket, peer, address, deadline: self.now + CONNECT_TIMEOUT, joins });
                return Some(token);
            }
            Err(errno) => match joins {
                Some(joins) => self.connection_ended(joins, false, &errno.to_string()),
                None => drop(self.peers[peer].failures.insert(address, errno.to_string())),
            },
        }
        None
    }

    /// An address accepted a connection and sent nothing: there may be a PMTU black hole. A connection with short segments is tried beside it.
    pub(crate) fn dial_short_segments(&mut self, peer: usize, address: SocketAddr) {
        if self.link_to(peer).is_none() && !self.peers[peer].short_segments.contains(&address) {
            self.dial_at(peer, address, true, None);
        }
    }

    /// The socket of a dial changed.
    pub(crate) fn poll_dial(&mut self, token: Token) {
        let Some(dial) = self.dials.get(&token) else { return };
        match socket::is_connected(&dial.socket) {
            Ok(false) => {}
            // This daemon itself accepted it, by an address that several hosts have, such as that of a bridge.
            Ok(true) if dial.address.port() == self.own().port && socket::is_within_host(&dial.socket) => {
                let own = socket::local_addr(&dial.socket);
                self.remember_self_connection(own);
                self.dial_failed(token, OURSELVES);
            }
            Ok(true) => {
                let Some(Dial { socket, peer, address, joins, .. }) = self.dials.remove(&token) else { return };
                let number = self.next_number(peer);
                match self.channel_of(peer, socket, joins) {
                    Ok(channel) => {
                        let dialled = Dialled { peer, number, token, joins };
                        self.add_link(channel, Some(dialled), Some(address));
                    }
                    Err(why) => {
                        self.descriptors.remove(&token);
                        match joins {
                            Some(joins) => self.connection_ended(joins, false, &why),
                            None => drop(self.peers[peer].failures.insert(address, why)),
                        }
                    }
                }
            }
            Err(errno) => self.dial_failed(token, &errno.to_string()),
        }
    }

    /// An address did not connect.
    pub(crate) fn dial_failed(&mut self, token: Token, why: &str) {
        self.descriptors.remove(&token);
        if let Some(dial) = self.dials.remove(&token) {
            if self.trial_by(token).is_some() {
                return self.trial_lost(token, why);
            }
            if let Some(joins) = dial.joins {
                return self.connection_ended(joins, false, why);
            }
            if self.is_urgent_dial(token) {
                return;
            }
            self.peers[dial.peer].failures.insert(dial.address, why.to_owned());
            self.update_direct(dial.peer);
        }
    }

    /// Whether a host would be dialled if there were no link with it.
    pub(crate) fn can_dial(&self, peer: usize) -> bool {
        let Some(host) = self.grid.hosts.get(peer) else { return false };
        peer != self.own_index && !host.addresses.is_empty() && (self.credentials.is_ok() || self.is_plain(peer))
    }

    /// Whether links with a host are plain.
    fn is_plain(&self, peer: usize) -> bool {
        self.grid.hosts.get(peer).is_some_and(|host| self.grid.is_trusted_between(self.own(), host))
    }

    /// Whether to dial a host: there is no link with it, or only one by a command or for urgent streams, or one that it dialled while it is
    /// unknown whether connections from here work.
    fn needs_dial(&self, peer: usize) -> bool {
        match self.link_to(peer).and_then(|link| self.links.get(&link)) {
            None => self.can_dial(peer) || self.has_command(peer),
            Some(link) => {
                let is_makeshift =
                    link.method() == "command" || link.up().is_some_and(|up| up.purpose != Purpose::Streams);
                self.can_dial(peer) && (is_makeshift || self.peers[peer].direct.is_none())
            }
        }
    }

    /// Whether a connection to an address of a host is being made, or has not authenticated yet.
    fn is_dialling(&self, peer: usize, address: SocketAddr) -> bool {
        let greeting = |link: &Link| {
            let ours = link.dialled.is_some() && link.joins.is_none();
            link.up().is_none() && link.leads_to(peer) && ours && link.address == Some(address)
        };
        self.dials.values().any(|dial| dial.peer == peer && dial.address == address && dial.joins.is_none())
            || self.links.values().any(greeting)
    }

    /// A host is needed: it is dialled now, unless it was just dialled.
    pub(crate) fn dial_soon(&mut self, peer: usize) {
        let now = self.now;
        if let Some(known) = self.peers.get_mut(peer) {
            known.backoff.dial_soon(now);
        }
    }

    /// A connection from this address to our own port ends soon. The log does not mention it.
    fn remember_self_connection(&mut self, from: Option<SocketAddr>) {
        if self.self_connections.len() >= MOST_SELF_CONNECTIONS {
            self.self_connections.clear();
        }
        self.self_connections.extend(from.map(|at| (at.ip().to_canonical(), at.port())));
    }

    /// Long packets to an address, or from it, seem to be lost. The next connection has short segments; or long ones again, if short ones failed
    /// too.
    pub(crate) fn toggle_short_segments(&mut self, peer: usize, address: SocketAddr) {
        let short = &mut self.peers[peer].short_segments;
        if !short.remove(&address) {
            short.insert(address);
            self.dial_soon(peer);
        }
    }

    /// Counts a connection to a host.
    pub(crate) fn next_number(&mut self, peer: usize) -> u64 {
        let number = &mut self.peers[peer].dial_count;
        *number += 1;
        *number
    }

    /// The channel of a connection that was dialled. Where it joins a link that is enciphered above all of its connections, that is all.
    fn channel_of(&self, peer: usize, socket: OwnedFd, joins: Option<(Token, Lane)>) -> Result<Channel, String> {
        match joins.and_then(|(of, _)| self.links.get(&of)) {
            Some(of) if of.is_enciphered() && !of.channel.is_encrypted() => Ok(Channel::plain(socket)),
            _ => self.channel_to(peer, socket),
        }
    }

    /// The channel of a new connection to a host, plain or encrypted as the grid demands.
    pub(crate) fn channel_to(&self, peer: usize, socket: OwnedFd) -> Result<Channel, String> {
        match &self.credentials {
            Ok(credentials) if !self.is_plain(peer) => {
                Channel::tls(socket, credentials).map_err(|broken| broken.to_string())
            }
            _ => Ok(Channel::plain(socket)),
        }
    }
}
