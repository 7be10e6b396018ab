//! Doorbells behind kernel bytes that the peer has not read. Only our hooks separate those from bytes, and nothing can follow a FIN. So
//! before a FIN this end takes everything out of the peer's queue, through a copy of its socket, and sends it again without them.
//!
//! ```text
//!   before (reader):  0 --about to count and take kernel bytes--> 1 --> 0
//!   taking (writer):  NOTHING --about to take all--> ALL --it is sent again--> NOTHING
//! ```
//! Each sets its own word and then reads the other's, so the two never both take. A writer that dies in between has bytes in its memory
//! alone; its peer finds impossible counts, and a reset.

use madrigal_base::sync::{AtomicU32, Ordering};
use madrigal_shm_ring::layout::{fate, state, taking};
use madrigal_sys::Errno;

use super::limit::{HELD_NS, Limit, SHORT_NS};
use super::{Aside, HandBack, View, Wire, phase};

/// How this end takes what the peer has not read.
pub(crate) trait Unmix: HandBack {
    /// As [`HandBack::take`], out of the peer's queue.
    fn take_from(&self, peer: &Self::Peer, aside: &mut Self::Aside) -> Result<usize, Errno>;
    /// Bytes ever taken out of it.
    fn taken_of(&self, peer: &Self::Peer) -> Result<u64, Errno>;
}

/// A reader that takes bytes which may come before the ring.
pub(super) struct Before<'a>(&'a AtomicU32);

impl Drop for Before<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<'a, W: Wire> View<'a, W> {
    // --- the reader ---------------------------------------------------------------------------------------------------------------

    /// Whether the next byte may come before the ring.
    pub(super) fn is_before_ring(&self) -> bool {
        !matches!(self.s.rx(), phase::RING | phase::DONE)
    }

    /// Counts a reader of such bytes. `None`: the writer is taking them.
    pub(super) fn try_before(&self) -> Option<Before<'a>> {
        // SYNC: SeqCst with `unmix`.
        self.inn.r.before.fetch_add(1, Ordering::SeqCst);
        let before = Before(&self.inn.r.before);
        (self.inn.w.taking.load(Ordering::SeqCst) != taking::ALL).then_some(before)
    }

    // --- the writer ---------------------------------------------------------------------------------------------------------------

    /// Before a FIN: any reader of the peer's socket must find every byte in order, and nothing else. Under the send lock, behind the end
    /// of our sending direction.
    pub(crate) fn unmix<U: Unmix>(&self, by: &U) {
        if !self.may_be_mixed() {
            return;
        }
        let (Ok(peer), Ok(mut aside)) = (by.peer(), by.aside()) else { return };
        // SYNC: SeqCst with `try_before`.
        self.out.w.taking.store(taking::ALL, Ordering::SeqCst);
        if self.await_readers()
            && self.may_be_mixed()
            && let Some(left) = self.left_at(by.taken_of(&peer))
            && self.send_unmixed(left, &peer, &mut aside, by).is_err()
            && !aside.bytes().is_empty()
        {
            // Bytes are lost: every process must see that.
            self.wire.cut_off();
            self.saw_error(Errno::CONNRESET);
        }
        self.out.w.taking.store(taking::NOTHING, Ordering::SeqCst);
    }

    /// Whether the peer lives, has been rung, and has not come to the ring.
    fn may_be_mixed(&self) -> bool {
        let (writer, reader) = (&self.out.w, &self.out.r);
        writer.state.load(Ordering::SeqCst) == state::DONE
            && writer.bells.load(Ordering::SeqCst) > 0
            && writer.urgent.load(Ordering::SeqCst) == 0
            && reader.ready.load(Ordering::Relaxed) == self.number()
            && reader.drained.load(Ordering::SeqCst) == 0
            && reader.deaf.load(Ordering::SeqCst) == 0
            && reader.taken.load(Ordering::SeqCst) < writer.n_kernel.load(Ordering::SeqCst)
            && self.inn.w.fate.load(Ordering::SeqCst) == fate::OPEN
            && !self.is_dead()
    }

    /// Waits for readers that are taking bytes, or just putting them back; whether none is left.
    fn await_readers(&self) -> bool {
        let mut limit = Limit::new(self.wire, HELD_NS);
        while self.out.r.before.load(Ordering::SeqCst) != 0 {
            if limit.has_passed(self.wire) || !self.wire.peer_lives() {
                return false;
            }
            self.wire.pause();
        }
        true
    }

    /// How many kernel bytes are unread in front of the doorbells, if any.
    fn left_at(&self, taken: Result<u64, Errno>) -> Option<usize> {
        let left = self.out.w.n_kernel.load(Ordering::SeqCst).checked_sub(taken.ok()?)?;
        usize::try_from(left).ok().filter(|&left| left > 0)
    }

    /// An error while `aside` is empty: nothing was done.
    fn send_unmixed<U: Unmix>(&self, left: usize, peer: &U::Peer, aside: &mut U::Aside, by: &U) -> Result<(), Errno> {
        let given = self.wire.given()?;
        self.take_all(given, peer, aside, by)?;
        let bells = usize::try_from(self.out.w.bells.load(Ordering::SeqCst)).unwrap_or(usize::MAX);
        if left.checked_add(bells).is_none_or(|front| front > aside.bytes().len()) {
            return Err(Errno::INVAL);
        }
        aside.cut(left, bells);
        // What is left in the ring comes behind those.
        if let Some(span) = self.s.producer.take_back(self.out, &self.mem).map_err(|_| Errno::INVAL)? {
            let mut at = left;
            for (ptr, len) in span.pieces().into_iter().filter(|&(_, len)| len > 0) {
                // SAFETY: bytes this process published in a block it still holds.
                aside.put(at, unsafe { core::slice::from_raw_parts(ptr.cast_const(), len) })?;
                at += len;
            }
        }
        let all = aside.bytes().len() as u64;
        let _wide = self.wire.widen(all);
        self.out.w.bells.store(0, Ordering::SeqCst);
        self.out.w.n_kernel.store(given + all, Ordering::SeqCst);
        self.send_all(aside.bytes())?;
        // A sender that does not pass the gate may have sent in between: where its bytes belong is unknown.
        if self.wire.given()? == given + all { Ok(()) } else { Err(Errno::IO) }
    }

    /// Empties the peer's queue: takes everything that was ever sent.
    fn take_all<U: Unmix>(&self, given: u64, peer: &U::Peer, aside: &mut U::Aside, by: &U) -> Result<(), Errno> {
        let mut limit = Limit::new(self.wire, SHORT_NS);
        loop {
            match by.take_from(peer, aside) {
                Ok(0) => return Err(Errno::PIPE),
                Ok(_) | Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => {}
                Err(e) => return Err(e),
            }
            match by.taken_of(peer)? {
                taken if taken == given => return Ok(()),
                _ if limit.has_passed(self.wire) => return Err(Errno::TIMEDOUT),
                _ => self.wire.pause(),
            }
        }
    }
}
