//! The switch of each direction at an exact byte.
//!
//! The reader becomes READY first: it echoes the session's number, and understands doorbells from then on. The writer that sees the echo
//! publishes how many bytes the kernel has ever carried, and goes on in the ring. It defers that for a while if the reader is a little
//! behind. The connecting end switches first. The other end switches when it has read what that sent by the kernel, for doorbells about its
//! space come behind those bytes.
//!
//! Both positions come from the kernel, so bytes that passed unseen (stdio, another process, an interrupted call) are counted.

use madrigal_base::sync::Ordering;
use madrigal_shm_ring::layout::state;

use super::{Health, View, Wire, phase};

/// A reader with so many unread kernel bytes receives a stream: waiting for its end would take too long.
const MOST_BEHIND: u64 = 64 << 10;
/// How often the switch is put off. Seldom in a model: what comes behind unread bytes is explored, too.
const PATIENCE: u32 = if cfg!(feature = "shuttle") { 1 } else { 64 };

impl<W: Wire> View<'_, W> {
    /// Makes the receiving side READY if nothing prevents it. `adopt` must take over the registrations that report the kernel's bytes to
    /// the program. Under the receive lock.
    pub(crate) fn ready(&self, adopt: impl FnOnce() -> bool) -> bool {
        let s = self.s;
        s.rx.store(phase::SWITCHING, Ordering::SeqCst);
        // SYNC: SeqCst on both sides: a thread entering a kernel receive counts itself and then reads the phase.
        let alone = s.in_recv.load(Ordering::SeqCst) == 0;
        // This process does not know of an urgent byte that another process has sent: a receive by the kernel passes over it.
        let may_count = || !self.wire.has_urgent();
        let may = alone && s.stays.load(Ordering::Relaxed) == 0 && !self.is_sealed_in() && may_count() && adopt();
        if !may {
            s.rx.store(phase::KERNEL, Ordering::SeqCst);
            return false;
        }
        s.rx.store(phase::READY, Ordering::SeqCst);
        // A closed connection is not queried: that may take its error.
        let taken = if self.wire.health() == Health::Open { self.wire.taken().unwrap_or(0) } else { 0 };
        self.inn.r.taken.store(taken, Ordering::Relaxed);
        self.inn.r.cpu.store(self.wire.cpu(), Ordering::Relaxed);
        // SYNC: Release pairs with the Acquire in `switch`: everything above is in place before the first doorbell can come.
        self.inn.r.ready.store(self.number(), Ordering::Release);
        true
    }

    /// Whether the sending side may move now: the peer understands doorbells, and it is this end's turn.
    fn may_switch(&self) -> bool {
        let s = self.s;
        let understood = self.out.r.ready.load(Ordering::Acquire) == self.number();
        let may_lead = s.side() == 0 || s.rx() == phase::RING;
        let held = s.corked.load(Ordering::Relaxed) != 0 || s.more.load(Ordering::Relaxed) != 0;
        understood && may_lead && !held && !s.producer.is_sealed(self.out)
    }

    /// Moves the sending side into the ring if nothing prevents it; true if it did. Under the send lock.
    pub(crate) fn switch(&self) -> bool {
        let s = self.s;
        if s.tx() != phase::KERNEL || !self.may_switch() {
            return false;
        }
        s.tx.store(phase::SWITCHING, Ordering::SeqCst);
        // SYNC: SeqCst on both sides: a thread entering a kernel send counts itself and then reads the phase.
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

    /// Whether the reader may soon have read all that the kernel has carried. A doorbell must not lie behind unread bytes: it would stay
    /// there if this end closes and another process gets the reader's socket. A reader that is far behind, or never quite done, is not
    /// waited for.
    fn awaits_reader(&self, given: u64) -> bool {
        let behind = given.wrapping_sub(self.out.r.taken.load(Ordering::Acquire));
        if behind == 0 {
            self.s.put_off.store(0, Ordering::Relaxed);
        }
        (1..=MOST_BEHIND).contains(&behind) && self.s.put_off.fetch_add(1, Ordering::Relaxed) < PATIENCE
    }

    /// How many of the writer's kernel bytes are unread, once it has switched. `None`: it has not, or its count is impossible.
    pub(super) fn left_in_kernel(&self) -> Option<u64> {
        if self.inn.w.state.load(Ordering::SeqCst) == state::KERNEL {
            return None;
        }
        let (given, taken) = (self.inn.w.n_kernel.load(Ordering::Acquire), self.wire.taken().ok()?);
        // Another process may have taken doorbells behind them.
        if self.s.is_shared() { Some(given.saturating_sub(taken)) } else { given.checked_sub(taken) }
    }

    /// A reader that is READY and has read all kernel bytes of the writer goes on in the ring. Under the receive lock.
    pub(crate) fn reach_ring(&self) -> bool {
        let reached = self.s.rx() == phase::READY && self.left_in_kernel() == Some(0);
        if reached {
            self.s.rx.store(phase::RING, Ordering::SeqCst);
        }
        reached
    }
}
