//! The table itself: which ports wrapped programs listen on, and the offers.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use madrigal_sys::{process, time};

use crate::tuple::Tuple;
use crate::users::{USERS, User};

pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"mdr-off\x01");
const ENTRIES: usize = 1024;
/// Places an offer may stand, from the one its hash names.
const PROBES: usize = 8;
/// An offer older than this is nobody's.
const STALE_NS: u64 = 10_000_000_000;

/// Stages of an offer.
pub mod stage {
    /// Nobody's.
    pub const FREE: u32 = 0;
    /// Being written.
    pub const WRITING: u32 = 1;
    /// Waiting for the accepting end.
    pub const POSTED: u32 = 2;
    /// The accepting end is at it.
    pub const TAKEN: u32 = 3;
    /// The accepting end attached: see the slot.
    pub const ACCEPTED: u32 = 4;
    /// It does not have this arena and cannot get it: offer another.
    pub const OTHER_ARENA: u32 = 5;
    /// It may not look into this process.
    pub const REFUSED: u32 = 6;
}

/// One offer.
#[repr(C, align(128))]
#[derive(Default)]
pub struct Offer {
    /// See [`stage`].
    pub stage: AtomicU32,
    /// The connecting process.
    pub pid: AtomicU32,
    /// The descriptor of the arena in it, plus one; 0 when the peer must know the arena already.
    pub arena_fd: AtomicU32,
    /// The connection's slot in the arena.
    pub slot: AtomicU32,
    /// The slot's generation.
    pub generation: AtomicU64,
    /// The arena's id.
    pub arena: AtomicU64,
    /// The connecting end's nonce.
    pub nonce: AtomicU64,
    /// The accepting process's id, with `OTHER_ARENA`; the reason's code with `REFUSED`.
    pub answer: AtomicU64,
    posted_at: AtomicU64,
    tuple: Tuple,
}

/// What the file holds. Atomics only: any bytes are valid, and others write it at any time.
#[repr(C)]
pub struct Table {
    pub(crate) magic: AtomicU64,
    pub(crate) netns: AtomicU64,
    /// Counts posts: an accepting end that saw this value has nothing new to find.
    posts: AtomicU32,
    _pad: [u32; 11],
    ports: [AtomicU64; 1024],
    pub(crate) users: [User; USERS],
    offers: [Offer; ENTRIES],
}

/// Size of the file.
pub(crate) const BYTES: usize = size_of::<Table>().next_multiple_of(4096);

impl Table {
    /// Says that a wrapped program listens on `port`.
    pub fn mark(&self, port: u16) {
        self.ports[port as usize / 64].fetch_or(1 << (port % 64), Ordering::Relaxed);
    }

    /// Whether a wrapped program listens, or has listened, on `port`.
    pub fn is_marked(&self, port: u16) -> bool {
        self.ports[port as usize / 64].load(Ordering::Relaxed) >> (port % 64) & 1 != 0
    }

    /// The network namespace whose connections it names (see [`madrigal_sys::tcp::netns_cookie`]).
    pub fn netns(&self) -> u64 {
        self.netns.load(Ordering::Relaxed)
    }

    /// How many offers were ever posted.
    #[inline]
    pub fn posts(&self) -> u32 {
        self.posts.load(Ordering::Acquire)
    }

    /// Posts an offer for `tuple`; `fill` writes what it says. `None`: no free place near its hash.
    pub fn post(&self, tuple: &Tuple, fill: impl FnOnce(&Offer)) -> Option<&Offer> {
        let now = time::now_ns();
        for offer in self.places(tuple) {
            if !claim(offer, now) {
                continue;
            }
            tuple.copy_to(&offer.tuple);
            offer.posted_at.store(now, Ordering::Relaxed);
            offer.pid.store(process::own_pid(), Ordering::Relaxed);
            fill(offer);
            // SYNC: Release pairs with the Acquire exchange in `find`: what was filled in is seen by who takes the offer.
            offer.stage.store(stage::POSTED, Ordering::Release);
            self.posts.fetch_add(1, Ordering::Release);
            return Some(offer);
        }
        None
    }

    /// Takes the offer posted for `tuple`, if there is one. The caller answers by storing another stage.
    pub fn find(&self, tuple: &Tuple) -> Option<&Offer> {
        self.places(tuple).find(|offer| {
            offer.stage.load(Ordering::Acquire) == stage::POSTED
                && offer.tuple.same(tuple)
                && offer
                    .stage
                    .compare_exchange(stage::POSTED, stage::TAKEN, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
        })
    }

    /// The offer with this index.
    pub fn offer_at(&self, index: u32) -> Option<&Offer> {
        self.offers.get(index as usize)
    }

    /// The index of an offer of this table.
    pub fn index_of(&self, offer: &Offer) -> u32 {
        let distance = core::ptr::from_ref(offer).addr().wrapping_sub(self.offers.as_ptr().addr());
        (distance / size_of::<Offer>()) as u32
    }

    fn places(&self, tuple: &Tuple) -> impl Iterator<Item = &Offer> {
        let first = tuple.hash() % ENTRIES;
        (0..PROBES).map(move |i| &self.offers[(first + i) % ENTRIES])
    }
}

fn claim(offer: &Offer, now: u64) -> bool {
    let seen = offer.stage.load(Ordering::Acquire);
    let stale = now.saturating_sub(offer.posted_at.load(Ordering::Relaxed)) > STALE_NS;
    (seen == stage::FREE || stale)
        && offer.stage.compare_exchange(seen, stage::WRITING, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}
