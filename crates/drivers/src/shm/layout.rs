//! What lies where in shared memory: the only description of the segment, used by both sides.
//!
//! One cache line has one writer wherever possible. All values a side reads from lines of its peer are masked and bounded by the
//! code that reads them ([`super::ring`]); nothing here is trusted.

use madrigal_base::sync::{AtomicU32, AtomicU64};

use super::express::Express;

/// Bit of `tail`: no byte will be added to this direction any more; set by either side.
pub const SEALED: u64 = 1 << 63;
/// The position part of `tail` and `head`.
pub const POSITION: u64 = SEALED - 1;

/// States of a direction, in `WriterLine::state`.
pub mod state {
    /// Bytes travel by the kernel socket; the writer has not switched.
    pub const KERNEL: u32 = 0;
    /// Kernel bytes up to `n_kernel`, then the ring; kernel bytes beyond are doorbells.
    pub const RING: u32 = 1;
    /// The ring is final; after `bells` doorbells the kernel socket carries bytes again.
    pub const DONE: u32 = 2;
}

/// How a side left, in `WriterLine::fate`.
pub mod fate {
    /// Still here (or died without a word).
    pub const OPEN: u32 = 0;
    /// Closed after reading everything: its peer sees end of stream.
    pub const CLOSED: u32 = 1;
    /// Closed with unread bytes: its peer sees a reset, as TCP would show.
    pub const RESET: u32 = 2;
}

/// Written by the writer of a direction (`tail` also by whoever seals it).
#[repr(C, align(64))]
#[derive(Default)]
pub struct WriterLine {
    /// Position after the last published byte, and [`SEALED`].
    pub tail: AtomicU64,
    /// Which block carries the ring now: a packed [`Block`]. Changes only while the ring is empty.
    pub block: AtomicU64,
    /// How many bytes of the kernel stream are data; what follows are doorbells.
    pub n_kernel: AtomicU64,
    /// Doorbells sent on the kernel socket by this side, counted before they are sent.
    pub bells: AtomicU64,
    /// One of [`state`].
    pub state: AtomicU32,
    /// How many threads of this side are between deciding on a doorbell and having sent it.
    pub ringing: AtomicU32,
    /// Processor this side last ran on, plus one; 0 for unknown.
    pub cpu: AtomicU32,
    /// One of [`fate`], for the whole side.
    pub fate: AtomicU32,
    /// 1: should this side die without a word, its peer sees a reset (`SO_LINGER` with time 0), not an end of stream.
    pub resets: AtomicU32,
}

/// Written by the reader of a direction.
#[repr(C, align(64))]
#[derive(Default)]
pub struct ReaderLine {
    /// Position after the last consumed byte.
    pub head: AtomicU64,
    /// The writer's nonce, once the reader handles doorbells on its kernel socket.
    pub ready: AtomicU64,
    /// Processor this side last ran on, plus one; 0 for unknown.
    pub cpu: AtomicU32,
}

/// Taken by one side, set by the other.
#[repr(C, align(64))]
#[derive(Default)]
pub struct WakeLine {
    /// Set by the reader before it may sleep (a [`super::ring::Sleeper`]); the writer takes it and owes a doorbell.
    pub armed: AtomicU32,
    /// Set by the writer before it sleeps for space ([`want`]); the reader takes it and owes a doorbell.
    pub want: AtomicU32,
    /// One of [`flush`]: the reader is putting unread ring bytes back into its kernel socket.
    pub flush: AtomicU32,
}

/// Stages of handing unread bytes back to the kernel, in `WakeLine::flush`.
pub mod flush {
    /// Nobody does.
    pub const NONE: u32 = 0;
    /// Under way: the writer must not send by the kernel yet.
    pub const BUSY: u32 = 1;
    /// Done.
    pub const DONE: u32 = 2;
    /// The reader may not do it itself: the writer has to take its bytes back and send them by the kernel.
    pub const WANTED: u32 = 3;
}

/// What a writer without space waits for, in `WakeLine::want`.
pub mod want {
    /// Nothing.
    pub const NOTHING: u32 = 0;
    /// Half of the ring.
    pub const HALF: u32 = 1;
    /// All of the ring (to move to a larger block).
    pub const ALL: u32 = 2;
}

/// One direction of a connection.
#[repr(C)]
#[derive(Default)]
pub struct Direction {
    /// The writer's line.
    pub w: WriterLine,
    /// The reader's line.
    pub r: ReaderLine,
    /// The wake-up line.
    pub wake: WakeLine,
}

/// Who is who on a connection, written once per use of a slot.
#[repr(C, align(64))]
#[derive(Default)]
pub struct SideLine {
    /// Fresh for every connection; echoed by the peer.
    pub nonce: AtomicU64,
    /// `SO_COOKIE` of this side's socket.
    pub cookie: AtomicU64,
    /// Process of this side.
    pub pid: AtomicU32,
    /// A descriptor of the socket in that process.
    pub fd: AtomicU32,
}

/// Stages of a slot, the low byte of `Slot::stage` (the rest is the generation).
pub mod stage {
    /// Nobody's.
    pub const FREE: u64 = 0;
    /// The connecting side waits for its peer.
    pub const OFFERED: u64 = 1;
    /// Both sides hold it.
    pub const ATTACHED: u64 = 2;
    /// The connecting side took the offer back.
    pub const WITHDRAWN: u64 = 3;
    /// Mask of the stage inside the word.
    pub const MASK: u64 = 0xff;
}

/// Bytes of the small ring inside a slot.
pub const SMALL_RING: usize = 1024;
/// Bytes of a slot: one page holds the lines and both small rings of an idle connection.
pub const SLOT_BYTES: usize = 4096;

/// All of one connection that is not in a large block.
#[repr(C, align(4096))]
pub struct Slot {
    /// Generation and stage: the one word both sides compete for while a connection is set up.
    pub stage: AtomicU64,
    /// How many sides have left for good; the second one gives the blocks back, and then the slot is free.
    pub left: AtomicU32,
    _line: [u32; 13],
    /// Connecting side, accepting side.
    pub side: [SideLine; 2],
    /// `dir[0]`: connecting to accepting side; `dir[1]`: back.
    pub dir: [Direction; 2],
    /// Messages of a few bytes, both ways on one line.
    pub express: Express,
    _space: [u8; SLOT_BYTES - 2 * SMALL_RING - 64 * 10],
    /// The two small rings, addressed by offset and never as Rust memory.
    _rings: [[u8; SMALL_RING]; 2],
}

/// Offset of small ring `i` inside its slot.
pub const fn small_ring(i: usize) -> usize {
    SLOT_BYTES - (2 - i) * SMALL_RING
}

#[cfg(not(feature = "shuttle"))]
const _: () = assert!(size_of::<Slot>() == SLOT_BYTES && size_of::<Direction>() == 192);

/// Where a ring lies in the arena: offset and size, packed into one word so that both change together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    /// Byte offset in the arena, a multiple of 1 KiB.
    pub offset: usize,
    /// Size in bytes, a power of two.
    pub size: usize,
}

impl Direction {
    /// Makes the direction a fresh one. Only while neither side uses it.
    pub fn reset(&self) {
        use madrigal_base::sync::Ordering::Relaxed;
        for word in [&self.w.tail, &self.w.block, &self.w.n_kernel, &self.w.bells, &self.r.head, &self.r.ready] {
            word.store(0, Relaxed);
        }
        for word in [&self.w.state, &self.w.ringing, &self.w.fate, &self.w.resets, &self.wake.want, &self.wake.flush] {
            word.store(0, Relaxed);
        }
        // A writer that switches first must ring: nobody looks at the ring yet.
        self.wake.armed.store(1, Relaxed);
    }
}

impl Block {
    /// The word for `WriterLine::block`.
    pub fn pack(self) -> u64 {
        (self.offset as u64 >> 10) << 8 | u64::from(self.size.trailing_zeros())
    }

    /// The block a word names, if it is a legal one inside `arena_len` bytes.
    pub fn unpack(word: u64, arena_len: usize) -> Option<Self> {
        let log = (word & 0xff) as u32;
        if !(SMALL_RING.trailing_zeros()..=20).contains(&log) {
            return None;
        }
        let size = 1usize << log;
        let offset = usize::try_from(word >> 8).ok()?.checked_mul(1024)?;
        let inside = offset.checked_add(size)? <= arena_len;
        inside.then_some(Self { offset, size })
    }
}
