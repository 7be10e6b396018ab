//! A connection of an endpoint, as a carrier of messages.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::time::Instant;

use bytes::Bytes;
use noq_proto::{Dir, PathId, SendDatagramError, StreamId, VarInt};

use crate::Carrier;
use crate::ended::Ended;
use crate::pace::Pace;
use crate::rate::Shared;

/// Datagrams that wait for congestion control: about a pacing interval's.
pub(crate) const QUEUE: usize = 16 << 10;
/// Datagrams of one call to the kernel (`UDP_SEGMENT`).
const SEGMENTS: NonZeroUsize = NonZeroUsize::new(16).unwrap();
/// What QUIC adds to a datagram: a short header, a frame's, and the tag of the cipher.
const HEADERS: u64 = 28;
/// No packet is longer.
const PACKET: u64 = 1500;
/// A peer of which it is reported that it is gone has so long to show that it is not, in nanoseconds.
const CERTAIN: u64 = 2_000_000_000;

/// A connection, as long as its endpoint has it.
#[derive(Debug)]
pub struct Connection {
    pub(crate) quic: noq_proto::Connection,
    pub(crate) dialled: bool,
    /// The control stream, once there is one.
    pub(crate) control: Option<StreamId>,
    pace: Pace,
    shared: Shared,
    /// Nothing but datagrams waits to be sent: noq-proto sends those first, and would never repeat what is lost of the control stream.
    quiet: bool,
    /// A datagram waits for that.
    again: bool,
    /// Bytes of datagrams that are not sent yet.
    handed: u64,
    /// When somebody reported that nobody is there any more, if nothing came since.
    doubted: Option<u64>,
    /// Where the other end was when it began.
    pub(crate) began_at: Option<SocketAddr>,
    /// When the handshake has to be over.
    pub(crate) stands_by: u64,
    /// The time for which the endpoint has it listed.
    pub(crate) listed: Option<Instant>,
}

impl Connection {
    pub(crate) fn new(quic: noq_proto::Connection, dialled: bool, shared: Shared) -> Self {
        let (control, pace, doubted, stands_by, listed) = (None, Pace::new(), None, u64::MAX, None);
        Self {
            quic,
            dialled,
            control,
            pace,
            shared,
            quiet: true,
            again: false,
            handed: 0,
            doubted,
            began_at: None,
            stands_by,
            listed,
        }
    }

    /// The address of the other end, where it was seen last.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.quic.network_path(PathId::ZERO).ok().map(|path| path.remote())
    }

    /// Something came.
    pub(crate) fn hear(&mut self) {
        self.doubted = None;
    }

    /// Somebody reports that nobody is there any more.
    pub(crate) fn doubt(&mut self, now: u64) {
        if self.doubted.is_none() {
            // One that is there answers.
            self.doubted = Some(now);
            self.quic.ping();
        }
    }

    /// When it is given up, if nothing happens until then.
    pub(crate) fn due(&self) -> Option<u64> {
        let stands_by = self.quic.is_handshaking().then_some(self.stands_by);
        let doubted = self.doubted.filter(|_| !self.quic.is_closed()).map(|at| at + CERTAIN);
        doubted.into_iter().chain(stands_by).min()
    }

    /// Gives it up, if it is time for that; why.
    pub(crate) fn gives_up(&mut self, at: Instant, now: u64) -> Option<Ended> {
        self.due().filter(|due| *due <= now)?;
        let why = if self.doubted.take().is_some() { Ended::Gone } else { Ended::Silent };
        self.quic.close(at, VarInt::from_u32(0), Bytes::new());
        Some(why)
    }

    pub(crate) fn transmit(&mut self, now: Instant, out: &mut Vec<u8>) -> Option<noq_proto::Transmit> {
        let sent = self.quic.poll_transmit(now, SEGMENTS, out);
        // Where there is no room, something else may wait for it.
        self.quiet = sent.is_none() && self.shared.room() >= PACKET;
        self.handed = (QUEUE - self.quic.datagrams().send_buffer_space().min(QUEUE)) as u64;
        sent
    }

    /// The other end's certificates, its own first.
    pub(crate) fn chain(&self) -> Vec<rustls::pki_types::CertificateDer<'static>> {
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
