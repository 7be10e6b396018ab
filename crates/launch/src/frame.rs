//! Frames between a launcher and an agent, over a pipe or an ssh connection: words as JSON, and bytes of a rank.
//!
//! ```text
//!  kind: 1 byte   length: 4 bytes, little endian
//!  0 words: JSON
//!  1 bytes: channel, 1 byte (0 input, 1 output, 2 error)   rank, 4 bytes   bytes
//! ```
//! A frame is at most [`MOST`] bytes; a peer that sends a longer one is not read any further.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Of a frame, its head not counted.
const MOST: usize = 8 << 20;
const HEAD: usize = 5;
const WORDS: u8 = 0;
const BYTES: u8 = 1;

/// What bytes of a rank are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Channel {
    Input,
    Output,
    Error,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame<W> {
    Words(W),
    Bytes { channel: Channel, rank: u32, bytes: Vec<u8> },
}

/// Why the other end is not understood.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("it sent a frame of {0} bytes, and no frame is longer than {MOST}")]
    TooLong(usize),
    #[error("it sent what is no frame: {0}")]
    Unknown(String),
}

/// Frames out of what comes piecemeal.
#[derive(Default)]
pub(crate) struct Incoming(Vec<u8>);

impl Incoming {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The next whole frame.
    pub(crate) fn next<W: DeserializeOwned>(&mut self) -> Result<Option<Frame<W>>, FrameError> {
        let Some(head) = self.0.first_chunk::<HEAD>() else { return Ok(None) };
        let (kind, len) = (head[0], u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize);
        if len > MOST {
            return Err(FrameError::TooLong(len));
        }
        if self.0.len() < HEAD + len {
            return Ok(None);
        }
        let frame = read(kind, &self.0[HEAD..HEAD + len]);
        self.0.drain(..HEAD + len);
        frame.map(Some)
    }
}

fn read<W: DeserializeOwned>(kind: u8, body: &[u8]) -> Result<Frame<W>, FrameError> {
    match (kind, body) {
        (WORDS, words) => {
            serde_json::from_slice(words).map(Frame::Words).map_err(|error| FrameError::Unknown(error.to_string()))
        }
        (BYTES, &[channel, a, b, c, d, ref bytes @ ..]) => {
            let channel = [Channel::Input, Channel::Output, Channel::Error].into_iter().nth(channel.into());
            let channel = channel.ok_or_else(|| FrameError::Unknown("bytes of no channel".to_owned()))?;
            Ok(Frame::Bytes { channel, rank: u32::from_le_bytes([a, b, c, d]), bytes: bytes.to_vec() })
        }
        _ => Err(FrameError::Unknown(format!("kind {kind}, {} bytes", body.len()))),
    }
}

/// What is still to be written to the other end.
#[derive(Default)]
pub(crate) struct Outgoing(VecDeque<u8>);

impl Outgoing {
    pub(crate) fn words(&mut self, words: &impl Serialize) {
        // Of plain structures with text as keys: it cannot fail.
        let body = serde_json::to_vec(words).unwrap_or_default();
        self.frame(WORDS, &[], &body);
    }

    pub(crate) fn bytes(&mut self, channel: Channel, rank: u32, bytes: &[u8]) {
        let [a, b, c, d] = rank.to_le_bytes();
        self.frame(BYTES, &[channel as u8, a, b, c, d], bytes);
    }

    fn frame(&mut self, kind: u8, front: &[u8], body: &[u8]) {
        self.0.push_back(kind);
        self.0.extend(((front.len() + body.len()) as u32).to_le_bytes());
        self.0.extend(front);
        self.0.extend(body);
    }

    /// Bytes as they are, for what is no frame.
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.0.extend(bytes);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Writes as much as goes without waiting.
    pub(crate) fn flush(&mut self, to: BorrowedFd<'_>) -> Result<(), Errno> {
        while !self.0.is_empty() {
            match rustix::io::write(to, self.0.as_slices().0) {
                Ok(n) => drop(self.0.drain(..n)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Frames come out as they went in, however they are cut.
        #[test]
        fn frames_survive_any_cut(bytes in proptest::collection::vec(any::<u8>(), 0..300), cut in 1..40usize) {
            let mut outgoing = Outgoing::default();
            outgoing.words(&"hello");
            outgoing.bytes(Channel::Error, 7, &bytes);
            let (mut incoming, mut seen) = (Incoming::default(), Vec::new());
            for piece in outgoing.0.make_contiguous().chunks(cut) {
                incoming.push(piece);
                while let Some(frame) = incoming.next::<String>().unwrap() {
                    seen.push(frame);
                }
            }
            prop_assert_eq!(seen, [Frame::Words("hello".to_owned()), Frame::Bytes { channel: Channel::Error, rank: 7, bytes }]);
        }

        /// No bytes make it panic, and none make it keep more than a frame.
        #[test]
        fn any_bytes_are_borne(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut incoming = Incoming::default();
            incoming.push(&bytes);
            while let Ok(Some(_)) = incoming.next::<String>() {}
        }
    }

    #[test]
    fn a_frame_that_is_too_long_is_refused_before_it_comes() {
        let mut incoming = Incoming::default();
        incoming.push(&[WORDS, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(incoming.next::<String>(), Err(FrameError::TooLong(u32::MAX as usize)));
    }
}
