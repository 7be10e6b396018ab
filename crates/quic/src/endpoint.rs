//! Connections over one UDP socket, by noq-proto.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use noq_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use noq_proto::{
    ClientConfig, ConnectionHandle, DatagramEvent, Dir, EndpointConfig, FourTuple, Incoming, PathEvent,
    RandomConnectionIdGenerator, ServerConfig, TransportConfig, VarInt,
};

use crate::connection::{Connection, QUEUE};
use crate::ended::Ended;
use crate::rate::{self, Shared};

/// Datagrams that wait to be read.
const UNREAD: usize = 4 << 20;
/// Bytes of a connection's number, which is in each packet: enough for as many as there may be.
const CONNECTION_ID: usize = 4;
/// Answers to peers without a connection that wait; beyond them the oldest is dropped.
const ANSWERS: usize = 64;

/// What an endpoint bears with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// A peer that is silent for so long is gone.
    pub silence: Duration,
    /// Something is sent after so long in which nothing came, so that a NAT does not forget the connection, and to learn that the peer is gone.
    pub keep_alive: Duration,
    /// A connection that does not stand after this time is ended.
    pub handshake: Duration,
    /// The most accepted connections that do not stand yet. Beyond them who begins one is dropped, and comes again; unless the oldest one has
    /// had half of its time: that is ended.
    pub handshakes: usize,
    /// The most connections; further ones are refused.
    pub most: usize,
    /// With so many connections, another dialler must first prove its address.
    pub many: usize,
}

impl Default for Limits {
    fn default() -> Self {
        let (silence, keep_alive, handshake) =
            (Duration::from_secs(10), Duration::from_secs(3), Duration::from_secs(10));
        Self { silence, keep_alive, handshake, handshakes: usize::MAX, most: 256, many: 32 }
    }
}

/// What becomes of who wants to begin a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// It may.
    Take,
    /// It may not now, and is not told.
    Drop,
    /// It may not, and is told.
    Refuse,
}

/// A connection of an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Key(usize);

/// What happened.
#[derive(Clone, PartialEq, Debug)]
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
        why: Ended,
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

/// One end of all connections over a socket. Times are nanoseconds of any one clock.
#[derive(Debug)]
pub struct QuicEndpoint {
    quic: noq_proto::Endpoint,
    client: ClientConfig,
    server: ServerConfig,
    limits: Limits,
    connections: BTreeMap<Key, Connection>,
    /// Those whose peers were at an address when they began.
    by_address: BTreeMap<SocketAddr, BTreeSet<Key>>,
    /// Those that may have something to send.
    stirred: BTreeSet<Key>,
    /// When each of the others is due.
    due: BTreeSet<(Instant, Key)>,
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
            limits: Limits::default(),
            connections: BTreeMap::new(),
            by_address: BTreeMap::new(),
            stirred: BTreeSet::new(),
            due: BTreeSet::new(),
            epoch: Instant::now(),
            answers: VecDeque::new(),
            events: VecDeque::new(),
            last_sender: None,
        })
    }

    /// The same with other limits, of connections that begin from now on.
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Begins a connection. Names are not checked: check the certificates of [`Event::Connected`].
    pub fn connect(&mut self, now: u64, to: SocketAddr) -> Result<Key, ConnectError> {
        let (mut client, shared) = (self.client.clone(), Shared::default());
        client.transport_config(transport(shared.clone(), self.limits));
        let begun = self.quic.connect(self.at(now), client, to, "0.0.0.0");
        let (handle, quic) = begun.map_err(|error| ConnectError::To { to, why: error.to_string() })?;
        Ok(self.insert(now, handle, Connection::new(quic, true, shared)))
    }

    /// Whether there is a connection still.
    pub fn has(&self, key: Key) -> bool {
        self.connections.contains_key(&key)
    }

    /// Whether there is no connection, nor one that was closed and still says so to a peer that has not heard of it (RFC 9000, section 10.2).
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// A connection, while there is one. It may have something to send then.
    pub fn connection(&mut self, key: Key) -> Option<&mut Connection> {
        let connection = self.connections.get_mut(&key)?;
        self.stirred.insert(key);
        Some(connection)
    }

    /// The connections that may have something to send, or to give.
    pub fn stirred(&self) -> impl Iterator<Item = Key> + '_ {
        self.stirred.iter().copied()
    }

    /// Somebody reports that nobody is at that address any more, who may be wrong: of its connections those end from which nothing comes
    /// within two seconds.
    pub fn doubt(&mut self, now: u64, at: SocketAddr) {
        for key in self.by_address.get(&canonical(at)).cloned().unwrap_or_default() {
            if let Some(connection) = self.connections.get_mut(&key) {
                connection.doubt(now);
            }
            self.settle(key);
        }
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
    /// begin one now.
    pub fn receive(
        &mut self,
        now: u64,
        (from, to): (SocketAddr, Option<IpAddr>),
        datagram: &[u8],
        admit: impl FnOnce(IpAddr) -> Admission,
    ) {
        let (at, mut answer) = (self.at(now), Vec::new());
        let path = FourTuple::new(from, to);
        match self.quic.handle(at, path, None, BytesMut::from(datagram), &mut answer) {
            None => {}
            Some(DatagramEvent::Response(transmit)) => self.answer(&transmit, answer),
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                if let Some(connection) = self.connections.get_mut(&Key(handle.0)) {
                    connection.quic.handle_event(event);
                    connection.hear();
                    self.settle(Key(handle.0));
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => self.begin(now, incoming, || admit(from.ip())),
        }
    }

    /// Somebody wants to begin a connection.
    fn begin(&mut self, now: u64, incoming: Incoming, admit: impl FnOnce() -> Admission) {
        let (open, mut answer) = (self.quic.open_connections(), Vec::new());
        if open < self.limits.most && open >= self.limits.many && incoming.may_retry() {
            if let Ok(transmit) = self.quic.retry(incoming, &mut answer) {
                self.answer(&transmit, answer);
            }
            return;
        }
        let admission = match () {
            () if open >= self.limits.most => Admission::Refuse,
            () if !self.has_room(now) => Admission::Drop,
            () => admit(),
        };
        match admission {
            Admission::Take => {}
            Admission::Drop => return self.quic.ignore(incoming),
            Admission::Refuse => {
                let transmit = self.quic.refuse(incoming, &mut answer);
                return self.answer(&transmit, answer);
            }
        }
        let (mut server, shared) = (self.server.clone(), Shared::default());
        server.transport_config(transport(shared.clone(), self.limits));
        match self.quic.accept(incoming, self.at(now), &mut answer, Some(Arc::new(server))) {
            Ok((handle, quic)) => _ = self.insert(now, handle, Connection::new(quic, false, shared)),
            Err(error) => {
                if let Some(transmit) = error.response {
                    self.answer(&transmit, answer);
                }
            }
        }
    }

    /// Whether one more connection may begin. Where too many do not stand yet, the oldest one ends, if it has had time enough.
    fn has_room(&mut self, now: u64) -> bool {
        let shaking = self.connections.iter().filter(|(_, one)| !one.dialled && one.quic.is_handshaking());
        let Some((key, stands_by)) = shaking.clone().map(|(key, one)| (*key, one.stands_by)).min_by_key(|(_, by)| *by)
        else {
            return true;
        };
        if shaking.count() < self.limits.handshakes {
            return true;
        }
        let is_slow = stands_by <= now.saturating_add(self.limits.handshake.as_nanos() as u64 / 2);
        if is_slow {
            self.close(now, key, "");
        }
        is_slow
    }

    /// Bytes that must be sent now replace what is in `out`; `None`: there are none. Connections alternate.
    pub fn transmit(&mut self, now: u64, out: &mut Vec<u8>) -> Option<Outgoing> {
        out.clear();
        if let Some((outgoing, bytes)) = self.answers.pop_front() {
            *out = bytes;
            return Some(outgoing);
        }
        let now = self.at(now);
        while let Some(key) = self.next_key() {
            let sent = self.connections.get_mut(&key).and_then(|one| one.transmit(now, out));
            self.last_sender = Some(key);
            if sent.is_none() {
                // Until something happens to it, or its time has come.
                self.stirred.remove(&key);
            }
            self.settle_events(key);
            if let Some(transmit) = sent {
                out.truncate(transmit.size);
                return Some(outgoing(&transmit));
            }
        }
        None
    }

    /// The stirred connection that sends next.
    fn next_key(&self) -> Option<Key> {
        let behind = self.last_sender.and_then(|last| self.stirred.range(Key(last.0 + 1)..).next());
        behind.or_else(|| self.stirred.first()).copied()
    }

    /// When [`QuicEndpoint::handle_time`] is due; never: `u64::MAX`.
    pub fn deadline(&self) -> u64 {
        let listed = self.due.first().map(|(at, _)| *at);
        let stirred = self.stirred.iter().filter_map(|key| self.due_of(*key));
        let due = stirred.chain(listed).min();
        due.map_or(u64::MAX, |at| at.saturating_duration_since(self.epoch).as_nanos() as u64)
    }

    /// The time has come; or any other. A connection that may have something to send sends that first: it is late itself, and noq-proto would
    /// probe a handshake that it has just finished, for which it has no keys any more.
    pub fn handle_time(&mut self, now: u64) {
        let at = self.at(now);
        let listed = self.due.iter().take_while(|(due, _)| *due <= at).map(|(_, key)| *key);
        let keys: Vec<Key> = listed.filter(|key| !self.stirred.contains(key)).collect();
        for key in keys {
            let Some(connection) = self.connections.get_mut(&key) else { continue };
            connection.quic.handle_timeout(at);
            if let Some(why) = connection.gives_up(at, now) {
                self.events.push_back(Event::Closed { key, why });
            }
            self.settle(key);
        }
    }

    /// When something is due of a connection.
    fn due_of(&self, key: Key) -> Option<Instant> {
        let connection = self.connections.get(&key)?;
        let own = connection.due().map(|until| self.at(until));
        connection.quic.poll_timeout().into_iter().chain(own).min()
    }

    fn at(&self, now: u64) -> Instant {
        self.epoch + Duration::from_nanos(now)
    }

    fn insert(&mut self, now: u64, handle: ConnectionHandle, mut connection: Connection) -> Key {
        let key = Key(handle.0);
        connection.stands_by = now.saturating_add(self.limits.handshake.as_nanos() as u64);
        connection.began_at = connection.peer().map(canonical);
        if let Some(at) = connection.began_at {
            self.by_address.entry(at).or_default().insert(key);
        }
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

    /// Something happened to a connection: passes its events on, and has it asked for what it sends.
    fn settle(&mut self, key: Key) {
        self.stirred.insert(key);
        self.settle_events(key);
    }

    /// Passes a connection's events on to the endpoint, and to us.
    fn settle_events(&mut self, key: Key) {
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
                    self.events.push_back(Event::Closed { key, why: Ended::of(&reason) });
                }
                _ => {}
            }
        }
        let (listed, is_drained) = (connection.listed.take(), connection.quic.is_drained());
        if let Some(at) = listed {
            self.due.remove(&(at, key));
        }
        if is_drained {
            let began_at = self.connections.remove(&key).and_then(|connection| connection.began_at);
            self.stirred.remove(&key);
            if let Some((at, its)) = began_at.and_then(|at| Some((at, self.by_address.get_mut(&at)?))) {
                its.remove(&key);
                if its.is_empty() {
                    self.by_address.remove(&at);
                }
            }
        } else if let Some(at) = self.due_of(key) {
            self.due.insert((at, key));
            if let Some(connection) = self.connections.get_mut(&key) {
                connection.listed = Some(at);
            }
        }
    }
}

fn outgoing(transmit: &noq_proto::Transmit) -> Outgoing {
    Outgoing { to: transmit.destination, from: transmit.src_ip, segment: transmit.segment_size }
}

fn transport(shared: Shared, limits: Limits) -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    transport.congestion_controller_factory(Arc::new(rate::Config(shared)));
    transport.max_concurrent_bidi_streams(VarInt::from_u32(1)).max_concurrent_uni_streams(VarInt::from_u32(0));
    transport.stream_receive_window(VarInt::from_u32(1 << 20)).receive_window(VarInt::from_u32(1 << 20));
    transport.datagram_send_buffer_size(QUEUE).datagram_receive_buffer_size(Some(UNREAD));
    // Each end says where it sees the other one (draft-ietf-quic-address-discovery).
    transport.send_observed_address_reports(true).receive_observed_address_reports(true);
    transport.max_idle_timeout(limits.silence.try_into().ok()).keep_alive_interval(Some(limits.keep_alive));
    Arc::new(transport)
}

/// The address as the same family has it at both ends.
fn canonical(at: SocketAddr) -> SocketAddr {
    SocketAddr::new(at.ip().to_canonical(), at.port())
}
