//! What the two ends send each other. Numbers have their little end first.
//!
//! ```text
//! a datagram  the low end of its number, 3   then pieces, each:
//!             class, and what is left out, 1   the low ends of message, 3, and of where it begins in its class, 4
//!             unless WHOLE: length of the message, 3   offset, 3         it is all of the message
//!             unless LAST: length, 2                                     it goes on to the end of the datagram
//!             bytes
//!
//! control, of the sender
//!   skip    1   class, 1   message, 4   length, 4   begin, 8   from, 4   to, 4         these bytes of the message will not come
//!   reach   2   class, 1   message, 4   length, 4   begin, 8   0, 4      to, 4         so far pieces were sent
//!
//! control, of the receiver
//!   want    3   class, 1   from, 8   to, 8                                             these bytes of the class must come again
//!   done    4   class, 1   message, 4   spans, 2   for each: from, 4   to, 4           it is whole but for these
//!   failed  5   class, 1   message, 4                                                  nothing of it is read
//!   credit  6   class, 1   bytes that were read of all classes, 8
//! ```

use super::{Broken, LONGEST, Lost};

/// Bytes of a datagram that has one message, in front of that one's.
pub const HEAD: usize = NUMBER + MESSAGE;
/// Bytes of a datagram's number.
pub(super) const NUMBER: usize = 3;
/// Bytes of the last piece in front of those of the message: where it is all of one, and where it is not.
pub(super) const MESSAGE: usize = 8;
pub(super) const PIECE: usize = MESSAGE + 6;
/// Bytes of the length of a piece that is not the last one.
pub(super) const LENGTH: usize = 2;
/// What is left out, in the byte of the class.
const WHOLE: u8 = 0x10;
const LAST: u8 = 0x20;
const CLASS: u8 = 0x0f;
/// A class has fewer bytes.
pub(super) const MOST_BYTES: u64 = 1 << 48;

/// A message as its first piece describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct About {
    pub(super) class: u8,
    pub(super) message: u32,
    pub(super) total: u32,
    /// Where it begins among the bytes of its class.
    pub(super) at: u64,
}

/// A part of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece<'a> {
    pub(super) about: About,
    pub(super) from: u32,
    pub(super) bytes: &'a [u8],
}

/// What a control stream carries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Frame {
    Skip { about: About, from: u32, to: u32 },
    Reach { about: About, to: u32 },
    Want { class: u8, from: u64, to: u64 },
    Done { class: u8, message: u32, lost: Lost },
    Failed { class: u8, message: u32 },
    Credit { taken: u64 },
}

const SKIP: u8 = 1;
const REACH: u8 = 2;
const WANT: u8 = 3;
const DONE: u8 = 4;
const FAILED: u8 = 5;
const CREDIT: u8 = 6;

impl About {
    fn write(&self, out: &mut Vec<u8>) {
        out.push(self.class);
        out.extend_from_slice(&self.message.to_le_bytes());
        out.extend_from_slice(&self.total.to_le_bytes());
        out.extend_from_slice(&self.at.to_le_bytes());
    }

    fn read(words: &mut Words<'_>) -> Option<Self> {
        Some(Self { class: words.byte()?, message: words.four()?, total: words.four()?, at: words.eight()? })
    }

    /// Whether there may be such a message.
    fn is_one(&self) -> bool {
        (1..=LONGEST).contains(&(self.total as usize)) && self.at < MOST_BYTES
    }
}

impl<'a> Piece<'a> {
    /// Adds it as the last one of a datagram. Another one may follow behind [`not_last`].
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let About { class, message, total, at } = self.about;
        let is_whole = self.bytes.len() == total as usize;
        out.push(class | LAST | if is_whole { WHOLE } else { 0 });
        out.extend_from_slice(&message.to_le_bytes()[..3]);
        out.extend_from_slice(&at.to_le_bytes()[..4]);
        if !is_whole {
            out.extend_from_slice(&total.to_le_bytes()[..3]);
            out.extend_from_slice(&self.from.to_le_bytes()[..3]);
        }
        out.extend_from_slice(self.bytes);
    }

    /// The first piece of these bytes, and what is behind it. `near` gives a message of a class, and where one begins: those of the piece
    /// are near them.
    pub(super) fn read(
        bytes: &'a [u8],
        near: impl FnOnce(u8) -> Result<(u32, u64), Broken>,
    ) -> Result<(Self, &'a [u8]), Broken> {
        let mut words = Words(bytes);
        let flags = words.byte().filter(|flags| flags & !(CLASS | WHOLE | LAST) == 0).ok_or(Broken::Frame(0))?;
        let class = flags & CLASS;
        let (message, at) = near(class)?;
        let piece = (|| {
            let message = u32::try_from(expand(words.low(3)?, 24, message.into())).ok()?;
            let at = expand(words.low(4)?, 32, at);
            let parts = if flags & WHOLE == 0 { Some((words.low(3)? as u32, words.low(3)? as u32)) } else { None };
            let len = if flags & LAST == 0 { words.low(LENGTH)? as usize } else { words.0.len() };
            let bytes = words.some(len)?;
            let (total, from) = parts.unwrap_or((len as u32, 0));
            Some(Piece { about: About { class, message, total, at }, from, bytes })
        })();
        let fits = |piece: &Piece<'_>| {
            let to = piece.from as usize + piece.bytes.len();
            piece.about.is_one() && !piece.bytes.is_empty() && to <= piece.about.total as usize
        };
        let piece = piece.filter(fits).ok_or(Broken::Frame(0))?;
        Ok((piece, words.0))
    }
}

/// Gives the piece that begins there, the last one so far, its length: another one follows.
pub(super) fn not_last(begin: usize, out: &mut Vec<u8>) {
    let Some(flags) = out.get_mut(begin) else { return };
    let head = if *flags & WHOLE == 0 { PIECE } else { MESSAGE };
    *flags &= !LAST;
    let len = out.len().saturating_sub(begin + head) as u16;
    out.splice(begin + head..begin + head, len.to_le_bytes());
}

/// The low end of a datagram's number, and its pieces.
pub(super) fn number_of(datagram: &[u8]) -> Result<(u64, &[u8]), Broken> {
    let mut words = Words(datagram);
    words.low(NUMBER).map(|number| (number, words.0)).ok_or(Broken::Frame(0))
}

/// The number that has so many bits as its low end and is nearest to another one (RFC 9000, appendix A.3).
pub(super) fn expand(low: u64, bits: u32, near: u64) -> u64 {
    let all = 1_u64 << bits;
    let number = near & !(all - 1) | low;
    match () {
        () if number + all / 2 < near => number + all,
        () if number > near + all / 2 => number.checked_sub(all).unwrap_or(number),
        () => number,
    }
}

impl Frame {
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let mut of = |kind: u8, class: u8, message: u32| {
            out.extend_from_slice(&[kind, class]);
            out.extend_from_slice(&message.to_le_bytes());
        };
        match self {
            Self::Skip { about, from, to } => write_part(SKIP, about, *from, *to, out),
            Self::Reach { about, to } => write_part(REACH, about, 0, *to, out),
            Self::Want { class, from, to } => {
                out.extend_from_slice(&[WANT, *class]);
                out.extend([*from, *to].iter().flat_map(|word| word.to_le_bytes()));
            }
            Self::Done { class, message, lost } => {
                of(DONE, *class, *message);
                out.extend_from_slice(&(lost.len() as u16).to_le_bytes());
                out.extend(lost.iter().flat_map(|(from, to)| [*from, *to]).flat_map(u32::to_le_bytes));
            }
            Self::Failed { class, message } => of(FAILED, *class, *message),
            Self::Credit { taken } => {
                out.extend_from_slice(&[CREDIT, 0]);
                out.extend_from_slice(&taken.to_le_bytes());
            }
        }
    }

    /// The first frame of these bytes, and how many are its own. `None`: more have to come.
    pub(super) fn read(bytes: &[u8]) -> Result<Option<(Self, usize)>, Broken> {
        let mut words = Words(bytes);
        let Some(kind) = words.byte() else { return Ok(None) };
        if !(SKIP..=CREDIT).contains(&kind) {
            return Err(Broken::Frame(kind));
        }
        let Some(frame) = Self::of_kind(kind, &mut words) else { return Ok(None) };
        if frame.is_one() { Ok(Some((frame, bytes.len() - words.0.len()))) } else { Err(Broken::Frame(kind)) }
    }

    fn of_kind(kind: u8, words: &mut Words<'_>) -> Option<Self> {
        if matches!(kind, SKIP | REACH) {
            let (about, from, to) = (About::read(words)?, words.four()?, words.four()?);
            return Some(if kind == SKIP { Self::Skip { about, from, to } } else { Self::Reach { about, to } });
        }
        let class = words.byte()?;
        Some(match kind {
            WANT => Self::Want { class, from: words.eight()?, to: words.eight()? },
            CREDIT => Self::Credit { taken: words.eight()? },
            FAILED => Self::Failed { class, message: words.four()? },
            _ => Self::Done { class, message: words.four()?, lost: words.spans()? },
        })
    }

    /// Its number.
    pub(super) fn kind(&self) -> u8 {
        match self {
            Self::Skip { .. } => SKIP,
            Self::Reach { .. } => REACH,
            Self::Want { .. } => WANT,
            Self::Done { .. } => DONE,
            Self::Failed { .. } => FAILED,
            Self::Credit { .. } => CREDIT,
        }
    }

    /// Whether it is a frame of a sender, to a receiver.
    pub(super) fn is_senders(&self) -> bool {
        matches!(self, Self::Skip { .. } | Self::Reach { .. })
    }

    /// Whether it can be meant.
    fn is_one(&self) -> bool {
        match self {
            Self::Skip { about, from, to } => about.is_one() && from < to && *to <= about.total,
            Self::Reach { about, to } => about.is_one() && *to <= about.total,
            Self::Want { from, to, .. } => from < to,
            Self::Done { lost, .. } => {
                lost.iter().all(|(from, to)| from < to) && lost.windows(2).all(|pair| pair[0].1 < pair[1].0)
            }
            Self::Failed { .. } | Self::Credit { .. } => true,
        }
    }
}

/// Handles the whole frames of these bytes, in order; how many bytes they are.
pub(super) fn each(bytes: &[u8], mut handle: impl FnMut(Frame) -> Result<(), Broken>) -> Result<usize, Broken> {
    let mut taken = 0;
    while let Some((frame, len)) = Frame::read(&bytes[taken..])? {
        handle(frame)?;
        taken += len;
    }
    Ok(taken)
}

fn write_part(kind: u8, about: &About, from: u32, to: u32, out: &mut Vec<u8>) {
    out.push(kind);
    about.write(out);
    out.extend([from, to].iter().flat_map(|word| word.to_le_bytes()));
}

/// What is left to be read.
struct Words<'a>(&'a [u8]);

impl<'a> Words<'a> {
    fn some(&mut self, n: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(front)
    }

    /// A number of so many bytes, 8 at most.
    fn low(&mut self, bytes: usize) -> Option<u64> {
        Some(self.some(bytes)?.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn byte(&mut self) -> Option<u8> {
        self.some(1).map(|bytes| bytes[0])
    }

    fn four(&mut self) -> Option<u32> {
        self.some(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    fn eight(&mut self) -> Option<u64> {
        self.some(8)?.try_into().ok().map(u64::from_le_bytes)
    }

    fn spans(&mut self) -> Option<Lost> {
        let count = u16::from_le_bytes(self.some(2)?.try_into().ok()?);
        let mut words = Words(self.some(usize::from(count) * 8)?);
        std::iter::from_fn(|| Some((words.four()?, words.four()?))).collect::<Lost>().into()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn about() -> impl Strategy<Value = About> {
        let parts = (any::<u8>(), any::<u32>(), 1000u32..LONGEST as u32, 0..MOST_BYTES);
        parts.prop_map(|(class, message, total, at)| About { class, message, total, at })
    }

    fn frames() -> impl Strategy<Value = Frame> {
        let spans = [(0, 4), (7, 9), (90, 1000)];
        prop_oneof![
            (about(), 0u32..500, 1u32..500).prop_map(|(about, from, len)| Frame::Skip { about, from, to: from + len }),
            (about(), 0u32..1000).prop_map(|(about, to)| Frame::Reach { about, to }),
            (any::<u8>(), 0u64..9, 9u64..99).prop_map(|(class, from, to)| Frame::Want { class, from, to }),
            (any::<u8>(), any::<u32>(), 0usize..4)
                .prop_map(move |(class, message, n)| { Frame::Done { class, message, lost: spans[..n].to_vec() } }),
            (any::<u8>(), any::<u32>()).prop_map(|(class, message)| Frame::Failed { class, message }),
            any::<u64>().prop_map(|taken| Frame::Credit { taken }),
        ]
    }

    proptest! {
        #[test]
        fn frames_come_as_they_were_written(sent in prop::collection::vec(frames(), 0..5), cut in 0usize..100) {
            let mut bytes = Vec::new();
            sent.iter().for_each(|frame| frame.write(&mut bytes));
            let (mut rest, mut read) = (&bytes[..], Vec::new());
            while let Some((frame, len)) = Frame::read(rest).unwrap() {
                read.push(frame);
                rest = &rest[len..];
            }
            prop_assert!(rest.is_empty());
            prop_assert_eq!(read, sent);
            // What is cut off is waited for.
            let mut rest = &bytes[..bytes.len().saturating_sub(cut)];
            while let Some((_, len)) = Frame::read(rest).unwrap() {
                rest = &rest[len..];
            }
        }

        #[test]
        fn garbage_is_refused_or_waited_for(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = (Frame::read(&bytes), Piece::read(&bytes, |_| Ok((7, 7))), number_of(&bytes));
        }
    }

    #[test]
    fn pieces_lie_within_their_message() {
        let near = |_| Ok((9_u32, (1 << 40) - 77));
        let piece = |from: u32, total: u32, bytes: &'static [u8]| {
            let piece = Piece { about: About { class: 3, message: 7, total, at: 1 << 40 }, from, bytes };
            let mut out = Vec::new();
            piece.write(&mut out);
            let head = if bytes.len() == total as usize { MESSAGE } else { PIECE };
            assert_eq!(out.len(), head + bytes.len());
            let is_last = Piece::read(&out, near) == Ok((piece, &b""[..]));
            not_last(0, &mut out);
            assert_eq!(out.len(), head + LENGTH + bytes.len());
            out.extend(b"rest");
            assert_eq!(Piece::read(&out, near) == Ok((piece, &b"rest"[..])), is_last);
            is_last
        };
        assert!(piece(0, 5, b"bytes") && piece(5, 10, b"bytes"));
        assert!(!piece(6, 10, b"bytes") && !piece(u32::MAX, 10, b"bytes") && !piece(0, 5, b""));
        assert!(!piece(0, LONGEST as u32 + 1, b"bytes"));
    }

    #[test]
    fn a_low_end_is_of_the_nearest_number() {
        for near in [0_u64, 1, 200, 255, 256, 300, 1 << 40] {
            for number in near.saturating_sub(127)..near + 127 {
                assert_eq!(expand(number & 0xff, 8, near), number, "near {near}");
            }
        }
    }
}
