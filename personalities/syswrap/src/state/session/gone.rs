//! What is reported to the program of a peer that has gone.
//!
//! TCP's rule: an end that closes, or is killed, with bytes unread (or with `SO_LINGER` 0) resets the connection. An end that has read
//! everything ends the connection, takes one more send, and answers that with a reset. The kernel's socket follows that rule by its own
//! queue, which holds doorbells and not the bytes of the ring. Where the two differ, the program gets what TCP would report:
//!
//! ```text
//!   kernel       the peer went with                  what TCP shows
//!   FIN          nothing unread                      the end; the kernel reports it
//!   FIN          bytes in the ring, and a kill       BROKEN: ECONNRESET, once
//!   reset        bytes in ring or kernel, linger 0   BROKEN: ECONNRESET, once; the kernel reports it unless a call of ours took its error
//!   reset        doorbells only                      ENDED: the end, and one more send is taken
//!
//!             +--(a FIN, nothing unread)--> the kernel reports
//!             |
//!   OPEN -----+--(doorbells unread)--> ENDED --(a send: taken, and lost)--> LOST --(EPIPE reported)-+
//!             |                          +-------(the program shuts its sending direction)----------+--> OVER
//!             +--(bytes unread)--> BROKEN(errno) --------(reported by any call, or by SO_ERROR)-----+
//! ```
//!
//! | | receive, behind what is unread | send | poll(2) | shutdown(2) of the sending direction |
//! |---|---|---|---|---|
//! | ENDED | 0 | taken | `RDHUP` | 0 |
//! | LOST | 0 | `EPIPE`, once | `RDHUP HUP ERR` | `ENOTCONN` |
//! | BROKEN | errno, once | errno, once | `RDHUP HUP ERR` | `ENOTCONN` |
//! | OVER | 0 | `EPIPE` | `RDHUP HUP` | `ENOTCONN` |
//!
//! Bytes held back (`MSG_MORE`, `TCP_CORK`) are taken although the peer has ENDED. They are lost only when the kernel would have sent them.
//!
//! The state lies in the slot, in a word of our own side. So after a fork parent and child get one report, together, as of one socket.
//! A slot in any state but OPEN is not left before the program closes its socket.
//!
//! What the peer has published (`fate`, `resets`, `swallowed`, `drained`) decides what a reset means; see [`View::is_reset_meant`].

use madrigal_base::sync::{AtomicU32, Ordering};
use madrigal_shm_ring::layout::{fate, state};
use madrigal_shm_ring::ring::HOLD_NS;
use madrigal_sys::anew::Ending;
use madrigal_sys::{Errno, time};

use super::bells::{ASKED, ENDED as KERNEL_ENDED};
use super::{Health, Session, View, Wire, cut};

const OPEN: u32 = 0;
const ENDED: u32 = 1;
const LOST: u32 = 2;
const OVER: u32 = 3;
/// With the errno in the bits above.
const BROKEN: u32 = 4;
const ERRNO_AT: u32 = 8;

const HALF: u32 = libc::EPOLLRDHUP as u32;
const WHOLE: u32 = (libc::EPOLLRDHUP | libc::EPOLLHUP) as u32;
const ERROR: u32 = libc::EPOLLERR as u32;

fn broken_by(e: Errno) -> u32 {
    BROKEN | (e.raw_os_error() as u32) << ERRNO_AT
}

/// The error of a connection that broke. The word is shared memory: a peer that wrote nonsense there has reset it.
fn error_in(word: u32) -> Errno {
    match madrigal_sys::errno_from((word >> ERRNO_AT) as i32) {
        Errno::IO => Errno::CONNRESET,
        e => e,
    }
}

/// What a shutdown(2) finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shut {
    /// The kernel decides.
    ByKernel,
    /// The peer has ended, and this end may still do so.
    Half,
    /// Nothing is left to shut.
    NotConnected,
}

// --- what is reported ---------------------------------------------------------------------------------------------------------

impl Session {
    #[inline]
    fn gone(&self) -> Option<&AtomicU32> {
        self.slot().map(|slot| &slot.dir[1 - self.side()].r.gone)
    }

    #[inline]
    fn gone_now(&self) -> u32 {
        if self.unsent_since.load(Ordering::Relaxed) != 0 && self.unsent_for() == Some(0) {
            self.send_unsent();
        }
        self.gone_word()
    }

    #[inline]
    fn gone_word(&self) -> u32 {
        self.gone().map_or(OPEN, |word| word.load(Ordering::SeqCst))
    }

    /// One step; false: it is not `from` any more, and nothing was done.
    fn step(&self, from: u32, to: u32) -> bool {
        self.gone().is_some_and(|word| word.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok())
    }

    /// Whether the program gets the state of this slot instead of the kernel socket's.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone_now() != OPEN
    }

    /// The result of a send of `n` bytes: how many are taken. `None`: the kernel decides. A send that has sent a part (`began`) gets no
    /// error, and the error stays pending.
    pub(crate) fn send_result(&self, n: usize, began: bool) -> Option<Result<usize, Errno>> {
        loop {
            let now = self.gone_now();
            let (next, told) = match now {
                OPEN => return self.pending_for_send(began),
                ENDED if n == 0 => return Some(Ok(0)),
                ENDED => (LOST, Ok(n)),
                _ if began => return Some(Ok(0)),
                OVER => return Some(Err(Errno::PIPE)),
                LOST => (OVER, Err(Errno::PIPE)),
                broken => (OVER, Err(error_in(broken))),
            };
            if self.step(now, next) {
                return Some(told);
            }
        }
    }

    /// How long the kernel would still hold back what the program sent to a peer that has ended. `None`: nothing is held back.
    pub(super) fn unsent_for(&self) -> Option<u64> {
        match self.unsent_since.load(Ordering::Relaxed) {
            0 => None,
            // Another send may have taken it along.
            _ if self.gone_word() != ENDED => None,
            since => Some(since.saturating_add(HOLD_NS).saturating_sub(time::now_ns())),
        }
    }

    /// The kernel would send the held bytes now, and the peer would answer with a reset.
    pub(crate) fn send_unsent(&self) {
        if self.unsent_since.swap(0, Ordering::Relaxed) != 0 {
            self.step(ENDED, LOST);
        }
    }

    fn pending_for_send(&self, began: bool) -> Option<Result<usize, Errno>> {
        if began { None } else { self.take_stored_error().map(Err) }
    }

    /// An error that a receive reports, behind what is unread. Reported once, as by the kernel.
    pub(crate) fn take_pending_error(&self) -> Option<Errno> {
        let now = self.gone_now();
        if now & 0xff != BROKEN {
            return self.take_stored_error();
        }
        self.step(now, OVER).then(|| error_in(now))
    }

    /// Whether there is one.
    pub(crate) fn has_pending_error(&self) -> bool {
        self.gone_now() & 0xff == BROKEN || self.error.load(Ordering::Relaxed) != 0
    }

    /// The same for `SO_ERROR`, which takes a send's error, too.
    pub(crate) fn take_so_error(&self) -> Option<Errno> {
        if self.step(LOST, OVER) { Some(Errno::PIPE) } else { self.take_pending_error() }
    }

    /// An error that a call of ours has taken from the kernel becomes pending for the program. `EPIPE` is dropped if the program has shut
    /// the sending direction.
    pub(crate) fn set_pending_error(&self, e: Errno) {
        if e == Errno::PIPE && self.slot().is_none_or(|slot| slot.dir[self.side()].w.shut.load(Ordering::SeqCst) != 0) {
            return;
        }
        let stored = if e == Errno::PIPE {
            self.step(ENDED, LOST) || self.step(OPEN, LOST)
        } else {
            self.step(OPEN, broken_by(e))
        };
        if !stored && !self.is_gone() {
            self.error.store(e.raw_os_error() as u32, Ordering::Relaxed);
        }
    }

    /// An error that has been reported is pending again (recvmmsg(2)).
    pub(crate) fn restore_pending_error(&self, e: Errno) {
        if !self.step(OVER, broken_by(e)) {
            self.set_pending_error(e);
        }
    }

    fn take_stored_error(&self) -> Option<Errno> {
        let code = self.error.load(Ordering::Relaxed);
        let taken = code != 0 && self.error.compare_exchange(code, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        taken.then(|| madrigal_sys::errno_from(code as i32))
    }

    /// What a shutdown(2) finds; `sending`: it includes the sending direction.
    pub(crate) fn shutdown_result(&self, sending: bool) -> Shut {
        match self.gone_now() {
            OPEN => Shut::ByKernel,
            ENDED if !sending || self.step(ENDED, OVER) => Shut::Half,
            _ => Shut::NotConnected,
        }
    }

    /// Whether the peer has ended and the kernel's socket is broken: to the program it is still connected.
    pub(crate) fn seems_connected(&self) -> bool {
        self.gone_now() == ENDED
    }

    /// Whether everything has been reported.
    pub(crate) fn is_over(&self) -> bool {
        self.gone_now() == OVER
    }

    /// What poll(2) shows of the end.
    pub(crate) fn end_events(&self) -> u32 {
        self.end().1
    }

    /// The same, and whether the program gets this state instead of the kernel socket's ([`Session::is_gone`]).
    #[inline]
    pub(crate) fn end(&self) -> (bool, u32) {
        match self.gone_now() & 0xff {
            OPEN => (false, self.kernel_events.load(Ordering::Relaxed) & KERNEL_ENDED),
            ENDED => (true, HALF),
            OVER => (true, WHOLE),
            _ => (true, WHOLE | ERROR),
        }
    }
}

// --- how it is learnt ---------------------------------------------------------------------------------------------------------

impl<W: Wire> View<'_, W> {
    /// Whether TCP would not show the end yet: the peer did not reset the connection, it had more to send than there is room for, and the
    /// end comes behind that.
    pub(crate) fn end_waits_for_room(&self) -> bool {
        let is_reset = self.s.is_gone() || self.s.kernel_events.load(Ordering::Relaxed) & ERROR != 0;
        !is_reset && Self::CONSUMER.waiting(self.inn) > 0 && Self::CONSUMER.is_wanted(self.inn)
    }

    /// A send of `n` bytes that the program wants held back, to a peer that has ended. True if the kernel would not have sent them yet, so
    /// that no reset has been caused.
    #[cold]
    pub(crate) fn keeps_unsent(&self, n: usize) -> bool {
        let n = u32::try_from(n).unwrap_or(u32::MAX);
        if !self.s.seems_connected() || n == 0 {
            return false;
        }
        let held = self.s.unsent.fetch_add(n, Ordering::Relaxed).saturating_add(n);
        if u64::from(held) >= self.segment() {
            return false;
        }
        let _ = self.s.unsent_since.compare_exchange(0, self.wire.now(), Ordering::Relaxed, Ordering::Relaxed);
        true
    }

    /// The program is about to shut its sending direction. Published first, so the end that the peer's kernel reports is not taken for a
    /// death. False: it was shut before.
    pub(crate) fn be_mute(&self) -> bool {
        self.out.w.shut.swap(1, Ordering::SeqCst) == 0
    }

    /// Undoes [`View::be_mute`]: nothing was left to shut.
    pub(crate) fn was_not_shut(&self) {
        self.out.w.shut.store(0, Ordering::SeqCst);
    }

    /// An event set or poll(2) has reported an end, or the peer has published that it closes. Finds out whether and how it has ended.
    pub(crate) fn learn_end(&self) {
        let known = self.s.kernel_events.load(Ordering::Relaxed);
        let peer_closed = || known & ASKED == 0 && self.inn.w.fate.load(Ordering::Acquire) != fate::OPEN;
        if known & KERNEL_ENDED != 0 && (known & ASKED == 0 || known & ERROR != 0) || peer_closed() {
            self.learn();
        }
    }

    /// Queries the kernel socket for the state of the connection, unless that is known.
    pub(crate) fn learn(&self) {
        if self.s.is_gone() {
            // Another process has found it out; the connection has ended for this process, too.
            self.s.kernel_events.fetch_or(libc::EPOLLRDHUP as u32 | ASKED, Ordering::Relaxed);
            return;
        }
        match self.wire.health() {
            Health::Open => {}
            Health::Ended => {
                if self.inn.r.deaf.load(Ordering::SeqCst) == 0 {
                    // A later query need not take an error that came behind the FIN.
                    self.s.assume_fin();
                }
                self.saw_end();
            }
            Health::Closed => self.saw_close(),
            // The error stays in the kernel, for the program's next call.
            Health::Broken if self.is_reset_meant() => {
                self.note_end(KERNEL_ENDED);
            }
            Health::Broken => match self.wire.take_error() {
                Some(e) => self.saw_error(e),
                None => self.saw_close(),
            },
        }
    }

    /// The kernel reported the end of the stream.
    pub(crate) fn saw_end(&self) {
        if self.has_ended_itself() {
            // The peer's own end, or its reset, may still come: the kernel is queried again.
            self.s.kernel_events.fetch_or(HALF, Ordering::Relaxed);
            return;
        }
        self.note_end(HALF);
        self.judge_end();
    }

    /// Decides what the end that the kernel reports means for the program.
    pub(crate) fn judge_end(&self) {
        if self.has_ended_itself() {
            return;
        }
        let lost = self.leaves_ring_unread();
        match self.inn.w.fate.load(Ordering::Acquire) {
            fate::OPEN if self.inn.w.shut.load(Ordering::SeqCst) != 0 => {}
            fate::OPEN | fate::CLOSED if !lost && self.held_back() > 0 => self.ended_before_held(),
            _ if !lost => {}
            // Killed before it published an end: TCP would have reset the connection.
            fate::OPEN => self.s.set_pending_error(Errno::CONNRESET),
            // Sent while the peer closed: TCP would have answered that with a reset.
            fate::CLOSED => self.s.set_pending_error(Errno::PIPE),
            _ => {}
        }
    }

    /// Whether the reported end is the program's own shutdown of its receiving direction, and not the peer's end.
    fn has_ended_itself(&self) -> bool {
        self.inn.r.deaf.load(Ordering::SeqCst) != 0 && !self.wire.has_fin()
    }

    /// The kernel's socket is closed and holds no error, so that error has been reported.
    fn saw_close(&self) {
        self.s.kernel_events.fetch_and(!ERROR, Ordering::Relaxed);
        self.note_end(WHOLE);
    }

    /// The kernel reported an error, which it does once.
    pub(crate) fn saw_error(&self, e: Errno) {
        let (behind_fin, reset) = (e == Errno::PIPE, matches!(e, Errno::PIPE | Errno::CONNRESET));
        self.s.cut.store(if behind_fin { cut::AFTER_FIN } else { cut::SHORT }, Ordering::Relaxed);
        match () {
            () if reset && !self.is_reset_meant() => {
                // If the program had shut its sending direction, the connection is over now.
                if self.out.w.shut.load(Ordering::SeqCst) != 0 {
                    self.s.step(OPEN, OVER);
                } else {
                    self.ended_before_held();
                }
            }
            () => self.s.set_pending_error(e),
        }
        self.note_end(KERNEL_ENDED);
    }

    /// The kernel's socket is about to be reconnected. An end that it would report by itself is saved, to be reported by us.
    pub(crate) fn save_kernel_end(&self) {
        match self.wire.take_error() {
            Some(e) => self.s.set_pending_error(e),
            None if self.wire.health() == Health::Closed && !self.is_mute() => _ = self.s.step(OPEN, OVER),
            None => {}
        }
    }

    /// How an end in the peer's place must end, so that the kernel reports what the program is owed. The kernel's own reports count from
    /// now on.
    pub(crate) fn ending_for_kernel(&self) -> Ending {
        let ending = match self.s.gone_now() {
            OPEN if self.s.take_stored_error().is_none() => Ending::Fin,
            ENDED => Ending::Fin,
            LOST => Ending::Pipe,
            OVER => Ending::Over,
            broken if error_in(broken) == Errno::PIPE => Ending::Pipe,
            _ => Ending::Reset,
        };
        let cut = if ending == Ending::Reset { cut::SHORT } else { cut::AFTER_FIN };
        self.s.cut.store(cut, Ordering::Relaxed);
        // A reset reported from now on is a real one.
        self.s.lost.store(1, Ordering::Relaxed);
        let events = if ending == Ending::Fin { HALF } else { WHOLE };
        self.s.kernel_events.store(events | ASKED, Ordering::Relaxed);
        if let Some(word) = self.s.gone() {
            word.store(OPEN, Ordering::SeqCst);
        }
        ending
    }

    /// Whether no process holds the peer's end any more. A peer that has only shut its sending direction still reads.
    pub(crate) fn has_no_peer(&self) -> bool {
        let closed = || self.inn.w.fate.load(Ordering::Acquire) != fate::OPEN;
        self.ended() && (self.s.is_gone() || closed() || self.inn.w.shut.load(Ordering::SeqCst) == 0)
    }

    /// `is_mute`: whether the program has shut its sending direction. `is_deaf`: its receiving direction.
    pub(crate) fn is_mute(&self) -> bool {
        self.out.w.shut.load(Ordering::SeqCst) != 0
    }

    pub(crate) fn is_deaf(&self) -> bool {
        self.inn.r.deaf.load(Ordering::SeqCst) != 0
    }

    /// The peer has ended. The kernel would not have sent yet what the ring holds back.
    fn ended_before_held(&self) {
        if self.s.step(OPEN, ENDED) {
            let held = self.held_back();
            self.s.unsent.store(u32::try_from(held).unwrap_or(u32::MAX), Ordering::Relaxed);
            self.s.unsent_since.store(if held > 0 { self.wire.now() } else { 0 }, Ordering::Relaxed);
        }
    }

    /// Bytes of the ring that are held back: the kernel would not have sent them yet.
    fn held_back(&self) -> u64 {
        if self.s.producer.is_due(self.out) { 0 } else { self.held() }
    }

    /// Whether the peer has left bytes of the ring unread that were not held back.
    fn leaves_ring_unread(&self) -> bool {
        self.s.producer.unread(self.out, &self.mem).is_ok_and(|n| n as u64 > self.held_back())
    }

    /// Whether TCP would have shown that reset, too. Not if a peer that closed or was killed left only doorbells unread.
    fn is_reset_meant(&self) -> bool {
        let (peer_fate, out) = (self.inn.w.fate.load(Ordering::Acquire), self.out);
        let rung_out = out.r.drained.load(Ordering::SeqCst) != 0
            || out.r.swallowed.load(Ordering::SeqCst) >= out.w.bells.load(Ordering::SeqCst);
        let lost = self.s.lost.load(Ordering::Relaxed) != 0 || self.leaves_ring_unread();
        match peer_fate {
            fate::RESET => true,
            // Only the program's bytes can have been unread.
            _ if rung_out || lost || self.sent_behind() => true,
            fate::CLOSED => false,
            _ => self.inn.w.resets.load(Ordering::Acquire) != 0 || self.refuses_bytes() && self.wire.peer_lives(),
        }
    }

    /// Whether bytes of the program were sent through the kernel behind the ring, and so behind unread doorbells.
    fn sent_behind(&self) -> bool {
        let line = &self.out.w;
        let rung = line.n_kernel.load(Ordering::SeqCst).wrapping_add(line.bells.load(Ordering::SeqCst));
        line.state.load(Ordering::SeqCst) == state::DONE && self.wire.given().is_ok_and(|given| given > rung)
    }

    /// What a reader sees once the ring is drained and the kernel socket has ended: end of stream, or the error TCP would show.
    pub(crate) fn ending(&self) -> Result<usize, Errno> {
        if !self.end_is_known() {
            self.learn();
        }
        if self.keeps_error() {
            match self.wire.peek() {
                // Doorbells lie in front of it.
                Ok(true) => self.fetch_error(),
                // Behind a FIN the error is a send's. It stays in the kernel, for the sender may be the C library.
                Ok(false) => {}
                Err(e) => self.saw_error(e),
            }
        }
        self.s.take_pending_error().map_or(Ok(0), Err)
    }

    /// An error that stayed in the kernel is due now.
    pub(crate) fn fetch_error(&self) {
        if self.keeps_error()
            && let Some(e) = self.wire.take_error()
        {
            self.saw_error(e);
        }
    }

    /// Whether the kernel has an error for the program's next call.
    fn keeps_error(&self) -> bool {
        self.s.kernel_events.load(Ordering::Relaxed) & ERROR != 0 && !self.s.is_gone()
    }

    /// Whether the peer has closed by a reset, with no FIN before it.
    pub(crate) fn was_reset_at_once(&self) -> bool {
        self.inn.w.fate.load(Ordering::Acquire) == fate::RESET && self.inn.w.shut.load(Ordering::SeqCst) == 0
    }

    /// Whether our own kernel resets the connection when bytes come for it: the program has shut it both ways.
    pub(crate) fn refuses_bytes(&self) -> bool {
        self.out.w.shut.load(Ordering::SeqCst) != 0 && self.inn.r.deaf.load(Ordering::SeqCst) != 0
    }
}
