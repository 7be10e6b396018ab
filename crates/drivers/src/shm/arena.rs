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
use std::os::fd::{AsFd, OwnedFd};

use madrigal_sys::fd::Fd;
use madrigal_sys::mem::{self, SharedMap};
use madrigal_sys::{Errno, process};

use super::layout::{Block, SLOT_BYTES, Slot, small_ring};
use super::ring::Memory;
use super::units::Units;

/// Bytes of an arena; sparse.
pub const ARENA_BYTES: usize = 256 << 20;
/// The unit blocks are lent in.
pub const UNIT: usize = 64 << 10;
/// The largest block.
pub const LARGEST: usize = 1 << 20;

const HEADER: usize = 64 << 10;
const BLOCKS_AT: usize = 64 << 20;
const UNITS: usize = (ARENA_BYTES - BLOCKS_AT) / UNIT;
const SLOTS: usize = (BLOCKS_AT - HEADER) / SLOT_BYTES;
/// Slots are made real this many at a time.
const SLOT_STEP: usize = 16;
const MAGIC: u64 = u64::from_le_bytes(*b"madrigal");
/// Version of everything in [`super::layout`] and of the header below.
const VERSION: u32 = 2;
const NAME: &CStr = c"madrigal-arena";

#[repr(C)]
struct Header {
    magic: AtomicU64,
    id: AtomicU64,
    /// The accepting process, by the random number it chose at start; 0 until it has attached.
    bound: AtomicU64,
    version: AtomicU32,
    _pad: AtomicU32,
    units: Units<{ UNITS / 64 }>,
    /// Event sets asleep, of the connecting and of the accepting process.
    asleep: [[SleepWord; SLEEP_WORDS]; 2],
}

/// 1 while a thread is asleep on an event set: whoever takes it owes a doorbell, on any connection of that set.
#[repr(align(64))]
struct SleepWord(AtomicU32);

/// Event sets of a process that have a word.
pub const SLEEP_WORDS: usize = 64;

/// One mapped arena. Slots and memory obtained from it are valid until it is dropped.
pub struct Arena {
    map: SharedMap,
    id: u64,
    /// Slots handed out; only meaningful in the process that created the arena.
    slots: [AtomicU64; SLOTS.div_ceil(64)],
    real_slots: AtomicU32,
}

impl Arena {
    /// A new arena, and the descriptor through which one peer may find it.
    pub fn create() -> Result<(Self, OwnedFd), Errno> {
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
        Self::attach(Fd::from(mem::open_peer_memfd(pid, fd, ARENA_BYTES, true)?), id)
    }

    fn from_map(map: SharedMap, id: u64) -> Self {
        Self { map, id, slots: [const { AtomicU64::new(0) }; SLOTS.div_ceil(64)], real_slots: AtomicU32::new(0) }
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
    /// [`Sleeper::Set`]: super::ring::Sleeper::Set
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
        // SAFETY: a slot is atomics and bytes nobody borrows; the reference lives no longer than `self`.
        unsafe { self.map.shared::<Slot>(HEADER + index as usize * SLOT_BYTES) }
    }

    /// The small ring of direction `dir` of slot `index`.
    pub fn small_block(&self, index: u32, dir: usize) -> Block {
        let offset = HEADER + index as usize * SLOT_BYTES + small_ring(dir);
        Block { offset, size: super::layout::SMALL_RING }
    }

    /// Takes a free slot (creator only). `ENOSPC`: all are in use, or the machine has no memory for one more page.
    pub fn take_slot(&self) -> Result<u32, Errno> {
        for (w, word) in self.slots.iter().enumerate() {
            let mut seen = word.load(Ordering::Relaxed);
            while seen != u64::MAX {
                let bit = seen.trailing_ones() as usize;
                let index = w * 64 + bit;
                if index >= SLOTS {
                    return Err(Errno::NOSPC);
                }
                match word.compare_exchange(seen, seen | 1 << bit, Ordering::Relaxed, Ordering::Relaxed) {
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

    /// Gives a slot back (creator only), once neither side uses it.
    pub fn give_slot(&self, index: u32) {
        if let Some(word) = self.slots.get(index as usize / 64) {
            word.fetch_and(!(1 << (index % 64)), Ordering::Relaxed);
        }
    }

    /// Calls `f` for every slot handed out (creator only).
    pub fn for_each_slot(&self, mut f: impl FnMut(u32, &Slot)) {
        for (w, word) in self.slots.iter().enumerate() {
            let mut bits = word.load(Ordering::Relaxed);
            while bits != 0 {
                let index = (w * 64) as u32 + bits.trailing_zeros();
                bits &= bits - 1;
                if let Some(slot) = self.slot(index) {
                    f(index, slot);
                }
            }
        }
    }

    /// Borrows a block of `size` bytes ([`UNIT`] or [`LARGEST`]); its pages are real. `None`: no room, stay with what there is.
    pub fn take_block(&self, size: usize) -> Option<Block> {
        let units = &self.header().units;
        let first = units.take(size / UNIT)?;
        let block = Block { offset: BLOCKS_AT + first * UNIT, size };
        if self.map.reserve(block.offset, size).is_err() {
            units.give(first, size / UNIT);
            return None;
        }
        Some(block)
    }

    /// Gives a borrowed block back and its memory to the system. Blocks that are small rings are ignored.
    pub fn give_block(&self, block: Block) {
        if block.offset < BLOCKS_AT {
            return;
        }
        self.map.give_back(block.offset, block.size);
        self.header().units.give((block.offset - BLOCKS_AT) / UNIT, block.size / UNIT);
    }

    fn header(&self) -> &Header {
        // SAFETY: the header is atomics only and lies inside the mapping, which is larger than it.
        unsafe { self.map.shared::<Header>(0) }.expect("an arena is larger than its header")
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn slots_and_blocks_are_lent_once_and_come_back() {
        let (arena, _fd) = Arena::create().unwrap();
        let a = arena.take_slot().unwrap();
        let b = arena.take_slot().unwrap();
        assert_ne!(a, b);
        arena.give_slot(a);
        assert_eq!(arena.take_slot().unwrap(), a);
        let x = arena.take_block(UNIT).unwrap();
        let y = arena.take_block(LARGEST).unwrap();
        let z = arena.take_block(UNIT).unwrap();
        assert!(x.offset != z.offset && (z.offset + z.size <= y.offset || z.offset >= y.offset + y.size));
        arena.give_block(y);
        assert_eq!(arena.take_block(LARGEST).unwrap(), y);
    }

    #[test]
    fn both_sides_see_one_arena_and_strangers_are_refused() {
        let (arena, fd) = Arena::create().unwrap();
        let peer = Arena::attach(&fd, arena.id()).unwrap();
        assert!(peer.bind(7) && peer.bind(7));
        assert!(!peer.bind(8), "two accepting processes would share the words of their event sets");
        assert_eq!(arena.bound_to(), 7);
        assert_eq!(Arena::attach(&fd, arena.id() ^ 1).err(), Some(Errno::INVAL));
        let mine = arena.take_block(UNIT).unwrap();
        assert_ne!(peer.take_block(UNIT).unwrap(), mine);
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
