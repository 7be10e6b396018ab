//! The shared memory of one pair of processes: slots (one page a connection) and large blocks lent to busy rings.
//!
//! ```text
//!   0        64 KiB                         64 MiB                              256 MiB
//!   | header | slot 1 .. slot 16368 (4 KiB) | blocks, in units of 64 KiB        |
//! ```
//! The connecting side creates the arena and hands out slots; both sides take blocks for the direction they write. The file is
//! sparse: an idle connection costs its one page, a busy one what it has borrowed, and what is given back is freed.

use core::ffi::CStr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::os::fd::AsFd;

use madrigal_sys::fd::Fd;
use madrigal_sys::mem::{self, SharedMap};
use madrigal_sys::{Errno, process};

use crate::layout::{Block, LARGEST_LOG, SLOT_BYTES, Slot, small_ring};
use crate::ring::Memory;
use crate::slot::Contradiction;
pub use crate::units::Tag;
use crate::units::Units;

/// Bytes of an arena; sparse.
pub const ARENA_BYTES: usize = 256 << 20;
/// The unit blocks are lent in.
pub const UNIT: usize = 64 << 10;
/// The largest block.
pub const LARGEST: usize = 1 << LARGEST_LOG;

const HEADER: usize = 64 << 10;
const BLOCKS_AT: usize = 64 << 20;
const UNITS: usize = (ARENA_BYTES - BLOCKS_AT) / UNIT;
const SLOTS: usize = (BLOCKS_AT - HEADER) / SLOT_BYTES;
/// Slots are made real this many at a time.
const SLOT_STEP: usize = 16;
const MAGIC: u64 = u64::from_le_bytes(*b"madrigal");
/// Version of everything in [`crate::layout`] and of the header below.
const VERSION: u32 = 8;
const NAME: &CStr = c"madrigal-arena";

#[repr(C)]
struct Header {
    magic: AtomicU64,
    id: AtomicU64,
    /// The accepting process, by the random number it chose at start; 0 until it has attached.
    bound: AtomicU64,
    version: AtomicU32,
    _pad: AtomicU32,
    units: Units<{ UNITS / 64 }, UNITS>,
    /// Event sets asleep, of the connecting and of the accepting process.
    asleep: [[SleepWord; SLEEP_WORDS]; 2],
}

/// 1 while a thread is asleep on an event set: the writer that takes it owes a doorbell, on any connection of that set.
#[repr(align(64))]
struct SleepWord(AtomicU32);

/// Event sets of a process that have a word.
pub const SLEEP_WORDS: usize = 64;

/// One bit a slot.
type Bits = [AtomicU64; SLOTS.div_ceil(64)];

/// One mapped arena. Slots and memory obtained from it are valid until it is dropped.
pub struct Arena {
    map: SharedMap,
    id: u64,
    /// Slots handed out; this and what follows only means something in the process that created the arena.
    slots: Bits,
    /// Those of them that we have left and the other side has not.
    lingering: Bits,
    /// How many these are.
    lingerers: AtomicU32,
    real_slots: AtomicU32,
}

impl Arena {
    /// A new arena, and the descriptor through which one peer may find it.
    pub fn create() -> Result<(Self, Fd), Errno> {
        let fd = mem::sealed_memfd(NAME, ARENA_BYTES)?;
        let arena = Self::from_map(SharedMap::map(&fd, ARENA_BYTES, true)?, process::random() | 1);
        arena.map.reserve(0, size_of::<Header>().next_multiple_of(SLOT_BYTES))?;
        let header = arena.header();
        header.id.store(arena.id, Ordering::Relaxed);
        header.version.store(VERSION, Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
        Ok((arena, fd))
    }

    /// Maps the arena `id` from a descriptor received from the peer. `EINVAL`: it is not that arena, or of another version, or a file
    /// that could become shorter.
    pub fn attach(fd: impl AsFd, id: u64) -> Result<Self, Errno> {
        mem::check_sealed(&fd, ARENA_BYTES)?;
        let arena = Self::from_map(SharedMap::map(fd, ARENA_BYTES, true)?, id);
        let header = arena.header();
        let same = header.magic.load(Ordering::Acquire) == MAGIC
            && header.version.load(Ordering::Relaxed) == VERSION
            && header.id.load(Ordering::Relaxed) == id;
        if same { Ok(arena) } else { Err(Errno::INVAL) }
    }

    /// Opens descriptor `fd` of process `pid` and maps it as arena `id`.
    pub fn attach_from(pid: u32, fd: i32, id: u64) -> Result<Self, Errno> {
        Self::attach(mem::open_peer_memfd(pid, fd, ARENA_BYTES, true)?, id)
    }

    fn from_map(map: SharedMap, id: u64) -> Self {
        let none = || [const { AtomicU64::new(0) }; SLOTS.div_ceil(64)];
        let count = || AtomicU32::new(0);
        Self { map, id, slots: none(), lingering: none(), lingerers: count(), real_slots: count() }
    }

    /// The random number this arena is known by.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The accepting process bound to this arena, 0 for none yet.
    pub fn bound_to(&self) -> u64 {
        self.header().bound.load(Ordering::Acquire)
    }

    /// Binds the arena to the accepting process `who`; false when it is bound to another: an event set's word has one owner.
    #[must_use]
    pub fn bind(&self, who: u64) -> bool {
        let bound = self.header().bound.compare_exchange(0, who, Ordering::AcqRel, Ordering::Acquire);
        bound.is_ok() || bound == Err(who)
    }

    /// The word of event set `index` of `side` (0 connecting, 1 accepting), as a direction armed with [`Sleeper::Set`] names it.
    ///
    /// [`Sleeper::Set`]: crate::ring::Sleeper::Set
    pub fn sleep_word(&self, side: usize, index: u32) -> &AtomicU32 {
        &self.header().asleep[side & 1][index as usize % SLEEP_WORDS].0
    }

    /// The memory rings lie in.
    pub fn memory(&self) -> Memory {
        let base = self.map.at(0, 0).unwrap_or(core::ptr::null_mut());
        // SAFETY: the mapping covers ARENA_BYTES and lives as long as this arena; rings are dropped before it (arena contract).
        unsafe { Memory::new(base, ARENA_BYTES) }
    }

    /// Slot `index`, if there is such a slot.
    pub fn slot(&self, index: u32) -> Option<&Slot> {
        if index as usize >= SLOTS {
            return None;
        }
        // SAFETY: a slot is atomics and bytes that are never borrowed; the reference lives no longer than `self`.
        unsafe { self.map.shared::<Slot>(HEADER + index as usize * SLOT_BYTES) }
    }

    /// The small ring of direction `dir` of slot `index`.
    pub fn small_block(&self, index: u32, dir: usize) -> Block {
        let offset = HEADER + index as usize * SLOT_BYTES + small_ring(dir);
        Block { offset, size: crate::layout::SMALL_RING }
    }

    /// Takes a free slot (creator only). `ENOSPC`: all are in use, or the machine has no memory for one more page.
    pub fn take_slot(&self) -> Result<u32, Errno> {
        self.sweep();
        for (w, word) in self.slots.iter().enumerate() {
            let mut seen = word.load(Ordering::Relaxed);
            while seen != u64::MAX {
                let bit = seen.trailing_ones() as usize;
                let index = w * 64 + bit;
                if index >= SLOTS {
                    return Err(Errno::NOSPC);
                }
                // SYNC: Acquire pairs with `give_slot`.
                match word.compare_exchange(seen, seen | 1 << bit, Ordering::Acquire, Ordering::Relaxed) {
                    Ok(_) => return self.make_real(index).inspect_err(|_| self.give_slot(index as u32)),
                    Err(now) => seen = now,
                }
            }
        }
        Err(Errno::NOSPC)
    }

    fn make_real(&self, index: usize) -> Result<u32, Errno> {
        while index >= self.real_slots.load(Ordering::Acquire) as usize {
            let from = self.real_slots.load(Ordering::Acquire) as usize;
            let count = SLOT_STEP.min(SLOTS - from);
            self.map.reserve(HEADER + from * SLOT_BYTES, count * SLOT_BYTES).map_err(|_| Errno::NOSPC)?;
            self.real_slots.fetch_max((from + count) as u32, Ordering::AcqRel);
        }
        Ok(index as u32)
    }

    /// Gives a slot back that was never offered (creator only).
    pub fn give_slot(&self, index: u32) {
        if let Some(word) = self.slots.get(index as usize / 64) {
            word.fetch_and(!(1 << (index % 64)), Ordering::Release);
        }
    }

    /// The creator is done with a slot that it offered: it is free at once, or as soon as the other side has left, too.
    pub fn let_go(&self, index: u32) {
        if self.recycle(index) {
            return;
        }
        if let Some(word) = self.lingering.get(index as usize / 64) {
            word.fetch_or(1 << (index % 64), Ordering::Relaxed);
            self.lingerers.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Makes slots free that the other side has left in the meantime.
    fn sweep(&self) {
        if self.lingerers.load(Ordering::Relaxed) == 0 {
            return;
        }
        for (w, word) in self.lingering.iter().enumerate() {
            let mut bits = word.load(Ordering::Relaxed);
            while bits != 0 {
                let bit = bits & bits.wrapping_neg();
                bits ^= bit;
                // One thread takes the bit, and then the slot; a slot that is still in use gets its bit back.
                if word.fetch_and(!bit, Ordering::Relaxed) & bit == 0 {
                    continue;
                }
                if self.recycle((w * 64) as u32 + bit.trailing_zeros()) {
                    self.lingerers.fetch_sub(1, Ordering::Relaxed);
                } else {
                    word.fetch_or(bit, Ordering::Relaxed);
                }
            }
        }
    }

    fn recycle(&self, index: u32) -> bool {
        let over = self.slot(index).is_some_and(|slot| slot.life.recycle());
        if over {
            // Last: from here on another thread may take it.
            self.give_slot(index);
        }
        over
    }

    /// Borrows a block of `size` bytes ([`UNIT`] or [`LARGEST`]) for a direction of a session; its pages are real. `None`: no room, stay
    /// with what there is.
    pub fn take_block(&self, size: usize, session: Tag, dir: usize) -> Option<Block> {
        let units = &self.header().units;
        let first = units.take(size / UNIT, session, dir)?;
        let block = Block { offset: BLOCKS_AT + first * UNIT, size };
        if self.map.reserve(block.offset, size).is_err() {
            let _ = units.give(first, size / UNIT, session, dir);
            return None;
        }
        Some(block)
    }

    /// Whether a block is lent to that direction of that session. The small rings of a slot always belong to it.
    pub fn is_lent(&self, block: Block, session: Tag, dir: usize) -> bool {
        block.offset < BLOCKS_AT || self.header().units.are_lent(unit_of(block), block.size / UNIT, session, dir)
    }

    /// Gives a borrowed block back and its memory to the system. Small rings stay with their slot. An error: the block is not lent to
    /// that direction of that session, and nothing was changed.
    pub fn give_block(&self, block: Block, session: Tag, dir: usize) -> Result<(), Contradiction> {
        if block.offset < BLOCKS_AT {
            return Ok(());
        }
        if !self.is_lent(block, session, dir) {
            return Err(Contradiction);
        }
        self.map.give_back(block.offset, block.size);
        let given = self.header().units.give(unit_of(block), block.size / UNIT, session, dir);
        if given { Ok(()) } else { Err(Contradiction) }
    }

    fn header(&self) -> &Header {
        // SAFETY: the header is atomics only and lies inside the mapping, which is larger than it.
        unsafe { self.map.shared::<Header>(0) }.expect("an arena is larger than its header")
    }
}

fn unit_of(block: Block) -> usize {
    (block.offset - BLOCKS_AT) / UNIT
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::slot::Left;

    #[test]
    fn slots_and_blocks_are_lent_once_and_come_back() {
        let (arena, _fd) = Arena::create().unwrap();
        let a = arena.take_slot().unwrap();
        let b = arena.take_slot().unwrap();
        assert_ne!(a, b);
        arena.give_slot(a);
        assert_eq!(arena.take_slot().unwrap(), a);
        let tag = Tag::fresh(1 << 20);
        let x = arena.take_block(UNIT, tag, 0).unwrap();
        let y = arena.take_block(LARGEST, tag, 1).unwrap();
        let z = arena.take_block(UNIT, tag, 0).unwrap();
        assert!(x.offset != z.offset && (z.offset + z.size <= y.offset || z.offset >= y.offset + y.size));
        assert_eq!(arena.give_block(y, tag, 0), Err(Contradiction), "it is the other direction's");
        arena.give_block(y, tag, 1).unwrap();
        assert_eq!(arena.give_block(y, tag, 1), Err(Contradiction), "it was given back before");
        assert_eq!(arena.take_block(LARGEST, tag, 1).unwrap(), y);
    }

    #[test]
    fn a_slot_is_free_when_both_sides_have_left() {
        let (arena, _fd) = Arena::create().unwrap();
        let index = arena.take_slot().unwrap();
        let life = &arena.slot(index).unwrap().life;
        let lent = life.offer(Tag::fresh(1 << 20));
        assert!(life.claim(lent) && life.attach(lent));
        assert_eq!(life.leave(0, lent, || panic!("the other side is there")), Ok(Left::First));
        arena.let_go(index);
        assert_ne!(arena.take_slot().unwrap(), index);
        let freed = core::cell::Cell::new(false);
        assert_eq!(life.leave(1, lent, || freed.set(true)), Ok(Left::Last));
        assert!(freed.get());
        assert_eq!(arena.take_slot().unwrap(), index);
    }

    #[test]
    fn both_sides_see_one_arena_and_other_files_are_refused() {
        let (arena, fd) = Arena::create().unwrap();
        let peer = Arena::attach(&fd, arena.id()).unwrap();
        assert!(peer.bind(7) && peer.bind(7));
        assert!(!peer.bind(8), "two accepting processes would share the words of their event sets");
        assert_eq!(arena.bound_to(), 7);
        assert_eq!(Arena::attach(&fd, arena.id() ^ 1).err(), Some(Errno::INVAL));
        let mine = arena.take_block(UNIT, Tag::fresh(1 << 20), 0).unwrap();
        assert_ne!(peer.take_block(UNIT, Tag::fresh(1 << 21), 1).unwrap(), mine);
        assert!(arena.slot(SLOTS as u32).is_none() && arena.slot(0).is_some());
    }

    #[test]
    fn ten_thousand_idle_connections_fit_a_small_machine() {
        let (arena, fd) = Arena::create().unwrap();
        for _ in 0..10_000 {
            arena.take_slot().unwrap();
        }
        let bytes = rustix::fs::fstat(&fd).unwrap().st_blocks as u64 * 512;
        assert!(bytes <= 10_000 * 4096 + (128 << 10), "{bytes} bytes for 10,000 slots");
    }
}
