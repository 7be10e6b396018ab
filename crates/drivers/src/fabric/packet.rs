//! The content of one message of the provider's: bytes of a frame, or a control message between the two drivers. No I/O.
//!
//! ```text
//!   0 kind   1 bytes of the frame's head   2 messages the peer may send more   4 the receiver's link   8 its session   16 length   24 ...
//! ```
//! Everything is little end first. Link and session are the receiver's own, sent when the two met: no other message is accepted. Messages
//! that do not parse are dropped.

use std::io::IoSlice;

use madrigal_base::node::NodeId;

/// Bytes in front of what is carried.
pub(super) const HEAD: usize = 24;
/// The longest address of a greeting, in bytes.
const NAME: usize = 200;
/// What a greeting begins with behind its head, so that no message of another protocol is taken for one.
const MAGIC: &[u8; 8] = b"mdr-fab\x01";

/// What a message is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Kind {
    /// I am that node, and want a link with you.
    Hello = 1,
    /// The answer.
    Welcome = 2,
    /// A whole frame.
    Frame = 3,
    /// The first bytes of a long one.
    Begin = 4,
    /// The next ones.
    More = 5,
    /// Nothing but the number of messages the peer may send.
    Credit = 6,
    /// The link is over.
    Bye = 7,
    /// Nothing: to see whether it can be sent.
    Ping = 8,
}

impl Kind {
    fn of(byte: u8) -> Option<Self> {
        use Kind::{Begin, Bye, Credit, Frame, Hello, More, Ping, Welcome};
        [Hello, Welcome, Frame, Begin, More, Credit, Bye, Ping].into_iter().find(|kind| *kind as u8 == byte)
    }

    /// Whether it counts against what the peer may send.
    pub(super) fn is_counted(self) -> bool {
        matches!(self, Self::Frame | Self::Begin | Self::More)
    }
}

/// Which of the receiver's links is meant.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct LinkId {
    pub(super) link: u32,
    pub(super) session: u64,
}

/// The head of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Head {
    pub(super) kind: Kind,
    pub(super) to: LinkId,
    /// Bytes of the frame's head behind this one.
    pub(super) head: u8,
    /// Messages the receiver of this may send more.
    pub(super) credit: u16,
    /// Bytes of the body of a frame that begins.
    pub(super) len: u64,
}

impl Head {
    pub(super) fn new(kind: Kind, to: LinkId) -> Self {
        Self { kind, to, head: 0, credit: 0, len: 0 }
    }

    pub(super) fn bytes(&self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        bytes[0] = self.kind as u8;
        bytes[1] = self.head;
        bytes[2..4].copy_from_slice(&self.credit.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.to.link.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.to.session.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    /// The head of a message, and what is behind it.
    #[inline]
    pub(super) fn read(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (head, rest) = bytes.split_first_chunk::<HEAD>()?;
        let &[kind, len, c0, c1, l0, l1, l2, l3, ref words @ ..] = head;
        let (session, total) = words.split_first_chunk::<8>()?;
        let head = Self {
            kind: Kind::of(kind)?,
            to: LinkId { link: u32::from_le_bytes([l0, l1, l2, l3]), session: u64::from_le_bytes(*session) },
            head: len,
            credit: u16::from_le_bytes([c0, c1]),
            len: u64::from_le_bytes(total.try_into().ok()?),
        };
        Some((head, rest))
    }
}

/// What two drivers send each other when they meet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Greeting {
    pub(super) from: NodeId,
    pub(super) to: NodeId,
    /// How to reach the sender's link.
    pub(super) link_id: LinkId,
    /// The host and pid namespace of the sender, as a number; and its process there.
    pub(super) place: u64,
    pub(super) pid: u32,
    pub(super) start: u64,
    /// The provider's address of the sender.
    pub(super) name: Vec<u8>,
}

impl Greeting {
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        for word in [self.from.number(), self.to.number(), self.link_id.session, self.place, self.start] {
            bytes.extend(word.to_le_bytes());
        }
        for word in [self.link_id.link, self.pid] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(self.name.iter().take(NAME));
        bytes
    }

    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(MAGIC)?;
        let (words, rest) = rest.split_first_chunk::<40>()?;
        let (halves, name) = rest.split_first_chunk::<8>()?;
        let mut words = words.chunks_exact(8).filter_map(|word| Some(u64::from_le_bytes(word.try_into().ok()?)));
        let mut halves = halves.chunks_exact(4).filter_map(|word| Some(u32::from_le_bytes(word.try_into().ok()?)));
        let node = |word: Option<u64>| word.filter(|word| *word >> 48 == 0).and_then(NodeId::new);
        let (from, to) = (node(words.next())?, node(words.next())?);
        let (session, place, start) = (words.next()?, words.next()?, words.next()?);
        let (link, pid) = (halves.next()?, halves.next()?);
        let name = Some(name).filter(|name| !name.is_empty() && name.len() <= NAME)?.to_vec();
        Some(Self { from, to, link_id: LinkId { link, session }, place, pid, start, name })
    }
}

/// Copies what comes behind the first `skip` bytes of head and body, as much as there is room for; how much that was.
pub(super) fn gather(room: &mut [u8], head: &[u8], body: &[IoSlice<'_>], mut skip: usize) -> usize {
    let mut filled = 0;
    for piece in core::iter::once(head).chain(body.iter().map(|piece| &**piece)) {
        let from = piece.get(skip..).unwrap_or_default();
        skip = skip.saturating_sub(piece.len());
        let Some(space) = room.get_mut(filled..) else { break };
        let count = from.len().min(space.len());
        if let (Some(to), Some(from)) = (space.get_mut(..count), from.get(..count)) {
            to.copy_from_slice(from);
        }
        filled += count;
    }
    filled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_survive_their_bytes() {
        let to = LinkId { link: 7, session: 0x0102_0304_0506_0708 };
        let head = Head { head: 24, credit: 513, len: 1 << 40, ..Head::new(Kind::Begin, to) };
        let bytes = [&head.bytes()[..], b"rest"].concat();
        assert_eq!(bytes[..8], [4, 24, 1, 2, 7, 0, 0, 0]);
        assert_eq!(Head::read(&bytes), Some((head, &b"rest"[..])));
        for kind in [0, 9, 255] {
            assert_eq!(Head::read(&[&[kind], &bytes[1..]].concat()), None);
        }
        assert_eq!(Head::read(&bytes[..HEAD - 1]), None);
    }

    #[test]
    fn greetings_survive_their_bytes_and_nothing_else_is_one() {
        let node = |n| NodeId::new(n).unwrap();
        let link_id = LinkId { link: 3, session: 9 };
        let greeting =
            Greeting { from: node(1), to: node(2), link_id, place: 4, pid: 5, start: 6, name: b"fi_shm://7".to_vec() };
        let bytes = greeting.bytes();
        assert_eq!(Greeting::read(&bytes), Some(greeting));
        for len in 0..bytes.len() - 9 {
            assert_eq!(Greeting::read(&bytes[..len]), None, "{len}");
        }
        assert_eq!(Greeting::read(&[&bytes[..], &[0; 256]].concat()), None);
        let mut other = bytes;
        other[8 + 7] = 1;
        assert_eq!(Greeting::read(&other), None, "no node has more than 48 bits");
    }

    #[test]
    fn pieces_are_gathered_from_any_byte_on() {
        let body = [&b"cd"[..], b"", b"efg"].map(IoSlice::new);
        let all = b"abcdefg";
        for skip in 0..=all.len() {
            for room in 0..=all.len() {
                let mut buffer = vec![0; room];
                let count = gather(&mut buffer, b"ab", &body, skip);
                assert_eq!(&buffer[..count], &all[skip..(skip + room).min(all.len())]);
            }
        }
    }
}
