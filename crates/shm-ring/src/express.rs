//! The express line of a connection: messages of a few bytes travel beside the rings, both ways on one cache line.
//!
//! A line that one side only writes and the other only reads costs two transfers a message: the writer takes it away from the
//! reader, the reader fetches it back. A line that both sides write in turn moves once a message, with the bytes in it. Measured
//! between two processors: 62 ns a message on one common line, 150 ns on a line for each direction, 270 ns by a ring (whose tail
//! and bytes are two lines).
//!
//! Each direction has one *lane*: a word and room for [`LONGEST`] bytes. The writer fills a free lane and then stores the word; the
//! reader takes the bytes and clears it. A message carries the position of the ring at which it was put, so the two together are
//! one stream: the reader takes ring bytes up to that position, then the message, then the rest. A lane that is taken sends the
//! writer to the ring.

use madrigal_base::sync::{AtomicU32, AtomicU64, Ordering, fence};
use madrigal_sys::cpu;

/// The longest message of a lane, in bytes.
pub const LONGEST: usize = 24;

const WORDS: usize = LONGEST / 8;
/// How much of a ring's position a lane keeps. Rings are far smaller, so it cannot be mistaken.
const POSITION: u64 = (1 << 56) - 1;

/// Both lanes of a connection.
#[repr(C, align(64))]
#[derive(Default)]
pub struct Express {
    lane: [Lane; 2],
}

impl Express {
    /// The lane of direction `dir` (0: connecting to accepting side).
    pub fn lane(&self, dir: usize) -> &Lane {
        &self.lane[dir & 1]
    }
}

/// One direction.
#[repr(C)]
#[derive(Default)]
pub struct Lane {
    /// 0, or position and length of the message.
    word: AtomicU64,
    bytes: [AtomicU64; WORDS],
}

/// A message in a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    at: u64,
    len: usize,
}

impl Message {
    /// Bytes of it; at most [`LONGEST`], whatever the peer wrote.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it is empty, which no honest peer sends.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many bytes of the ring, of which `head` were consumed, come before this message.
    pub fn behind(&self, head: u64) -> u64 {
        self.at.wrapping_sub(head) & POSITION
    }
}

impl Lane {
    /// Forgets everything. Only while neither side uses the lane.
    pub fn reset(&self) {
        self.word.store(0, Ordering::Relaxed);
    }

    /// Whether the writer may put a message.
    #[inline]
    pub fn is_free(&self) -> bool {
        // SYNC: Acquire pairs with `free`: the reader has taken the bytes.
        self.word.load(Ordering::Acquire) == 0
    }

    /// Writer: puts a message of at most [`LONGEST`] bytes (longer ones are cut) into a free lane, at position `tail` of the ring.
    /// `armed` is the reader's. Returns whether the reader may sleep, and the caller owes it a doorbell.
    #[inline]
    pub fn put(&self, tail: u64, message: &[u8], armed: &AtomicU32) -> bool {
        let len = message.len().min(LONGEST);
        for (to, from) in self.bytes.iter().zip(message[..len].chunks(8)) {
            // The length of a whole word is known to the compiler, that of a part is not.
            let word = from.try_into().map(u64::from_ne_bytes).unwrap_or_else(|_| part(from));
            to.store(word, Ordering::Relaxed);
        }
        // SYNC: SeqCst, so that the message is published before `armed` is loaded; pairs with the fence in `stirred_after_arm`. The Release
        // part pairs with `message`. An exchange costs half of a store and a fence.
        self.word.swap((tail & POSITION) << 8 | len as u64, Ordering::SeqCst);
        armed.load(Ordering::SeqCst) != 0 && armed.swap(0, Ordering::SeqCst) != 0
    }

    /// Reader: the message in the lane. Call it after the ring's tail was read: then a message put before bytes of the ring is seen
    /// whenever those bytes are.
    #[inline]
    pub fn message(&self) -> Option<Message> {
        // SYNC: Acquire pairs with `put`.
        let word = self.word.load(Ordering::Acquire);
        (word != 0).then(|| Message { at: word >> 8, len: (word as u8 as usize).min(LONGEST) })
    }

    /// Reader: prefetches the line, to read the message and to put an answer beside it. Worth it if there probably is one: then the
    /// line moves once instead of twice.
    #[inline]
    pub fn claim(&self) {
        cpu::claim(self);
    }

    /// Reader: copies the bytes of the message from `offset` on into `buf`; returns how many.
    #[inline]
    pub fn copy_out(&self, message: Message, offset: usize, buf: &mut [u8]) -> usize {
        if let (8, 0, Some(whole)) = (message.len, offset, buf.first_chunk_mut::<8>()) {
            *whole = self.bytes[0].load(Ordering::Relaxed).to_ne_bytes();
            return 8;
        }
        let mut bytes = [0u8; LONGEST];
        for (to, from) in bytes.chunks_exact_mut(8).zip(&self.bytes) {
            to.copy_from_slice(&from.load(Ordering::Relaxed).to_ne_bytes());
        }
        let rest = &bytes[offset.min(message.len)..message.len];
        let n = rest.len().min(buf.len());
        buf[..n].copy_from_slice(&rest[..n]);
        n
    }

    /// Reader: gives the lane back, its message read.
    #[inline]
    pub fn free(&self) {
        // SYNC: Release pairs with `is_free`.
        self.word.store(0, Ordering::Release);
    }

    /// Reader: whether there is a message; called after the reader armed itself.
    pub fn stirred_after_arm(&self) -> bool {
        // SYNC: `armed` was stored before this load; pairs with the exchange in `put`.
        fence(Ordering::SeqCst);
        self.word.load(Ordering::Relaxed) != 0
    }
}

/// Less than a word of bytes, as a word.
fn part(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    u64::from_ne_bytes(word)
}
