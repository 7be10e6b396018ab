//! Where the next byte of the stream is, and what a receive finds.
//!
//! ```text
//!   kernel, up to n_kernel  ->  ring  ->  (doorbells)  ->  kernel
//! ```
//! A receive takes from them in this order until it has the requested length or no byte is left. A program that gets less than it requested
//! may rely on an event for the next byte, for TCP works so (epoll(7), Q9).

use madrigal_base::sync::Ordering;
use madrigal_shm_ring::layout::{Block, state};
use madrigal_shm_ring::ring::{Span, Trouble};
use madrigal_sys::Errno;

use super::bells::Left;
use super::{View, Wire, phase};

/// Where the next byte is.
pub(crate) enum Source {
    /// At most this many kernel bytes are data.
    Kernel(u64),
    Ring(Span),
    /// The kernel socket carries everything (again).
    Plain,
    /// Nothing yet.
    Empty,
    /// The end, or an error: see [`View::ending`].
    End,
}

/// What a step of a receive did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Took {
    /// So many bytes.
    Bytes(usize),
    /// The kernel socket carries everything (again): receive from it.
    Plain,
    Empty,
    /// The end of the stream, or an error: see [`View::ending`].
    End,
    /// An error of a kernel receive that the program must get, such as a bad buffer.
    Failed(Errno),
}

/// How often bytes are counted again while another thread moves them.
const ATTEMPTS: u32 = 8;
/// How often a copy may be overtaken by a signal handler or a forked child.
const RACES: u32 = 1000;

/// How a receive copies bytes.
pub(crate) trait Taker {
    /// Takes up to `limit` bytes out of the kernel's queue to `done` bytes into the buffers. `Ok(0)`: the end.
    fn kernel(&self, done: usize, limit: u64) -> Result<usize, Errno>;
    /// Copies out of a span to `done` bytes into the buffers, as much as fits.
    fn copy(&self, done: usize, span: &Span) -> Result<usize, Errno>;
}

impl<W: Wire> View<'_, W> {
    /// Takes up to `left` bytes from kernel and ring. `adopt`: see [`View::ready`]. Under the receive lock.
    pub(crate) fn take(&self, left: usize, taker: &impl Taker, adopt: impl Fn() -> bool) -> Took {
        let (mut done, mut races) = (0, 0);
        while done < left {
            let step = || self.step(done, left - done, taker, &adopt);
            // SYNC: a signal handler that receives between count and call would make the limit too high, and the call would take doorbells.
            let before_ring = matches!(self.s.rx(), phase::KERNEL | phase::READY);
            let step = match if before_ring { self.wire.undisturbed(step) } else { step() } {
                Err(Trouble::Raced) if races < RACES => {
                    races += 1;
                    continue;
                }
                // Only a peer that writes where it must not makes this fail so often.
                Err(_) => {
                    self.spoil();
                    Took::End
                }
                Ok(step) => step,
            };
            match step {
                Took::Bytes(n) => done += n,
                other if done == 0 => return other,
                // The reason to stop is still there at the next call.
                Took::Plain => return self.take_rest(done, left, taker),
                _ => break,
            }
        }
        Took::Bytes(done)
    }

    /// The same for the two common cases: one copy out of an open ring, or an empty ring. `None`: nothing was done, and [`View::take`] does
    /// the work.
    #[inline]
    pub(crate) fn take_at_once(&self, left: usize, taker: &impl Taker) -> Option<Took> {
        if self.s.rx() != phase::RING || self.s.tx() == phase::KERNEL {
            return None;
        }
        let span = self.data().ok()?;
        if span.is_empty() {
            return (self.seems_open() && !self.ended()).then_some(Took::Empty);
        }
        if span.len() < left && self.is_sealed_in() {
            // The kernel may have the rest.
            return None;
        }
        let span = span.first(left);
        let n = taker.copy(0, &span).ok()?;
        let sum = self.sum_up(&span, n).ok()?;
        Self::CONSUMER.advance(self.inn, &span, n).ok()?;
        self.keep_sum(span.at + n as u64, sum);
        self.inn.r.cpu.store(self.wire.cpu(), Ordering::Relaxed);
        Some(Took::Bytes(n))
    }

    fn step(&self, done: usize, left: usize, taker: &impl Taker, adopt: impl Fn() -> bool) -> Result<Took, Trouble> {
        let sure = self.sure_in_kernel();
        let source = match self.s.rx() {
            _ if sure > 0 => Source::Kernel(sure),
            // Bytes were taken: the next call reports the peer's end, so the kernel need not be queried for it now.
            phase::RING if done > 0 => self.in_ring(false),
            _ => self.source(adopt),
        };
        Ok(match source {
            Source::Kernel(limit) => {
                let took = self.take_kernel(done, limit.min(left as u64), taker);
                let rest = if let Took::Bytes(n) = took { limit.saturating_sub(n as u64) } else { 0 };
                self.s.sure.store(rest, Ordering::Relaxed);
                took
            }
            Source::Ring(span) => self.take_ring(done, left, &span, taker)?,
            Source::Plain => Took::Plain,
            Source::Empty => Took::Empty,
            Source::End => Took::End,
        })
    }

    /// So many of the kernel's next bytes are known to be data; 0: the count must be read. A program that reads a megabyte byte by byte
    /// would query it for each of them, which takes ten times as long as reading it.
    fn sure_in_kernel(&self) -> u64 {
        let sure = self.s.sure.load(Ordering::Relaxed);
        // Other processes take bytes, too, or the kernel skips some.
        if sure == 0 || self.s.rx() != phase::READY || self.s.is_shared() || self.s.may_meet_urgent() {
            return 0;
        }
        self.help_switch();
        sure
    }

    /// The session has ended for this direction behind `done` bytes: the kernel may hold the rest.
    fn take_rest(&self, done: usize, left: usize, taker: &impl Taker) -> Took {
        match taker.kernel(done, (left - done) as u64) {
            Ok(n) => Took::Bytes(done + n),
            Err(Errno::AGAIN | Errno::INTR | Errno::FAULT) => Took::Bytes(done),
            // The kernel reports it once.
            Err(e) => {
                self.saw_error(e);
                Took::Bytes(done)
            }
        }
    }

    fn take_kernel(&self, done: usize, limit: u64, taker: &impl Taker) -> Took {
        match taker.kernel(done, limit) {
            // Fewer kernel bytes than the writer counted: the peer died, and what follows them is lost with it.
            Ok(0) => {
                self.saw_end();
                Took::End
            }
            Ok(n) => {
                self.inn.r.taken.fetch_add(n as u64, Ordering::Release);
                Took::Bytes(n)
            }
            Err(Errno::AGAIN | Errno::INTR) => Took::Empty,
            Err(Errno::FAULT) => Took::Failed(Errno::FAULT),
            Err(e) => {
                self.saw_error(e);
                Took::End
            }
        }
    }

    fn take_ring(&self, done: usize, left: usize, span: &Span, taker: &impl Taker) -> Result<Took, Trouble> {
        let span = span.first(left);
        let n = match taker.copy(done, &span) {
            Ok(n) => n,
            Err(e) => return Ok(Took::Failed(e)),
        };
        let sum = self.sum_up(&span, n)?;
        Self::CONSUMER.advance(self.inn, &span, n)?;
        self.keep_sum(span.at + n as u64, sum);
        self.inn.r.cpu.store(self.wire.cpu(), Ordering::Relaxed);
        Ok(Took::Bytes(n))
    }

    /// Finds the next byte, and moves the receiving direction forward as far as possible. Under the receive lock.
    pub(crate) fn source(&self, adopt: impl Fn() -> bool) -> Source {
        match self.s.rx() {
            phase::RING => self.in_ring(true),
            phase::READY => self.before_ring(),
            phase::DONE => Source::Plain,
            _ if self.ready(adopt) => self.before_ring(),
            // Sealed before it began: it never will begin.
            _ if self.is_sealed_in() => {
                self.finish_in();
                Source::Plain
            }
            _ => Source::Plain,
        }
    }

    fn before_ring(&self) -> Source {
        self.help_switch();
        // Read before the bytes are counted: another thread may find an end that comes behind some of them.
        let ended = self.ended();
        // The count first: bytes counted while the writer had not switched are data.
        let waiting = match self.wire.queued() {
            Ok(waiting) => waiting,
            Err(e) => {
                self.saw_error(e);
                return Source::End;
            }
        };
        if self.inn.w.state.load(Ordering::SeqCst) == state::KERNEL {
            return if waiting > 0 { Source::Kernel(waiting) } else { self.idle_source(ended) };
        }
        match self.left_in_kernel() {
            Some(0) => {
                self.s.rx.store(phase::RING, Ordering::SeqCst);
                self.in_ring(true)
            }
            Some(left) => Source::Kernel(left),
            None => {
                self.spoil();
                Source::End
            }
        }
    }

    /// No byte, and the writer has not switched: the end, a peer that left again, or nothing. `ended`: the end was known before that check.
    fn idle_source(&self, ended: bool) -> Source {
        if self.is_sealed_in() {
            // SYNC: SeqCst, read behind the seal: the writer may have switched, and sealed, since its state was read above.
            if self.inn.w.state.load(Ordering::SeqCst) != state::KERNEL {
                return self.before_ring();
            }
            // Either side may have sealed it; the writer will never switch.
            self.finish_in();
            self.follow();
            return Source::Plain;
        }
        if ended || self.find_end() { Source::End } else { Source::Empty }
    }

    /// `asks`: whether to query the kernel for the end.
    fn in_ring(&self, asks: bool) -> Source {
        self.help_switch();
        match self.data() {
            Ok(span) if !span.is_empty() => Source::Ring(span),
            Ok(_) => self.drained(asks),
            Err(Trouble::Sealed) => self.sealed(),
            Err(_) => {
                self.spoil();
                Source::End
            }
        }
    }

    /// What the ring holds, in a block that is known to be this session's.
    #[inline]
    pub(super) fn data(&self) -> Result<Span, Trouble> {
        let span = Self::CONSUMER.data(self.inn, &self.mem)?;
        let word = self.inn.w.block.load(Ordering::Relaxed);
        if span.is_empty() || word == self.s.known_block.load(Ordering::Relaxed) {
            return Ok(span);
        }
        if self.know_block(word) { Ok(span) } else { Err(Trouble::Corrupt) }
    }

    /// Whether the peer writes to a block that was lent to it.
    #[cold]
    fn know_block(&self, word: u64) -> bool {
        let lent =
            Block::unpack(word, self.mem.size()).is_some_and(|block| self.wire.is_lent(block, 1 - self.s.side()));
        if lent {
            self.s.known_block.store(word, Ordering::Relaxed);
        }
        lent
    }

    /// The ring is empty and open: has the kernel socket ended?
    fn drained(&self, asks: bool) -> Source {
        let ended = self.ended();
        if asks && !(ended && self.end_is_known()) {
            self.check_open(ended);
        }
        // SYNC: read before `stirred`, for another thread may find the end at any time: what the peer published before it is read first.
        let ended = self.ended();
        self.show_last();
        if Self::CONSUMER.stirred(self.inn) {
            return self.in_ring(asks);
        }
        if ended { Source::End } else { Source::Empty }
    }

    /// Drained and sealed: takes out the last doorbells; then the kernel carries bytes again.
    fn sealed(&self) -> Source {
        self.follow();
        // Before the doorbells are counted: behind a FIN there is none that is not counted.
        let ended = self.ended();
        if self.rung_out() {
            self.finish_in();
            return Source::Plain;
        }
        if ended { Source::End } else { Source::Empty }
    }

    /// The peer has sealed both directions: ours ends, too, even if the program never sends again.
    fn follow(&self) {
        if self.s.tx() != phase::DONE
            && let Some(guard) = self.s.wlock.try_lock()
            && !guard.nested()
        {
            self.finish_sending();
        }
    }

    /// The receiving direction is over.
    pub(super) fn finish_in(&self) {
        self.s.rx.store(phase::DONE, Ordering::SeqCst);
        // SYNC: SeqCst: the writer may release the slot once it sees this.
        self.inn.r.drained.store(1, Ordering::SeqCst);
    }

    /// Receives switch the sending direction, too: a program may never send again, or only while it is corked.
    #[inline]
    fn help_switch(&self) {
        if self.s.tx() == phase::KERNEL
            && let Some(guard) = self.s.wlock.try_lock()
            && !guard.nested()
        {
            self.switch();
        }
    }

    /// Bytes that could be received now. Takes no lock, so the result was true at some moment only.
    pub(crate) fn inbound(&self) -> u64 {
        self.show_last();
        let ring = || Self::CONSUMER.waiting(self.inn);
        match self.s.rx() {
            phase::RING if !self.is_sealed_in() => ring(),
            phase::RING | phase::READY => {
                let mut seen = 0;
                for _ in 0..ATTEMPTS {
                    // Bytes that a writer takes out of the ring are for a moment counted in neither place, or in both.
                    self.await_taken();
                    let before = ring();
                    seen = self.inbound_of_both(before);
                    if ring() == before {
                        break;
                    }
                }
                seen
            }
            _ => self.wire.queued().unwrap_or(0),
        }
    }

    /// The same, with so many bytes in the ring.
    fn inbound_of_both(&self, ring: u64) -> u64 {
        // Read before the state: see `before_ring`.
        let waiting = self.wire.queued().unwrap_or(0);
        let left = if self.s.rx() == phase::RING { Some(0) } else { self.left_in_kernel() };
        left.map_or(waiting, |left| ring + self.without_bells(waiting, left))
    }

    /// Of the bytes in the kernel's queue: the `left` ones that come before the ring, and those behind the last doorbell.
    fn without_bells(&self, waiting: u64, left: u64) -> u64 {
        let before = left.min(waiting);
        match self.bells_left() {
            Left::Bells(all) if self.is_sealed_in() => waiting.saturating_sub(all.saturating_sub(left)),
            _ => before,
        }
    }
}

// --- peeking ------------------------------------------------------------------------------------------------------------------

impl<W: Wire> View<'_, W> {
    /// Copies up to `left` bytes and leaves them (`MSG_PEEK`). `skip(done, hidden, limit)` peeks at up to `limit` kernel bytes behind the
    /// first `hidden` ones. Under the receive lock.
    pub(crate) fn peek(
        &self,
        left: usize,
        taker: &impl Taker,
        skip: impl Fn(usize, u64, u64) -> Result<usize, Errno>,
        adopt: impl Fn() -> bool,
    ) -> Took {
        let peek = || self.peek_once(left, taker, skip, adopt);
        // SYNC: as `take`.
        if self.s.rx() == phase::RING && !self.is_sealed_in() { peek() } else { self.wire.undisturbed(peek) }
    }

    fn peek_once(
        &self,
        left: usize,
        taker: &impl Taker,
        skip: impl Fn(usize, u64, u64) -> Result<usize, Errno>,
        adopt: impl Fn() -> bool,
    ) -> Took {
        let (mut done, mut hidden) = (0, 0);
        match self.source(&adopt) {
            Source::Plain => return Took::Plain,
            Source::Empty => return Took::Empty,
            Source::End => return Took::End,
            Source::Kernel(limit) => {
                hidden = limit;
                match skip(0, 0, limit.min(left as u64)) {
                    Ok(0) => return Took::Empty,
                    Ok(n) => done = n,
                    Err(e) => return self.refused(e),
                }
                // Bytes of the ring follow only if all kernel bytes have come.
                if (done as u64) < limit || self.left_in_kernel() != Some(limit) {
                    return Took::Bytes(done);
                }
            }
            Source::Ring(_) => {}
        }
        if done < left
            && let Ok(span) = self.data()
            && !span.is_empty()
        {
            match taker.copy(done, &span.first(left - done)) {
                Ok(n) => done += n,
                Err(e) if done == 0 => return Took::Failed(e),
                Err(_) => return Took::Bytes(done),
            }
        }
        // Behind a sealed ring, and its doorbells, the kernel goes on.
        if done < left && self.is_sealed_in() && self.has_rung_last() {
            let front = self.bells_end().wrapping_sub(self.wire.taken().unwrap_or(0));
            if front >= hidden && front < 1 << 40 {
                match (skip(done, front, (left - done) as u64), done) {
                    (Ok(n), _) => done += n,
                    (Err(e), 0) => return self.refused(e),
                    (Err(e), _) => _ = self.refused(e),
                }
            }
        }
        if done == 0 { Took::Empty } else { Took::Bytes(done) }
    }

    /// The result of a peek that the kernel refuses. The kernel reports only once what ended the connection.
    #[cold]
    fn refused(&self, e: Errno) -> Took {
        match e {
            Errno::AGAIN | Errno::INTR => Took::Empty,
            Errno::FAULT | Errno::NOMEM => Took::Failed(e),
            e => {
                self.saw_error(e);
                Took::End
            }
        }
    }
}
