//! The two ends of a shared-memory connection: which bytes go by the express line, which by the ring, and when the ring grows.

use core::sync::atomic::Ordering;
use std::io::IoSlice;
use std::sync::Arc;

use madrigal_base::error::{ReadError, WriteError};
use madrigal_progress::driver::{ByteRx, ByteTx, Ends, Read, Watched, Wrote};

use super::link::Side;
use madrigal_shm_ring::arena::{LARGEST, UNIT};
use madrigal_shm_ring::express::{self, Message};
use madrigal_shm_ring::layout::{Block, POSITION, fate, want};
use madrigal_shm_ring::ring::{CHUNK, Consumer, Memory, Producer, Sleeper, Span, Trouble};

/// How long the reader of an answer holds back. Looking takes the line away from the peer that is about to write it, and an answer
/// cannot be there before the line went there and back; posting the read took most of that time already.
const ANSWER_NS: u64 = 10;
/// One in so many answers is polled for at once all the same, ...
const PROBE_EVERY: u32 = 64;
/// ... and if it was there, so are probably this many after it.
const EAGER: u32 = 64;
/// A ring that was full this often is too small for what it carries.
const OFTEN_FULL: u32 = 8;

/// Both ends of a side.
pub(super) fn ends(side: &Arc<Side>) -> Ends {
    let memory = side.memory();
    let producer = Producer::default();
    producer.open(side.out(), side.small_block());
    let tx = Tx { side: Arc::clone(side), memory, producer, grow: Grow::Never, full: 0 };
    Ends::Bytes(
        Box::new(Rx { side: Arc::clone(side), memory, taken: 0, answers: 0, eager: 0, likely: false }),
        Box::new(tx),
    )
}

/// The writing end.
struct Tx {
    side: Arc<Side>,
    memory: Memory,
    producer: Producer,
    grow: Grow,
    /// How often the present block was full.
    full: u32,
}

/// Whether the ring should move to a larger block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Grow {
    /// Not now.
    Never,
    /// As soon as it is empty, to a block of this size.
    To(usize),
    /// There can be no larger block.
    Cannot,
}

impl Watched for Tx {
    fn arm(&mut self) -> bool {
        let what = if matches!(self.grow, Grow::To(_)) { want::ALL } else { want::HALF };
        self.producer.want(self.side.out(), &self.memory, what) || self.side.is_gone()
    }

    fn cheap(&self) -> bool {
        true
    }
}

impl ByteTx for Tx {
    #[inline]
    fn write(&mut self, bufs: &[IoSlice<'_>]) -> Result<Wrote, WriteError> {
        let side = &*self.side;
        if side.is_gone() || side.peer_fate() != fate::OPEN {
            return Err(self.peer_gone());
        }
        if let [one] = bufs
            && (1..=express::LONGEST).contains(&one.len())
            && side.out_lane().is_free()
        {
            side.asked.store(true, Ordering::Relaxed);
            if side.out_lane().put(self.producer.position(), one, &side.out().wake.armed) {
                side.ring();
            }
            return Ok(Wrote::Bytes(one.len()));
        }
        self.write_ring(bufs)
    }
}

impl Tx {
    fn write_ring(&mut self, bufs: &[IoSlice<'_>]) -> Result<Wrote, WriteError> {
        let total: usize = bufs.iter().map(|buf| buf.len()).sum();
        let mut done = 0;
        while done < total {
            let span = match self.space(total - done) {
                Ok(Some(span)) => span,
                Ok(None) => break,
                Err(trouble) => return self.trouble(trouble),
            };
            let n = span.len().min(CHUNK).min(total - done);
            gather(bufs, done, &span, n);
            match self.producer.publish(self.side.out(), &span, n) {
                Ok(Sleeper::Nobody) => {}
                Ok(_) => self.side.ring(),
                Err(trouble) => return self.trouble(trouble),
            }
            done += n;
        }
        Ok(if done == 0 && total > 0 { Wrote::WouldBlock } else { Wrote::Bytes(done) })
    }

    /// Room for up to `wanted` bytes, in a ring fit for them; `None`: none now.
    fn space(&mut self, wanted: usize) -> Result<Option<Span>, Trouble> {
        let size = self.producer.block(&self.memory).map_or(LARGEST, |block| block.size);
        if self.grow == Grow::Never && size < LARGEST && (wanted > size / 2 || self.full >= OFTEN_FULL) {
            self.grow = Grow::To(if size < UNIT && wanted <= UNIT / 2 { UNIT } else { LARGEST });
        }
        if let Grow::To(size) = self.grow {
            let (dir, mem) = (self.side.out(), &self.memory);
            if self.producer.unread(dir, mem)? != 0 {
                return Ok(None);
            }
            self.move_to(size);
        }
        let span = self.producer.space(self.side.out(), &self.memory, 1)?;
        if span.is_empty() {
            self.full = self.full.saturating_add(1);
        }
        Ok((!span.is_empty()).then_some(span))
    }

    #[cold]
    fn move_to(&mut self, size: usize) {
        let old = self.producer.block(&self.memory);
        let smaller = (size == LARGEST && old.is_some_and(|old| old.size < UNIT)).then_some(UNIT);
        let take = |size: usize| self.side.take_block(size);
        let Some(block) = take(size).or_else(|| take(smaller?)) else {
            self.grow = Grow::Cannot;
            return;
        };
        self.producer.move_to(self.side.out(), block);
        self.give_back(old);
        self.full = 0;
        self.grow = Grow::Never;
    }

    fn give_back(&self, block: Option<Block>) {
        if let Some(block) = block {
            self.side.give_block(block);
        }
    }

    #[cold]
    fn trouble(&self, trouble: Trouble) -> Result<Wrote, WriteError> {
        match trouble {
            Trouble::Sealed => Err(self.peer_gone()),
            Trouble::Raced | Trouble::Corrupt => {
                Err(WriteError::Corrupt { peer: self.side.peer.clone(), what: "impossible position in the ring" })
            }
        }
    }

    #[cold]
    fn peer_gone(&self) -> WriteError {
        WriteError::PeerGone { peer: self.side.peer.clone() }
    }
}

/// Copies `n` bytes, beginning `skip` bytes into `bufs`, to the front of `span`.
fn gather(bufs: &[IoSlice<'_>], mut skip: usize, span: &Span, n: usize) {
    let mut done = 0;
    for buf in bufs {
        let part = buf.get(skip..).unwrap_or_default();
        skip = skip.saturating_sub(buf.len());
        let len = part.len().min(n - done);
        // SAFETY: `part` is readable for `len` bytes; the span is space given by the producer, which no other thread writes.
        done += unsafe { span.copy_in(done, part.as_ptr(), len) };
    }
}

/// The reading end.
struct Rx {
    side: Arc<Side>,
    memory: Memory,
    /// Bytes already taken of the message in the lane.
    taken: usize,
    /// Answers waited for so far.
    answers: u32,
    /// Answers still polled for at once.
    eager: u32,
    /// The next read comes after having held back: it probably finds the answer.
    likely: bool,
}

impl Watched for Rx {
    fn arm(&mut self) -> bool {
        Consumer.arm(self.side.back()) || self.side.back_lane().stirred_after_arm() || self.side.is_gone()
    }

    fn cheap(&self) -> bool {
        true
    }

    #[inline]
    fn patience_ns(&mut self) -> u64 {
        if !self.side.asked.load(Ordering::Relaxed) {
            return 0;
        }
        self.side.asked.store(false, Ordering::Relaxed);
        self.answers = self.answers.wrapping_add(1);
        if self.eager == 0 && !self.answers.is_multiple_of(PROBE_EVERY) {
            self.likely = true;
            return ANSWER_NS;
        }
        self.eager = if self.stirred() { EAGER } else { 0 };
        0
    }
}

impl ByteRx for Rx {
    #[inline]
    fn read(&mut self, buf: &mut [u8]) -> Result<Read, ReadError> {
        if buf.is_empty() {
            return Ok(Read::Bytes(0));
        }
        if self.likely {
            self.likely = false;
            self.side.back_lane().claim();
        }
        // Before the reads below: they still find what was sent before the peer left.
        let gone = self.side.is_gone();
        let span = match Consumer.data(self.side.back(), &self.memory) {
            Ok(span) => Some(span),
            Err(Trouble::Sealed) => None,
            Err(_) => return Err(self.corrupt("impossible position in the ring")),
        };
        // After the ring's tail, so that a message put before bytes of the ring is seen whenever they are.
        if let Some(message) = self.side.back_lane().message() {
            return self.read_express(message, span, buf);
        }
        match span {
            Some(span) if !span.is_empty() => self.read_ring(span, span.len(), buf),
            Some(_) if !gone => Ok(Read::WouldBlock),
            _ => self.end(),
        }
    }
}

impl Rx {
    /// Whether there is something to read.
    fn stirred(&self) -> bool {
        Consumer.stirred(self.side.back()) || self.side.back_lane().message().is_some()
    }

    /// Reads what comes first while there is a message in the lane: it, or the bytes of the ring it was put behind.
    #[inline]
    fn read_express(&mut self, message: Message, span: Option<Span>, buf: &mut [u8]) -> Result<Read, ReadError> {
        let before = message.behind(self.side.back().r.head.load(Ordering::Relaxed) & POSITION);
        if before != 0 {
            return match (span, usize::try_from(before)) {
                (Some(span), Ok(before)) if before <= span.len() => self.read_ring(span, before, buf),
                _ => Err(self.corrupt("a message behind bytes that were never sent")),
            };
        }
        let lane = self.side.back_lane();
        let n = lane.copy_out(message, self.taken, buf);
        self.taken += n;
        if self.taken >= message.len() {
            self.taken = 0;
            lane.free();
        }
        if n == 0 { Err(self.corrupt("an empty message")) } else { Ok(Read::Bytes(n)) }
    }

    fn read_ring(&mut self, span: Span, limit: usize, buf: &mut [u8]) -> Result<Read, ReadError> {
        let n = limit.min(span.len()).min(buf.len()).min(4 * CHUNK);
        // SAFETY: `buf` is writable for `n` bytes; the span is data just given by the consumer.
        let n = unsafe { span.copy_out(0, buf.as_mut_ptr(), n) };
        match Consumer.consume(self.side.back(), &span, n) {
            Ok(false) => {}
            Ok(true) => self.side.ring(),
            Err(_) => return Err(self.corrupt("its reader's position moved")),
        }
        Ok(Read::Bytes(n))
    }

    #[cold]
    fn end(&self) -> Result<Read, ReadError> {
        if self.side.peer_fate() == fate::CLOSED {
            return Ok(Read::End);
        }
        Err(ReadError::Reset { peer: self.side.peer.clone() })
    }

    #[cold]
    fn corrupt(&self, what: &'static str) -> ReadError {
        ReadError::Corrupt { peer: self.side.peer.clone(), what }
    }
}
