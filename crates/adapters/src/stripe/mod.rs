//! Several streams as one ordered link: what one stream alone cannot carry over a long way, several can.
//!
//! ```text
//!   write --> [ one queue ] --> pieces, each to whichever stream can take it    16 bytes of header, up to 1 MiB
//!   front <-- [ by offset ] <-- pieces, in any order                            acknowledged to the other end's Stripe
//! ```
//! * Streams pull: nothing is split beforehand, so each carries what it can, and what it cannot others do. Towards the end of what there is
//!   slow streams get nothing that a fast one would bring sooner, and what hangs on one goes by the fastest a second time.
//! * What was sent is kept until the other end's own acknowledgement: what the kernel acknowledged may never have been read. So streams
//!   may come, go and break at any time; no byte is lost, none comes twice, and the link goes on while one stream lives.
//! * Memory is bounded by [`Limits`] at both ends, whatever the peer sends.
//! * Where the loss of its only stream is the loss of the link, bytes need not be kept: they [pass](Stripe::transmit_passing) from source to
//!   stream, and from stream to reader, without a copy. Until the other end has them [none may be lost](Stripe::can_lose_one).

pub mod count;
mod figures;
mod limits;
mod out;
mod receiver;
mod sender;
mod store;
mod wire;

use receiver::Receiver;
use sender::Sender;
use wire::{HEADER, Header, LANES};

pub use limits::{Limits, MOST_STREAMS};

use crate::contract::{Adapter, AddError, Broken, Lane};

/// The most streams, those that are about to go included.
pub const MOST_LANES: usize = 2 * MOST_STREAMS as usize;

/// How many bytes more than it was asked for the source of [`Stripe::transmit_passing`] may add: its frames go whole.
pub const SLACK: usize = 64 << 10;

/// One end of a link over several streams.
#[derive(Debug)]
pub struct Stripe {
    sender: Sender,
    receiver: Receiver,
    lanes: usize,
}

impl Stripe {
    /// An end of a new link, without a stream.
    pub fn new(limits: Limits) -> Self {
        Self { sender: Sender::new(&limits), receiver: Receiver::new(&limits), lanes: 0 }
    }

    /// A stream gets no more to carry, at both ends. When it [is over](Self::is_over) it can be closed, and nothing sent on it is lost.
    pub fn retire(&mut self, lane: Lane) {
        self.sender.retire(lane);
    }

    /// Whether a stream was retired, and carries nothing any more either way; or there is none of that number.
    pub fn is_over(&self, lane: Lane) -> bool {
        self.sender.is_over(lane) && self.receiver.is_over(lane)
    }

    /// Whether a stream was retired, by either end.
    pub fn is_retired(&self, lane: Lane) -> bool {
        self.sender.is_retired(lane)
    }

    /// Whether no byte is lost with a stream, as long as there is another one: nothing that [passed](Self::transmit_passing) is on its way.
    pub fn can_lose_one(&self) -> bool {
        self.sender.keeps_all()
    }

    /// How many streams there are.
    pub fn lanes(&self) -> usize {
        self.lanes
    }

    /// Whether bytes can go by the only stream without being kept, with [`Self::transmit_passing`]: then nothing should be written.
    pub fn is_passing(&self, lane: Lane) -> bool {
        self.sender.passable(lane) > SLACK as u64
    }

    /// As [`Adapter::transmit`]; where a stream is the only one and nothing waits, bytes of the link go from `source` to `out` at once, and
    /// are not kept. If that stream is lost, the link is: the driver ends it. `source` adds up to the given number of bytes, and at most
    /// [`SLACK`] more.
    pub fn transmit_passing(
        &mut self,
        now: u64,
        lane: Lane,
        room: usize,
        out: &mut Vec<u8>,
        source: &mut dyn FnMut(&mut Vec<u8>, usize),
    ) {
        let most = usize::try_from(self.sender.passable(lane)).unwrap_or(0).saturating_sub(SLACK);
        let room_for = most.min(room.saturating_sub(HEADER));
        if room_for == 0 {
            return self.transmit(now, lane, room, out);
        }
        let (begin, end) = (out.len(), out.len().saturating_add(room));
        out.extend_from_slice(&[0; HEADER]);
        source(out, room_for);
        let count = out.len() - begin - HEADER;
        if count == 0 {
            out.truncate(begin);
            self.sender.starve(lane);
        } else if let Some(header) = out.get_mut(begin..begin + HEADER) {
            header.copy_from_slice(&self.sender.pass(now, lane, count as u64).bytes(lane));
        }
        self.receiver.transmit((now, count > 0), lane, end, out);
    }

    /// As [`Adapter::receive`] of all bytes. Those that are the next to be read, while none are kept, are given to `pass` first: it reads all of
    /// them, and says so, or none.
    pub fn receive_passing(
        &mut self,
        now: u64,
        lane: Lane,
        bytes: &[u8],
        pass: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<(), Broken> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (count, header) = self.receiver.handle(now, lane, rest, pass)?;
            match header {
                Some(Header::Credit { position, window }) => self.sender.handle_credit(position, window)?,
                Some(Header::Got { lane, count }) => self.sender.handle_got(now, lane, count)?,
                Some(Header::Retire) => self.sender.retire(lane),
                Some(Header::Data { .. } | Header::End { .. }) | None => {}
            }
            rest = rest.get(count..).unwrap_or_default();
        }
        Ok(())
    }

    /// Bytes a second that the streams have been seen to carry, together.
    pub fn rate(&self) -> u64 {
        self.sender.rate()
    }
}

impl Adapter for Stripe {
    /// Both ends give it a number that none had before.
    fn add(&mut self, now: u64, lane: Lane) -> Result<(), AddError> {
        if self.receiver.has(lane) {
            return Err(AddError::Twice(lane));
        }
        if self.lanes >= MOST_LANES {
            return Err(AddError::Many);
        }
        if lane.0 >= LANES {
            return Err(AddError::Number(lane));
        }
        self.sender.add(now, lane);
        self.receiver.add(lane);
        self.lanes += 1;
        Ok(())
    }

    /// What the other end does not have of it goes by others at once.
    fn remove(&mut self, lane: Lane) {
        if self.receiver.has(lane) {
            self.sender.remove(lane);
            self.receiver.remove(lane);
            self.lanes -= 1;
        }
    }

    fn is_flushed(&self) -> bool {
        self.sender.is_flushed()
    }

    fn room(&self) -> usize {
        self.sender.room()
    }

    fn write(&mut self, bytes: &[u8]) -> usize {
        self.sender.write(bytes)
    }

    fn finish(&mut self) {
        self.sender.finish();
    }

    fn transmit(&mut self, now: u64, lane: Lane, room: usize, out: &mut Vec<u8>) {
        let end = out.len().saturating_add(room);
        loop {
            // Between two pieces only: in the middle of one a header would be taken for bytes.
            if self.sender.is_between(lane) {
                self.receiver.transmit((now, self.sender.has_more()), lane, end, out);
            }
            if !self.sender.transmit(now, lane, end, out) {
                return;
            }
        }
    }

    fn receive(&mut self, now: u64, lane: Lane, bytes: &[u8]) -> Result<usize, Broken> {
        self.receive_passing(now, lane, bytes, &mut |_| false)?;
        Ok(bytes.len())
    }

    fn front(&self) -> &[u8] {
        self.receiver.front()
    }

    fn consume(&mut self, count: usize) {
        self.receiver.consume(count);
    }

    fn is_at_end(&self) -> bool {
        self.receiver.is_at_end()
    }

    fn deadline(&self) -> u64 {
        self.sender.deadline().min(self.receiver.deadline())
    }

    fn handle_time(&mut self, now: u64) {
        self.sender.handle_time(now);
        self.receiver.handle_time(now);
    }

    fn held(&self) -> usize {
        self.sender.held() + self.receiver.held()
    }
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
