//! The byte ring of one direction: publish, consume, and the two wake-up handshakes.
//!
//! ```text
//!   Producer  --tail-->  Direction (shared)  --head-->  Consumer
//!             <--want--                      <--armed--
//! ```
//! A producer copies into free space and publishes with a compare-exchange of `tail`; a consumer copies out and advances `head`
//! the same way. So a signal handler that used the ring on top of an interrupted copy, a forked child that drained the same
//! bytes, or a seal in between make the exchange fail and the copy is done again: no byte is lost or doubled.
//!
//! **Token rule**: while a reader may sleep, `armed` is 1 or a doorbell is on its way. The reader stores `armed` and then loads `tail`; the
//! writer publishes `tail` and then loads `armed`; all four are sequentially consistent, so one of them sees the other. `want` is the same
//! handshake for a writer that waits for space.
//!
//! A thread asleep on many connections at once needs one doorbell, not one from each. It arms them with the number of a word that is set
//! while it sleeps ([`Sleeper::Set`]). Of all writers only the one that takes that word rings.
//!
//! Nothing read from the peer's lines is trusted: positions are bounded by the ring's size, blocks by the arena's.

use madrigal_base::sync::{AtomicU32, AtomicU64, Ordering};

pub use self::shown::HOLD_NS;
pub use self::span::{Copier, Span};
use crate::layout::{Block, Direction, HELD, POSITION, Progress, SEALED, want};

mod held;
mod shown;
mod span;

/// A reader publishes the processor it is on, a bulk writer its bytes, after this many bytes.
pub const CHUNK: usize = 16 << 10;

/// The memory blocks lie in.
#[derive(Clone, Copy)]
pub struct Memory {
    base: *mut u8,
    len: usize,
}

// SAFETY: only an address; the functions that follow it state what they need.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// # Safety
    /// `base` is readable and writable for `len` bytes for as long as any ring made on this memory is used.
    pub unsafe fn new(base: *mut u8, len: usize) -> Self {
        Self { base, len }
    }

    /// Where it begins, for a caller that keeps it in words of its own.
    pub fn address(&self) -> usize {
        self.base.expose_provenance()
    }

    /// Bytes of this memory.
    pub fn size(&self) -> usize {
        self.len
    }

    fn block(&self, word: u64) -> Result<(*mut u8, usize), Trouble> {
        let block = Block::unpack(word, self.len).ok_or(Trouble::Corrupt)?;
        Ok((self.base.wrapping_add(block.offset), block.size))
    }
}

/// Which sleeper may be behind an armed direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sleeper {
    /// Nobody: no doorbell.
    Nobody,
    /// A thread that checks this connection: it gets a doorbell.
    Own,
    /// An event set that checks all its connections once it wakes: it gets a doorbell from the writer that finds its word set and takes it
    /// ([`crate::arena::Arena::sleep_word`]).
    Set(u32),
}

impl Sleeper {
    fn code(self) -> u32 {
        match self {
            Sleeper::Nobody => 0,
            Sleeper::Own => 1,
            Sleeper::Set(index) => index.saturating_add(2),
        }
    }

    fn from_code(code: u32) -> Self {
        match code {
            0 => Sleeper::Nobody,
            1 => Sleeper::Own,
            n => Sleeper::Set(n - 2),
        }
    }

    /// Which sleeper to wake after two publications.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        match (self, other) {
            (Sleeper::Nobody, one) | (one, Sleeper::Nobody) => one,
            (one, other) if one == other => one,
            _ => Sleeper::Own,
        }
    }
}

/// Why a ring operation gave nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// The direction is sealed: no more bytes will pass through this ring.
    Sealed,
    /// Another frame of this process or another holder moved first: do the copy again.
    Raced,
    /// The peer wrote something impossible into the segment.
    Corrupt,
}

/// The writing end of a direction: this process's private memory of it. Zeroed memory is a producer that was never opened.
#[derive(Default)]
pub struct Producer {
    /// Position after our last published byte; the shared `tail` must equal it.
    tail: AtomicU64,
    /// The last `head` we saw.
    head: AtomicU64,
    /// The block we write to, packed. Never read back from shared memory.
    block: AtomicU64,
    /// 1 after the ring was found full, until half of it is free again.
    full: AtomicU32,
    /// 1 while `tail` marks bytes as held back ([`held`]).
    held: AtomicU32,
}

impl Producer {
    /// Starts a direction at position 0 in `block`.
    pub fn open(&self, dir: &Direction, block: Block) {
        self.tail.store(0, Ordering::Relaxed);
        self.head.store(0, Ordering::Relaxed);
        self.full.store(0, Ordering::Relaxed);
        self.held.store(0, Ordering::Relaxed);
        self.block.store(block.pack(), Ordering::Relaxed);
        dir.w.block.store(block.pack(), Ordering::Relaxed);
    }

    /// Bytes published so far.
    pub fn position(&self) -> u64 {
        self.tail.load(Ordering::Relaxed)
    }

    /// The block we write to.
    pub fn block(&self, mem: &Memory) -> Option<Block> {
        Block::unpack(self.block.load(Ordering::Relaxed), mem.size())
    }

    /// Free space, as pieces to copy into. Empty when less than `least` bytes are free, and then until half of the ring is: a bulk writer
    /// that resumed at every byte would bounce the lines between processors (half-ring hysteresis). `Sealed`: a reader that sealed may
    /// move its position before it has copied what is unread, so nothing of it is free any more.
    pub fn space(&self, dir: &Direction, mem: &Memory, least: usize) -> Result<Span, Trouble> {
        let (base, size) = mem.block(self.block.load(Ordering::Relaxed))?;
        let tail = self.tail.load(Ordering::Relaxed);
        let mut used = tail.wrapping_sub(self.head.load(Ordering::Acquire)) as usize;
        if used > size / 2 {
            used = self.read_head(dir, tail, size)?;
        }
        // SYNC: behind the position, wherever it was loaded: one that was moved behind a seal comes with the seal.
        if self.is_sealed(dir) {
            return Err(Trouble::Sealed);
        }
        // No more than a ring that counts as free again has.
        let least = least.clamp(1, size / 2);
        let refused = if self.full.load(Ordering::Relaxed) == 0 { size - least + 1 } else { size / 2 + 1 };
        if used >= refused {
            self.full.store(1, Ordering::Relaxed);
            return Ok(Span::new(base, size, tail, 0));
        }
        self.full.store(0, Ordering::Relaxed);
        Ok(Span::new(base, size, tail, size - used))
    }

    /// Space for all of `left` bytes in a block of at least `least` bytes, or in half of a smaller one, if there is. Never changes the
    /// hysteresis.
    #[inline(always)]
    pub fn roomy(&self, dir: &Direction, mem: &Memory, left: usize, least: usize) -> Option<Span> {
        let (base, size) = mem.block(self.block.load(Ordering::Relaxed)).ok()?;
        let tail = self.tail.load(Ordering::Relaxed);
        let mut used = tail.wrapping_sub(self.head.load(Ordering::Acquire)) as usize;
        if used + left > size / 2 {
            used = self.read_head(dir, tail, size).ok()?;
        }
        let limit = if size >= least { size } else { size / 2 };
        // SYNC: the seal behind the position, as in `space`.
        let fits = used + left <= limit && !self.is_sealed(dir);
        (fits && self.full.load(Ordering::Relaxed) == 0).then(|| Span::new(base, size, tail, left))
    }

    /// Whether the reader has caught up, as far as is known without a load of its line: `progress` is its last report on another
    /// ([`crate::layout::WriterLine::progress`] of the other direction).
    #[inline]
    pub fn is_read(&self, dir: &Direction, progress: u32) -> bool {
        let shown = self.shown(dir);
        self.head.load(Ordering::Relaxed) == shown || Progress::is_read(progress, shown)
    }

    /// Whether the reader has not caught up.
    #[inline]
    pub fn behind(&self, dir: &Direction) -> bool {
        dir.r.head.load(Ordering::Relaxed) & POSITION != self.shown(dir)
    }

    /// Position behind the last byte that a reader may read: what is held back it cannot.
    #[inline]
    fn shown(&self, dir: &Direction) -> u64 {
        if self.held.load(Ordering::Relaxed) == 0 {
            self.tail.load(Ordering::Relaxed)
        } else {
            dir.wake.held_from.load(Ordering::Relaxed)
        }
    }

    /// How many bytes the reader has not consumed yet.
    pub fn unread(&self, dir: &Direction, mem: &Memory) -> Result<usize, Trouble> {
        let (_, size) = mem.block(self.block.load(Ordering::Relaxed))?;
        self.read_head(dir, self.tail.load(Ordering::Relaxed), size)
    }

    /// Takes everything back that the reader has not consumed, on a sealed direction: the reader finds it drained, and the bytes are
    /// the caller's again. `None`: there was nothing.
    pub fn take_back(&self, dir: &Direction, mem: &Memory) -> Result<Option<Span>, Trouble> {
        let (base, size) = mem.block(self.block.load(Ordering::Relaxed))?;
        let tail = self.tail.load(Ordering::Relaxed);
        // Only a reader's last exchanges can come in between; an honest reader stops writing here.
        for _ in 0..1000 {
            let head = dir.r.head.load(Ordering::SeqCst);
            if head > POSITION {
                return Err(Trouble::Corrupt);
            }
            let used = tail.wrapping_sub(head);
            match used {
                0 => return Ok(None),
                n if n > size as u64 => return Err(Trouble::Corrupt),
                // SYNC: SeqCst against the reader's `advance`: one of the two exchanges fails, and a reader that copied tries again.
                _ if dir.r.head.compare_exchange(head, tail, Ordering::SeqCst, Ordering::Relaxed).is_ok() => {
                    return Ok(Some(Span::new(base, size, head, used as usize)));
                }
                _ => {}
            }
        }
        Err(Trouble::Corrupt)
    }

    /// Whether there is what a sender that wanted `what` waits for.
    pub fn has_room(&self, dir: &Direction, mem: &Memory, what: u32) -> bool {
        match what {
            want::ALL => self.unread(dir, mem).map_or(true, |used| used == 0),
            _ => self.has_space(dir, mem),
        }
    }

    /// Whether [`Producer::space`] would give some; never changes the hysteresis.
    pub fn has_space(&self, dir: &Direction, mem: &Memory) -> bool {
        let Ok((_, size)) = mem.block(self.block.load(Ordering::Relaxed)) else { return true };
        let limit = if self.full.load(Ordering::Relaxed) == 0 { size } else { size / 2 + 1 };
        self.unread(dir, mem).map_or(true, |used| used < limit)
    }

    /// Publishes `n` bytes copied into `span`, and with them whatever was held back. The reader that may sleep is owed a doorbell by the
    /// caller.
    #[inline]
    pub fn publish(&self, dir: &Direction, span: &Span, n: usize) -> Result<Sleeper, Trouble> {
        self.exchange(dir, span, n, 0)?;
        Ok(self.take_armed(dir))
    }

    /// Moves `tail` behind `n` bytes copied into `span`; `mark`: [`HELD`] or 0.
    #[inline]
    fn exchange(&self, dir: &Direction, span: &Span, n: usize, mark: u64) -> Result<(), Trouble> {
        let new = span.at + n as u64;
        let was = if self.held.load(Ordering::Relaxed) == 0 { 0 } else { HELD };
        // SYNC: SeqCst, so that this store and the load of `armed` keep their order; pairs with `Consumer::arm`. Release part pairs with
        // the Acquire of `tail` in `Consumer::data`.
        match dir.w.tail.compare_exchange(span.at | was, new | mark, Ordering::SeqCst, Ordering::Relaxed) {
            Ok(_) => {
                self.tail.store(new, Ordering::Relaxed);
                self.held.store(u32::from(mark != 0), Ordering::Relaxed);
                Ok(())
            }
            Err(seen) if seen & SEALED != 0 => Err(Trouble::Sealed),
            Err(_) if self.tail.load(Ordering::Relaxed) != span.at => Err(Trouble::Raced),
            // The reader has waited long enough, and shows everything.
            Err(seen) if was != 0 && seen == span.at => {
                self.held.store(0, Ordering::Relaxed);
                if mark == 0 { self.exchange(dir, span, n, 0) } else { Err(Trouble::Raced) }
            }
            Err(_) => Err(Trouble::Corrupt),
        }
    }

    /// The sleeper that is owed a doorbell for what has just been published.
    #[inline]
    fn take_armed(&self, dir: &Direction) -> Sleeper {
        if dir.wake.armed.load(Ordering::SeqCst) == 0 {
            return Sleeper::Nobody;
        }
        Sleeper::from_code(dir.wake.armed.swap(0, Ordering::SeqCst))
    }

    /// Announces that we are about to sleep for space. Returns true when there is no need: try again.
    pub fn want(&self, dir: &Direction, mem: &Memory, what: u32) -> bool {
        // SYNC: SeqCst store then SeqCst load of `head`; pairs with `Consumer::consume`.
        dir.wake.want.store(what, Ordering::SeqCst);
        self.has_room(dir, mem, what)
    }

    /// How many bytes the reader has not consumed yet, at the most: without a load of its line.
    pub fn unread_at_most(&self) -> usize {
        self.tail.load(Ordering::Relaxed).wrapping_sub(self.head.load(Ordering::Relaxed)) as usize
    }

    /// Copies what is unread to a larger block and moves on there. The old block stays as it is until the reader has read all that is
    /// published now: it may be in the middle of a copy.
    pub fn move_over(&self, dir: &Direction, mem: &Memory, block: Block) -> Result<(), Trouble> {
        let (from, from_size) = mem.block(self.block.load(Ordering::Relaxed))?;
        let (to, to_size) = mem.block(block.pack())?;
        let tail = self.tail.load(Ordering::Relaxed);
        let unread = self.read_head(dir, tail, from_size)?;
        if unread > to_size {
            return Err(Trouble::Corrupt);
        }
        for at in tail - unread as u64..tail {
            // SAFETY: both places lie in blocks that `Memory` has checked; the peer may spoil bytes, for itself alone.
            unsafe { to.add(at as usize % to_size).write(from.add(at as usize % from_size).read()) };
        }
        self.move_to(dir, block);
        Ok(())
    }

    /// Moves on to another block. Only while the ring is empty: the reader loads `block` after it has seen bytes.
    pub fn move_to(&self, dir: &Direction, block: Block) {
        self.block.store(block.pack(), Ordering::Relaxed);
        self.full.store(0, Ordering::Relaxed);
        // SYNC: ordered before the bytes that follow by the publish in `publish`.
        dir.w.block.store(block.pack(), Ordering::Release);
    }

    /// Seals our own direction: what was published stays readable, nothing is added.
    pub fn seal(&self, dir: &Direction) {
        dir.w.tail.fetch_or(SEALED, Ordering::SeqCst);
    }

    /// Whether either side sealed the direction.
    pub fn is_sealed(&self, dir: &Direction) -> bool {
        dir.w.tail.load(Ordering::SeqCst) & SEALED != 0
    }

    fn read_head(&self, dir: &Direction, tail: u64, size: usize) -> Result<usize, Trouble> {
        // SYNC: SeqCst for `want`; Acquire part pairs with the Release in `Consumer::consume`, so that space is free of readers.
        let head = dir.r.head.load(Ordering::SeqCst) & POSITION;
        let used = tail.wrapping_sub(head);
        if used > size as u64 {
            return Err(Trouble::Corrupt);
        }
        // SYNC: Release pairs with `space`: another thread may use what this one saw.
        self.head.store(head, Ordering::Release);
        Ok(used as usize)
    }
}

/// The reading end of a direction. It has no memory of its own: `head` is shared, so that a forked child can go on with it.
#[derive(Default)]
pub struct Consumer;

impl Consumer {
    /// Position behind the last byte that may be read, and [`SEALED`].
    #[inline]
    pub fn tail(&self, dir: &Direction, order: Ordering) -> u64 {
        let word = dir.w.tail.load(order);
        if word & HELD == 0 { word } else { shown::shown(dir, word) }
    }

    /// Published bytes not consumed yet, as pieces to copy from. `Err(Sealed)`: drained and sealed.
    #[inline]
    pub fn data(&self, dir: &Direction, mem: &Memory) -> Result<Span, Trouble> {
        let head = dir.r.head.load(Ordering::Relaxed);
        if head > POSITION {
            return Err(Trouble::Corrupt);
        }
        // SYNC: Acquire pairs with `Producer::publish`: bytes and block are those of this tail.
        let word = self.tail(dir, Ordering::Acquire);
        let used = (word & POSITION).wrapping_sub(head);
        if used == 0 {
            if word & SEALED != 0 {
                return Err(Trouble::Sealed);
            }
            return Ok(Span::empty(head));
        }
        // SYNC: Acquire pairs with `move_to`: a block that was moved to while bytes were unread has them.
        let (base, size) = mem.block(dir.w.block.load(Ordering::Acquire))?;
        if used > size as u64 {
            return Err(Trouble::Corrupt);
        }
        Ok(Span::new(base, size, head, used as usize))
    }

    /// Bytes waiting; 0 also for a corrupt ring.
    pub fn waiting(&self, dir: &Direction) -> u64 {
        let head = dir.r.head.load(Ordering::Relaxed) & POSITION;
        let tail = self.tail(dir, Ordering::Acquire) & POSITION;
        tail.wrapping_sub(head) & POSITION
    }

    /// Whether there is something to read: bytes, or a seal.
    #[inline]
    pub fn stirred(&self, dir: &Direction) -> bool {
        self.tail(dir, Ordering::Acquire) != dir.r.head.load(Ordering::Relaxed)
    }

    /// Consumes `n` bytes of `span`. `Ok(true)`: the writer waits for space there now is, and the caller owes it a doorbell.
    pub fn consume(&self, dir: &Direction, span: &Span, n: usize) -> Result<bool, Trouble> {
        self.advance(dir, span, n)?;
        Ok(self.owes_space(dir))
    }

    /// [`Consumer::consume`] for a caller that calls [`Consumer::owes_space`] later.
    #[inline]
    pub fn advance(&self, dir: &Direction, span: &Span, n: usize) -> Result<(), Trouble> {
        let new = span.at + n as u64;
        // SYNC: SeqCst, so that this store and the load of `want` keep their order; pairs with `Producer::want`. Release part pairs with
        // the Acquire in `Producer::read_head`.
        dir.r.head.compare_exchange(span.at, new, Ordering::SeqCst, Ordering::Relaxed).map_err(|_| Trouble::Raced)?;
        Ok(())
    }

    /// Takes a due request for space, if there is one. Checked again by every waiter, for a seal or a growth may leave one.
    #[inline]
    pub fn owes_space(&self, dir: &Direction) -> bool {
        let what = dir.wake.want.load(Ordering::SeqCst);
        what != want::NOTHING && self.take_want(dir, what)
    }

    /// Whether a writer waits for space, as far as `want` shows.
    pub fn is_wanted(&self, dir: &Direction) -> bool {
        dir.wake.want.load(Ordering::SeqCst) != want::NOTHING
    }

    #[cold]
    fn take_want(&self, dir: &Direction, what: u32) -> bool {
        let size = 1u64 << (dir.w.block.load(Ordering::Relaxed) & 0x1f);
        let due = if what == want::ALL { 0 } else { size / 2 };
        self.waiting(dir) <= due && dir.wake.want.swap(want::NOTHING, Ordering::SeqCst) != want::NOTHING
    }

    /// Announces that we may sleep from now on. Returns true when there is something to read instead.
    pub fn arm(&self, dir: &Direction) -> bool {
        self.arm_for(dir, Sleeper::Own)
    }

    /// [`Consumer::arm`] for a sleeper of any kind. A set's word is set before its directions are armed.
    pub fn arm_for(&self, dir: &Direction, sleeper: Sleeper) -> bool {
        // SYNC: SeqCst store then SeqCst load of `tail`; pairs with `Producer::publish`.
        dir.wake.armed.store(sleeper.code(), Ordering::SeqCst);
        self.tail(dir, Ordering::SeqCst) != dir.r.head.load(Ordering::Relaxed)
    }

    /// Whether a writer would ring for the next byte.
    pub fn is_armed(&self, dir: &Direction) -> bool {
        dir.wake.armed.load(Ordering::SeqCst) != 0
    }

    /// Seals the peer's direction: it will go on by the kernel socket.
    pub fn seal(&self, dir: &Direction) {
        dir.w.tail.fetch_or(SEALED, Ordering::SeqCst);
    }
}

#[cfg(all(test, feature = "shuttle"))]
mod explored;
#[cfg(test)]
mod tests;
