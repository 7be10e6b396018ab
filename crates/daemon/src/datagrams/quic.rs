//! QUIC of the daemon: its sockets, and the connections by which datagrams go. The state machine is `madrigal-quic`'s.

use std::collections::BTreeMap;

use madrigal_adapters::vrp::{self, Class, Message};
use madrigal_identity::Credentials;
use madrigal_quic::{Key, Messages, Outgoing, QuicEndpoint};
use madrigal_sys::Errno;
use madrigal_sys::udp::UdpSocket;

use crate::datagrams::frame::{self, Note};
use crate::link::handshakes::HandshakeLimiter;
use crate::poll::Token;
use crate::units::SECOND;

/// Bytes that wait at the sending end, what is on its way included.
const BACKLOG: usize = 16 << 20;
/// The class of messages that may be lost, each in one datagram of QUIC; and that of the others: notes, and longer datagrams.
const SHORT: u8 = 0;
const WHOLE: u8 = 1;

/// A connection has so long until it is joined.
pub(crate) const JOIN: u64 = 5 * SECOND;
/// The most addresses that are tried at once.
pub(crate) const MOST_DIALS: usize = 4;

/// The state machine, the sockets and the connections of QUIC.
pub(crate) struct Quic {
    pub(crate) endpoint: QuicEndpoint,
    pub(crate) sockets: Vec<(Token, UdpSocket)>,
    pub(crate) connections: BTreeMap<Key, Connection>,
    /// What each origin may still begin. Apart from that of TCP: who sends a datagram may write any address into it.
    pub(crate) handshakes: HandshakeLimiter,
    /// Tunnels whose other ends will be requested to connect, because this end could not.
    pub(crate) asked: Vec<Token>,
    /// Tunnels of which both ends are known to be seen where: the next step follows.
    pub(crate) met: Vec<Token>,
    /// Datagrams for which the socket had no room.
    pub(crate) unsent: Option<(Outgoing, Vec<u8>)>,
    /// There may be something to pass on in this pass of the event loop.
    pub(crate) stirred: bool,
}

/// A connection.
pub(crate) struct Connection {
    pub(crate) messages: Messages,
    pub(crate) purpose: Purpose,
    /// Datagrams go by it.
    pub(crate) joined: bool,
    /// The host at the other end: by its certificates, where this end accepted it; where this end began it, the one that is wanted.
    pub(crate) host: usize,
    /// The time limit for it to be joined.
    pub(crate) deadline: u64,
    /// The longest message that is sent in one datagram.
    longest: usize,
}

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// The datagrams of a tunnel.
    Join { tunnel: Token },
    /// To hear from a relay at which address it sees this host, for a tunnel.
    Ask { tunnel: Token },
    /// To open this end's NAT for what the other end of a tunnel sends.
    Open { tunnel: Token },
    /// The other end began it, and has not said what for.
    Unknown,
}

impl Quic {
    pub(crate) fn new(credentials: &Credentials) -> Result<Self, String> {
        let endpoint =
            QuicEndpoint::new(credentials.client(), credentials.server()).map_err(|error| error.to_string())?;
        let (sockets, connections) = (Vec::new(), BTreeMap::new());
        let (handshakes, asked, met) = (HandshakeLimiter::default(), Vec::new(), Vec::new());
        Ok(Self { endpoint, sockets, connections, handshakes, asked, met, unsent: None, stirred: false })
    }

    /// When something is due; never: `u64::MAX`.
    pub(crate) fn deadline(&self) -> u64 {
        let connections = self.connections.values().map(Connection::deadline);
        connections.chain([self.endpoint.deadline()]).min().unwrap_or(u64::MAX)
    }

    /// Connections that the state machine no longer has. Each would stay due for ever without effect.
    pub(crate) fn forgotten(&self) -> Vec<Key> {
        self.connections.keys().copied().filter(|key| !self.endpoint.has(*key)).collect()
    }

    /// Whether a relay is asked for a tunnel, or the way is opened for its other end.
    pub(crate) fn meets(&self, tunnel: Token) -> bool {
        let purposes = [Purpose::Ask { tunnel }, Purpose::Open { tunnel }];
        self.connections.values().any(|own| purposes.contains(&own.purpose))
    }

    /// Relays are asked no longer for a tunnel.
    pub(crate) fn end_questions(&mut self, now: u64, tunnel: Token) {
        let asks = |own: &Connection| own.purpose == Purpose::Ask { tunnel };
        let keys: Vec<Key> = self.connections.iter().filter(|(_, own)| asks(own)).map(|(key, _)| *key).collect();
        for key in keys {
            self.connections.remove(&key);
            self.endpoint.close(now, key, "that was all");
        }
    }

    /// Gives a datagram to a connection. False: there is no room.
    pub(crate) fn send(&mut self, key: Key, bytes: Vec<u8>, deadline: u64) -> bool {
        let Some(connection) = self.connections.get_mut(&key) else { return false };
        self.stirred = true;
        let class = if bytes.len() <= connection.longest { SHORT } else { WHOLE };
        connection.messages.send(class, Message { bytes, deadline: Some(deadline) }).is_ok()
    }

    /// Sends the other end a note.
    pub(crate) fn send_note(&mut self, key: Key, note: &Note) {
        if let Some(connection) = self.connections.get_mut(&key) {
            self.stirred = true;
            let bytes = frame::message(frame::NOTES, &note.bytes());
            let _ = connection.messages.send(WHOLE, Message { bytes, deadline: None });
        }
    }

    /// Sends until the queue is empty or a socket has no room. Returns whether the queue was emptied and something was sent.
    pub(crate) fn transmit(&mut self, now: u64) -> bool {
        let (mut any, mut buffer) = (false, Vec::new());
        loop {
            let next = self.unsent.take().or_else(|| {
                let outgoing = self.endpoint.transmit(now, &mut buffer)?;
                Some((outgoing, std::mem::take(&mut buffer)))
            });
            let Some((outgoing, bytes)) = next else { return any };
            any = true;
            if let Some((_, socket)) = self.sockets.iter().find(|(_, socket)| socket.reaches(outgoing.to))
                && socket.send(outgoing.to, outgoing.from, outgoing.segment, &bytes) == Err(Errno::AGAIN)
            {
                self.unsent = Some((outgoing, bytes));
                return false;
            }
            buffer = bytes;
        }
    }
}

impl Connection {
    /// A connection that this end began, with this host; so many of a thousand bytes may be lost of what goes by it.
    pub(crate) fn dialled(purpose: Purpose, host: usize, tolerance: u32, deadline: u64) -> Self {
        let classes = [Class { tolerance, ..Class::default() }, Class::default()];
        let messages = Messages::dial(&classes, vrp::LEAST_WINDOW, BACKLOG);
        Self { messages, purpose, joined: false, host, deadline, longest: 0 }
    }

    /// An accepted connection.
    pub(crate) fn accepted(host: usize, deadline: u64) -> Self {
        let messages = Messages::accept(vrp::LEAST_WINDOW, BACKLOG);
        Self { messages, purpose: Purpose::Unknown, joined: false, host, deadline, longest: 0 }
    }

    /// The tunnel that it carries.
    pub(crate) fn tunnel(&self) -> Option<Token> {
        if let Purpose::Join { tunnel } = self.purpose { Some(tunnel) } else { None }
    }

    /// Passes on what came and what goes.
    pub(crate) fn pump(
        &mut self,
        now: u64,
        carrier: &mut madrigal_quic::Connection,
    ) -> Result<(), madrigal_quic::Broken> {
        use madrigal_quic::Carrier as _;
        self.longest = carrier.longest().map_or(0, |longest| longest.saturating_sub(vrp::HEAD));
        self.messages.pump(now, carrier)
    }

    fn deadline(&self) -> u64 {
        let joined = if self.joined { u64::MAX } else { self.deadline };
        joined.min(self.messages.deadline())
    }
}

#[cfg(test)]
mod tests {
    use madrigal_identity::{Authority, DAY, Name, Validity};

    use super::*;

    #[test]
    fn a_connection_that_this_end_closed_is_forgotten() {
        let folder = std::env::temp_dir().join(format!("madrigal-daemon-quic-{}", std::process::id()));
        let of = |text: &str| Name::parse(text).unwrap();
        let ca = Authority::create(&folder, &of("lyon"), Validity::seconds(DAY), true).unwrap();
        ca.issue_host(&of("a1"), Validity::seconds(DAY)).unwrap().install(&folder.join("a1"), true).unwrap();
        let mut quic = Quic::new(&Credentials::load(&folder.join("a1")).unwrap()).unwrap();
        let key = quic.endpoint.connect(0, ([127, 0, 0, 1], 9).into()).unwrap();
        quic.connections.insert(key, Connection::dialled(Purpose::Join { tunnel: 7 }, 0, 0, SECOND));
        assert!(quic.forgotten().is_empty() && quic.deadline() <= SECOND);
        quic.endpoint.close(0, key, "wrong host");
        let mut now = 0;
        for _ in 0..1000 {
            // What is to be sent goes first, as in the daemon's turns.
            while quic.endpoint.transmit(now, &mut Vec::new()).is_some() {}
            if !quic.forgotten().is_empty() {
                break;
            }
            now = quic.endpoint.deadline();
            assert_ne!(now, u64::MAX, "it is closed for ever");
            quic.endpoint.handle_time(now);
        }
        assert_eq!((quic.forgotten(), quic.endpoint.event()), (vec![key], None), "nobody told of it");
        let _ = std::fs::remove_dir_all(folder);
    }
}
