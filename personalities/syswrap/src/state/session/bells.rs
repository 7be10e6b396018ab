//! Doorbells: one byte each on the kernel socket, to wake a peer that sleeps; and what the kernel socket says of its end.
//!
//! A doorbell is counted (`bells`) before it is sent, and while a thread is between deciding and having sent it is counted in
//! `ringing`, with signals blocked. So whoever has sealed the ring and finds `ringing` at 0 knows the last count. Reading them back is
//! counted, too (`swallowed`); at the end of a direction the kernel's own count of bytes is believed instead ([`View::rung_out`]).
//!
//! **Token rule**: while a reader may sleep, `armed` is set or a doorbell is on its way. Who takes a doorbell out of the kernel arms
//! again at once if another thread or an event set may sleep on that socket.

use madrigal_base::sync::{AtomicU32, Ordering};
use madrigal_shm_ring::layout::{SEALED, fate, state, taking, want};
use madrigal_shm_ring::ring::Sleeper;
use madrigal_sys::Errno;

use super::{Session, View, Wire, phase};

/// In `Session::kernel_events`: a receive has told how the stream ended.
pub(super) const ASKED: u32 = 1 << 27;
pub(super) const ENDED: u32 = (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) as u32;
/// How long a writer may take to put back what the kernel has room for.
const TAKEN_NS: u64 = 500_000_000;
/// How long a nonblocking reader believes that a quiet kernel socket is still open.
const TRUST_NS: u64 = 100_000;
/// The same for a sender whose reader has left something unread. A model's asks each time: what it compares with knows of every death.
const BEHIND_NS: u64 = if cfg!(feature = "shuttle") { 0 } else { 100_000 };

/// Connections that ended without a word: their peers were killed. Who has learnt that of one connection may know it of the others, so
/// none of them is believed to be open as long as it was not asked since.
static DEATHS: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);

/// How many there were. A model knows of those in its own world only, by asking.
pub(crate) fn deaths() -> u32 {
    if cfg!(feature = "shuttle") { 0 } else { DEATHS.load(core::sync::atomic::Ordering::Relaxed) }
}

/// Doorbells of a sealed direction that lie in the kernel's queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// The writer is just about to ring once more.
    MoreToCome,
    Bells(u64),
    /// The peer says what cannot be.
    Nonsense,
}

/// Who takes doorbells out of a socket.
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

    /// Wakes whoever a publication found armed; of all connections of an event set only one rings (see [`Sleeper::Set`]).
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
            // SYNC: SeqCst with the seal: either we see it and send nothing, or whoever sealed sees `ringing` and waits for the count. A
            // set's word is taken inside: who takes it is sure to ring.
            self.begin_ringing();
            let rings = self.may_ring() && is_due();
            if rings {
                self.ring_now();
            }
            self.end_ringing();
            rings
        })
    }

    /// Whether a doorbell would be understood: not by a sealed direction, nor by a peer that closes. Only while counted in `ringing`.
    pub(super) fn may_ring(&self) -> bool {
        !self.s.producer.is_sealed(self.out) && self.is_listened_to()
    }

    fn is_listened_to(&self) -> bool {
        // SYNC: SeqCst with `close`: a doorbell it does not wait for is one that is not sent.
        self.out.w.state.load(Ordering::SeqCst) == state::RING
            && self.inn.w.fate.load(Ordering::SeqCst) == fate::OPEN
            && self.out.r.deaf.load(Ordering::SeqCst) == 0
    }

    /// Before we seal the direction we receive in: the peer is to ring once more, for threads of ours may sleep in a receive that only a
    /// byte ends. True: it is asked to.
    pub(super) fn ask_last(&self) -> bool {
        let asks = self.s.rx() == phase::RING && !self.is_sealed_in();
        if asks {
            // SYNC: SeqCst, before the seal: nobody takes the doorbells for complete in between.
            self.inn.wake.last.store(1, Ordering::SeqCst);
        }
        asks
    }

    /// The peer need not ring once more: nobody sleeps, or what is unread goes back now.
    pub(super) fn call_off_last(&self) {
        self.inn.wake.last.store(0, Ordering::SeqCst);
    }

    /// Whether a peer that has sealed this direction is to be rung for once more; who is told so does it. Only while counted in `ringing`.
    pub(super) fn takes_last(&self) -> bool {
        self.out.wake.last.load(Ordering::SeqCst) != 0
            && self.is_listened_to()
            && self.out.wake.last.swap(0, Ordering::SeqCst) != 0
    }

    /// From now on a seal of ours waits for us, and a peer that sees it knows that a doorbell may follow.
    pub(super) fn begin_ringing(&self) {
        self.s.ringing.fetch_add(1, Ordering::SeqCst);
        self.out.w.ringing.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn end_ringing(&self) {
        self.out.w.ringing.fetch_sub(1, Ordering::SeqCst);
        self.s.ringing.fetch_sub(1, Ordering::SeqCst);
    }

    /// A doorbell that the kernel holds back.
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
                // The kernel tells it once.
                self.saw_error(e);
            }
            if e != Errno::AGAIN {
                // The connection is gone: let readers and waiters look.
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
    /// request where it is.
    #[inline]
    pub(crate) fn pay_space(&self) {
        if self.s.tx() == phase::RING && Self::CONSUMER.owes_space(self.inn) {
            self.ring();
        }
    }
}

// --- taken out ----------------------------------------------------------------------------------------------------------------

impl<W: Wire> View<'_, W> {
    /// Doorbells the peer says it has sent and we have not taken yet.
    pub(crate) fn bells_due(&self) -> u64 {
        let due = self.inn.w.bells.load(Ordering::Acquire).wrapping_sub(self.s.swallowed.load(Ordering::Relaxed));
        // A doorbell that found no room is counted for a moment, and may be taken for one in that moment.
        if due > 1 << 62 { 0 } else { due }
    }

    /// Takes doorbells out of the kernel socket, unless one of them is meant for a thread asleep on the socket that has what it
    /// waits for: then it stays, and the answer is false. Only under the receive lock. In phase RING nothing else can be in the kernel's
    /// queue as long as the ring is open; in any other what is there stays, and of a sealed ring [`View::rung_out`] takes them.
    pub(crate) fn swallow(&self, me: Me) -> bool {
        // Read before the check: a doorbell that comes after it stays.
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
        // Behind its last byte a broken socket tells of its error, once: that is not ours to hear.
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

    /// Bytes of the kernel's that were read up to the ring, and doorbells since, as this side has counted them. In any other phase than
    /// RING nobody has.
    pub(crate) fn taken_of_ring(&self) -> Option<u64> {
        let counted =
            || self.inn.w.n_kernel.load(Ordering::Acquire).wrapping_add(self.inn.r.swallowed.load(Ordering::SeqCst));
        (self.s.rx() == phase::RING).then(counted)
    }

    /// Whether the writer of a sealed direction rings no more: what it has counted is all.
    pub(crate) fn has_rung_last(&self) -> bool {
        // SYNC: who takes the one is counted in the other.
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

    /// Takes the last doorbells of a sealed direction out; true once they all are, and the next byte in the kernel is the program's.
    /// Under the receive lock, in phase RING.
    pub(super) fn rung_out(&self) -> bool {
        self.await_taken();
        // SYNC: a signal handler that receives between the count and the call would leave it bytes of the program's to drop.
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

    /// Unread bytes that the writer is putting into the kernel's queue are there all the time, for the program.
    pub(super) fn await_taken(&self) {
        if self.inn.w.taking.load(Ordering::SeqCst) == taking::NOTHING {
            return;
        }
        let end = self.wire.now() + TAKEN_NS;
        while self.inn.w.taking.load(Ordering::SeqCst) != taking::NOTHING
            && self.wire.now() < end
            && self.wire.peer_lives()
        {
            self.wire.pause();
        }
    }

    /// The writer is about to ring once more: what has come so far are doorbells, and would end every sleep at once.
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

    /// After a sleep that a byte ended: one that was never counted as a doorbell, under a ring that is open, is the work of a peer
    /// that wrote over its count. Nobody would ever take it, and every sleep would end at once.
    pub(crate) fn check_strays(&self) {
        if self.bells_due() > 0 || self.is_sealed_in() {
            return;
        }
        let Some(_lock) = self.try_reading() else { return };
        // By a question that takes nothing: there may be an error, which the program is to be told.
        let queued = self.s.rx() == phase::RING && self.wire.queued().is_ok_and(|n| n > 0);
        // Counts come before bytes, and a seal before bytes of the kernel's: read again, behind the byte that was seen.
        if queued && self.bells_due() == 0 && !self.is_sealed_in() {
            self.spoil();
        }
    }
}

impl Session {
    /// Whether the kernel socket was asked since a peer was found killed.
    pub(crate) fn knows_deaths(&self) -> bool {
        self.deaths.load(Ordering::Relaxed) == deaths()
    }

    /// It is about to be asked.
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

    /// Whether the kernel socket has told of its end.
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

    /// Whether it is known how the kernel socket ended: an event set only tells that it did.
    pub(crate) fn end_is_known(&self) -> bool {
        self.s.kernel_events.load(Ordering::Relaxed) & ASKED != 0
    }

    /// Asks the kernel socket, behind the doorbells, whether it is still open; not in vain soon after it was, unless `now`. Under the
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

    /// Whether the kernel socket was asked so lately that it need not be asked again.
    #[inline]
    pub(super) fn seems_open(&self) -> bool {
        let asked = self.s.checked_at.load(Ordering::Relaxed);
        let fresh = || self.wire.now().saturating_sub(asked) < TRUST_NS;
        self.s.knows_deaths() && self.inn.w.fate.load(Ordering::Relaxed) == fate::OPEN && fresh()
    }

    /// Asks the kernel socket whether it is still open, once in a tick, and more often while the reader is behind: what a program sends to a
    /// peer that it knows to be dead must not go into a ring, where it would look like bytes that the peer left unread. (Each send cannot
    /// ask: that would cost what it saves.)
    #[inline]
    pub(super) fn check_peer_alive(&self) {
        if self.ended() || self.s.knows_deaths() && self.was_alive_lately() {
            return;
        }
        self.s.alive_at.store(self.wire.now(), Ordering::Relaxed);
        self.s.note_deaths();
        self.learn();
    }

    /// Whether it was asked lately enough. The reader's position comes last: a look at it takes its line from the reader's processor.
    #[inline]
    fn was_alive_lately(&self) -> bool {
        let asked = self.s.alive_at.load(Ordering::Relaxed);
        // A tick lies before a moment that was read in it.
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
        // The kernel tells the peer.
        self.wire.resets();
        self.wire.spoilt();
    }

    /// What a sender without space waits for: all of it while a larger block would serve it better.
    pub(crate) fn wanted(&self) -> u32 {
        let small = self.s.producer.block(&self.mem).is_some_and(|b| b.size < super::put::LARGEST);
        if small && self.s.no_room.load(Ordering::Relaxed) == 0 { want::ALL } else { want::HALF }
    }
}
