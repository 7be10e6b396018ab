//! Doorbells: one byte each on the kernel socket, to wake a peer that sleeps. Also: how the kernel socket's end is found.
//!
//! A doorbell is counted (`bells`) before it is sent. A thread between the decision and the send is counted in `ringing`, with signals
//! blocked. So a process that has sealed the ring and reads `ringing` as 0 has the final count. Doorbells taken out are counted, too
//! (`swallowed`). At the end of a direction the kernel's own byte count is used instead ([`View::rung_out`]).
//!
//! **Token rule**: while a reader may sleep, `armed` is set or a doorbell is on its way. A thread that takes a doorbell out of the kernel
//! arms again at once if another thread or an event set may sleep on that socket.

use madrigal_base::sync::{AtomicU32, Ordering};
use madrigal_shm_ring::layout::{SEALED, fate, state, taking, want};
use madrigal_shm_ring::ring::Sleeper;
use madrigal_sys::Errno;

use super::limit::Limit;
use super::{Session, View, Wire, phase};

/// In `Session::kernel_events`: it is known how the stream ended, not only that it did.
pub(super) const ASKED: u32 = 1 << 27;
pub(super) const ENDED: u32 = (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) as u32;
/// How long a writer may take to put its unread bytes back into the kernel's queue.
const TAKEN_NS: u64 = 500_000_000;
/// How long a nonblocking reader assumes that an idle kernel socket is still open.
const TRUST_NS: u64 = 100_000;
/// The same for a sender whose reader is behind. The model queries each time: it compares with a TCP that reports every death at once.
const BEHIND_NS: u64 = if cfg!(feature = "shuttle") { 0 } else { 100_000 };

/// How many connections ended without an end published by the peer: it was killed. A thread that has found one of them may know that the
/// others ended, too, so every socket is queried again once this has changed.
static DEATHS: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);

/// The count. 0 in a model, which queries its own world instead.
pub(crate) fn deaths() -> u32 {
    if cfg!(feature = "shuttle") { 0 } else { DEATHS.load(core::sync::atomic::Ordering::Relaxed) }
}

/// Doorbells of a sealed direction that lie in the kernel's queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// The writer is about to ring once more.
    MoreToCome,
    Bells(u64),
    /// The peer's counts are impossible.
    Nonsense,
}

/// The state of the thread that takes doorbells out of a socket.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Me {
    /// A thread that is not counted among the sleepers.
    Awake,
    /// One about to sleep for bytes.
    Reader,
    /// One about to sleep for space.
    Writer,
    /// One about to sleep for whichever comes first.
    Both,
}

// --- rung ---------------------------------------------------------------------------------------------------------------------

impl<W: Wire> View<'_, W> {
    /// Rings the peer's doorbell.
    pub(crate) fn ring(&self) {
        let _ = self.ring_if(|| true);
    }

    /// Wakes the sleeper that a publication found armed. Of all connections of an event set only one rings (see [`Sleeper::Set`]).
    #[inline]
    pub(crate) fn wake(&self, sleeper: Sleeper) {
        match sleeper {
            Sleeper::Nobody => {}
            Sleeper::Own => self.ring(),
            Sleeper::Set(index) if !self.ring_if(|| self.wire.wakes(index)) => self.hurry_late(),
            Sleeper::Set(_) => {}
        }
    }

    fn ring_if(&self, is_due: impl FnOnce() -> bool) -> bool {
        self.wire.undisturbed(|| {
            // SYNC: SeqCst with the seal: either we see it and send nothing, or the sealing process sees `ringing` and waits for the count.
            // A set's word is taken inside: the thread that takes it always rings.
            self.begin_ringing();
            let rings = self.may_ring() && is_due();
            if rings {
                self.ring_now();
            }
            self.end_ringing();
            rings
        })
    }

    /// Whether a doorbell may be sent: the ring is in use and not sealed, and the peer has neither closed nor shut its receiving direction.
    /// Only while counted in `ringing`.
    pub(super) fn may_ring(&self) -> bool {
        !self.s.producer.is_sealed(self.out) && self.is_listened_to()
    }

    fn is_listened_to(&self) -> bool {
        // SYNC: SeqCst with `close`: a doorbell that it does not wait for is not sent.
        self.out.w.state.load(Ordering::SeqCst) == state::RING
            && self.inn.w.fate.load(Ordering::SeqCst) == fate::OPEN
            && self.out.r.deaf.load(Ordering::SeqCst) == 0
    }

    /// Before we seal the direction we receive in: requests one more doorbell, for threads of ours may sleep in a receive that only a byte
    /// ends. True: it was requested.
    pub(super) fn ask_last(&self) -> bool {
        let asks = self.s.rx() == phase::RING && !self.is_sealed_in();
        if asks {
            // SYNC: SeqCst, before the seal: so in between the doorbells are not taken for complete.
            self.inn.wake.last.store(1, Ordering::SeqCst);
        }
        asks
    }

    /// Withdraws the request: no thread sleeps, or unread bytes go back now.
    pub(super) fn call_off_last(&self) {
        self.inn.wake.last.store(0, Ordering::SeqCst);
    }

    /// Takes the request of a peer that has sealed this direction for one more doorbell. True: the caller must ring. Only while counted in
    /// `ringing`.
    pub(super) fn takes_last(&self) -> bool {
        self.out.wake.last.load(Ordering::SeqCst) != 0
            && self.is_listened_to()
            && self.out.wake.last.swap(0, Ordering::SeqCst) != 0
    }

    /// From now on a seal of ours waits for this thread, and a peer that reads the count expects a doorbell.
    pub(super) fn begin_ringing(&self) {
        self.s.ringing.fetch_add(1, Ordering::SeqCst);
        self.out.w.ringing.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn end_ringing(&self) {
        self.out.w.ringing.fetch_sub(1, Ordering::SeqCst);
        self.s.ringing.fetch_sub(1, Ordering::SeqCst);
    }

    /// Rings with a doorbell that the kernel may hold back.
    pub(super) fn ring_late(&self) {
        self.wire.undisturbed(|| {
            // SYNC: as `ring_if`.
            self.begin_ringing();
            if self.may_ring() {
                self.ring_by(W::bell_late);
            }
            self.end_ringing();
        });
    }

    /// Sends a doorbell. Only while counted in `ringing`.
    pub(super) fn ring_now(&self) {
        self.s.late.store(0, Ordering::Relaxed);
        self.ring_by(W::bell);
    }

    fn ring_by(&self, bell: impl FnOnce(W) -> Result<(), Errno>) {
        self.out.w.bells.fetch_add(1, Ordering::SeqCst);
        if let Err(e) = bell(self.wire) {
            self.out.w.bells.fetch_sub(1, Ordering::SeqCst);
            if !matches!(e, Errno::AGAIN | Errno::PIPE) {
                // The kernel reports it once.
                self.saw_error(e);
            }
            if e != Errno::AGAIN {
                // The connection is gone: readers and waiters must check it.
                self.s.checked_at.store(0, Ordering::Relaxed);
                self.s.kernel_events.fetch_or((libc::EPOLLHUP | libc::EPOLLRDHUP) as u32, Ordering::Relaxed);
            }
        }
    }

    /// Waits until no thread of ours is about to ring.
    pub(super) fn await_ringers(&self) {
        while self.s.ringing.load(Ordering::SeqCst) != 0 {
            self.wire.pause();
        }
    }

    /// After consuming, and after the switch: rings if the writer waits for the space there is now. A side that cannot ring yet leaves the
    /// request in place.
    #[inline]
    pub(crate) fn pay_space(&self) {
        if self.s.tx() == phase::RING && Self::CONSUMER.owes_space(self.inn) {
            self.ring();
        }
    }
}

// --- taken out ----------------------------------------------------------------------------------------------------------------

impl<W: Wire> View<'_, W> {
    /// Doorbells that the peer has counted and we have not taken yet.
    pub(crate) fn bells_due(&self) -> u64 {
        let due = self.inn.w.bells.load(Ordering::Acquire).wrapping_sub(self.s.swallowed.load(Ordering::Relaxed));
        // A doorbell that found no room is counted for a moment, and may be taken for one in that moment.
        if due > 1 << 62 { 0 } else { due }
    }

    /// Takes doorbells out of the kernel socket. False: one may be meant for a thread asleep on the socket that has what it waits for, so
    /// all stay. Only under the receive lock. In phase RING the kernel's queue holds nothing else while the ring is open. In any other
    /// phase the queue is left alone, and [`View::rung_out`] takes those of a sealed ring.
    pub(crate) fn swallow(&self, me: Me) -> bool {
        // Read before the check: a doorbell that comes later stays.
        let due = self.bells_due();
        if due == 0 || self.s.rx() != phase::RING || self.is_sealed_in() {
            return true;
        }
        let mine = !self.is_for_another(me);
        if mine {
            self.discard(due);
        }
        mine
    }

    /// Whether a thread asleep on this socket, other than the caller, has what it waits for.
    fn is_for_another(&self, me: Me) -> bool {
        let others = |count: &AtomicU32, mine: bool| count.load(Ordering::SeqCst) > u32::from(mine);
        let readers = || others(&self.s.rx_sleepers, matches!(me, Me::Reader | Me::Both));
        let writers = || others(&self.s.tx_sleepers, matches!(me, Me::Writer | Me::Both));
        let room = || self.s.producer.has_room(self.out, &self.mem, self.wanted());
        readers() && Self::CONSUMER.stirred(self.inn) || writers() && room()
    }

    pub(super) fn discard(&self, due: u64) {
        // Behind its last byte a broken socket reports its error, once: that error is the program's.
        let due = if self.is_dead() { due.min(self.wire.queued().unwrap_or(0)) } else { due };
        if due == 0 {
            return;
        }
        match self.wire.discard(due) {
            Ok(0) => self.saw_end(),
            Ok(n) => {
                self.s.swallowed.fetch_add(n, Ordering::Relaxed);
                self.inn.r.swallowed.fetch_add(n, Ordering::Relaxed);
                if self.others_may_sleep() {
                    let _ = Self::CONSUMER.arm(self.inn);
                }
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(e) => self.saw_error(e),
        }
    }

    /// Kernel bytes read before the ring, plus doorbells taken since, as this side has counted them. `None` in any other phase than RING:
    /// they are not counted there.
    pub(crate) fn taken_of_ring(&self) -> Option<u64> {
        let counted =
            || self.inn.w.n_kernel.load(Ordering::Acquire).wrapping_add(self.inn.r.swallowed.load(Ordering::SeqCst));
        (self.s.rx() == phase::RING).then(counted)
    }

    /// Whether the writer of a sealed direction rings no more: its count is final.
    pub(crate) fn has_rung_last(&self) -> bool {
        // SYNC: a thread that takes `last` is counted in `ringing`.
        let rung = || self.inn.wake.last.load(Ordering::SeqCst) == 0 && self.inn.w.ringing.load(Ordering::SeqCst) == 0;
        self.inn.w.state.load(Ordering::SeqCst) == state::DONE || rung()
    }

    /// How many doorbells of a sealed direction lie in front of what the kernel carries. In phase RING.
    pub(super) fn bells_left(&self) -> Left {
        if !self.has_rung_last() {
            return Left::MoreToCome;
        }
        let all = self.bells_end();
        match self.wire.taken().map(|taken| all.checked_sub(taken)) {
            Ok(Some(left)) => Left::Bells(left),
            // Another process has taken them, and bytes behind them.
            Ok(None) if self.s.is_shared() => Left::Bells(0),
            Ok(None) => Left::Nonsense,
            Err(_) => Left::MoreToCome,
        }
    }

    /// Takes the last doorbells of a sealed direction out. True once none is left, and the next byte in the kernel is the program's. Under
    /// the receive lock, in phase RING.
    pub(super) fn rung_out(&self) -> bool {
        self.await_taken();
        // SYNC: a signal handler that receives between count and call would make the call drop bytes of the program.
        self.wire.undisturbed(|| self.take_last_bells())
    }

    fn take_last_bells(&self) -> bool {
        for _ in 0..2 {
            match self.bells_left() {
                Left::Bells(0) => return true,
                Left::Bells(left) => self.discard(left),
                Left::MoreToCome => {
                    self.discard_early();
                    return false;
                }
                Left::Nonsense => {
                    self.spoil();
                    return false;
                }
            }
        }
        false
    }

    /// Waits while the writer moves its unread bytes into the kernel's queue: to the program they are there all the time.
    pub(super) fn await_taken(&self) {
        if self.inn.w.taking.load(Ordering::SeqCst) == taking::NOTHING {
            return;
        }
        let mut limit = Limit::new(self.wire, TAKEN_NS);
        while self.inn.w.taking.load(Ordering::SeqCst) != taking::NOTHING
            && !limit.has_passed(self.wire)
            && self.wire.peer_lives()
        {
            self.wire.pause();
        }
    }

    /// The writer is about to ring once more. The bytes in the queue are doorbells, and would end every sleep at once.
    fn discard_early(&self) {
        let queued = self.wire.queued().unwrap_or(0);
        // SYNC: SeqCst, behind the count: bytes of the program's come behind DONE.
        if self.inn.w.state.load(Ordering::SeqCst) != state::DONE && queued > 0 {
            self.discard(queued);
        }
    }

    /// Whether a thread other than this one may be asleep waiting for this socket.
    pub(crate) fn others_may_sleep(&self) -> bool {
        self.s.has_sleepers() || self.s.watchers.load(Ordering::SeqCst) > 0
    }

    /// After a sleep that a byte ended. A byte that was never counted as a doorbell, under an open ring, comes from a peer that overwrote
    /// its count. No receive would ever take it, so every sleep would end at once.
    pub(crate) fn check_strays(&self) {
        if self.bells_due() > 0 || self.is_sealed_in() {
            return;
        }
        let Some(_lock) = self.try_reading() else { return };
        // By a query that takes nothing: a pending error belongs to the program.
        let queued = self.s.rx() == phase::RING && self.wire.queued().is_ok_and(|n| n > 0);
        // The peer counts before it sends, and seals before it sends by the kernel: so both are read again after the byte was seen.
        if queued && self.bells_due() == 0 && !self.is_sealed_in() {
            self.spoil();
        }
    }
}

impl Session {
    /// Whether the kernel socket was queried since a peer was last found killed.
    pub(crate) fn knows_deaths(&self) -> bool {
        self.deaths.load(Ordering::Relaxed) == deaths()
    }

    /// It is about to be queried.
    pub(crate) fn note_deaths(&self) {
        self.deaths.store(deaths(), Ordering::Relaxed);
    }
}

// --- the kernel socket's end --------------------------------------------------------------------------------------------------

impl<W: Wire> View<'_, W> {
    /// Whether the direction we receive in is sealed.
    pub(crate) fn is_sealed_in(&self) -> bool {
        self.inn.w.tail.load(Ordering::SeqCst) & SEALED != 0
    }

    /// Whether the kernel socket has reported its end.
    pub(crate) fn ended(&self) -> bool {
        self.s.kernel_events.load(Ordering::Relaxed) & ENDED != 0
    }

    /// Whether the connection is over in both directions, or broken.
    pub(super) fn is_dead(&self) -> bool {
        self.s.kernel_events.load(Ordering::Relaxed) & (libc::EPOLLHUP | libc::EPOLLERR) as u32 != 0
    }

    /// The kernel socket's end is known, by the program's next call at the latest.
    pub(super) fn note_end(&self, events: u32) {
        let before = self.s.kernel_events.fetch_or(events | ASKED, Ordering::Relaxed);
        let silent =
            || self.inn.w.fate.load(Ordering::Acquire) == fate::OPEN && self.inn.w.shut.load(Ordering::SeqCst) == 0;
        if before & ASKED == 0 && silent() {
            DEATHS.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
        }
    }

    /// Whether it is known how the kernel socket ended: an event set only reports that it did.
    pub(crate) fn end_is_known(&self) -> bool {
        self.s.kernel_events.load(Ordering::Relaxed) & ASKED != 0
    }

    /// Queries the kernel socket, behind the doorbells, for its end. Without `now` it skips the query soon after the last one. Under the
    /// receive lock, in phase RING.
    pub(crate) fn check_open(&self, now: bool) {
        if !now && self.seems_open() {
            return;
        }
        self.s.checked_at.store(self.wire.now(), Ordering::Relaxed);
        self.s.note_deaths();
        if self.swallow(Me::Awake) {
            self.learn();
        }
    }

    /// Whether the kernel socket was queried so lately that no query is needed.
    #[inline]
    pub(super) fn seems_open(&self) -> bool {
        let asked = self.s.checked_at.load(Ordering::Relaxed);
        let fresh = || self.wire.now().saturating_sub(asked) < TRUST_NS;
        self.s.knows_deaths() && self.inn.w.fate.load(Ordering::Relaxed) == fate::OPEN && fresh()
    }

    /// Queries the kernel socket for its end: once in a tick, and more often while the reader is behind. What a program sends to a peer
    /// that it knows to be dead must not go into a ring, where it would count as bytes that the peer left unread. (A query before each send
    /// would cost what the ring saves.)
    #[inline]
    pub(super) fn check_peer_alive(&self) {
        if self.ended() || self.s.knows_deaths() && self.was_alive_lately() {
            return;
        }
        self.s.alive_at.store(self.wire.now(), Ordering::Relaxed);
        self.s.note_deaths();
        self.learn();
    }

    /// Whether it was queried lately enough. The reader's position comes last: reading it takes its cache line from the reader's processor.
    #[inline]
    fn was_alive_lately(&self) -> bool {
        let asked = self.s.alive_at.load(Ordering::Relaxed);
        // A tick is earlier than any moment read within it.
        self.wire.tick() <= asked
            && (self.s.producer.is_read(self.out, self.inn.w.progress.load(Ordering::Relaxed))
                || self.wire.now() < asked + BEHIND_NS
                || !self.s.producer.behind(self.out))
    }

    /// Whether a session has no event that only its ring and its peer's line can show: no byte, no end, no seal, and no waiting sender.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.s.rx() == phase::RING
            && !Self::CONSUMER.stirred(self.inn)
            && self.inn.w.fate.load(Ordering::Acquire) == fate::OPEN
            && self.s.kernel_events.load(Ordering::Relaxed) == 0
            && !self.was_full()
            && !self.s.is_gone()
    }

    /// Finds out whether the kernel's queue is at its end, or broken; true if so.
    pub(super) fn find_end(&self) -> bool {
        match self.wire.peek() {
            Ok(false) => self.saw_end(),
            Ok(true) | Err(Errno::AGAIN | Errno::INTR) => return false,
            Err(e) => self.saw_error(e),
        }
        true
    }

    /// The peer wrote nonsense: its stream ends here, as if it had reset the connection.
    #[cold]
    pub(crate) fn spoil(&self) {
        self.s.stays.store(1, Ordering::Relaxed);
        self.inn.w.fate.store(fate::RESET, Ordering::Relaxed);
        self.saw_error(Errno::CONNRESET);
        // The kernel notifies the peer.
        self.wire.resets();
        self.wire.spoilt();
    }

    /// What a sender without space waits for: all of it while a larger block would serve it better.
    pub(crate) fn wanted(&self) -> u32 {
        let small = self.s.producer.block(&self.mem).is_some_and(|b| b.size < super::put::LARGEST);
        if small && self.s.no_room.load(Ordering::Relaxed) == 0 { want::ALL } else { want::HALF }
    }
}
