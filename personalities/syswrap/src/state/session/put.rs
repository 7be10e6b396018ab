//! Bytes into the ring: space for them, in a ring of the size the traffic earns, and their publication.

use madrigal_base::sync::{AtomicU32, Ordering};
use madrigal_shm_ring::arena::UNIT;
use madrigal_shm_ring::layout::{Block, Progress, fate, want};
use madrigal_shm_ring::ring::{CHUNK, Sleeper, Span, Trouble};
use madrigal_sys::Errno;

use super::{View, Wire, phase};

pub(super) const LARGEST: usize = madrigal_shm_ring::arena::LARGEST;
/// Sends that found the ring full before it grows to the largest size.
const FULLS_TO_GROW: u32 = 4;
/// When the reader has taken nothing for so long, TCP serves the sender better: it has megabytes of buffers of its own.
pub(crate) const STALL_NS: u64 = 50_000_000;

/// What a step of a send did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Put {
    /// So many bytes are published now; the caller must wake this reader.
    Bytes(usize, Sleeper),
    /// There is no space.
    Full,
    /// The direction is sealed, or the reader has gone: the kernel carries bytes, once [`View::finish_sending`] has been called.
    Over,
    /// The kernel socket carries bytes (again).
    Plain,
    /// The shared memory has impossible values.
    Broken,
    /// The program's buffer is bad.
    Failed(Errno),
}

/// The bytes to put.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) left: usize,
    /// It waits for space for all of a few bytes: as in TCP, the sends of other threads do not tear a small one. (A send that does not wait
    /// takes the space there is: poll(2) has reported it.)
    pub(crate) whole: bool,
    /// The bytes are held back ([`super::held`]).
    pub(crate) more: bool,
}

/// Where larger rings come from.
pub(crate) trait Room {
    /// A block of that size for our direction of this session.
    fn take(&self, size: usize) -> Option<Block>;
    /// A block we moved away from. False: it was not lent to us.
    fn give(&self, block: Block) -> bool;
}

impl<W: Wire> View<'_, W> {
    /// Puts up to `left` bytes into the ring. `copy(span, from)` fills the span with those from `from` on of the `left`, and returns how
    /// many. Under the send lock, in phase RING.
    pub(crate) fn put(
        &self,
        Piece { left, whole, more }: Piece,
        room: &impl Room,
        mut copy: impl FnMut(&Span, usize) -> Result<usize, Errno>,
    ) -> Put {
        if self.s.tx() != phase::RING {
            return Put::Plain;
        }
        let reader_left = || self.inn.w.fate.load(Ordering::Acquire) != fate::OPEN;
        if self.out.w.fate.load(Ordering::Relaxed) != fate::OPEN || reader_left() || self.ended() {
            // The reader has closed (or half closed): the kernel decides what a send returns now.
            return Put::Over;
        }
        self.check_peer_alive();
        if self.ended() {
            return Put::Over;
        }
        let (mut done, mut bell, mut failed) = (0, Sleeper::Nobody, None);
        while done < left {
            let span = match self.space(left - done, whole && done == 0, room) {
                Ok(span) if !span.is_empty() => span.first((left - done).min(CHUNK)),
                Ok(_) | Err(Trouble::Sealed | Trouble::Raced) => break,
                Err(Trouble::Corrupt) => return Put::Broken,
            };
            let n = match copy(&span, done) {
                Ok(n) if n > 0 => n,
                Ok(_) => break,
                Err(e) => {
                    failed = Some(e);
                    break;
                }
            };
            self.publish_sum(&span, n);
            self.publish_progress();
            match if more { self.hold(&span, n) } else { self.publish(&span, n) } {
                Ok(sleeper) => bell = bell.or(sleeper),
                Err(Trouble::Corrupt) => return Put::Broken,
                Err(_) => break,
            }
            done += n;
        }
        if done < left {
            // The reader makes room only by reading, so it must see what is held back.
            self.show();
        }
        match failed {
            _ if done > 0 => {
                self.s.full_since.store(0, Ordering::Relaxed);
                self.s.refused.store(0, Ordering::Relaxed);
                Put::Bytes(done, bell)
            }
            Some(e) => Put::Failed(e),
            None if self.s.producer.is_sealed(self.out) => Put::Over,
            None => Put::Full,
        }
    }

    /// The same for the common case: one copy into an open ring that has room for all and need not grow. `None`: nothing was done, and
    /// [`View::put`] does the work.
    #[inline]
    pub(crate) fn put_at_once(&self, left: usize, copy: impl FnOnce(&Span) -> usize) -> Option<(usize, Sleeper)> {
        let open = |fate: &AtomicU32| fate.load(Ordering::Acquire) == fate::OPEN;
        let in_ring = self.s.tx() == phase::RING && matches!(self.s.rx(), phase::RING | phase::DONE);
        if !in_ring || left > CHUNK || self.is_asked_back() || !open(&self.out.w.fate) || !open(&self.inn.w.fate) {
            return None;
        }
        if self.s.corked.load(Ordering::Relaxed) != 0 {
            return None;
        }
        self.check_peer_alive();
        if self.ended() {
            return None;
        }
        let least = if self.s.fulls.load(Ordering::Relaxed) >= FULLS_TO_GROW { LARGEST } else { UNIT };
        let span = self.s.producer.roomy(self.out, &self.mem, left, least)?;
        let n = Some(copy(&span)).filter(|&n| n > 0)?;
        self.publish_sum(&span, n);
        self.publish_progress();
        let sleeper = self.publish(&span, n).ok()?;
        self.s.full_since.store(0, Ordering::Relaxed);
        self.s.refused.store(0, Ordering::Relaxed);
        Some((n, sleeper))
    }

    /// Publishes where this side is. Before the bytes are published: then the peer may have the line already.
    #[inline]
    pub(super) fn publish_progress(&self) {
        let progress = Progress { cpu: self.wire.cpu(), read: self.inn.r.head.load(Ordering::Relaxed) };
        self.out.w.progress.store(progress.pack(), Ordering::Relaxed);
    }

    /// Free space for `left` bytes, in a larger block if they earn one. `whole`: for all of them, if they are few.
    fn space(&self, left: usize, whole: bool, room: &impl Room) -> Result<Span, Trouble> {
        let size = self.s.producer.block(&self.mem).map_or(0, |block| block.size);
        let often = self.s.fulls.load(Ordering::Relaxed) >= FULLS_TO_GROW;
        let larger = if often { 4 * size } else { left.next_power_of_two() }.clamp(UNIT, LARGEST);
        let earned = left > size || often || size < UNIT && self.is_crowded(left, size)?;
        if larger > size && earned && !self.grow(larger, room)? && size < UNIT && left > size {
            // For a bulk sender TCP is better than a ring of a kilobyte.
            self.s.producer.seal(self.out);
            return Err(Trouble::Sealed);
        }
        let span = self.s.producer.space(self.out, &self.mem, if whole { left } else { 1 })?;
        if span.is_empty() {
            self.s.fulls.fetch_add(1, Ordering::Relaxed);
            self.check_peer_alive();
        }
        Ok(span)
    }

    /// Whether `left` bytes more would not leave half of a ring free.
    fn is_crowded(&self, left: usize, size: usize) -> Result<bool, Trouble> {
        let crowds = |unread: usize| unread + left > size / 2;
        Ok(crowds(self.s.producer.unread_at_most()) && crowds(self.s.producer.unread(self.out, &self.mem)?))
    }

    /// Moves on to a block of `size` bytes; false when there is no such block. It leaves the first block, which is the slot's own, even
    /// with unread bytes in it. It leaves any other only empty, and gives it back at once to another session, so not behind a seal.
    fn grow(&self, size: usize, room: &impl Room) -> Result<bool, Trouble> {
        let Some(old) = self.s.producer.block(&self.mem) else { return Err(Trouble::Corrupt) };
        if self.s.no_room.load(Ordering::Relaxed) != 0 {
            return Ok(false);
        }
        let unread = self.s.producer.unread(self.out, &self.mem)?;
        if unread > 0 && old.size >= UNIT {
            return Ok(true);
        }
        // SYNC: behind the position, as in `Producer::space`: a reader that sealed may have moved it before it has copied what was unread.
        if self.s.producer.is_sealed(self.out) {
            return Err(Trouble::Sealed);
        }
        let Some(block) = room.take(size) else {
            self.s.no_room.store(1, Ordering::Relaxed);
            return Ok(false);
        };
        self.s.producer.move_over(self.out, &self.mem, block)?;
        self.s.fulls.store(0, Ordering::Relaxed);
        if room.give(old) { Ok(true) } else { Err(Trouble::Corrupt) }
    }
}

// --- waiting for space --------------------------------------------------------------------------------------------------------

impl<W: Wire> View<'_, W> {
    /// A nonblocking sender found the ring full.
    pub(crate) fn note_full(&self) {
        self.s.refusals.fetch_add(1, Ordering::Relaxed);
        self.s.refused.store(1, Ordering::Relaxed);
        self.note_wait();
    }

    /// A sender begins to wait for space, if it did not before.
    pub(crate) fn note_wait(&self) {
        if self.s.full_since.load(Ordering::Relaxed) == 0 {
            let _ = self.s.full_since.compare_exchange(0, self.wire.now(), Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Publishes that a sender waits for space, so that the reader rings. True: there is some.
    pub(crate) fn want(&self) -> bool {
        self.s.producer.want(self.out, &self.mem, self.wanted())
    }

    /// Whether a sender that waits for space may go on.
    pub(crate) fn has_room(&self) -> bool {
        self.s.producer.has_room(self.out, &self.mem, self.wanted())
    }

    /// Whether poll(2) reports room: for a sender that has not been refused, any space will do.
    pub(crate) fn has_some_room(&self) -> bool {
        let what = if self.s.refused.load(Ordering::Relaxed) == 0 { want::HALF } else { self.wanted() };
        self.s.producer.has_room(self.out, &self.mem, what)
    }

    /// Whether a sender has found the ring full for so long that TCP's buffers should take over.
    pub(crate) fn is_stalled(&self) -> bool {
        let since = self.s.full_since.load(Ordering::Relaxed);
        since != 0 && self.wire.now() > since + STALL_NS && !self.has_some_room()
    }

    /// Whether a sender waits for space, or did lately.
    pub(crate) fn was_full(&self) -> bool {
        self.s.full_since.load(Ordering::Relaxed) != 0
    }
}
