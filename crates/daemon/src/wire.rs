//! What is said on sockets, but for [`madrigal_proto::mux`]: in frames of [`madrigal_proto::frame`] with a head of one byte, the kind,
//! and a body that is JSON or plain text.
//!
//! ```text
//!  between daemons     HELLO both ways, or REFUSED with the reason; then the mux
//!  what a stream is for   an About; the first bytes back on an order are a verdict: code, length of the text (2), text;
//!                      where it asks something, the answer follows as JSON
//!  local clients       STATUS, STOP, CONNECT, FORWARD, LINK, ROUTE, ROUTES, VERDICT, RELOAD; answered by DONE or FAILED
//! ```

pub(crate) use madrigal_proto::client::{CONNECT, DONE, FAILED, ROUTE, VERDICT};
use madrigal_proto::frame::{self, Front};
use madrigal_selector::route::Figures;
use serde::{Deserialize, Serialize};

/// The version of all of this; peers of another one are refused.
pub(crate) const VERSION: u32 = 2;

/// A daemon says who it is.
pub(crate) const HELLO: u8 = 1;
/// A daemon says why it goes.
pub(crate) const REFUSED: u8 = 2;
/// A client asks how the daemon is.
pub(crate) const STATUS: u8 = 16;
/// A client asks it to end.
pub(crate) const STOP: u8 = 17;
/// A client wants connections to a local port carried on, as long as it stays.
pub(crate) const FORWARD: u8 = 19;
/// A client's connection leads to another daemon, which begins.
pub(crate) const LINK: u8 = 20;
/// A client asks which connections of programs there are.
pub(crate) const ROUTES: u8 = 22;

/// A client wants grid.toml read again.
pub(crate) const RELOAD: u8 = 24;

/// The longest body of a frame to or from a client, and of those between daemons.
pub(crate) const LONGEST: usize = 1 << 20;
/// The longest body that an unauthenticated peer may send.
pub(crate) const LONGEST_HELLO: usize = 4 << 10;
/// And the shortest of ours: longer than a packet of most networks.
const SHORTEST_HELLO: usize = 3000;

/// Who a daemon is.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Hello {
    /// [`VERSION`].
    pub(crate) version: u32,
    /// Its host's name in the grid.
    pub(crate) host: String,
    /// Another one each time it starts.
    pub(crate) instance: u64,
    /// From the dialling end: counts its connections.
    pub(crate) number: u64,
}

/// A port of a host.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Target {
    /// The host's name in the grid.
    pub(crate) host: String,
    /// The port.
    pub(crate) port: u16,
    /// For a forward: the local port, 0 for any.
    #[serde(default)]
    pub(crate) from: u16,
    /// Milliseconds in which it must be connected, or be said why not; where nothing is said a while.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) within: Option<u64>,
    /// Not the port is wanted, but an answer of that host's daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) question: Option<Question>,
}

/// What a daemon can be asked.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Question {
    /// The ways to a host, and which is used, for a port of it or for any.
    Why {
        /// The host.
        to: String,
        /// The port.
        #[serde(default)]
        port: Option<u16>,
    },
    /// How the daemon is.
    Status,
    /// How things are here, and with a host; its addresses are tried.
    Check {
        /// The host.
        #[serde(default)]
        to: Option<String>,
    },
}

/// A port of a host, as a program wants it.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Wanted {
    /// The host's name in the grid.
    pub(crate) host: String,
    /// The port.
    pub(crate) port: u16,
    /// The address that the program connected to.
    pub(crate) asked: String,
    /// It waits for the answer, and goes on by itself if none comes in time.
    #[serde(default)]
    pub(crate) waits: bool,
}

/// A port of a host that a stream is to be connected to.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Order {
    /// The host's name in the grid.
    pub(crate) host: String,
    /// The port.
    pub(crate) port: u16,
    /// How many relays may still carry it on.
    pub(crate) hops: u8,
    /// The host where it begins, as that says.
    pub(crate) from: String,
    /// The address that the program at its beginning has, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) source: Option<String>,
    /// The relays it has passed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) through: Vec<String>,
    /// Not the port is wanted, but an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) question: Option<Question>,
    /// A number of its own, that nobody can guess.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    /// A stream with this number is there already, and is to go on with this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) resume: Option<Resume>,
}

/// How a stream goes on by another way. Where it can, the text of the verdict is the position that came at that end.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Resume {
    /// How often it was to go on so: what comes late is known by that.
    pub(crate) epoch: u32,
    /// The position that came at this end.
    pub(crate) got: u64,
}

/// Why a stream is no more: the code of its reset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Gone {
    /// One of its ends ended it.
    Ended,
    /// Its way was closed: there may be another one.
    Lost,
    /// Its way fell silent.
    Silent,
}

impl Gone {
    pub(crate) fn code(self) -> u32 {
        match self {
            Self::Ended => 0,
            Self::Lost => 2,
            Self::Silent => 3,
        }
    }

    pub(crate) fn of(code: u32) -> Self {
        match code {
            2 => Self::Lost,
            3 => Self::Silent,
            _ => Self::Ended,
        }
    }
}

/// What a stream between daemons is for.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub(crate) enum About {
    /// To be connected to a port of a host.
    Order(Order),
    /// A [`RouteUpdate`] comes.
    RouteUpdate,
    /// Bytes come that nobody needs.
    Discard,
    /// Nothing: the link ends, and this is why.
    Bye(String),
    /// The opener has another certificate, and proves it: a [`madrigal_identity::Proof`].
    Renewed,
}

impl About {
    /// The words with which such a stream is opened.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        // Numbers and texts: nothing in them can fail.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// Where a relay leads.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct RouteUpdate {
    /// Each host it leads to.
    pub(crate) reach: Vec<Reach>,
}

/// A host that a relay leads to.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Reach {
    /// Its name.
    pub(crate) to: String,
    /// The further relays in between.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) through: Vec<String>,
    /// What was measured of the way from the relay on.
    #[serde(default)]
    pub(crate) figures: Figures,
}

/// What became of an order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// The stream is connected.
    Connected,
    /// It is not, and will not be.
    Never,
    /// Not on this way, or not now.
    NotNow,
}

impl Verdict {
    /// As bytes, with the reason.
    pub(crate) fn bytes(self, text: &str) -> Vec<u8> {
        let text = cut(text);
        let code = match self {
            Self::Connected => 0,
            Self::Never => 1,
            Self::NotNow => 2,
        };
        [&[code, text.len() as u8, (text.len() >> 8) as u8], text.as_bytes()].concat()
    }

    /// Reads one off the front of `bytes`: what it is, why, and its length; `Ok(None)`: more must come; `Err`: nonsense.
    pub(crate) fn read(bytes: &[u8]) -> Result<Option<(Self, String, usize)>, ()> {
        let &[code, low, high, ref rest @ ..] = bytes else { return Ok(None) };
        let verdict = match code {
            0 => Self::Connected,
            1 => Self::Never,
            2 => Self::NotNow,
            _ => return Err(()),
        };
        let len = usize::from(u16::from_le_bytes([low, high]));
        Ok(rest.get(..len).map(|text| (verdict, String::from_utf8_lossy(text).into_owned(), 3 + len)))
    }
}

/// As much of a text as goes with what else is said.
pub(crate) fn cut(text: &str) -> &str {
    let end = (0..=text.len().min(900)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    text.get(..end).unwrap_or_default()
}

/// A frame.
pub(crate) fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    // No body here is longer than any memory.
    let prefix = frame::prefix(1, body.len() as u64).unwrap_or_default();
    [&prefix[..], &[kind], body].concat()
}

/// A frame with a value as JSON.
pub(crate) fn json(kind: u8, value: &impl Serialize) -> Vec<u8> {
    // Numbers and texts: nothing in them can fail.
    frame(kind, &serde_json::to_vec(value).unwrap_or_default())
}

/// The first frame: with blanks behind it up to that length.
pub(crate) fn greeting(hello: &Hello) -> Vec<u8> {
    let mut body = serde_json::to_vec(hello).unwrap_or_default();
    body.resize(body.len().max(SHORTEST_HELLO), b' ');
    frame(HELLO, &body)
}

/// Reads a frame off the front of `bytes`: kind, body and its whole length; `Ok(None)`: more must come.
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever bytes come: a frame with what lies there, more to wait for, or nonsense; and what waits is bounded.
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300), mark: bool, head in 0u8..3, len in 0u64..2000) {
            let framed = [&[0xA7, head][..], &len.to_le_bytes()[..6], &bytes].concat();
            let bytes = if mark { &framed } else { &bytes };
            match take(bytes, LONGEST_HELLO) {
                Ok(Some((kind, body, whole))) => prop_assert_eq!(&frame(kind, &body), &bytes[..whole]),
                Ok(None) => prop_assert!(bytes.len() < 9 + LONGEST_HELLO),
                Err(_) => {}
            }
            if let Ok(Some((_, text, whole))) = Verdict::read(bytes) {
                prop_assert!(whole <= bytes.len() && text.len() <= 3 * whole);
            }
            let _ = serde_json::from_slice::<About>(bytes);
        }
    }

    #[test]
    fn verdicts_read_back_and_nonsense_is_refused() {
        let bytes = Verdict::NotNow.bytes("no way");
        assert_eq!(bytes, b"\x02\x06\0no way");
        for cut in 0..bytes.len() {
            assert_eq!(Verdict::read(&bytes[..cut]), Ok(None));
        }
        assert_eq!(Verdict::read(&[&bytes[..], b"rest"].concat()), Ok(Some((Verdict::NotNow, "no way".into(), 9))));
        assert_eq!(Verdict::read(&[3, 0, 0]), Err(()));
        assert!(Verdict::Never.bytes(&"é".repeat(1000)).len() <= 903);
    }

    #[test]
    fn what_a_stream_is_for_is_told_apart() {
        let read = |bytes: &[u8]| serde_json::from_slice::<About>(bytes);
        assert_eq!(read(&About::RouteUpdate.bytes()).unwrap(), About::RouteUpdate);
        let order = read(br#"{"order":{"host":"b1","port":7,"hops":1,"from":"a1"}}"#).unwrap();
        assert!(matches!(&order, About::Order(order) if order.through.is_empty() && order.question.is_none()));
        assert_eq!(read(&order.bytes()).unwrap(), order);
        assert!(read(b"\"more\"").is_err());
    }

    #[test]
    fn frames_read_back_and_long_ones_are_refused() {
        let target = Target { host: "b1".into(), port: 80, from: 0, within: None, question: None };
        let bytes = json(CONNECT, &target);
        let (kind, body, len) = take(&bytes, LONGEST).unwrap().unwrap();
        assert_eq!((kind, len, serde_json::from_slice::<Target>(&body).unwrap()), (CONNECT, bytes.len(), target));
        assert_eq!(take(&bytes[..bytes.len() - 1], LONGEST), Ok(None));
        assert!(take(&frame(HELLO, &[0; 5000]), LONGEST_HELLO).is_err());
        assert!(take(b"GET / HTTP/1.1", LONGEST_HELLO).is_err());
    }
}
