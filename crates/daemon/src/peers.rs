//! The other hosts of the grid. Every daemon dials all it has no link with, at every address it knows, again and again with longer and
//! longer pauses; so does every other, so of two it is enough that one can open a connection to the other (that is what others call a
//! reverse connection), and which way round does not matter afterwards.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use madrigal_sys::process;

use crate::channel::Channel;
use crate::daemon::{Daemon, MILLISECOND, SECOND, Thing};
use crate::poll::Token;
use crate::socket;

/// How long an address has to answer.
const PATIENCE: u64 = 4 * SECOND;
/// The first pause between two attempts, and the longest.
const PAUSES: (u64, u64) = (250 * MILLISECOND, 30 * SECOND);
/// Somebody waits: this long after the last attempt the next may begin.
const URGENT: u64 = 500 * MILLISECOND;

/// Another host.
pub(crate) struct Peer {
    /// When it may be dialled.
    next: u64,
    pause: u64,
    dialled: u64,
    /// How many connections were begun.
    number: u64,
    /// What became of the last attempt at each address.
    pub(crate) told: BTreeMap<SocketAddr, String>,
    /// Why the last link ended.
    pub(crate) lost: Option<String>,
}

/// A connection that is being made.
pub(crate) struct Dial {
    socket: OwnedFd,
    peer: usize,
    address: SocketAddr,
    pub(crate) deadline: u64,
}

impl Peer {
    pub(crate) fn new(now: u64) -> Self {
        Self { next: now, pause: PAUSES.0, dialled: 0, number: 0, told: BTreeMap::new(), lost: None }
    }
}

impl Daemon {
    /// Whether a host would be dialled if there were no link with it.
    fn is_dialled(&self, peer: usize) -> bool {
        let Some(host) = self.grid.hosts.get(peer) else { return false };
        peer != self.me && !host.addresses.is_empty() && self.grid.is_trusted_between(self.own(), host)
    }

    /// When the next attempt is due.
    pub(crate) fn next_dial(&self) -> u64 {
        let idle = |peer: usize| self.is_dialled(peer) && self.link_to(peer).is_none();
        let due = self.peers.iter().enumerate().filter(|(peer, _)| idle(*peer)).map(|(_, peer)| peer.next);
        due.min().unwrap_or(u64::MAX)
    }

    /// Dials whoever is due.
    pub(crate) fn dial_all(&mut self) {
        for peer in 0..self.peers.len() {
            if self.peers[peer].next <= self.now && self.is_dialled(peer) && self.link_to(peer).is_none() {
                self.dial(peer);
            }
        }
    }

    fn dial(&mut self, peer: usize) {
        let now = self.now;
        let known = &mut self.peers[peer];
        // Not all at the same moment: half of the pause by chance.
        known.next = now + known.pause / 2 + process::random() % (known.pause / 2);
        known.pause = (known.pause * 2).min(PAUSES.1);
        known.dialled = now;
        for address in self.grid.hosts[peer].addresses.clone() {
            if self.dials.values().any(|dial| dial.peer == peer && dial.address == address) {
                continue;
            }
            let token = self.token();
            let made = socket::dial(address).and_then(|socket| self.poll.add(&socket, token).map(|()| socket));
            match made {
                Ok(socket) => {
                    self.things.insert(token, Thing::Dial);
                    self.dials.insert(token, Dial { socket, peer, address, deadline: now + PATIENCE });
                }
                Err(errno) => drop(self.peers[peer].told.insert(address, errno.to_string())),
            }
        }
    }

    /// Somebody wants to reach a host: it is dialled now, unless it just was.
    pub(crate) fn hurry(&mut self, peer: usize) {
        let now = self.now;
        if let Some(known) = self.peers.get_mut(peer) {
            known.next = known.next.min(now.max(known.dialled + URGENT));
        }
    }

    /// Something happened to a connection that is being made.
    pub(crate) fn look_at_dial(&mut self, token: Token) {
        let Some(dial) = self.dials.get(&token) else { return };
        match socket::is_connected(&dial.socket) {
            Ok(false) => {}
            Ok(true) => {
                let Some(Dial { socket, peer, address, .. }) = self.dials.remove(&token) else { return };
                let number = &mut self.peers[peer].number;
                *number += 1;
                let number = *number;
                self.add_link(Channel::plain(socket), Some((peer, number, token)), Some(address));
            }
            Err(errno) => self.dial_failed(token, &errno.to_string()),
        }
    }

    pub(crate) fn dial_failed(&mut self, token: Token, why: &str) {
        self.things.remove(&token);
        if let Some(dial) = self.dials.remove(&token) {
            self.peers[dial.peer].told.insert(dial.address, why.to_owned());
        }
    }

    /// There is a link with a host: calls may have waited for it.
    pub(crate) fn peer_is_up(&mut self, peer: usize) {
        let known = &mut self.peers[peer];
        known.pause = PAUSES.0;
        known.told.clear();
        known.lost = None;
        self.wake_calls();
    }

    /// A connection with a host ended, which had been a link or not; `address` where we dialled it.
    pub(crate) fn peer_lost(&mut self, peer: usize, address: Option<SocketAddr>, why: &str, was_up: bool) {
        let now = self.now;
        let known = &mut self.peers[peer];
        if let Some(address) = address {
            known.told.insert(address, why.to_owned());
        }
        if was_up {
            known.lost = Some(why.to_owned());
            known.pause = PAUSES.0;
            known.next = now + process::random() % PAUSES.0;
        }
    }

    /// Why there is no link with a host: every attempt.
    pub(crate) fn why_no_link(&self, peer: usize) -> String {
        let Some(known) = self.peers.get(peer) else { return "unknown".to_owned() };
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
        } else if !self.is_dialled(peer) {
            tries = vec!["links with it would have to be enciphered".to_owned()];
        }
        tries.push("it has not called either".to_owned());
        if let Some(lost) = &known.lost {
            tries.push(format!("the last link ended: {lost}"));
        }
        tries.join(", ")
    }
}
