//! One side of a shared-memory connection: its slot, its socket, and how it leaves.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};
use madrigal_sys::fd::Fd;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use madrigal_base::locator::Locator;
use madrigal_progress::driver::Signal;
use madrigal_sys::Errno;
use rustix::net::SendFlags;

use madrigal_shm_ring::express::Lane;
use madrigal_shm_ring::layout::{Block, Direction, Slot, fate};
use madrigal_shm_ring::ring::Memory;
use madrigal_shm_ring::slot::Lent;

use super::early::{self, Early, Sweep, at_end};
use super::shared::Shared;

/// What a doorbell is made of.
const DING: [u8; 1] = [1];

/// One side of a connection, shared by its two ends and the waiter on its signal. Dropping it closes the connection.
pub(super) struct Side {
    shared: Arc<Shared>,
    slot: NonNull<Slot>,
    index: u32,
    /// Which use of the slot it is.
    lent: Lent,
    /// 0: we connected; 1: we accepted.
    side: usize,
    socket: Arc<Fd>,
    /// The socket is at its end: the peer closed or died.
    gone: AtomicBool,
    /// We wrote since we last read, so what comes next is an answer.
    pub(super) asked: AtomicBool,
    pub(super) peer: Locator,
    _sweep: Sweep,
}

// SAFETY: the slot pointer is into the arena `shared` keeps mapped, and a slot is atomics only.
unsafe impl Send for Side {}
// SAFETY: as above.
unsafe impl Sync for Side {}

impl Side {
    /// The side that takes part in slot `index`. `None`: there is no such slot, or it is not offered.
    pub(super) fn new(shared: Arc<Shared>, index: u32, side: usize, socket: Fd, peer: Locator) -> Option<Self> {
        let slot = shared.arena.slot(index)?;
        let lent = slot.life.offered()?;
        if side == 1 && !(slot.life.claim(lent) && slot.life.attach(lent)) {
            return None;
        }
        let slot = NonNull::from(slot);
        let (gone, asked) = (AtomicBool::new(false), AtomicBool::new(false));
        Some(Self { shared, slot, index, lent, side, socket: Arc::new(socket), gone, asked, peer, _sweep: Sweep })
    }

    #[inline]
    fn slot(&self) -> &Slot {
        // SAFETY: the slot lies in the arena, which `shared` keeps mapped as long as we live; it is atomics only.
        unsafe { self.slot.as_ref() }
    }

    /// The direction we write.
    #[inline]
    pub(super) fn out(&self) -> &Direction {
        &self.slot().dir[self.side]
    }

    /// The direction we read.
    #[inline]
    pub(super) fn back(&self) -> &Direction {
        &self.slot().dir[1 - self.side]
    }

    /// The lane we write.
    #[inline]
    pub(super) fn out_lane(&self) -> &Lane {
        self.slot().express.lane(self.side)
    }

    /// The lane we read.
    #[inline]
    pub(super) fn back_lane(&self) -> &Lane {
        self.slot().express.lane(1 - self.side)
    }

    /// The memory rings lie in; valid as long as this side.
    pub(super) fn memory(&self) -> Memory {
        self.shared.arena.memory()
    }

    /// The block our direction begins with.
    pub(super) fn small_block(&self) -> Block {
        self.shared.arena.small_block(self.index, self.side)
    }

    /// A larger block for our direction, if there is one.
    pub(super) fn take_block(&self, size: usize) -> Option<Block> {
        self.shared.arena.take_block(size, self.lent.session, self.side)
    }

    /// Gives back a block our direction moved away from.
    pub(super) fn give_block(&self, block: Block) {
        // What is not lent to us is not ours to give: a peer wrote where it has no business.
        let _ = self.shared.arena.give_block(block, self.lent.session, self.side);
    }

    /// Rings the peer's doorbell.
    #[cold]
    pub(super) fn ring(&self) {
        match rustix::net::send(&self.socket, &DING, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            // Full means that it rings already.
            Ok(_) | Err(Errno::AGAIN) => {}
            Err(_) => self.gone.store(true, Ordering::Release),
        }
    }

    /// Whether the peer's side of the socket was seen closed.
    #[inline]
    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// How the peer left; [`fate::OPEN`] if it is here or died.
    #[inline]
    pub(super) fn peer_fate(&self) -> u32 {
        self.back().w.fate.load(Ordering::Acquire)
    }

    /// Stores how we leave, and that no byte will follow nor be taken.
    fn leave(&self) {
        let back = self.back();
        let unread = madrigal_shm_ring::ring::Consumer.waiting(back) != 0 || self.back_lane().message().is_some();
        let how = if unread { fate::RESET } else { fate::CLOSED };
        let out = self.out();
        // SYNC: Release, and before the seals: a peer that sees a seal sees the fate.
        out.w.fate.store(how, Ordering::Release);
        madrigal_shm_ring::ring::Producer::default().seal(out);
        madrigal_shm_ring::ring::Consumer.seal(back);
    }
}

impl Side {
    /// The listener may accept it yet, and read what was written.
    #[cold]
    fn leave_before_accept(&self) {
        let (shared, socket) = (Arc::clone(&self.shared), Arc::clone(&self.socket));
        let early = Early { shared, index: self.index, lent: self.lent, socket };
        // One that has just accepted it, and found nothing, does not see the socket end.
        self.ring();
        if self.is_gone() { early.end() } else { early::keep(early) }
    }
}

impl Signal for Side {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn woken(&self) {
        // Until nothing is left: the end may lie behind a doorbell, and epoll reports it once (`EPOLLET`).
        if at_end(&self.socket) {
            self.gone.store(true, Ordering::Release);
        }
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        self.leave();
        // Bells may hide the end of the socket, which tells a dead peer from one that will leave later.
        self.woken();
        let life = &self.slot().life;
        if self.side == 0 && !life.is_attached(self.lent) {
            return self.leave_before_accept();
        }
        let free = || self.shared.free(self.index, self.lent);
        // A contradiction leaves everything as it is: what a corrupt word marks as ours may belong to another connection.
        let _ = if self.is_gone() {
            // The peer left before its socket ended, or it is dead and never will.
            life.abandon(self.side, self.lent, free)
        } else {
            life.leave(self.side, self.lent, free).map(drop)
        };
        if self.side == 0 {
            self.shared.arena.let_go(self.index);
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn an_end_behind_a_doorbell_is_seen_at_once() {
        let shared = Arc::new(Shared::create().expect("memory"));
        let index = shared.take_slot().expect("a slot");
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let ours = Fd::from(std::os::fd::OwnedFd::from(ours));
        let peer = "shm://peer".parse().expect("a locator");
        let side = Side::new(Arc::clone(&shared), index, 0, ours, peer).expect("a side");
        rustix::net::send(&theirs, &DING, SendFlags::empty()).expect("a doorbell");
        drop(theirs);
        side.woken();
        assert!(side.is_gone());
    }
}
