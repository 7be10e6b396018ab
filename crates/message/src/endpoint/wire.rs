//! Heads of frames between endpoints.
//!
//! ```text
//!   0 what   1 flags   2 channel it is for   4 channel it is from   6 extra   8... words of 8 bytes, given by `what` and flags
//! ```
//! A small message needs 8 to 24 bytes, so that head and body lie in one cache line. Little end first.

use madrigal_progress::message::MAX_HEAD;

/// What a frame is. Behind each: its words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum What {
    /// A whole message: `[tag] [data] [operation, where delivery must be reported]`; body: the message.
    Eager = 1,
    /// A rendezvous: `operation, length [tag] [data]`; body: where its pieces lie, 16 bytes each.
    Rendezvous = 2,
    /// Bytes of a message by rendezvous are wanted: `operation, how many, operation they are for`.
    Go = 3,
    /// Requested bytes: `operation, offset`; body: the bytes.
    Data = 4,
    /// An operation is over: `operation`; extra: an [`Ended`].
    End = 5,
    /// Bytes for a region: `key, where, operation, offset of these bytes, how many there are with all frames [data]`; body: the bytes.
    Put = 6,
    /// Bytes of a region are wanted: `key, where, how many, operation`.
    Get = 7,
    /// An operation on numbers: `key, where, count, operation`; extra: operation and type; body: operand, what to compare with.
    Atomic = 8,
    /// Where does a region lie: `key, operation`.
    Ask = 9,
    /// There: `operation, address, length, origin`; extra: an [`Ended`].
    Region = 10,
    /// A region reported before is withdrawn: `key`.
    Forget = 11,
    /// Bytes were put straight into memory: `data, how many`.
    Wrote = 12,
    /// Messages sent whole were received: `how many bytes`, as [`credit`](super::credit) counts.
    Credit = 13,
}

const KINDS: [What; 13] = [
    What::Eager,
    What::Rendezvous,
    What::Go,
    What::Data,
    What::End,
    What::Put,
    What::Get,
    What::Atomic,
    What::Ask,
    What::Region,
    What::Forget,
    What::Wrote,
    What::Credit,
];

/// The message has a tag.
pub(crate) const TAGGED: u8 = 1;
/// A number comes with it.
pub(crate) const DATA: u8 = 2;
/// The sender wants a report of the delivery. Of requested bytes: they must stay until the end is sent.
pub(crate) const DELIVERY: u8 = 4;
/// The last frame of its operation.
pub(crate) const LAST: u8 = 8;
/// The old numbers are wanted. Of a region: it may be read.
pub(crate) const FETCH: u8 = 16;
/// Of a region: it may be written.
pub(crate) const WRITE: u8 = 32;

/// How an operation ended, in `extra`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub(crate) enum Ended {
    Well = 0,
    Denied = 1,
    Failed = 2,
}

impl Ended {
    pub(crate) fn from_number(number: u16) -> Self {
        match number {
            0 => Self::Well,
            1 => Self::Denied,
            _ => Self::Failed,
        }
    }
}

/// A head to be sent.
#[derive(Clone, Copy)]
pub(crate) struct Head {
    bytes: [u8; MAX_HEAD],
    len: u8,
}

impl Head {
    /// A head without words.
    #[inline]
    pub(crate) fn new(what: What, flags: u8, to: u16, from: u16) -> Self {
        let mut bytes = [0; MAX_HEAD];
        let prefix = u64::from(what as u8) | u64::from(flags) << 8 | u64::from(to) << 16 | u64::from(from) << 32;
        bytes[..8].copy_from_slice(&prefix.to_le_bytes());
        Self { bytes, len: 8 }
    }

    /// With that in the place for extras.
    pub(crate) fn extra(mut self, extra: u16) -> Self {
        self.bytes[6..8].copy_from_slice(&extra.to_le_bytes());
        self
    }

    /// With one word more; at most seven fit.
    #[inline]
    pub(crate) fn word(mut self, word: u64) -> Self {
        let at = usize::from(self.len);
        if let Some(place) = self.bytes.get_mut(at..at + 8) {
            place.copy_from_slice(&word.to_le_bytes());
            self.len += 8;
        }
        self
    }

    /// With one word more, if there is one.
    #[inline]
    pub(crate) fn maybe(self, word: Option<u64>) -> Self {
        match word {
            Some(word) => self.word(word),
            None => self,
        }
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// A head that came. Every word that is not there reads as `None`.
#[derive(Clone, Copy)]
pub(crate) struct Seen<'a> {
    pub(crate) what: What,
    pub(crate) flags: u8,
    pub(crate) to: u16,
    pub(crate) from: u16,
    pub(crate) extra: u16,
    words: &'a [u8],
}

impl<'a> Seen<'a> {
    /// Reads a head; `None`: it is none of ours.
    #[inline]
    pub(crate) fn read(head: &'a [u8]) -> Option<Self> {
        let (prefix, words) = head.split_first_chunk::<8>()?;
        let pair = |at: usize| u16::from_le_bytes([prefix[at], prefix[at + 1]]);
        let what = *KINDS.get(usize::from(prefix[0]).wrapping_sub(1))?;
        Some(Self { what, flags: prefix[1], to: pair(2), from: pair(4), extra: pair(6), words })
    }

    /// The word of that number.
    #[inline]
    pub(crate) fn word(&self, number: usize) -> Option<u64> {
        let (word, _) = self.words.get(number * 8..)?.split_first_chunk::<8>()?;
        Some(u64::from_le_bytes(*word))
    }

    #[inline]
    pub(crate) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Tag, data and operation from word `first` on, given by the flags. `None`: a word is missing.
    #[inline]
    pub(crate) fn message(&self, first: usize) -> Option<Message> {
        let mut next = first;
        let mut word = |flag: u8| {
            if !self.has(flag) {
                return Some(None);
            }
            next += 1;
            self.word(next - 1).map(Some)
        };
        let (tag, data) = (word(TAGGED)?, word(DATA)?);
        let operation = if self.what == What::Eager { word(DELIVERY)? } else { None };
        Some(Message { tag: tag.unwrap_or(0), tagged: tag.is_some(), data, operation })
    }
}

/// What the head of a message has about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Message {
    pub(crate) tag: u64,
    pub(crate) tagged: bool,
    pub(crate) data: Option<u64>,
    pub(crate) operation: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_reads_as_it_was_written() {
        let head = Head::new(What::Eager, TAGGED | DATA | DELIVERY, 3, 40_000).extra(7).word(1).word(2).maybe(Some(3));
        let seen = Seen::read(head.bytes()).unwrap();
        assert_eq!((seen.what, seen.to, seen.from, seen.extra), (What::Eager, 3, 40_000, 7));
        let message = Message { tag: 1, tagged: true, data: Some(2), operation: Some(3) };
        assert_eq!(seen.message(0), Some(message));
        assert_eq!(seen.word(3), None);
    }

    #[test]
    fn kinds_are_where_their_numbers_say() {
        for (i, kind) in KINDS.into_iter().enumerate() {
            assert_eq!(kind as usize, i + 1);
        }
        assert!(Seen::read(&[0; 8]).is_none() && Seen::read(&[99; 64]).is_none() && Seen::read(&[1; 7]).is_none());
    }

    #[test]
    fn a_small_message_has_a_small_head() {
        assert_eq!(Head::new(What::Eager, 0, 0, 0).bytes().len(), 8);
        assert_eq!(Head::new(What::Eager, TAGGED | DATA, 0, 0).word(1).word(2).bytes().len(), 24);
    }

    #[test]
    fn a_word_that_is_missing_is_found_out() {
        let head = Head::new(What::Eager, TAGGED | DATA, 0, 0).word(1);
        assert_eq!(Seen::read(head.bytes()).unwrap().message(0), None);
    }
}
