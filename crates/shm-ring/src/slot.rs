//! The life of a slot: which side may use it, and when it is free.
//!
//! ```text
//!         offer           claim              attach
//!   FREE ------> OFFERED ------> ATTACHING -------> ATTACHED  --leave (either side)-->  LEFT by one
//!     ^             | withdraw       | decline                                              |
//!     |             v                v                                        leave (the other side)
//!     |         WITHDRAWN <----------+                                                      v
//!     +------------ recycle --------------------------- recycle ------------------- LEFT by both
//! ```
//! | step | who | what it gives up or gains |
//! |---|---|---|
//! | offer, withdraw, recycle | the creator of the arena | a slot that is its own until it is claimed |
//! | claim, attach, decline | the accepting process | between claim and attach it alone writes its part |
//! | leave | each side, once | from then on it reads and writes nothing of the slot |
//! | revoke | the creator, where the accepting process is dead or will never come | it takes its offer, claimed or not, back to WITHDRAWN |
//!
//! One word holds the stage, both marks of having left, and the *generation*, which counts the uses of the slot: a late step compares with
//! an old generation and fails. The last side to leave gives back what the session had borrowed, and sets its mark behind that: the mark is
//! what lets the creator use the slot again.
//!
//! A second word, written by the creator before it offers, names the *session*: a random number that every side remembers privately and
//! compares whenever it claims or leaves. If it differs, the memory of a side is wrong, and nothing is given back or taken.

use madrigal_base::sync::{AtomicU64, Ordering};

use crate::units::Tag;

mod stage {
    pub(super) const FREE: u64 = 0;
    pub(super) const OFFERED: u64 = 1;
    pub(super) const ATTACHING: u64 = 2;
    pub(super) const ATTACHED: u64 = 3;
    pub(super) const WITHDRAWN: u64 = 4;
    pub(super) const MASK: u64 = 0xff;
}

const LEFT: [u64; 2] = [1 << 8, 1 << 9];
const BOTH: u64 = LEFT[0] | LEFT[1];
const GENERATION_AT: u32 = 16;

/// Shared memory has an impossible value: it was written by a process that had no right to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Contradiction;

/// Which side left a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    /// The other side is still there.
    First,
    /// Both have left.
    Last,
}

/// A use of a slot, as each side remembers it in memory of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lent {
    /// Which use of the slot it is.
    pub generation: u64,
    /// The session's random number.
    pub session: Tag,
}

/// The two words of a slot. Zeroed memory is a free one.
#[repr(C)]
#[derive(Default)]
pub struct Life {
    word: AtomicU64,
    session: AtomicU64,
}

impl Life {
    /// The creator offers a slot that it took and has laid out.
    pub fn offer(&self, session: Tag) -> Lent {
        let generation =
            (self.word.load(Ordering::Relaxed) >> GENERATION_AT).wrapping_add(1) & (u64::MAX >> GENERATION_AT);
        self.session.store(session.get(), Ordering::Relaxed);
        // SYNC: Release pairs with the Acquire in `claim`: the claimer finds the slot laid out.
        self.word.store(generation << GENERATION_AT | stage::OFFERED, Ordering::Release);
        Lent { generation, session }
    }

    /// What the slot offers now, for an accepting process that knows the slot alone.
    pub fn offered(&self) -> Option<Lent> {
        let word = self.word.load(Ordering::Acquire);
        let session = Tag::new(self.session.load(Ordering::Relaxed))?;
        (word & stage::MASK == stage::OFFERED).then_some(Lent { generation: word >> GENERATION_AT, session })
    }

    /// The creator takes its offer back; false: it was claimed before.
    #[must_use]
    pub fn withdraw(&self, lent: Lent) -> bool {
        self.step(lent, stage::OFFERED, stage::WITHDRAWN)
    }

    /// The creator takes back an offer that the accepting process will not attach to: it is dead, or will never come. What the session has
    /// borrowed is the creator's alone while `free` runs; only then may the slot be recycled. False: it was attached to.
    #[must_use]
    pub fn revoke(&self, lent: Lent, free: impl FnOnce()) -> bool {
        // We claimed it, so no other process has it; or the peer claimed it, and went no further.
        let ours = self.claim(lent)
            || self.word.load(Ordering::Acquire) == lent.generation << GENERATION_AT | stage::ATTACHING;
        if ours {
            free();
            self.decline(lent);
        }
        ours
    }

    /// The accepting process claims the offer: from now on it alone writes its part of the slot. It attaches or declines next.
    #[must_use]
    pub fn claim(&self, lent: Lent) -> bool {
        // SYNC: the number is compared first; a later offer has another generation, which the exchange finds.
        self.session.load(Ordering::Acquire) == lent.session.get() && self.step(lent, stage::OFFERED, stage::ATTACHING)
    }

    /// The accepting process has written its part; false: the creator has left meanwhile, and the slot is its again.
    #[must_use]
    pub fn attach(&self, lent: Lent) -> bool {
        let attached = self.step(lent, stage::ATTACHING, stage::ATTACHED);
        if !attached {
            self.decline(lent);
        }
        attached
    }

    /// The accepting process does not want what it claimed.
    pub fn decline(&self, lent: Lent) {
        let word = lent.generation << GENERATION_AT;
        for left in [0, LEFT[0]] {
            // SYNC: Release: what was written of our part is not written later.
            let from = word | left | stage::ATTACHING;
            let _ = self.word.compare_exchange(from, word | stage::WITHDRAWN, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Whether both sides have it.
    #[inline]
    pub fn is_attached(&self, lent: Lent) -> bool {
        // SYNC: Acquire pairs with `attach`: the accepting side's part is written.
        self.word.load(Ordering::Acquire) & !BOTH == lent.generation << GENERATION_AT | stage::ATTACHED
    }

    /// Whether an offer was withdrawn or declined.
    pub fn is_off(&self, lent: Lent) -> bool {
        self.word.load(Ordering::Acquire) & !BOTH == lent.generation << GENERATION_AT | stage::WITHDRAWN
    }

    /// `side` leaves a slot that both had attached to. The last one runs `free` first: what the session has borrowed is its alone then.
    pub fn leave(&self, side: usize, lent: Lent, free: impl FnOnce()) -> Result<Left, Contradiction> {
        let own = LEFT[side & 1];
        let mut seen = self.checked(own, lent)?;
        while seen & BOTH == 0 {
            // SYNC: Release: we are done with the slot. Acquire on failure: so is the other side.
            match self.word.compare_exchange(seen, seen | own, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(Left::First),
                Err(_) => seen = self.checked(own, lent)?,
            }
        }
        free();
        // SYNC: Release pairs with the Acquire in `recycle`: everything is given back.
        self.word.fetch_or(own, Ordering::Release);
        Ok(Left::Last)
    }

    /// `side` leaves a slot whose other side is dead, or will never attach.
    pub fn abandon(&self, side: usize, lent: Lent, free: impl FnOnce()) -> Result<(), Contradiction> {
        self.checked(LEFT[side & 1], lent)?;
        free();
        self.word.fetch_or(BOTH, Ordering::Release);
        Ok(())
    }

    /// The creator closes while the accepting process is about to attach, which then finds it gone; false: it is not about to.
    #[must_use]
    pub fn leave_early(&self, lent: Lent) -> bool {
        let word = lent.generation << GENERATION_AT | stage::ATTACHING;
        self.word.compare_exchange(word, word | LEFT[0], Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The creator makes a slot free that is no longer used. True for one caller, who may give it out again.
    #[must_use]
    pub fn recycle(&self) -> bool {
        // SYNC: Acquire pairs with `leave` and `decline`.
        let seen = self.word.load(Ordering::Acquire);
        let over = seen & BOTH == BOTH || seen & stage::MASK == stage::WITHDRAWN;
        let free = seen >> GENERATION_AT << GENERATION_AT | stage::FREE;
        over && self.word.compare_exchange(seen, free, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The word of a slot that this side may leave.
    fn checked(&self, own: u64, lent: Lent) -> Result<u64, Contradiction> {
        let seen = self.word.load(Ordering::Acquire);
        let right = seen >> GENERATION_AT == lent.generation
            && seen & stage::MASK == stage::ATTACHED
            && seen & own == 0
            && self.session.load(Ordering::Relaxed) == lent.session.get();
        if right { Ok(seen) } else { Err(Contradiction) }
    }

    fn step(&self, lent: Lent, from: u64, to: u64) -> bool {
        let word = lent.generation << GENERATION_AT;
        // SYNC: Acquire: what the other side wrote before its step is seen. Release: what we wrote before ours will be.
        self.word.compare_exchange(word | from, word | to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

#[cfg(all(test, feature = "shuttle"))]
mod explored;
#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
