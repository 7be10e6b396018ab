//! What the two ends of a multiplexed connection send each other: the heads of frames ([`crate::frame`]).
//!
//! ```text
//!  open    0  stream, 4   class, 1      body: what it is for        credit  4  stream, 4   bytes, 4
//!  data    1  stream, 4                 body: bytes                 ping    5  token, 8
//!  finish  2  stream, 4                                             pong    6  token, 8
//!  reset   3  stream, 4   code, 4
//! ```
//! Numbers have their little end first.

use crate::frame;

/// The longest body of a frame.
pub const MAX_BODY: usize = 16 << 10;
/// The longest text with a stream's purpose.
pub const MAX_ABOUT: usize = 1 << 10;

/// A stream's number.
pub type StreamId = u32;

/// Which streams go first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Class {
    /// Before all data: few bytes that a reader waits for.
    Urgent,
    /// All else.
    Data,
    /// What no reader waits for: it goes when there is no data; beside data it gets one part of [`super::BULK_SHARE`].
    Bulk,
}

/// One parsed frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Frame<'a> {
    /// A new stream.
    Open {
        /// Its number.
        stream: StreamId,
        /// What goes before it.
        class: Class,
        /// What it is for.
        about: &'a [u8],
    },
    /// Bytes of a stream.
    Data {
        /// Which.
        stream: StreamId,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// No more bytes will come.
    Finish {
        /// Which stream.
        stream: StreamId,
    },
    /// The stream is over, both ways.
    Reset {
        /// Which stream.
        stream: StreamId,
        /// Why; its meaning is up to the users of the stream.
        code: u32,
    },
    /// So many more bytes may be sent.
    Credit {
        /// On which stream.
        stream: StreamId,
        /// How many.
        bytes: u32,
    },
    /// To be answered by a pong with the same token.
    Ping {
        /// Any number.
        token: u64,
    },
    /// The answer.
    Pong {
        /// That of the ping.
        token: u64,
    },
}

/// A frame that is never allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a frame of kind {kind} with a head of {head} and a body of {body} bytes")]
pub struct BadFrame {
    /// Its first byte, or 255.
    pub kind: u8,
    /// The length of its head.
    pub head: usize,
    /// The length of its body.
    pub body: usize,
}

impl<'a> Frame<'a> {
    /// Reads a frame.
    pub fn read(head: &[u8], body: &'a [u8]) -> Result<Self, BadFrame> {
        let bad = BadFrame { kind: head.first().copied().unwrap_or(255), head: head.len(), body: body.len() };
        let word = |at: usize| -> Option<u32> { Some(u32::from_le_bytes(head.get(at..at + 4)?.try_into().ok()?)) };
        let token = || -> Option<u64> { Some(u64::from_le_bytes(head.get(1..9)?.try_into().ok()?)) };
        let stream = || word(1).filter(|stream| *stream != 0);
        let read = match (bad.kind, head.len(), body.len()) {
            (0, 6, 0..=MAX_ABOUT) => stream().and_then(|stream| {
                let class = match head[5] {
                    0 => Class::Urgent,
                    1 => Class::Data,
                    2 => Class::Bulk,
                    _ => return None,
                };
                Some(Frame::Open { stream, class, about: body })
            }),
            (1, 5, 1..=MAX_BODY) => stream().map(|stream| Frame::Data { stream, bytes: body }),
            (2, 5, 0) => stream().map(|stream| Frame::Finish { stream }),
            (3, 9, 0) => stream().zip(word(5)).map(|(stream, code)| Frame::Reset { stream, code }),
            (4, 9, 0) => stream().zip(word(5)).map(|(stream, bytes)| Frame::Credit { stream, bytes }),
            (5, 9, 0) => token().map(|token| Frame::Ping { token }),
            (6, 9, 0) => token().map(|token| Frame::Pong { token }),
            _ => None,
        };
        read.ok_or(bad)
    }

    /// Adds the bytes of a frame of data in two pieces to `out`.
    pub fn write_data(stream: StreamId, [first, second]: [&[u8]; 2], out: &mut Vec<u8>) {
        let [a, b, c, d] = stream.to_le_bytes();
        out.extend_from_slice(&frame::prefix(5, (first.len() + second.len()) as u64).unwrap_or_default());
        out.extend_from_slice(&[1, a, b, c, d]);
        out.extend_from_slice(first);
        out.extend_from_slice(second);
    }

    /// Adds the frame's bytes to `out`.
    pub fn write(&self, out: &mut Vec<u8>) {
        let mut head = [0; 9];
        let (kind, body): (u8, &[u8]) = match *self {
            Frame::Open { about, .. } => (0, about),
            Frame::Data { bytes, .. } => (1, bytes),
            Frame::Finish { .. } => (2, &[]),
            Frame::Reset { .. } => (3, &[]),
            Frame::Credit { .. } => (4, &[]),
            Frame::Ping { .. } => (5, &[]),
            Frame::Pong { .. } => (6, &[]),
        };
        head[0] = kind;
        let len = match *self {
            Frame::Open { stream, class, .. } => {
                head[1..5].copy_from_slice(&stream.to_le_bytes());
                head[5] = class as u8;
                6
            }
            Frame::Data { stream, .. } | Frame::Finish { stream } => {
                head[1..5].copy_from_slice(&stream.to_le_bytes());
                5
            }
            Frame::Reset { stream, code: value } | Frame::Credit { stream, bytes: value } => {
                head[1..5].copy_from_slice(&stream.to_le_bytes());
                head[5..9].copy_from_slice(&value.to_le_bytes());
                9
            }
            Frame::Ping { token } | Frame::Pong { token } => {
                head[1..9].copy_from_slice(&token.to_le_bytes());
                9
            }
        };
        // A body that is too long for a frame is too long for any memory.
        out.extend_from_slice(&frame::prefix(len, body.len() as u64).unwrap_or_default());
        out.extend_from_slice(&head[..len]);
        out.extend_from_slice(body);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_are_fixed() {
        let stream = 0x0403_0201;
        let cases: [(Frame<'_>, &[u8]); 7] = [
            (
                Frame::Open { stream, class: Class::Data, about: b"x" },
                &[0xA7, 6, 1, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 1, b'x'],
            ),
            (Frame::Data { stream, bytes: b"yz" }, &[0xA7, 5, 2, 0, 0, 0, 0, 0, 1, 1, 2, 3, 4, b'y', b'z']),
            (Frame::Finish { stream }, &[0xA7, 5, 0, 0, 0, 0, 0, 0, 2, 1, 2, 3, 4]),
            (Frame::Reset { stream, code: 7 }, &[0xA7, 9, 0, 0, 0, 0, 0, 0, 3, 1, 2, 3, 4, 7, 0, 0, 0]),
            (Frame::Credit { stream, bytes: 256 }, &[0xA7, 9, 0, 0, 0, 0, 0, 0, 4, 1, 2, 3, 4, 0, 1, 0, 0]),
            (Frame::Ping { token: 5 }, &[0xA7, 9, 0, 0, 0, 0, 0, 0, 5, 5, 0, 0, 0, 0, 0, 0, 0]),
            (Frame::Pong { token: 6 }, &[0xA7, 9, 0, 0, 0, 0, 0, 0, 6, 6, 0, 0, 0, 0, 0, 0, 0]),
        ];
        for (frame, bytes) in cases {
            let mut out = Vec::new();
            frame.write(&mut out);
            assert_eq!(out, bytes);
            let Ok(frame::Front::Whole { head, body }) = frame::front(&out, MAX_BODY) else { panic!("{frame:?}") };
            assert_eq!(Frame::read(head, body), Ok(frame));
        }
    }

    #[test]
    fn what_nobody_may_send_is_refused() {
        let long = [0; MAX_BODY + 1];
        let cases: [(&[u8], &[u8]); 8] = [
            (&[], &[]),
            (&[7, 1, 0, 0, 0], &[]),
            (&[1, 0, 0, 0, 0], b"x"),
            (&[1, 1, 0, 0, 0], b""),
            (&[1, 1, 0, 0, 0], &long),
            (&[0, 1, 0, 0, 0, 3], b""),
            (&[0, 1, 0, 0, 0, 1], &long[..MAX_ABOUT + 1]),
            (&[2, 1, 0, 0, 0], b"x"),
        ];
        for (head, body) in cases {
            assert!(Frame::read(head, body).is_err(), "{head:?}");
        }
    }
}
