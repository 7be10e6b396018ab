//! A slot whose release is pending: this process is done with it, but another one of its family may still read it, since a fork. The last
//! of them releases it for the family's side. A process that forgot it earlier would leave it unreleased.
//!
//! ```text
//!   NONE --set: the session is over, and others hold the socket--> PENDING --take: alone by now, or the socket's end--> NONE
//! ```
//! Every process of the family has the session, or its own copy of this, so each can be the last. There is one at a time: a socket that
//! others hold earns no session, and a socket that earns one takes this first.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use madrigal_shm_ring::arena::Tag;
use madrigal_shm_ring::slot::Lent;

/// A place in an arena that a session took.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    /// The lease of its arena, by index.
    pub(crate) lease: u32,
    pub(crate) slot: u32,
    pub(crate) side: usize,
    pub(crate) lent: Lent,
}

/// The slot to be released. All-zero: none.
#[derive(Default)]
pub(crate) struct PendingRelease {
    /// The lease plus one; written last, and taken first.
    lease: AtomicU32,
    slot: AtomicU32,
    side: AtomicU32,
    generation: AtomicU64,
    session: AtomicU64,
}

impl PendingRelease {
    /// The session there is over. Only for a thread that is alone at work on the socket, while no release is pending.
    pub(crate) fn set(&self, place: Place) {
        self.slot.store(place.slot, Ordering::Relaxed);
        self.side.store(place.side as u32, Ordering::Relaxed);
        self.generation.store(place.lent.generation, Ordering::Relaxed);
        self.session.store(place.lent.session.get(), Ordering::Relaxed);
        self.lease.store(place.lease + 1, Ordering::Release);
    }

    /// Takes the pending release. The thread that gets it releases the slot.
    pub(crate) fn take(&self) -> Option<Place> {
        if self.lease.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let lease = self.lease.swap(0, Ordering::AcqRel).checked_sub(1)?;
        let session = Tag::new(self.session.load(Ordering::Relaxed))?;
        let lent = Lent { generation: self.generation.load(Ordering::Relaxed), session };
        let side = self.side.load(Ordering::Relaxed) as usize & 1;
        Some(Place { lease, slot: self.slot.load(Ordering::Relaxed), side, lent })
    }
}
