//! The end of both directions.
//!
//! After a seal, by either side, nothing is added to the ring. Ours ends our sending direction at once; the peer drains what was published,
//! takes our last doorbell out, and finds our further bytes in its kernel socket. The other direction ends when we have done the same.
//! Nothing here waits for the peer.
//!
//! Bytes the peer has not read yet are taken back at that moment, if the kernel's buffer has room for them. They go in front of what is
//! sent by the kernel: then a reader of the peer's socket that knows nothing of rings finds every byte in order.

use madrigal_base::sync::Ordering;
use madrigal_progress::wait::Peer;
use madrigal_shm_ring::layout::{Progress, fate, gate, state, taking};
use madrigal_sys::Errno;

use super::limit::{Limit, SHORT_NS};
use super::{View, Wire, phase};

/// How long a reader that is taking bytes may continue before [`View::take_back`].
const READER_NS: u64 = 20_000;
/// How long a closing side waits for doorbells under way. TCP may pace them.
const RINGING_NS: u64 = 500_000_000;

/// So many bytes a connection that is not read takes at once, if it took nothing before.
const IN_WINDOW: usize = 32 << 10;

/// A gate through which the writer sends by the kernel, behind a direction that has ended.
pub(crate) enum Passage<'a, W> {
    /// Counted; it leaves on drop.
    Open(Sender<'a, W>),
    /// The reader is putting bytes back.
    Closed,
}

/// A thread inside a kernel send.
pub(crate) struct Sender<'a, W>(View<'a, W>);

impl<W> Drop for Sender<'_, W> {
    fn drop(&mut self) {
        self.0.out.wake.gate.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<'a, W: Wire> View<'a, W> {
    /// Seals both directions: nothing is added to either ring from now on. Under the send lock.
    pub(crate) fn seal(&self) {
        self.wire.undisturbed(|| {
            // SYNC: SeqCst: a peer that sees the seal sees this too, so it does not take the count of doorbells for final.
            self.begin_ringing();
            let rings = self.may_ring() && !self.ended() || !self.has_gone() && self.takes_last();
            let asks = self.ask_last();
            Self::CONSUMER.seal(self.inn);
            self.s.producer.seal(self.out);
            // SYNC: SeqCst, behind the seal: a thread that begins to sleep later sees it.
            if asks && self.s.rx_sleepers.load(Ordering::SeqCst) == 0 {
                self.call_off_last();
            }
            if rings {
                // A peer that sleeps, for bytes or for space, must be woken: this is the last doorbell. (A peer that is gone would answer
                // it with a reset, which belongs to the program's next send.)
                self.ring_now();
            }
            self.end_ringing();
        });
    }

    /// Whether the program's shutdown(2) leaves the receiving direction shut, with so little unread in the ring that the kernel can still
    /// take it. This is the last moment: nothing can be sent to a shut direction, and a reader without our hooks must find the bytes there.
    pub(crate) fn has_last_bytes(&self, how: i32) -> bool {
        let deaf = self.inn.r.deaf.load(Ordering::SeqCst) != 0;
        (deaf || how != libc::SHUT_WR) && (1..=IN_WINDOW as u64).contains(&Self::CONSUMER.waiting(self.inn))
    }

    /// The program shuts its receiving direction: TCP answers bytes that come from now on, doorbells too, with a reset. Before the seal.
    pub(crate) fn be_deaf(&self) {
        self.inn.r.deaf.store(1, Ordering::SeqCst);
    }

    /// Ends our sending direction: seals, publishes the final count of doorbells, and takes unread bytes back. The kernel carries what we
    /// send from now on. Under the send lock.
    pub(crate) fn finish_sending(&self) {
        if self.s.tx() == phase::DONE {
            return;
        }
        self.seal();
        // A direction that never switched stays the kernel's: the byte at which the ring would have begun is not known.
        if self.s.tx() != phase::KERNEL {
            self.end_ring();
            // SYNC: before any send finds that the kernel carries what follows; behind the last doorbell, which must not wait.
            if self.s.corked.load(Ordering::Relaxed) != 0 {
                self.wire.cork();
            }
        }
        self.s.tx.store(phase::DONE, Ordering::SeqCst);
    }

    /// Nothing more is published, and no doorbell rung. The kernel carries bytes from here on, first of all those the peer has not read.
    /// Under the send lock, behind the seal.
    fn end_ring(&self) {
        self.await_ringers();
        let passage = self.pass();
        // SYNC: SeqCst, before `state`: a reader that finds DONE there waits for the bytes taken back.
        self.out.w.taking.store(taking::RING, Ordering::SeqCst);
        // SYNC: SeqCst, before the first byte: a reader that does not see it takes what has come for doorbells.
        self.out.w.state.store(state::DONE, Ordering::SeqCst);
        if let Passage::Open(_sender) = passage {
            self.take_back();
        }
        self.out.w.taking.store(taking::NOTHING, Ordering::SeqCst);
    }

    /// The direction we receive in is sealed: moves forward as far as possible without waiting. Under the receive lock.
    pub(crate) fn finish_receiving(&self) {
        match self.s.rx() {
            phase::DONE => return,
            phase::KERNEL => return self.finish_in(),
            // The writer never switched and cannot any more.
            phase::READY if self.inn.w.state.load(Ordering::SeqCst) == state::KERNEL => return self.finish_in(),
            _ => {}
        }
        self.reach_ring();
        // Unread kernel bytes, and only more of these behind them.
        if self.s.rx() == phase::READY && Self::CONSUMER.waiting(self.inn) == 0 && self.is_unmixed() {
            return self.finish_in();
        }
        if self.s.rx() == phase::RING && Self::CONSUMER.waiting(self.inn) == 0 && self.rung_out() {
            self.finish_in();
        }
    }

    /// Sends what the peer has not read by the kernel, in front of what follows, if there is room for all of it.
    fn take_back(&self) {
        let (out, producer) = (self.out, &self.s.producer);
        // What a peer that has gone left unread decides what its end means: so the end is checked first.
        if producer.unread(out, &self.mem).is_ok_and(|n| n > 0) {
            self.learn();
        }
        let deaf = self.out.r.deaf.load(Ordering::SeqCst) != 0;
        if deaf || self.inn.w.fate.load(Ordering::Acquire) != fate::OPEN || self.has_gone() {
            return;
        }
        self.await_reader();
        let Ok(unread) = producer.unread(out, &self.mem) else { return };
        if unread == 0 {
            return;
        }
        let has_room = || self.wire.room_for(unread as u64);
        let needed = self.is_asked_back() || self.out.w.fate.load(Ordering::Relaxed) != fate::OPEN;
        let _wide = (needed && !has_room()).then(|| self.wire.widen(unread as u64));
        if !has_room() {
            return;
        }
        // This success means that no reader consumes these bytes: they count as unpublished, and stay in our own block.
        let Ok(Some(span)) = producer.take_back(out, &self.mem) else { return };
        for (ptr, len) in span.pieces().into_iter().filter(|&(_, len)| len > 0) {
            // SAFETY: bytes this process published in a block it still holds.
            let bytes = unsafe { core::slice::from_raw_parts(ptr.cast_const(), len) };
            match self.send_all(bytes) {
                Ok(()) => {}
                Err(Errno::AGAIN) => {
                    // The room that was there is gone, and stays so: a reset is better than a hole in the stream.
                    self.wire.resets();
                    return self.saw_error(Errno::CONNRESET);
                }
                Err(e) => {
                    self.s.lost.store(1, Ordering::Relaxed);
                    return self.saw_error(e);
                }
            }
        }
    }

    /// Whether the kernel has reported that no peer reads any more. A peer that has only shut its own sending direction still reads.
    fn has_gone(&self) -> bool {
        self.ended() && self.inn.w.shut.load(Ordering::SeqCst) == 0 || self.is_dead()
    }

    /// Lets a reader that is taking bytes finish.
    fn await_reader(&self) {
        let runs = self.out.wake.armed.load(Ordering::Relaxed) == 0 && self.reader_is() == Peer::Elsewhere;
        let end = self.wire.now() + READER_NS;
        let unread = || self.s.producer.unread(self.out, &self.mem).is_ok_and(|n| n > 0);
        while runs && unread() && self.wire.now() < end {
            core::hint::spin_loop();
        }
    }

    pub(super) fn send_all(&self, mut bytes: &[u8]) -> Result<(), Errno> {
        let mut limit = Limit::new(self.wire, SHORT_NS);
        while !bytes.is_empty() {
            match self.wire.send(bytes) {
                Ok(n) => bytes = bytes.get(n..).unwrap_or(&[]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if !limit.has_passed(self.wire) => self.wire.pause(),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    // --- behind the end -----------------------------------------------------------------------------------------------------------

    /// Whether the peer may still request something of us behind the end of our sending direction.
    pub(crate) fn is_needed(&self) -> bool {
        // SYNC: SeqCst with `finish_in`.
        self.out.r.drained.load(Ordering::SeqCst) == 0
            && self.out.r.ready.load(Ordering::Relaxed) == self.number()
            && self.inn.w.fate.load(Ordering::SeqCst) == fate::OPEN
            && !self.is_dead()
    }

    /// Counts a thread that is about to send by the kernel, behind the end of our sending direction.
    pub(crate) fn pass(&self) -> Passage<'a, W> {
        // SYNC: SeqCst: either we see the gate closed, or the thread that closes it sees us.
        let seen = self.out.wake.gate.fetch_add(1, Ordering::SeqCst);
        let sender = Sender(*self);
        // A peer that died while it had the gate closed puts nothing back any more.
        let open = seen & gate::CLOSED == 0 || !self.wire.peer_lives();
        if open { Passage::Open(sender) } else { Passage::Closed }
    }

    /// Where the peer ran when it last sent, for threads that wait for bytes.
    pub(crate) fn writer_is(&self) -> Peer {
        self.where_is(self.writer_cpu())
    }

    /// The processor the peer ran on when it last sent, plus one; 0: it is not known.
    pub(crate) fn writer_cpu(&self) -> u32 {
        Progress::cpu_in(self.inn.w.progress.load(Ordering::Relaxed))
    }

    /// Where the peer ran when it last read, for threads that wait for space.
    pub(crate) fn reader_is(&self) -> Peer {
        self.where_is(self.out.r.cpu.load(Ordering::Relaxed))
    }

    /// What a published processor number, plus one, means to this thread.
    fn where_is(&self, cpu_plus_one: u32) -> Peer {
        match cpu_plus_one {
            0 => Peer::Unknown,
            n if n == self.wire.cpu() => Peer::Here,
            _ => Peer::Elsewhere,
        }
    }

    // --- close --------------------------------------------------------------------------------------------------------------------

    /// Publishes how we leave, so that the peer sees what TCP would show: end of stream, or a reset if we leave bytes unread or the program
    /// wants one (`resets`). True: the kernel's socket must be reset. Just before the last descriptor is closed, under the send lock;
    /// `alone`: no frame below this one is in the middle of a send.
    pub(crate) fn close(&self, resets: bool, alone: bool) -> bool {
        if resets || self.leaves_unread() {
            self.out.w.fate.store(fate::RESET, Ordering::SeqCst);
            // A reader that knows nothing of rings must find what came before the reset; but a full window would lose it.
            if alone && self.s.producer.unread(self.out, &self.mem).is_ok_and(|n| n > 0 && n <= IN_WINDOW) {
                self.end_sending();
            }
            return true;
        }
        // First, so that the peer rings no more: a doorbell we leave unread would make the kernel send a reset we do not mean.
        self.out.w.fate.store(fate::CLOSED, Ordering::SeqCst);
        if alone {
            self.end_sending();
        }
        if let Some(_lock) = self.try_reading() {
            self.take_doorbells();
        }
        false
    }

    fn end_sending(&self) {
        if self.s.tx() == phase::RING {
            self.s.producer.seal(self.out);
            self.end_ring();
        }
    }

    /// Whether there is something the program has not read. Doorbells are none of its bytes.
    fn leaves_unread(&self) -> bool {
        if self.reads_ring() {
            return Self::CONSUMER.waiting(self.inn) > 0 || self.is_sealed_in() && self.inbound() > 0;
        }
        self.inbound() > 0
    }

    /// Whether the first bytes in the kernel socket are doorbells.
    fn reads_ring(&self) -> bool {
        self.s.rx() == phase::RING || self.s.rx() == phase::READY && self.left_in_kernel() == Some(0)
    }

    /// Takes out the last doorbells: those that are counted arrive, and the peer sends no more once it sees the close. Under the receive
    /// lock.
    fn take_doorbells(&self) {
        // A thread may still receive: it must not take the doorbells for bytes that came before the ring.
        self.reach_ring();
        if self.s.rx() != phase::RING {
            return;
        }
        let mut limit = Limit::new(self.wire, RINGING_NS);
        loop {
            // Read before the count: a doorbell is counted while it is rung.
            let last = self.inn.w.ringing.load(Ordering::SeqCst) == 0;
            let due = self.bells_due();
            if due == 0 && last || limit.has_passed(self.wire) {
                return;
            }
            if due > 0 {
                self.discard(due);
            } else {
                let _ = self.find_end();
            }
            if self.ended() {
                return;
            }
            self.wire.pause();
        }
    }
}
