//! Which side is notified that there is something, and how a sleeper is woken.
//!
//! A process polls the directions of few links. Of all others, and of room it waits for, it is notified. **A notice is never lost**: each
//! side stores its own word and then loads the other's, all sequentially consistent, so that one of them sees the other's store:
//!
//! | notified side | stores, then checks | notifying side | stores, then checks |
//! |---|---|---|---|
//! | reader | `notice`, then the next frame ([`listen`]) | writer | frame, then `notice` ([`owes`]) |
//! | writer | `want`, then how much was read ([`listen`]) | reader | how much was read, then `want` ([`owes`]) |
//! | sleeper | `asleep`, then the summary ([`NotificationPage::sleep`]) | either | map and summary, then `asleep` ([`NotificationPage::post`]) |

use madrigal_base::sync::{AtomicU32, Ordering};

use super::layout::{BITS, NotificationPage};

/// Requests a notice; true: `stirred` reports that something is there already.
#[inline]
pub(super) fn listen(word: &AtomicU32, stirred: impl FnOnce() -> bool) -> bool {
    // SYNC: SeqCst store before `stirred` (SeqCst loads); pairs with `owes`, which comes after a SeqCst store.
    word.store(1, Ordering::SeqCst);
    stirred()
}

/// Whether a notice is owed for what was just stored. It was taken: the caller has to post it.
#[inline]
pub(super) fn owes(word: &AtomicU32) -> bool {
    // SYNC: SeqCst, after the SeqCst store of what the notice is about; pairs with `listen`. The exchange lets one of many take it.
    word.load(Ordering::SeqCst) != 0 && word.swap(0, Ordering::SeqCst) != 0
}

impl NotificationPage {
    /// Posts a notice about the owner's link `slot`. True: the owner may be asleep, and the caller owes it a doorbell.
    #[cold]
    pub(super) fn post(&self, slot: u32) -> bool {
        let bit = slot as usize % BITS;
        // SYNC: SeqCst throughout: map, then summary, so that the taker of the summary finds the map; then `asleep`.
        self.map[bit / 64].fetch_or(1 << (bit % 64), Ordering::SeqCst);
        self.summary.0.fetch_or(1 << (bit / 64), Ordering::SeqCst);
        self.asleep.0.load(Ordering::SeqCst) != 0 && self.asleep.0.swap(0, Ordering::SeqCst) != 0
    }

    /// Owner: whether there are notices.
    #[inline]
    pub(super) fn has_notices(&self) -> bool {
        // SYNC: Acquire is enough for a load that is repeated. A sleeper calls `sleep`.
        self.summary.0.load(Ordering::Acquire) != 0
    }

    /// Owner: takes the notices; `f` gets each link's number modulo [`BITS`].
    #[cold]
    pub(super) fn take(&self, mut f: impl FnMut(u32)) {
        let mut words = self.summary.0.swap(0, Ordering::SeqCst);
        while words != 0 {
            let w = words.trailing_zeros();
            words &= words - 1;
            let mut bits = self.map[w as usize].swap(0, Ordering::SeqCst);
            while bits != 0 {
                f(w * 64 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }

    /// Owner: will sleep from now on; true: there are notices, do not.
    pub(super) fn sleep(&self) -> bool {
        listen(&self.asleep.0, || self.summary.0.load(Ordering::SeqCst) != 0)
    }

    /// Owner: is awake.
    pub(super) fn wake(&self) {
        self.asleep.0.store(0, Ordering::Relaxed);
    }
}
