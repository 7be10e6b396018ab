//! A tunnel of datagrams, at one of its ends.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use madrigal_quic::Key;

use crate::datagrams::flows::Flows;
use crate::datagrams::frame::{self, Note};
use crate::poll::Token;
use crate::socket;
use crate::wire::Target;

/// Bytes that wait for the stream.
const MOST_QUEUED: usize = 256 << 10;

/// One end of a tunnel.
pub(crate) struct Tunnel {
    pub(crate) side: Side,
    /// The host at the other end.
    pub(crate) peer: usize,
    /// The stream; none while the near end waits to begin another one.
    pub(crate) stream: Option<TunnelStream>,
    /// The connection by which datagrams go.
    pub(crate) quic: Option<Key>,
    /// The secret that a connection by QUIC has to present, chosen by the far end; and the other end's port of QUIC.
    pub(crate) secret: String,
    pub(crate) quic_port: Option<u16>,
    /// Where both ends are seen, if they have to connect at once.
    pub(crate) meeting: Meeting,
    /// So many of a thousand bytes may be lost.
    pub(crate) tolerance: u32,
    /// A datagram that waits for longer, in nanoseconds, is dropped.
    pub(crate) within: u64,
    pub(crate) counts: Counts,
}

/// Where the two ends of a tunnel are seen from outside.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Meeting {
    pub(crate) own: Option<SocketAddr>,
    pub(crate) theirs: Option<SocketAddr>,
}

/// Which end it is.
pub(crate) enum Side {
    /// Programs send to it.
    Near(Near),
    /// It sends to a program.
    Far(Far),
}

/// What the near end has.
pub(crate) struct Near {
    /// What the client asked for.
    pub(crate) target: Target,
    /// The socket to which programs send.
    pub(crate) socket: OwnedFd,
    pub(crate) flows: Flows,
    /// When a stream is begun again, the next pause after that, and when QUIC is tried again.
    pub(crate) stream_at: u64,
    pub(crate) stream_pause: u64,
    pub(crate) quic_at: u64,
    /// The log has why QUIC does not work, and why not by both ends at once.
    pub(crate) reported: bool,
    pub(crate) meeting_reported: bool,
    /// Both ends try at once, or did since QUIC was last tried.
    pub(crate) meets: bool,
}

/// What the far end has.
pub(crate) struct Far {
    /// The port of this host.
    pub(crate) port: u16,
    /// The other end's host, in words.
    pub(crate) from: String,
    /// By flow.
    pub(crate) sockets: HashMap<u32, FarFlow>,
    /// The flow of a socket's token.
    pub(crate) flows: HashMap<Token, u32>,
}

/// A flow at the far end.
pub(crate) struct FarFlow {
    pub(crate) socket: OwnedFd,
    pub(crate) token: Token,
    /// The address to which it sends, and those to try next if no program takes datagrams there.
    pub(crate) at: SocketAddr,
    pub(crate) untried: Vec<SocketAddr>,
    /// Something came from there.
    pub(crate) answered: bool,
    pub(crate) used: u64,
}

/// The stream of a tunnel: the end of a pair of sockets, whose other end is piped to a stream of a link.
pub(crate) struct TunnelStream {
    pub(crate) socket: OwnedFd,
    pub(crate) token: Token,
    pub(crate) inbox: Vec<u8>,
    outbox: Vec<u8>,
}

/// Counts of datagrams.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Counts {
    /// From programs of this host, to the other end.
    pub(crate) sent: u64,
    /// From there, to programs.
    pub(crate) received: u64,
    /// There was no room for them here.
    pub(crate) dropped: u64,
    /// They came too late, or not whole.
    pub(crate) lost: u64,
}

impl TunnelStream {
    pub(crate) fn new(socket: OwnedFd, token: Token) -> Self {
        Self { socket, token, inbox: Vec::new(), outbox: Vec::new() }
    }

    /// Sends a datagram, or a part of it, the rest of which follows. False: there is no room for it.
    pub(crate) fn send(&mut self, flow: u32, bytes: &[u8]) -> bool {
        if self.outbox.len() + bytes.len() > MOST_QUEUED && flow != frame::NOTES {
            return false;
        }
        frame::write(flow, bytes, &mut self.outbox);
        self.flush();
        true
    }

    /// Sends what waits, as far as there is room. The next read reports an error.
    pub(crate) fn flush(&mut self) {
        while !self.outbox.is_empty() {
            match socket::send(&self.socket, &self.outbox) {
                Ok(0) | Err(_) => return,
                Ok(count) => drop(self.outbox.drain(..count)),
            }
        }
    }
}

impl Tunnel {
    /// Sends the other end a note, by the stream.
    pub(crate) fn tell(&mut self, note: &Note) {
        if let Some(stream) = &mut self.stream {
            stream.send(frame::NOTES, &note.bytes());
        }
    }

    /// The near end.
    pub(crate) fn near(&mut self) -> Option<&mut Near> {
        match &mut self.side {
            Side::Near(near) => Some(near),
            Side::Far(_) => None,
        }
    }

    /// The far end.
    pub(crate) fn far(&mut self) -> Option<&mut Far> {
        match &mut self.side {
            Side::Far(far) => Some(far),
            Side::Near(_) => None,
        }
    }

    /// The port to which datagrams go, at the far end.
    pub(crate) fn port(&self) -> u16 {
        match &self.side {
            Side::Near(near) => near.target.port,
            Side::Far(far) => far.port,
        }
    }

    /// When something is due; never: `u64::MAX`.
    pub(crate) fn deadline(&self) -> u64 {
        match &self.side {
            Side::Near(near) => near.stream_at.min(near.quic_at),
            Side::Far(_) => u64::MAX,
        }
    }
}
