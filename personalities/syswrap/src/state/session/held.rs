//! Bytes that the program wants held back until more come (`MSG_MORE`), or until it turns `TCP_CORK` off: as TCP does it.
//!
//! They lie in the ring, hidden ([`madrigal_shm_ring::ring`]). A send without `MSG_MORE` shows them together with its own; `TCP_CORK` off
//! and `TCP_NODELAY` on show them; whole segments are shown at once, and so is everything when the ring is full or sealed. After 200 ms the
//! reader shows them to itself. That needs no thread and no timer of ours: a reader that is awake, or goes to sleep later, checks the
//! clock, and for one that sleeps already the kernel has a timer. The doorbell for it is sent with `MSG_MORE`, too, so the kernel holds it
//! back for its 200 ms, or until another one follows. If the bytes are shown before that, `TCP_NODELAY` sends it at once.

use madrigal_base::sync::Ordering;
use madrigal_shm_ring::ring::{Sleeper, Span, Trouble};

use super::{View, Wire, phase};

/// No segment is shorter (RFC 9293, 3.7.1): for less the segment size need not be queried.
const SHORTEST: u64 = 536;

impl<W: Wire> View<'_, W> {
    /// Publishes `n` bytes, and all that was held back before them.
    #[inline]
    pub(super) fn publish(&self, span: &Span, n: usize) -> Result<Sleeper, Trouble> {
        let sleeper = self.s.producer.publish(self.out, span, n)?;
        if sleeper == Sleeper::Nobody {
            self.hurry_late();
        }
        Ok(sleeper)
    }

    /// The same, but hidden for now. Whole segments of held bytes are shown.
    #[cold]
    pub(super) fn hold(&self, span: &Span, n: usize) -> Result<Sleeper, Trouble> {
        let producer = &self.s.producer;
        if producer.is_due(self.out) {
            self.show();
        }
        let sleeps = match producer.hold(self.out, span, n)? {
            Sleeper::Nobody => false,
            Sleeper::Own => true,
            // SYNC: behind the mark: a set that is awake sees it when it arms the direction again, before it sleeps.
            Sleeper::Set(index) => self.wire.sleeps(index),
        };
        if sleeps {
            self.s.late.store(1, Ordering::Relaxed);
            self.ring_late();
        }
        let held = producer.held(self.out);
        let segment = if held < SHORTEST { u64::MAX } else { self.segment() };
        let whole = held - held % segment;
        Ok(if whole > 0 { producer.show(self.out, whole) } else { Sleeper::Nobody })
    }

    /// Shows what is held back, and wakes the reader. Under the send lock.
    pub(crate) fn show(&self) {
        match self.s.producer.release(self.out) {
            Sleeper::Nobody => self.hurry_late(),
            sleeper => self.wake(sleeper),
        }
    }

    /// Bytes that the kernel would not have sent yet.
    pub(crate) fn held(&self) -> u64 {
        self.s.producer.held(self.out)
    }

    /// Sends a doorbell that the kernel may hold back, for it is counted: a reader that closes waits for it. A doorbell rung since then has
    /// sent it, too.
    #[inline]
    pub(super) fn hurry_late(&self) {
        if self.s.late.load(Ordering::Relaxed) != 0 {
            self.s.late.store(0, Ordering::Relaxed);
            self.wire.hurry();
        }
    }

    /// Behind the end of the connection nothing is held back any more.
    pub(super) fn show_last(&self) {
        if self.ended() {
            Self::CONSUMER.show_all(self.inn);
        }
    }

    /// How long a thread that found the ring empty may sleep, because bytes are held back. Once the ring is armed.
    pub(crate) fn held_for(&self) -> Option<u64> {
        let held = if self.s.rx() == phase::RING { Self::CONSUMER.held_for(self.inn) } else { None };
        held.into_iter().chain(self.s.unsent_for()).min()
    }

    pub(super) fn segment(&self) -> u64 {
        let known = self.s.segment.load(Ordering::Relaxed);
        if known != 0 {
            return known.into();
        }
        let asked = self.wire.segment().max(SHORTEST as u32);
        self.s.segment.store(asked, Ordering::Relaxed);
        asked.into()
    }
}
