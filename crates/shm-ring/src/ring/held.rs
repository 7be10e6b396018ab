//! Bytes that a writer holds back for a while: `MSG_MORE`, `TCP_CORK`.
//!
//! They are in the ring like any others, but `tail` has the bit [`HELD`], and a reader reads no further than `held_from`. Clearing the bit
//! shows all of them in the same moment: the next publication without it does, or [`Producer::release`], or the reader itself, which holds
//! nothing back for longer than TCP does ([`HOLD_NS`](super::HOLD_NS)). A seal ends it, too. So a reader depends on no writer, and what a
//! dying writer leaves behind is not lost. Where nothing is held back a reader pays for one more bit of a word it has loaded anyway.
//!
//! A reader that goes to sleep on held bytes sleeps no longer than [`Consumer::held_for`]. One that sleeps already when the first are held
//! gets a doorbell, which the caller sends as late as it may ([`Producer::hold`]).

use madrigal_base::sync::Ordering;

use super::shown::{left, now};
use super::{Consumer, Producer, Sleeper, Span, Trouble};
use crate::layout::{Direction, HELD, SEALED};

impl Producer {
    /// Publishes `n` bytes copied into `span` as held. Returns the sleeper that does not know of them; the caller must wake it before they
    /// are due. `armed` stays set.
    pub fn hold(&self, dir: &Direction, span: &Span, n: usize) -> Result<Sleeper, Trouble> {
        let holds = || self.held.load(Ordering::Relaxed) != 0;
        if holds() {
            match self.exchange(dir, span, n, HELD) {
                // The reader has shown what there was: this is the first again.
                Err(Trouble::Raced) if !holds() => {}
                other => return other.map(|()| Sleeper::Nobody),
            }
        }
        // SYNC: before the bit, which the exchange publishes.
        dir.wake.held_from.store(span.at, Ordering::Release);
        dir.wake.held_since.store(now(), Ordering::Release);
        self.exchange(dir, span, n, HELD)?;
        // SYNC: SeqCst: behind the exchange; a reader that arms from now on sees the bit (`Consumer::held_for`).
        Ok(Sleeper::from_code(dir.wake.armed.load(Ordering::SeqCst)))
    }

    /// Bytes held back.
    pub fn held(&self, dir: &Direction) -> u64 {
        let held = || self.position().saturating_sub(dir.wake.held_from.load(Ordering::Relaxed));
        if self.holds(dir) { held() } else { 0 }
    }

    /// Whether they have been for long enough.
    pub fn is_due(&self, dir: &Direction) -> bool {
        self.holds(dir) && left(dir) == 0
    }

    fn holds(&self, dir: &Direction) -> bool {
        self.held.load(Ordering::Relaxed) != 0 && dir.w.tail.load(Ordering::Relaxed) & HELD != 0
    }

    /// Shows the first `n` of them, and starts the time of the others anew; the sleeper returned is owed a doorbell.
    pub fn show(&self, dir: &Direction, n: u64) -> Sleeper {
        let from = dir.wake.held_from.load(Ordering::Relaxed);
        dir.wake.held_since.store(now(), Ordering::Release);
        // SYNC: SeqCst, before the load of `armed`; pairs with `Consumer::arm`.
        dir.wake.held_from.store(from + n, Ordering::SeqCst);
        self.take_armed(dir)
    }

    /// Shows all of them; the sleeper returned is owed a doorbell.
    pub fn release(&self, dir: &Direction) -> Sleeper {
        if self.held.swap(0, Ordering::Relaxed) == 0 {
            return Sleeper::Nobody;
        }
        // SYNC: SeqCst, before the load of `armed`; pairs with `Consumer::arm`.
        dir.w.tail.fetch_and(!HELD, Ordering::SeqCst);
        self.take_armed(dir)
    }
}

impl Consumer {
    /// For a reader that found nothing it may read: how long it may sleep at the most, as held bytes will be due. Call it after
    /// [`Consumer::arm`].
    pub fn held_for(&self, dir: &Direction) -> Option<u64> {
        let word = dir.w.tail.load(Ordering::SeqCst);
        (word & HELD != 0 && word & SEALED == 0).then(|| left(dir).max(1))
    }

    /// Shows what a writer has held back that is gone.
    pub fn show_all(&self, dir: &Direction) {
        if dir.w.tail.load(Ordering::Relaxed) & HELD != 0 {
            dir.w.tail.fetch_and(!HELD, Ordering::SeqCst);
        }
    }
}
