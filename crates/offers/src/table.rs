//! The table itself: which ports wrapped programs listen on, and the offers.
//!
//! The life of a place for an offer. Its word holds the stage and how often the place was used (`generation`). Every step is a
//! compare-exchange of the whole word, so a late step at a place that another process now uses changes nothing:
//!
//! ```text
//!   FREE --post--> WRITING --post--> POSTED --find--> TAKEN --answer--> ACCEPTED | OTHER_ARENA | REFUSED | FREE
//!     ^                                |                |                  |
//!     +----- free (by the poster) -----+----------------+------------------+
//! ```
//! A place that stayed occupied for ten seconds belongs to a process that died, and may be claimed as a free one. The exception is a place
//! that is being written: its writer may only be stopped, and would continue writing in another process's place.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use madrigal_base::sync::{AtomicU32, AtomicU64};
use madrigal_sys::{process, time};

use crate::tuple::Tuple;
use crate::user::{USERS, User};

pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"mdr-off\x02");
const ENTRIES: usize = 1024;
/// Places an offer may stand, from the one its hash names.
const PROBES: usize = 8;
/// An offer older than this belongs to a dead process.
const STALE_NS: u64 = 10_000_000_000;
/// Where the generation begins in the word of a place.
const GENERATION_AT: u32 = 8;

/// Stages of an offer, the low byte of its word.
mod stage {
    pub(super) const FREE: u64 = 0;
    pub(super) const WRITING: u64 = 1;
    pub(super) const POSTED: u64 = 2;
    pub(super) const TAKEN: u64 = 3;
    pub(super) const ACCEPTED: u64 = 4;
    pub(super) const OTHER_ARENA: u64 = 5;
    pub(super) const REFUSED: u64 = 6;
    pub(super) const MASK: u64 = 0xff;
}

/// The accepting end's answer to an offer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// It attached: see the slot.
    Accepted,
    /// It does not have this arena and cannot get it: offer another.
    OtherArena,
    /// It may not read the connecting process.
    Refused,
    /// It does not want to, now.
    No,
}

/// How far an offer is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// No answer yet.
    Waiting,
    /// This was the answer.
    Answered(Answer),
}

/// One use of a place, as remembered by the process that posted or took the offer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    index: u32,
    generation: u64,
}

impl Place {
    /// Both numbers, for a caller that keeps them in words of its own.
    pub fn to_parts(self) -> (u32, u64) {
        (self.index, self.generation)
    }

    /// What [`Place::to_parts`] gave.
    pub fn from_parts(index: u32, generation: u64) -> Self {
        Self { index, generation }
    }
}

/// One offer.
#[repr(C, align(128))]
#[derive(Default)]
pub struct Offer {
    word: AtomicU64,
    posted_at: AtomicU64,
    /// The slot's generation.
    pub generation: AtomicU64,
    /// The arena's id.
    pub arena: AtomicU64,
    /// The session's number.
    pub session: AtomicU64,
    /// The accepting process's id, with [`Answer::OtherArena`].
    pub answer: AtomicU64,
    /// The connecting process.
    pub pid: AtomicU32,
    /// The descriptor of the arena in it, plus one; 0 when the peer must know the arena already.
    pub arena_fd: AtomicU32,
    /// The connection's slot in the arena.
    pub slot: AtomicU32,
    tuple: Tuple,
}

/// What the shared memory holds. Atomics only: any bytes are valid, and others write it at any time.
#[repr(C)]
pub struct Table {
    pub(crate) magic: AtomicU64,
    pub(crate) netns: AtomicU64,
    pub(crate) id: AtomicU64,
    /// Counts posts: an accepting end that has read this value already finds nothing new.
    posts: AtomicU32,
    _pad: [u32; 9],
    ports: [AtomicU64; 1024],
    pub(crate) users: [User; USERS],
    offers: [Offer; ENTRIES],
}

/// Size of the memory.
pub(crate) const BYTES: usize = size_of::<Table>().next_multiple_of(4096);

impl Table {
    /// Notes that a wrapped program listens on `port`.
    pub fn mark(&self, port: u16) {
        self.ports[port as usize / 64].fetch_or(1 << (port % 64), Relaxed);
    }

    /// Whether a wrapped program listens, or has listened, on `port`.
    pub fn is_marked(&self, port: u16) -> bool {
        self.ports[port as usize / 64].load(Relaxed) >> (port % 64) & 1 != 0
    }

    /// The network namespace of its connections (see [`madrigal_sys::tcp::netns_cookie`]).
    pub fn netns(&self) -> u64 {
        self.netns.load(Relaxed)
    }

    /// A random number: two mappings with the same one are of the same table.
    pub(crate) fn id(&self) -> u64 {
        self.id.load(Relaxed)
    }

    /// How many offers were ever posted.
    #[inline]
    pub fn posts(&self) -> u32 {
        self.posts.load(Acquire)
    }

    /// Posts an offer for `tuple`; `fill` writes its contents. `None`: no free place near its hash.
    pub fn post(&self, tuple: &Tuple, fill: impl FnOnce(&Offer)) -> Option<Place> {
        let now = time::now_ns();
        let (index, offer, generation) = places(tuple).find_map(|index| {
            let offer = self.offers.get(index)?;
            Some((index, offer, claim(offer, now)?))
        })?;
        tuple.copy_to(&offer.tuple);
        offer.posted_at.store(now, Relaxed);
        offer.pid.store(process::own_pid(), Relaxed);
        fill(offer);
        // SYNC: Release pairs with the Acquire exchange in `find`: the process that takes the offer sees what was filled in. It fails where
        // we were so slow that the place was taken for a dead process's.
        step(offer, generation, stage::WRITING, stage::POSTED).then_some(())?;
        self.posts.fetch_add(1, Release);
        Some(Place { index: index as u32, generation })
    }

    /// Takes the offer posted for `tuple`, if there is one. The caller answers it.
    pub fn find(&self, tuple: &Tuple) -> Option<(Place, &Offer)> {
        places(tuple).find_map(|index| {
            let offer = self.offers.get(index)?;
            let word = offer.word.load(Acquire);
            let generation = word >> GENERATION_AT;
            let ours = word & stage::MASK == stage::POSTED && offer.tuple.same(tuple);
            (ours && step(offer, generation, stage::POSTED, stage::TAKEN))
                .then_some((Place { index: index as u32, generation }, offer))
        })
    }

    /// Answers an offer that was taken. Without effect if the connecting end waits no more.
    pub fn answer(&self, place: Place, answer: Answer) {
        let Some(offer) = self.offers.get(place.index as usize) else { return };
        let stage_of_answer = match answer {
            Answer::Accepted => stage::ACCEPTED,
            Answer::OtherArena => stage::OTHER_ARENA,
            Answer::Refused => stage::REFUSED,
            Answer::No => stage::FREE,
        };
        step(offer, place.generation, stage::TAKEN, stage_of_answer);
    }

    /// How far an offer is, and its answer; for the process that posted it.
    pub fn standing(&self, place: Place) -> Standing {
        let word = self.offers.get(place.index as usize).map_or(0, |offer| offer.word.load(Acquire));
        if word >> GENERATION_AT != place.generation {
            return Standing::Answered(Answer::No);
        }
        match word & stage::MASK {
            stage::POSTED | stage::TAKEN => Standing::Waiting,
            stage::ACCEPTED => Standing::Answered(Answer::Accepted),
            stage::OTHER_ARENA => Standing::Answered(Answer::OtherArena),
            stage::REFUSED => Standing::Answered(Answer::Refused),
            _ => Standing::Answered(Answer::No),
        }
    }

    /// The accepting process's id, behind [`Answer::OtherArena`].
    pub fn answerer(&self, place: Place) -> u64 {
        self.offers.get(place.index as usize).map_or(0, |offer| offer.answer.load(Relaxed))
    }

    /// The process that posted an offer is done with it.
    pub fn free(&self, place: Place) {
        let Some(offer) = self.offers.get(place.index as usize) else { return };
        for from in [stage::POSTED, stage::TAKEN, stage::ACCEPTED, stage::OTHER_ARENA, stage::REFUSED] {
            if step(offer, place.generation, from, stage::FREE) {
                return;
            }
        }
        // Taken between the two reads.
        for from in [stage::TAKEN, stage::ACCEPTED, stage::OTHER_ARENA, stage::REFUSED] {
            step(offer, place.generation, from, stage::FREE);
        }
    }
}

fn places(tuple: &Tuple) -> impl Iterator<Item = usize> {
    let first = tuple.hash() % ENTRIES;
    (0..PROBES).map(move |i| (first + i) % ENTRIES)
}

/// Claims a place that is free, or was left by a dead process; returns its generation.
fn claim(offer: &Offer, now: u64) -> Option<u64> {
    let seen = offer.word.load(Acquire);
    let stale = || now.saturating_sub(offer.posted_at.load(Relaxed)) > STALE_NS;
    let generation = (seen >> GENERATION_AT).wrapping_add(1) & (u64::MAX >> GENERATION_AT);
    let free = match seen & stage::MASK {
        stage::FREE => true,
        // A writer may go on at any time.
        stage::WRITING => false,
        _ => stale(),
    };
    let mine = generation << GENERATION_AT | stage::WRITING;
    (free && offer.word.compare_exchange(seen, mine, AcqRel, Relaxed).is_ok()).then_some(generation)
}

fn step(offer: &Offer, generation: u64, from: u64, to: u64) -> bool {
    let word = generation << GENERATION_AT;
    // SYNC: Acquire: what the other side wrote before its step is seen. Release: what we wrote before ours will be.
    offer.word.compare_exchange(word | from, word | to, AcqRel, Relaxed).is_ok()
}

#[cfg(test)]
mod tests;
