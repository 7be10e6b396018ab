//! What comes to a port: datagrams, the kernel's reports, and what happens to connections.

use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};

use madrigal_identity::{Refusal, peer};
use madrigal_quic::{Admission, Ended, Event, Key, QuicEndpoint};
use madrigal_sys::Errno;
use rustls::pki_types::CertificateDer;

use super::{CLOSED, Id, MOST_UNKNOWN, Traffic};
use crate::link::{Link, State, Why};

/// Room for what one call of the kernel's gives.
const BUFFER: usize = 64 << 10;
/// The most links that nobody has accepted: then no connection begins.
const MOST_READY: usize = 128;
/// What a peer is told that belongs to another user.
const OTHER_USER: &str = "it belongs to another user, and lets in its own";

thread_local! {
    /// Where datagrams are read: of one thread's ports, one after the other.
    static CAME: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

impl Traffic {
    /// Reads datagrams, as many calls as the budget has. How many gave some, and whether nothing is left.
    pub(crate) fn receive(&mut self, now: u64, budget: u32) -> (u32, bool) {
        let mut came = CAME.try_with(Cell::take).unwrap_or_default();
        came.resize(BUFFER, 0);
        let (mut count, mut is_drained) = (0, false);
        while count < budget && !is_drained {
            count += 1;
            match self.socket.0.receive(&mut came) {
                Ok(got) => {
                    let bytes = came.get(..got.len).unwrap_or_default();
                    for datagram in bytes.chunks(got.segment) {
                        self.take(now, (got.from, got.to), datagram);
                    }
                }
                Err(Errno::AGAIN) => (count, is_drained) = (count - 1, true),
                Err(errno) => self.report(now, errno),
            }
        }
        // A thread that is ending keeps nothing.
        let _ = CAME.try_with(|kept| kept.set(came));
        (count, is_drained)
    }

    fn take(&mut self, now: u64, from: (SocketAddr, Option<IpAddr>), datagram: &[u8]) {
        let Self { endpoint: Some(endpoint), accepting, .. } = self else { return };
        endpoint.receive(now, from, datagram, |_| match accepting {
            None => Admission::Refuse,
            Some(accepting) if accepting.ready.len() >= MOST_READY => Admission::Drop,
            Some(_) => Admission::Take,
        });
        // At once: the reason why a certificate is refused is known until the next one is looked at.
        self.take_events(now);
    }

    /// The kernel reports of an earlier send that nobody is there.
    pub(super) fn report(&mut self, now: u64, errno: Errno) {
        if self.accepting.is_none() && errno == Errno::CONNREFUSED {
            let shaking = self.links.iter().filter(|(_, link)| link.state == State::Shaking).map(|(id, _)| *id);
            for id in shaking.collect::<Vec<_>>() {
                self.close(now, id, (Why::Refused, ""));
            }
            let peers: Vec<Id> = self.links.keys().copied().collect();
            for at in peers.into_iter().filter_map(|id| self.peer(id)).collect::<Vec<_>>() {
                self.doubt(now, at);
            }
        }
        while let Some(at) = self.socket.0.unreachable() {
            self.doubt(now, at);
        }
    }

    fn doubt(&mut self, now: u64, at: SocketAddr) {
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.doubt(now, at);
        }
    }

    pub(super) fn take_events(&mut self, now: u64) -> u32 {
        let mut count = 0;
        while let Some(event) = self.endpoint.as_mut().and_then(QuicEndpoint::event) {
            count += 1;
            match event {
                Event::Connected { key, dialled, chain } => self.connected(now, (key, dialled), &chain),
                Event::Closed { key, why } => {
                    if let Some(id) = self.by_key.remove(&key) {
                        self.lose(id, ended(&why));
                    }
                }
                Event::Seen { .. } => {}
            }
        }
        count
    }

    fn connected(&mut self, now: u64, (key, dialled): (Key, bool), chain: &[CertificateDer<'static>]) {
        let admitted = peer(chain).and_then(|peer| self.credentials.admits(&peer));
        let id = match self.by_key.get(&key) {
            Some(id) => *id,
            None => match self.new_bell() {
                Ok(bell) if !dialled && self.accepting.is_some() => {
                    self.end_oldest(now);
                    self.insert(key, Link::accepted(now, self.what.clone(), key, bell))
                }
                _ => {
                    let endpoint = self.endpoint.as_mut();
                    return endpoint.map_or((), |endpoint| endpoint.close(now, key, "it takes no more links"));
                }
            },
        };
        match admitted {
            Ok(()) if dialled => {
                if let Some(link) = self.stir(id) {
                    link.greet();
                }
            }
            Ok(()) => {}
            Err(refusal) => {
                let why = match refusal {
                    // The peer is the one that is told.
                    Refusal::OtherUser { .. } => OTHER_USER.to_owned(),
                    ref other => other.to_string(),
                };
                self.close(now, id, (Why::Forbidden(refusal.to_string()), &why));
            }
        }
    }

    /// Where too many links wait for a peer to say what it wants, the oldest one ends.
    fn end_oldest(&mut self, now: u64) {
        let greeting = self.links.iter().filter(|(_, link)| link.state == State::Greeting);
        let oldest = greeting.clone().next().map(|(id, _)| *id);
        if let Some(id) = oldest.filter(|_| greeting.count() >= MOST_UNKNOWN) {
            self.drop_link(now, id);
        }
    }
}

/// Why a link is over whose connection ended so.
fn ended(why: &Ended) -> Why {
    match why {
        Ended::Refused => Why::Refused,
        Ended::ByPeer(text) if text == CLOSED => Why::Gone,
        Ended::ByPeer(text) => Why::Forbidden(format!("the other end refuses: {text}")),
        Ended::Tls(error) => Why::Forbidden(Refusal::of(error).to_string()),
        Ended::Silent => Why::Silent,
        Ended::Gone => Why::Gone,
        other => Why::Forbidden(other.to_string()),
    }
}
