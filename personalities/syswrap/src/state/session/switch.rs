//! The switch of each direction at an exact byte.
//!
//! The reader becomes READY first: it echoes the session's number, and understands doorbells from then on. The writer that sees the echo
//! says how many bytes the kernel has ever carried, and goes on in the ring; it puts that off for a while if the reader is a little
//! behind. The connecting end switches first, the other one when it has read what that sent by the kernel: doorbells for its space come
//! behind those bytes.
//!
//! Both positions come from the kernel, so bytes that passed unseen (stdio, another process, an interrupted call) are counted.

use madrigal_base::sync::Ordering;
use madrigal_shm_ring::layout::state;

use super::{Health, View, Wire, phase};

/// A reader that has so much unread by the kernel takes a stream, of which there is no end to wait for.
const MOST_BEHIND: u64 = 64 << 10;
/// How often the switch is put off. Seldom in a model: what comes behind unread bytes is explored, too.
const PATIENCE: u32 = if cfg!(feature = "shuttle") { 1 } else { 64 };

impl<W: Wire> View<'_, W> {
    /// Makes the receiving side READY if nothing stands in the way; `adopt` has to take over what tells the program of bytes in the
    /// kernel. Under the receive lock.
    pub(crate) fn ready(&self, adopt: impl FnOnce() -> bool) -> bool {
        let s = self.s;
        s.rx.store(phase::SWITCHING, Ordering::SeqCst);
        // SYNC: SeqCst on both sides: a thread entering a kernel receive counts itself and then looks at the phase.
        let alone = s.in_recv.load(Ordering::SeqCst) == 0;
        // Of a byte that another process has sent as urgent nobody here knows: a receive by the kernel passes over it.
        let may_count = || !self.wire.has_urgent();
        let may = alone && s.stays.load(Ordering::Relaxed) == 0 && !self.is_sealed_in() && may_count() && adopt();
        if !may {
            s.rx.store(phase::KERNEL, Ordering::SeqCst);
            return false;
        }
        s.rx.store(phase::READY, Ordering::SeqCst);
        // A connection that is closed is not asked how: it may tell of an error.
        let taken = if self.wire.health() == Health::Open { self.wire.taken().unwrap_or(0) } else { 0 };
        self.inn.r.taken.store(taken, Ordering::Relaxed);
        self.inn.r.cpu.store(self.wire.cpu(), Ordering::Relaxed);
        // SYNC: Release pairs with the Acquire in `switch`: everything above is in place before the first doorbell can come.
        self.inn.r.ready.store(self.number(), Ordering::Release);
        true
    }

    /// Whether the sending side may move now: not while the peer does not understand doorbells, and in turn.
    fn may_switch(&self) -> bool {
        let s = self.s;
        let understood = self.out.r.ready.load(Ordering::Acquire) == self.number();
        let may_lead = s.side() == 0 || s.rx() == phase::RING;
        let held = s.corked.load(Ordering::Relaxed) != 0 || s.more.load(Ordering::Relaxed) != 0;
        understood && may_lead && !held && !s.producer.is_sealed(self.out)
    }

    /// Moves the sending side into the ring if nothing stands in the way; true if it did. Under the send lock.
    pub(crate) fn switch(&self) -> bool {
        let s = self.s;
        if s.tx() != phase::KERNEL || !self.may_switch() {
            return false;
        }
        s.tx.store(phase::SWITCHING, Ordering::SeqCst);
        // SYNC: SeqCst on both sides: a thread entering a kernel send counts itself and then looks at the phase.
        let alone = s.in_send.load(Ordering::SeqCst) == 0;
        let position = if alone { self.wire.given().ok() } else { None };
        let Some(position) = position.filter(|&given| !self.awaits_reader(given)) else {
            s.tx.store(phase::KERNEL, Ordering::SeqCst);
            return false;
        };
        self.wire.hurry();
        self.out.w.n_kernel.store(position, Ordering::Relaxed);
        self.publish_progress();
        self.out.w.state.store(state::RING, Ordering::SeqCst);
        if s.producer.is_sealed(self.out) {
            // Sealed in the same moment: nothing was published and no doorbell sent, so the kernel simply goes on.
            self.out.w.state.store(state::DONE, Ordering::SeqCst);
            s.tx.store(phase::DONE, Ordering::SeqCst);
            return false;
        }
        s.tx.store(phase::RING, Ordering::SeqCst);
        self.wire.switched();
        true
    }

    /// Whether the reader may soon have read all that the kernel has carried: a doorbell is not to lie behind unread bytes, where it stays
    /// if this end closes and the reader's socket goes to others. One that is far behind, or never quite there, is not waited for.
    fn awaits_reader(&self, given: u64) -> bool {
        let behind = given.wrapping_sub(self.out.r.taken.load(Ordering::Acquire));
        if behind == 0 {
            self.s.put_off.store(0, Ordering::Relaxed);
        }
        (1..=MOST_BEHIND).contains(&behind) && self.s.put_off.fetch_add(1, Ordering::Relaxed) < PATIENCE
    }

    /// The writer has switched, and so many of its kernel bytes are not read yet. `None`: it has not switched, or says what cannot be.
    pub(super) fn left_in_kernel(&self) -> Option<u64> {
        if self.inn.w.state.load(Ordering::SeqCst) == state::KERNEL {
            return None;
        }
        let (given, taken) = (self.inn.w.n_kernel.load(Ordering::Acquire), self.wire.taken().ok()?);
        // Another process may have taken doorbells behind them.
        if self.s.is_shared() { Some(given.saturating_sub(taken)) } else { given.checked_sub(taken) }
    }

    /// A reader that is READY and has read all that the writer sent by the kernel goes on in the ring. Under the receive lock.
    pub(crate) fn reach_ring(&self) -> bool {
        let reached = self.s.rx() == phase::READY && self.left_in_kernel() == Some(0);
        if reached {
            self.s.rx.store(phase::RING, Ordering::SeqCst);
        }
        reached
    }
}
