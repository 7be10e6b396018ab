//! Connections over one UDP socket, by noq-proto.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use noq_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use noq_proto::{
    ClientConfig, ConnectionHandle, DatagramEvent, Dir, EndpointConfig, FourTuple, PathEvent, PathId,
    RandomConnectionIdGenerator, SendDatagramError, ServerConfig, StreamId, TransportConfig, VarInt,
};

use crate::Carrier;
use crate::pace::Pace;
use crate::rate::{self, Shared};

/// Datagrams that wait for congestion control: about a pacing interval's.
const QUEUE: usize = 16 << 10;
/// Datagrams that wait to be read.
const UNREAD: usize = 4 << 20;
/// A peer that is silent for so long is gone.
const SILENCE: Duration = Duration::from_secs(10);
/// So that a NAT does not forget the connection.
const KEEP_ALIVE: Duration = Duration::from_secs(3);
/// Datagrams of one call to the kernel (`UDP_SEGMENT`).
const SEGMENTS: NonZeroUsize = NonZeroUsize::new(16).unwrap();
/// What QUIC adds to a datagram: a short header, a frame's, and the tag of the cipher.
const HEADERS: u64 = 28;
/// Bytes of a connection's number, which is in each packet: enough for [`MOST`].
const CONNECTION_ID: usize = 4;
/// No packet is longer.
const PACKET: u64 = 1500;
/// With so many connections under way, another dialler must first prove its address.
const MANY: usize = 32;
/// The most connections; further ones are refused.
const MOST: usize = 256;
/// Answers to peers without a connection that wait; beyond them the oldest is dropped.
const ANSWERS: usize = 64;

/// A connection of an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Key(usize);

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A connection stands. `dialled`: from here.
    Connected {
        /// Which.
        key: Key,
        /// Whether this end began it.
        dialled: bool,
        /// The other end's certificates.
        chain: Vec<rustls::pki_types::CertificateDer<'static>>,
    },
    /// The other end of a connection sees this end at that address.
    Seen {
        /// Which.
        key: Key,
        /// The address, as it says.
        at: SocketAddr,
    },
    /// It has ended.
    Closed {
        /// Which.
        key: Key,
        /// Why.
        why: String,
    },
}

/// The destination of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outgoing {
    /// To this address.
    pub to: SocketAddr,
    /// From this address of this host; from any where there is none.
    pub from: Option<IpAddr>,
    /// As datagrams of so many bytes, the last one shorter; as one where there is none.
    pub segment: Option<usize>,
}

/// Why no connection was begun.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Of the address.
    #[error("no QUIC connection to {to}: {why}")]
    To {
        /// The address.
        to: SocketAddr,
        /// What is wrong with it.
        why: String,
    },
    /// The TLS settings do not fit.
    #[error("QUIC cannot use these TLS settings: {0}")]
    Tls(String),
}

/// A connection, as long as its endpoint has it.
#[derive(Debug)]
pub struct Connection {
    quic: noq_proto::Connection,
    dialled: bool,
    /// The control stream, once there is one.
    control: Option<StreamId>,
    pace: Pace,
    shared: Shared,
    /// Nothing but datagrams waits to be sent: noq-proto sends those first, and would never repeat what is lost of the control stream.
    quiet: bool,
    /// A datagram waits for that.
    again: bool,
    /// Bytes of datagrams that are not sent yet.
    handed: u64,
}

/// One end of all connections over a socket. Times are nanoseconds of any one clock.
#[derive(Debug)]
pub struct QuicEndpoint {
    quic: noq_proto::Endpoint,
    client: ClientConfig,
    server: ServerConfig,
    connections: BTreeMap<Key, Connection>,
    /// The time 0 of all calls.
    epoch: Instant,
    answers: VecDeque<(Outgoing, Vec<u8>)>,
    events: VecDeque<Event>,
    /// The connection that sent last.
    last_sender: Option<Key>,
}

impl QuicEndpoint {
    /// Connects by `client`, and accepts by `server`, TLS 1.3 both.
    pub fn new(client: Arc<rustls::ClientConfig>, server: Arc<rustls::ServerConfig>) -> Result<Self, ConnectError> {
        let tls = |error: &dyn std::fmt::Display| ConnectError::Tls(error.to_string());
        let client = QuicClientConfig::try_from(client).map_err(|error| tls(&error))?;
        let server = QuicServerConfig::try_from(server).map_err(|error| tls(&error))?;
        let (client, server) = (ClientConfig::new(Arc::new(client)), ServerConfig::with_crypto(Arc::new(server)));
        let shared = Some(Arc::new(server.clone()));
        let mut config = EndpointConfig::default();
        config.cid_generator(Arc::new(|| Box::new(RandomConnectionIdGenerator::new(CONNECTION_ID))));
        Ok(Self {
            quic: noq_proto::Endpoint::new(Arc::new(config), shared, true),
            client,
            server,
            connections: BTreeMap::new(),
            epoch: Instant::now(),
            answers: VecDeque::new(),
            events: VecDeque::new(),
            last_sender: None,
        })
    }

    /// Begins a connection. Names are not checked: check the certificates of [`Event::Connected`].
    pub fn connect(&mut self, now: u64, to: SocketAddr) -> Result<Key, ConnectError> {
        let (mut client, shared) = (self.client.clone(), Shared::default());
        client.transport_config(transport(shared.clone()));
        let begun = self.quic.connect(self.at(now), client, to, "0.0.0.0");
        let (handle, quic) = begun.map_err(|error| ConnectError::To { to, why: error.to_string() })?;
        Ok(self.insert(handle, Connection::new(quic, true, shared)))
    }

    /// A connection, while there is one.
    pub fn connection(&mut self, key: Key) -> Option<&mut Connection> {
        self.connections.get_mut(&key)
    }

    /// Ends a connection, and sends the other end the reason.
    pub fn close(&mut self, now: u64, key: Key, why: &str) {
        let now = self.at(now);
        if let Some(connection) = self.connections.get_mut(&key) {
            connection.quic.close(now, VarInt::from_u32(0), Bytes::copy_from_slice(why.as_bytes()));
        }
        self.settle(key);
    }

    /// What happened, each thing once.
    pub fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// A datagram of UDP came, to that address of this host, if it is known. If it begins a connection, `admit` says whether its sender may
    /// begin one now; what it may not is dropped.
    pub fn receive(
        &mut self,
        now: u64,
        (from, to): (SocketAddr, Option<IpAddr>),
        datagram: &[u8],
        admit: impl FnOnce(IpAddr) -> bool,
    ) {
        let (now, mut answer) = (self.at(now), Vec::new());
        let path = FourTuple::new(from, to);
        let handled = self.quic.handle(now, path, None, BytesMut::from(datagram), &mut answer);
        match handled {
            None => {}
            Some(DatagramEvent::Response(transmit)) => self.answer(&transmit, answer),
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                if let Some(connection) = self.connections.get_mut(&Key(handle.0)) {
                    connection.quic.handle_event(event);
                    self.settle(Key(handle.0));
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                if self.quic.open_connections() >= MOST {
                    let transmit = self.quic.refuse(incoming, &mut answer);
                    return self.answer(&transmit, answer);
                }
                if self.quic.open_connections() >= MANY && incoming.may_retry() {
                    if let Ok(transmit) = self.quic.retry(incoming, &mut answer) {
                        self.answer(&transmit, answer);
                    }
                    return;
                }
                if !admit(from.ip()) {
                    return self.quic.ignore(incoming);
                }
                let (mut server, shared) = (self.server.clone(), Shared::default());
                server.transport_config(transport(shared.clone()));
                match self.quic.accept(incoming, now, &mut answer, Some(Arc::new(server))) {
                    Ok((handle, quic)) => _ = self.insert(handle, Connection::new(quic, false, shared)),
                    Err(error) => {
                        if let Some(transmit) = error.response {
                            self.answer(&transmit, answer);
                        }
                    }
                }
            }
        }
    }

    /// Bytes that must be sent now replace what is in `out`; `None`: there are none. Connections alternate.
    pub fn transmit(&mut self, now: u64, out: &mut Vec<u8>) -> Option<Outgoing> {
        out.clear();
        if let Some((outgoing, bytes)) = self.answers.pop_front() {
            *out = bytes;
            return Some(outgoing);
        }
        let (now, last) = (self.at(now), self.last_sender);
        let mut key = self.next_key(last)?;
        for _ in 0..self.connections.len() {
            let sent = self.connections.get_mut(&key).and_then(|one| one.transmit(now, out));
            self.settle(key);
            self.last_sender = Some(key);
            if let Some(transmit) = sent {
                out.truncate(transmit.size);
                return Some(outgoing(&transmit));
            }
            key = self.next_key(self.last_sender)?;
        }
        None
    }

    /// The connection that sends after that one.
    fn next_key(&self, last: Option<Key>) -> Option<Key> {
        let behind = last.and_then(|last| self.connections.range(Key(last.0 + 1)..).next());
        behind.or_else(|| self.connections.first_key_value()).map(|(key, _)| *key)
    }

    /// When [`QuicEndpoint::handle_time`] is due; never: `u64::MAX`.
    pub fn deadline(&self) -> u64 {
        let due = self.connections.values().filter_map(|connection| connection.quic.poll_timeout()).min();
        due.map_or(u64::MAX, |at| at.saturating_duration_since(self.epoch).as_nanos() as u64)
    }

    /// The time has come; or any other.
    pub fn handle_time(&mut self, now: u64) {
        let now = self.at(now);
        let due = |connection: &Connection| connection.quic.poll_timeout().is_some_and(|at| at <= now);
        let keys: Vec<Key> = self.connections.iter().filter(|(_, one)| due(one)).map(|(key, _)| *key).collect();
        for key in keys {
            if let Some(connection) = self.connections.get_mut(&key) {
                connection.quic.handle_timeout(now);
            }
            self.settle(key);
        }
    }

    fn at(&self, now: u64) -> Instant {
        self.epoch + Duration::from_nanos(now)
    }

    fn insert(&mut self, handle: ConnectionHandle, connection: Connection) -> Key {
        let key = Key(handle.0);
        self.connections.insert(key, connection);
        self.settle(key);
        key
    }

    fn answer(&mut self, transmit: &noq_proto::Transmit, mut bytes: Vec<u8>) {
        bytes.truncate(transmit.size);
        if self.answers.len() >= ANSWERS {
            self.answers.pop_front();
        }
        self.answers.push_back((outgoing(transmit), bytes));
    }

    /// Passes a connection's events on to the endpoint, and to us.
    fn settle(&mut self, key: Key) {
        let Some(connection) = self.connections.get_mut(&key) else { return };
        while let Some(event) = connection.quic.poll_endpoint_events() {
            if let Some(back) = self.quic.handle_event(ConnectionHandle(key.0), event) {
                connection.quic.handle_event(back);
            }
        }
        while let Some(event) = connection.quic.poll() {
            match event {
                noq_proto::Event::Connected => {
                    if connection.dialled {
                        connection.control = connection.quic.streams().open(Dir::Bi);
                    }
                    let chain = connection.chain();
                    self.events.push_back(Event::Connected { key, dialled: connection.dialled, chain });
                }
                noq_proto::Event::Path(PathEvent::ObservedAddr { addr: at, .. }) => {
                    self.events.push_back(Event::Seen { key, at });
                }
                noq_proto::Event::ConnectionLost { reason } => {
                    self.events.push_back(Event::Closed { key, why: reason.to_string() });
                }
                _ => {}
            }
        }
        if connection.quic.is_drained() {
            self.connections.remove(&key);
        }
    }
}

impl Connection {
    fn new(quic: noq_proto::Connection, dialled: bool, shared: Shared) -> Self {
        Self { quic, dialled, control: None, pace: Pace::new(), shared, quiet: true, again: false, handed: 0 }
    }

    fn transmit(&mut self, now: Instant, out: &mut Vec<u8>) -> Option<noq_proto::Transmit> {
        let sent = self.quic.poll_transmit(now, SEGMENTS, out);
        // Where there is no room, something else may wait for it.
        self.quiet = sent.is_none() && self.shared.room() >= PACKET;
        self.handed = (QUEUE - self.quic.datagrams().send_buffer_space().min(QUEUE)) as u64;
        sent
    }

    /// The other end's certificates, its own first.
    fn chain(&self) -> Vec<rustls::pki_types::CertificateDer<'static>> {
        let identity = self.quic.crypto_session().peer_identity();
        identity.and_then(|any| any.downcast().ok()).map_or_else(Vec::new, |chain| *chain)
    }

    /// The control stream: the dialling end opens it, the other one finds it with its first byte.
    fn control(&mut self) -> Option<StreamId> {
        if self.control.is_none() && !self.dialled {
            self.control = self.quic.streams().accept(Dir::Bi);
        }
        self.control
    }
}

impl Carrier for Connection {
    fn longest(&mut self) -> Option<usize> {
        if self.quic.is_handshaking() || self.quic.is_closed() {
            return None;
        }
        self.quic.datagrams().max_size()
    }

    fn set_time(&mut self, now: u64) {
        let metrics = self.quic.congestion_state(PathId::ZERO).map(|state| state.metrics());
        let bits = metrics.and_then(|metrics| metrics.bandwidth_estimate);
        self.pace.go_on(now, bits.unwrap_or(0) / 8);
        self.shared.set_waits(false);
        self.again = false;
    }

    fn ready_at(&self) -> u64 {
        if self.again { 0 } else { self.pace.ready_at() }
    }

    fn send(&mut self, datagram: Vec<u8>) -> Result<(), Vec<u8>> {
        let len = datagram.len() as u64 + HEADERS;
        let has_room = self.shared.room() >= self.handed + len;
        if !(self.quiet && has_room && self.pace.may_send(len)) {
            self.shared.set_waits(true);
            // Where there is no room, an acknowledgement makes some, or a loss.
            self.again |= !self.quiet && self.shared.room() >= PACKET;
            return Err(datagram);
        }
        match self.quic.datagrams().send(Bytes::from(datagram), false) {
            Err(SendDatagramError::Blocked(back)) => Err(Vec::from(back)),
            _ => {
                self.pace.sent(len);
                self.handed += len;
                Ok(())
            }
        }
    }

    fn receive(&mut self) -> Option<Vec<u8>> {
        self.quic.datagrams().recv().map(Vec::from)
    }

    fn write(&mut self, bytes: &[u8]) -> usize {
        if bytes.is_empty() {
            // It would be sent, as a frame of nothing.
            return 0;
        }
        let Some(control) = self.control() else { return 0 };
        self.quic.send_stream(control).write(bytes).unwrap_or(0)
    }

    fn read(&mut self, out: &mut Vec<u8>) {
        let Some(control) = self.control() else { return };
        let mut stream = self.quic.recv_stream(control);
        let Ok(mut chunks) = stream.read(true) else { return };
        while let Ok(Some(chunk)) = chunks.next(usize::MAX) {
            out.extend_from_slice(&chunk.bytes);
        }
        let _ = chunks.finalize();
    }

    fn round_trip(&self) -> u64 {
        self.quic.rtt(PathId::ZERO).map_or(100_000_000, |time| time.as_nanos() as u64)
    }
}

fn outgoing(transmit: &noq_proto::Transmit) -> Outgoing {
    Outgoing { to: transmit.destination, from: transmit.src_ip, segment: transmit.segment_size }
}

fn transport(shared: Shared) -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    transport.congestion_controller_factory(Arc::new(rate::Config(shared)));
    transport.max_concurrent_bidi_streams(VarInt::from_u32(1)).max_concurrent_uni_streams(VarInt::from_u32(0));
    transport.stream_receive_window(VarInt::from_u32(1 << 20)).receive_window(VarInt::from_u32(1 << 20));
    transport.datagram_send_buffer_size(QUEUE).datagram_receive_buffer_size(Some(UNREAD));
    // Each end says where it sees the other one (draft-ietf-quic-address-discovery).
    transport.send_observed_address_reports(true).receive_observed_address_reports(true);
    transport.max_idle_timeout(SILENCE.try_into().ok()).keep_alive_interval(Some(KEEP_ALIVE));
    Arc::new(transport)
}
