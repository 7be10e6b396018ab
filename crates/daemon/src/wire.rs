//! The wire format: frames and messages, but for the multiplexer ([`madrigal_proto::mux`]). A frame is one of [`madrigal_proto::frame`]
//! with a head of one byte, the kind, and a body that is JSON or plain text.
//!
//! ```text
//!  between daemons    HELLO both ways, or JOIN, or REFUSED with the reason; then the multiplexer
//!  a stream           opens with a StreamHeader; a connect request is answered by a ConnectReply: code, length (2), text;
//!                     the answer to a question follows as JSON
//!  control socket     STATUS, STOP, CONNECT, FORWARD, LINK, ROUTE, CONNECTIONS, VERDICT, RELOAD, POOL; answered by DONE or FAILED
//! ```
//! Names of types here may differ from those on the wire; the latter never change within one [`VERSION`].

use std::collections::BTreeMap;
use std::net::SocketAddr;

pub(crate) use madrigal_proto::client::{CONNECT, DONE, FAILED, POOL, ROUTE, VERDICT};
use madrigal_proto::frame::{self, Front};
use madrigal_selector::route::Figures;
use serde::{Deserialize, Serialize};

/// The version of the links' format; peers of another version are refused.
pub const VERSION: u32 = 4;

/// The greeting of a daemon: a [`Hello`].
pub(crate) const HELLO: u8 = 1;
/// A daemon refuses its peer; the reason.
pub(crate) const REFUSED: u8 = 2;
/// A connection is a further one of a link that is enciphered above all of its connections: a [`Joining`].
pub(crate) const JOIN: u8 = 3;
/// Request: the daemon's status.
pub(crate) const STATUS: u8 = 16;
/// Request: stop the daemon.
pub(crate) const STOP: u8 = 17;
/// Request: forward connections to a local port, while this connection is open.
pub(crate) const FORWARD: u8 = 19;
/// Request: this connection becomes a link. The other daemon greets first.
pub(crate) const LINK: u8 = 20;
/// Request: the connections of programs.
pub(crate) const CONNECTIONS: u8 = 22;
/// Request: read grid.toml again.
pub(crate) const RELOAD: u8 = 24;

/// The longest body of a frame.
pub(crate) const LONGEST: usize = 1 << 20;
/// The longest body that an unauthenticated peer may send.
pub(crate) const LONGEST_HELLO: usize = 4 << 10;
/// The shortest body of our greeting: longer than a packet of most networks, so that no link comes up where long packets are dropped.
const SHORTEST_HELLO: usize = 3000;

/// The greeting: a daemon's identity and offers.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Hello {
    /// [`VERSION`].
    pub(crate) version: u32,
    /// Its host's name in the grid.
    pub(crate) host: String,
    /// A random number of this process.
    pub(crate) instance: u64,
    /// From the dialling end: the count of its connections to this peer.
    pub(crate) number: u64,
    /// The stack that this end wants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) stack: Option<StackOffer>,
    /// This connection is one more of a link that is up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) joins: Option<Joins>,
    /// The link is for a trial of its stack.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) trial: bool,
    /// The link is for urgent streams.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) urgent: bool,
    /// From the accepting end: the address at which it sees the other one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) seen: Option<String>,
}

impl Hello {
    /// The address of this end, as the accepting one sees it.
    pub(crate) fn seen_here(&self) -> Option<SocketAddr> {
        self.seen.as_ref().and_then(|seen| seen.parse().ok())
    }
}

/// The stack that one end of a link wants ([`madrigal_adapters::stack::Offer`]).
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub(crate) struct StackOffer {
    /// Such as `adoc/stripe(32)/tls/tcp`.
    pub(crate) stack: String,
    /// It accepts only this stack: the configuration or a command names it.
    pub(crate) strict: bool,
    /// The adapters that it has, and the oldest and newest version of each.
    pub(crate) known: BTreeMap<String, [u16; 2]>,
}

/// A connection for a link that is up.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Joins {
    /// The number in the greeting with which the link began.
    pub(crate) link: u64,
    /// The connection's number in the link.
    pub(crate) lane: u32,
}

/// What one end shows on a further connection of a link that is enciphered above all of them: name of the link (16 bytes), number of the
/// connection (4), secret (32), and zeros up to [`SHORTEST_HELLO`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Joining {
    /// The link, which both ends call so.
    pub(crate) link: [u8; 16],
    /// The connection's number in the link.
    pub(crate) lane: u32,
    /// What only the two ends of the link know.
    pub(crate) secret: [u8; 32],
}

impl Joining {
    /// Reads the body of a frame.
    pub(crate) fn read(body: &[u8]) -> Option<Self> {
        let (link, rest) = body.split_first_chunk()?;
        let (lane, rest) = rest.split_first_chunk()?;
        let secret = rest.first_chunk()?;
        Some(Self { link: *link, lane: u32::from_le_bytes(*lane), secret: *secret })
    }
}

/// A port of a host, as a command requests it.
#[derive(Serialize, Deserialize, Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Target {
    /// The host's name in the grid.
    pub(crate) host: String,
    /// The port.
    pub(crate) port: u16,
    /// For a forward: the local port, 0 for any.
    #[serde(default)]
    pub(crate) from: u16,
    /// The time limit of the call in milliseconds; the daemon's own where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) within: Option<u64>,
    /// Instead of the port: a question to that host's daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) question: Option<Question>,
    /// For a forward: it is one of datagrams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) datagrams: Option<TunnelOptions>,
}

/// How datagrams are carried.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TunnelOptions {
    /// So many of a thousand bytes may be lost.
    pub(crate) tolerance: u32,
    /// What waits for more milliseconds is dropped.
    pub(crate) within_ms: u64,
}

/// A question to a daemon.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Question {
    /// The ways to a host, and which is used, for one port or for any.
    Why {
        /// The host.
        to: String,
        /// The port.
        #[serde(default)]
        port: Option<u16>,
    },
    /// The daemon's status.
    Status,
    /// From a daemon to another one: the address at which the latter is seen, so that both can connect at once.
    Punch {
        /// Where the daemon that asks is seen.
        at: String,
        /// Its round trip to the relay, in microseconds.
        #[serde(default)]
        round_trip_us: u64,
    },
    /// What a link of that stack with a host carries.
    Trial {
        /// The host.
        to: String,
        /// The stack.
        stack: String,
        /// With text; else with incompressible bytes.
        #[serde(default)]
        text: bool,
        /// For so many milliseconds.
        milliseconds: u64,
    },
    /// The stream carries datagrams for the port, both ways: no question, for it lasts.
    Datagrams {
        /// What waits for more milliseconds is dropped.
        within_ms: u64,
        /// So many of a thousand bytes may be lost.
        tolerance: u32,
    },
    /// The stream is one to the pools that this daemon keeps: no question, for it lasts.
    Pools,
    /// The state of this host, and of the ways to another one, whose addresses are tried.
    Check {
        /// The host.
        #[serde(default)]
        to: Option<String>,
    },
}

impl Target {
    /// Whether an answer is all that is wanted.
    pub(crate) fn asks(&self) -> bool {
        self.question.as_ref().is_some_and(|question| !matches!(question, Question::Datagrams { .. }))
    }
}

/// A port of a host, as a program requests it.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub(crate) struct ProgramTarget {
    /// The host's name in the grid.
    pub(crate) host: String,
    /// The port.
    pub(crate) port: u16,
    /// The address that the program connected to.
    pub(crate) asked: String,
    /// The program waits for the answer. If none comes in time it goes on without the daemon.
    #[serde(default)]
    pub(crate) waits: bool,
    /// It keeps its connection to this daemon, and is told there why its socket was not connected.
    #[serde(default)]
    pub(crate) told: bool,
}

/// A request to connect a stream to a port of a host.
#[derive(Serialize, Deserialize, Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct ConnectRequest {
    /// The host's name in the grid.
    pub(crate) host: String,
    /// The port.
    pub(crate) port: u16,
    /// The number of relays that it may still pass.
    pub(crate) hops: u8,
    /// The host where it begins.
    pub(crate) from: String,
    /// The address of the program there, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) source: Option<String>,
    /// The relays that it has passed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) through: Vec<String>,
    /// Instead of the port: a question to that host's daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) question: Option<Question>,
    /// The stream's id, a random number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    /// This stream resumes the stream with this id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) resume: Option<Resume>,
}

/// How a stream is resumed by another way. If it can be, the text of the reply is the target's own position.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Resume {
    /// The number of attempts to resume it. A late request has a lower one.
    pub(crate) epoch: u32,
    /// The position up to which the sender has received.
    pub(crate) got: u64,
}

/// Why a stream was reset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ResetCause {
    /// One of its ends ended it. It cannot be resumed.
    Ended,
    /// A link on its way was closed. It may be resumed by another way.
    LinkLost,
    /// A link on its way fell silent. It may be resumed by another way.
    LinkSilent,
}

impl ResetCause {
    /// The code of the reset.
    pub(crate) fn code(self) -> u32 {
        match self {
            Self::Ended => 0,
            Self::LinkLost => 2,
            Self::LinkSilent => 3,
        }
    }

    /// The cause that a code means.
    pub(crate) fn from_code(code: u32) -> Self {
        match code {
            2 => Self::LinkLost,
            3 => Self::LinkSilent,
            _ => Self::Ended,
        }
    }
}

/// What a stream between daemons is for: its first bytes, as JSON.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StreamHeader {
    /// A connection to a port of a host.
    #[serde(rename = "order")]
    Connect(ConnectRequest),
    /// A [`RouteUpdate`] follows.
    RouteUpdate,
    /// Padding follows.
    Discard,
    /// The link is closed, for this reason.
    #[serde(rename = "bye")]
    Close(String),
    /// The opener has a new certificate; a [`madrigal_identity::Proof`] follows.
    Renewed,
    /// The number of connections that the opener wants for what it sends by a link. Only the end that dialled can make them.
    Lanes(u8),
    /// The opener wants a link for urgent streams beside this one. Only the end that dialled this one can make it.
    UrgentLink,
}

impl StreamHeader {
    /// The bytes with which such a stream is opened.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        // Numbers and strings only: this cannot fail.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// What a relay advertises.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct RouteUpdate {
    /// The hosts that it reaches.
    pub(crate) reach: Vec<Reach>,
}

/// A host that a relay reaches.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Reach {
    /// Its name.
    pub(crate) to: String,
    /// The relays between that one and the host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) through: Vec<String>,
    /// The figures of the way from the relay on.
    #[serde(default)]
    pub(crate) figures: Figures,
}

/// The answer to a connect request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ConnectReply {
    /// The stream is connected.
    Connected,
    /// The target refuses. No other way is tried.
    Refused,
    /// Not by this way, or not now.
    Unavailable,
}

impl ConnectReply {
    /// As bytes, with the reason.
    pub(crate) fn bytes(self, text: &str) -> Vec<u8> {
        let text = cut(text);
        let code = match self {
            Self::Connected => 0,
            Self::Refused => 1,
            Self::Unavailable => 2,
        };
        [&[code, text.len() as u8, (text.len() >> 8) as u8], text.as_bytes()].concat()
    }

    /// Parses a reply at the front of `bytes`: the reply, its text, and its length. `Ok(None)`: it is not complete.
    pub(crate) fn read(bytes: &[u8]) -> Result<Option<(Self, String, usize)>, ()> {
        let &[code, low, high, ref rest @ ..] = bytes else { return Ok(None) };
        let reply = match code {
            0 => Self::Connected,
            1 => Self::Refused,
            2 => Self::Unavailable,
            _ => return Err(()),
        };
        let len = usize::from(u16::from_le_bytes([low, high]));
        Ok(rest.get(..len).map(|text| (reply, String::from_utf8_lossy(text).into_owned(), 3 + len)))
    }
}

/// A text, cut to the longest that a reply has room for.
pub(crate) fn cut(text: &str) -> &str {
    let end = (0..=text.len().min(900)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    text.get(..end).unwrap_or_default()
}

/// A frame.
pub(crate) fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    // A body fits in memory, so its length fits in a prefix.
    let prefix = frame::prefix(1, body.len() as u64).unwrap_or_default();
    [&prefix[..], &[kind], body].concat()
}

/// A frame whose body is a value as JSON.
pub(crate) fn json(kind: u8, value: &impl Serialize) -> Vec<u8> {
    // Numbers and strings only: this cannot fail.
    frame(kind, &serde_json::to_vec(value).unwrap_or_default())
}

/// A greeting, filled up with blanks to [`SHORTEST_HELLO`].
pub(crate) fn greeting(hello: &Hello) -> Vec<u8> {
    let mut body = serde_json::to_vec(hello).unwrap_or_default();
    body.resize(body.len().max(SHORTEST_HELLO), b' ');
    frame(HELLO, &body)
}

/// The frame of a [`Joining`].
pub(crate) fn joining(joining: &Joining) -> Vec<u8> {
    let Joining { link, lane, secret } = joining;
    let mut body = [&link[..], &lane.to_le_bytes(), secret].concat();
    body.resize(SHORTEST_HELLO, 0);
    frame(JOIN, &body)
}

/// Parses a frame at the front of `bytes`: its kind, body, and whole length. `Ok(None)`: it is not complete.
pub(crate) fn take(bytes: &[u8], longest: usize) -> Result<Option<(u8, Vec<u8>, usize)>, String> {
    let front = frame::front(bytes, longest).map_err(|nonsense| nonsense.to_string())?;
    match front {
        Front::More(_) => Ok(None),
        Front::Whole { head: &[kind], body } => Ok(Some((kind, body.to_vec(), front.taken()))),
        Front::Whole { head, .. } => Err(format!("a head of {} bytes", head.len())),
        Front::Long { len, .. } => Err(format!("a body of {len} bytes")),
    }
}

#[cfg(test)]
mod noise;

#[cfg(test)]
mod tests;
