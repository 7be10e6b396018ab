//! An arena whose slots are connections between the same two processes.

use core::sync::atomic::Ordering;
use std::os::fd::AsFd;

use madrigal_shm_ring::arena::{ARENA_BYTES, Arena, Tag};
use madrigal_shm_ring::layout::Block;
use madrigal_shm_ring::slot::Lent;
use madrigal_sys::fd::Fd;
use madrigal_sys::{Errno, process};

/// An arena and what this process knows about its use.
pub(super) struct Shared {
    pub(super) arena: Arena,
    /// The descriptor a peer maps it by; only in the process that made it.
    pub(super) fd: Option<Fd>,
}

impl Shared {
    /// An arena of our own, to be handed to a peer.
    pub(super) fn create() -> Result<Self, Errno> {
        let (arena, fd) = Arena::create()?;
        Ok(Self { arena, fd: Some(fd) })
    }

    /// A peer's arena.
    pub(super) fn attach(fd: impl AsFd, id: u64) -> Result<Self, Errno> {
        Ok(Self { arena: Arena::attach(fd, id)?, fd: None })
    }

    /// A slot for a new connection, made fresh (creator only).
    pub(super) fn take_slot(&self) -> Result<u32, Errno> {
        let index = self.arena.take_slot()?;
        let slot = self.arena.slot(index).ok_or(Errno::NOSPC)?;
        for (i, direction) in slot.dir.iter().enumerate() {
            direction.reset();
            slot.express.lane(i).reset();
        }
        slot.life.offer(Tag::fresh(process::random()));
        Ok(index)
    }

    /// Gives back what both directions of a slot have borrowed. Only by the last side.
    pub(super) fn free(&self, index: u32, lent: Lent) {
        for (dir, direction) in self.arena.slot(index).iter().flat_map(|slot| slot.dir.iter().enumerate()) {
            if let Some(block) = Block::unpack(direction.w.block.load(Ordering::Relaxed), ARENA_BYTES) {
                let _ = self.arena.give_block(block, lent.session, dir);
            }
        }
    }
}
