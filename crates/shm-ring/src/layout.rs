//! What lies where in shared memory: the only description of the segment, used by both sides.
//!
//! One cache line has one writer wherever possible. All values a side reads from lines of its peer are masked and bounded by the
//! code that reads them ([`crate::ring`]); nothing here is trusted.

use madrigal_base::sync::{AtomicU32, AtomicU64};

use crate::express::Express;
use crate::slot::Life;

/// Bit of `tail`: no byte will be added to this direction any more; set by either side.
pub const SEALED: u64 = 1 << 63;
/// Bit of `tail`: the writer holds back what lies behind `WakeLine::held_from` ([`crate::ring`]).
pub const HELD: u64 = 1 << 62;
/// The position part of `tail` and `head`.
pub const POSITION: u64 = HELD - 1;

/// States of a direction, in `WriterLine::state`.
pub mod state {
    /// Bytes travel by the kernel socket; the writer has not switched.
    pub const KERNEL: u32 = 0;
    /// Kernel bytes up to `n_kernel`, then the ring; kernel bytes beyond are doorbells.
    pub const RING: u32 = 1;
    /// The ring is final; after `bells` doorbells the kernel socket carries bytes again.
    pub const DONE: u32 = 2;
}

/// What a side reports on the line that its peer reads anyway, in `WriterLine::progress`: a word of its own line would cost that peer a
/// second transfer between processors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// The processor it runs on, plus one; 0 for unknown.
    pub cpu: u32,
    /// How far it has read the other direction.
    pub read: u64,
}

impl Progress {
    /// Bits of a position: one more than a ring can hold unread.
    const READ: u32 = LARGEST_LOG + 1;

    /// The word for `WriterLine::progress`.
    #[inline]
    pub fn pack(self) -> u32 {
        let cpu = if self.cpu >> (32 - Self::READ) == 0 { self.cpu } else { 0 };
        cpu << Self::READ | self.read as u32 & ((1 << Self::READ) - 1)
    }

    /// The processor in a word.
    pub fn cpu_in(word: u32) -> u32 {
        word >> Self::READ
    }

    /// Whether a word reports everything before `position` as read, given that at most a ring's size is unread.
    #[inline]
    pub fn is_read(word: u32, position: u64) -> bool {
        (word ^ position as u32) & ((1 << Self::READ) - 1) == 0
    }
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

/// Written by the writer of a direction (`tail` also by the side that seals it).
#[repr(C, align(64))]
#[derive(Default)]
pub struct WriterLine {
    /// Position after the last published byte, [`SEALED`] and [`HELD`].
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
    /// Where this side was when it last published: a packed [`Progress`].
    pub progress: AtomicU32,
    /// One of [`fate`], for the whole side.
    pub fate: AtomicU32,
    /// 1: should this side die without a word, its peer sees a reset (`SO_LINGER` with time 0), not an end of stream.
    pub resets: AtomicU32,
    /// Unread bytes are on their way into the kernel's queue: one of [`taking`].
    pub taking: AtomicU32,
    /// Not 0: urgent data follow, or have followed, by the kernel; one more than how many such bytes count as doorbells.
    pub urgent: AtomicU32,
    /// 1: the program has shut its sending direction: the end reported by the kernel is no death.
    pub shut: AtomicU32,
}

/// Written by the reader of a direction.
#[repr(C, align(64))]
#[derive(Default)]
pub struct ReaderLine {
    /// Position after the last consumed byte.
    pub head: AtomicU64,
    /// The session's number, once the reader handles doorbells on its kernel socket.
    pub ready: AtomicU64,
    /// Processor this side last ran on, plus one; 0 for unknown.
    pub cpu: AtomicU32,
    /// 1: the reader has everything that came by the ring, and every doorbell; it needs nothing of the writer any more.
    pub drained: AtomicU32,
    /// 1: the program has shut its receiving direction; nothing may be sent to it by the kernel but what the program sends.
    pub deaf: AtomicU32,
    /// The process that takes bytes right now, where a fork left them to several; 0 for none.
    pub family: AtomicU32,
    /// 1: it has unread bytes in its own memory alone, and is about to put them back.
    pub handing: AtomicU32,
    /// What this side's processes report to their programs about a peer that went; only they give it a meaning.
    pub gone: AtomicU32,
    /// Doorbells that were taken out.
    pub swallowed: AtomicU64,
    /// Bytes that it had ever taken by the kernel when it became ready, and those since.
    pub taken: AtomicU64,
    /// How many of its threads are about to take bytes that may come before the ring.
    pub before: AtomicU32,
}

/// Taken by one side, set by the other.
#[repr(C, align(64))]
#[derive(Default)]
pub struct WakeLine {
    /// Set by the reader before it may sleep (a [`crate::ring::Sleeper`]); the writer takes it and owes a doorbell.
    pub armed: AtomicU32,
    /// Set by the writer before it sleeps for space ([`want`]); the reader takes it and owes a doorbell.
    pub want: AtomicU32,
    /// Which side may send by the kernel behind a direction that has ended: see [`gate`].
    pub gate: AtomicU32,
    /// Set by a reader that seals the direction while a thread of its own sleeps; the writer takes it, and rings once more before its end.
    pub last: AtomicU32,
    /// Where bytes begin that the writer holds back, while `tail` has the mark; and since when (nanoseconds since boot).
    pub held_from: AtomicU64,
    /// See [`WakeLine::held_from`].
    pub held_since: AtomicU64,
    /// How many bytes the writer's processes had put into the kernel when one of them had sent the last urgent byte.
    pub urgent_end: AtomicU64,
}

/// `WakeLine::gate`: the writer's threads count themselves while they send by the kernel; the reader closes it while it puts unread
/// bytes back into its own kernel socket.
pub mod gate {
    /// The reader puts bytes back: the writer may not send.
    pub const CLOSED: u32 = 1 << 31;
    /// The reader may not do it itself: the writer must take its bytes back and send them by the kernel.
    pub const WANTED: u32 = 1 << 30;
    /// The writer's threads inside a kernel send.
    pub const SENDERS: u32 = WANTED - 1;
}

/// Which unread bytes the writer is just moving, in `WriterLine::taking`.
pub mod taking {
    /// None.
    pub const NOTHING: u32 = 0;
    /// Those in the ring.
    pub const RING: u32 = 1;
    /// Those in the kernel's queue, too: no reader takes any meanwhile.
    pub const ALL: u32 = 2;
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

/// The processes of a connection, written once per use of a slot; `fd` again whenever the program moves its socket.
#[repr(C, align(64))]
#[derive(Default)]
pub struct SideLine {
    /// `SO_COOKIE` of this side's socket.
    pub cookie: AtomicU64,
    /// Process of this side.
    pub pid: AtomicU32,
    /// A descriptor of the socket in that process.
    pub fd: AtomicU32,
    /// Which connection it is, as this side's kernel names it: the accepting side compares.
    pub tuple: [AtomicU64; 5],
    /// 1: this side keeps and compares sums of what travels ([`Sums`]).
    pub checks: AtomicU32,
    /// A child of that process that has the socket, too, by the same number; 0: none is known.
    pub child: AtomicU32,
}

/// Sums that a slot has room for, in each direction.
pub const SUMS: usize = 64;

/// Where pieces end in a direction, and a sum of all bytes up to there: a word each, position (low half) and CRC-32 (high half).
#[repr(C, align(64))]
pub struct Sums {
    /// How many pieces were published.
    pub count: AtomicU64,
    /// The last of them, each at its number modulo [`SUMS`].
    pub piece: [AtomicU64; SUMS],
}

/// The largest ring, as a power of two.
pub const LARGEST_LOG: u32 = 20;
/// Bytes of the small ring inside a slot.
pub const SMALL_RING: usize = 1024;
/// Bytes of a slot: one page holds the lines and both small rings of an idle connection.
pub const SLOT_BYTES: usize = 4096;

/// All of one connection that is not in a large block.
#[repr(C, align(4096))]
pub struct Slot {
    /// Which sides may use it.
    pub life: Life,
    _line: [u32; 12],
    /// Connecting side, accepting side.
    pub side: [SideLine; 2],
    /// `dir[0]`: connecting to accepting side; `dir[1]`: back.
    pub dir: [Direction; 2],
    /// Messages of a few bytes, both ways on one line.
    pub express: Express,
    /// For checks: see [`Sums`].
    pub sums: [Sums; 2],
    _space: [u8; SLOT_BYTES - 2 * SMALL_RING - 64 * 10 - 2 * 576],
    /// The two small rings, addressed by offset and never as Rust memory.
    _rings: [[u8; SMALL_RING]; 2],
}

#[cfg(feature = "shuttle")]
impl Slot {
    /// One in memory of a model, where atomics are larger than they are.
    pub fn of_model() -> Self {
        let sums = || Sums { count: AtomicU64::new(0), piece: [const { AtomicU64::new(0) }; SUMS] };
        Self {
            life: Life::default(),
            _line: [0; 12],
            side: Default::default(),
            dir: Default::default(),
            express: Express::default(),
            sums: [sums(), sums()],
            _space: [0; SLOT_BYTES - 2 * SMALL_RING - 64 * 10 - 2 * 576],
            _rings: [[0; SMALL_RING]; 2],
        }
    }
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
        for word in [&self.w.tail, &self.w.block, &self.w.n_kernel, &self.w.bells, &self.r.head, &self.r.ready]
            .into_iter()
            .chain([&self.r.swallowed, &self.r.taken, &self.wake.urgent_end])
        {
            word.store(0, Relaxed);
        }
        let halves = [&self.w.state, &self.w.ringing, &self.w.fate, &self.w.resets, &self.w.taking, &self.w.urgent];
        for word in halves.into_iter().chain([
            &self.w.progress,
            &self.w.shut,
            &self.r.gone,
            &self.r.drained,
            &self.r.deaf,
            &self.r.family,
            &self.r.handing,
            &self.r.before,
            &self.wake.want,
            &self.wake.gate,
            &self.wake.last,
        ]) {
            word.store(0, Relaxed);
        }
        // A writer that switches first must ring: no reader polls the ring yet.
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
        if !(SMALL_RING.trailing_zeros()..=LARGEST_LOG).contains(&log) {
            return None;
        }
        let size = 1usize << log;
        let offset = usize::try_from(word >> 8).ok()?.checked_mul(1024)?;
        let inside = offset.checked_add(size)? <= arena_len;
        inside.then_some(Self { offset, size })
    }
}
