//! What is told of each connection of a link.

use std::net::SocketAddr;

use madrigal_adapters::contract::{Lane, ONLY};
use madrigal_adapters::stripe::count::Class;

use crate::control::status::LinkConnection;
use crate::daemon::Daemon;
use crate::link::congestion::congestion;
use crate::link::counted::{Counted, Held};
use crate::link::{Link, Up};
use crate::poll::Token;
use crate::socket;

impl Daemon {
    /// The TCP connections of a link that is up, its own first.
    pub(crate) fn connections_of(&self, token: Token) -> Vec<LinkConnection> {
        let adapters = self.links.get(&token).and_then(Link::up).map(|up: &Up| up.adapters.as_ref());
        let all = match adapters {
            None => Vec::new(),
            Some(None) => vec![(ONLY, token)],
            Some(Some(adapters)) => adapters.connections(token),
        };
        all.into_iter().filter_map(|(lane, at)| tell(lane, self.links.get(&at)?)).collect()
    }
}

/// What is told of one; nothing where it is no TCP, or was not measured yet.
fn tell(lane: Lane, link: &Link) -> Option<LinkConnection> {
    let Counted { info, rate, held, renewed, .. } = link.counted.as_ref()?;
    let part = |part: u64, whole: u64, of: u128| {
        u32::try_from(u128::from(part) * of / u128::from(whole.max(1))).unwrap_or(u32::MAX)
    };
    let [busy, receiver, buffer] = held.map_or([0; 3], |Held { time, busy: [busy, receiver, buffer], .. }| {
        [part(busy, time / 1000, 1000), part(receiver, busy, 1000), part(buffer, busy, 1000)]
    });
    Some(LinkConnection {
        number: lane.0,
        local: socket::local_addr(&link.channel).map(text),
        address: link.address.map(text),
        congestion: congestion(&link.channel),
        round_trip_us: Some(info.rtt).filter(|us| *us > 0),
        rate: *rate,
        again_ppm: part(info.bytes_retrans, info.bytes_sent, 1_000_000),
        unsent: info.notsent_bytes,
        held_back_by: held.map(|held| word(held.by).to_owned()),
        busy: busy.min(1000),
        receiver: receiver.min(1000),
        buffer: buffer.min(1000),
        renewed: *renewed,
    })
}

/// An address of IPv4 as such, though its socket is one of IPv6.
fn text(at: SocketAddr) -> String {
    SocketAddr::new(at.ip().to_canonical(), at.port()).to_string()
}

fn word(class: Class) -> &'static str {
    match class {
        Class::Application => "application",
        Class::Receiver => "receiver",
        Class::SendBuffer => "buffer",
        Class::Loss | Class::Link => "congestion",
    }
}
