//! The receiving half: bytes that come by many streams, in any order, into one; and the acknowledgements sent for them.

use std::collections::{BTreeMap, VecDeque};

use super::Limits;
use super::figures::MILLISECOND;
use super::sender::FIRST_CREDIT;
use super::store::Store;
use super::wire::{HEADER, Header};
use crate::contract::{Broken, Lane};
use crate::ranges::Ranges;

/// What came is acknowledged after this time; so many bytes after a shorter one. On a fast link an acknowledgement for each of that many would
/// cost a seventh of what it carries.
const ACK_TIME: u64 = 10 * MILLISECOND;
const ACK_BYTES: u64 = 64 << 10;
const ACK_TIME_OF_MANY: u64 = MILLISECOND;
/// More holes than a sender makes, whose unacknowledged pieces are at most 2,048 and a few for each stream.
pub(super) const MOST_HOLES: usize = 4096;
/// How many of the streams that are gone are still reported.
const MOST_GONE: usize = 32;

#[derive(Debug)]
pub(super) struct Receiver {
    window: u64,
    store: Store,
    /// What came; the end counts as one byte.
    came: Ranges,
    /// What was read.
    taken: u64,
    /// Where the link ends, and behind which byte that came.
    end: Option<u64>,
    highest: u64,
    /// How far the other end may send, as it was granted.
    granted: u64,
    lanes: BTreeMap<Lane, In>,
    /// What came by streams that are gone.
    gone: VecDeque<(Lane, u64)>,
    handled: u64,
}

/// A stream, as the receiver has it.
#[derive(Debug, Default)]
struct In {
    /// A header, as far as it came.
    header: [u8; HEADER],
    filled: usize,
    /// The bytes of a piece that have not come.
    from: u64,
    to: u64,
    /// How many bytes came, how many of them were acknowledged by this stream, and since when there are others.
    got: u64,
    acked: u64,
    since: Option<u64>,
    /// The last credit sent by this stream.
    credit: u64,
    retired: bool,
}

impl In {
    /// When an acknowledgement is due, if there is something to acknowledge.
    fn due_at(&self) -> Option<u64> {
        let time = if self.got - self.acked >= ACK_BYTES { ACK_TIME_OF_MANY } else { ACK_TIME };
        Some(self.since?.saturating_add(time))
    }
}

impl Receiver {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            window: (limits.window as u64).clamp(FIRST_CREDIT, u32::MAX.into()),
            store: Store::default(),
            came: Ranges::default(),
            taken: 0,
            end: None,
            highest: 0,
            granted: FIRST_CREDIT,
            lanes: BTreeMap::new(),
            gone: VecDeque::new(),
            handled: 0,
        }
    }

    pub(super) fn add(&mut self, lane: Lane) {
        self.lanes.insert(lane, In::default());
    }

    /// A stream is gone; the other end is sent how far it came, so that it repeats no more than the rest.
    pub(super) fn remove(&mut self, lane: Lane) {
        if let Some(state) = self.lanes.remove(&lane).filter(|state| state.got > state.acked) {
            self.gone.push_back((lane, state.got));
            if self.gone.len() > MOST_GONE {
                self.gone.pop_front();
            }
        }
    }

    pub(super) fn has(&self, lane: Lane) -> bool {
        self.lanes.contains_key(&lane)
    }

    /// Whether nothing more comes by a stream, and everything was acknowledged.
    pub(super) fn is_over(&self, lane: Lane) -> bool {
        self.lanes.get(&lane).is_none_or(|state| state.retired && state.acked == state.got)
    }

    /// What can be read.
    pub(super) fn front(&self) -> &[u8] {
        self.store.read(self.taken, self.readable())
    }

    pub(super) fn consume(&mut self, count: usize) {
        self.taken += (count as u64).min(self.readable());
        self.store.drop_until(self.taken);
    }

    /// Whether everything was read, up to the end.
    pub(super) fn is_at_end(&self) -> bool {
        self.end == Some(self.taken) && self.came.floor() > self.taken
    }

    pub(super) fn held(&self) -> usize {
        self.store.held()
    }

    fn readable(&self) -> u64 {
        self.came.floor().min(self.end.unwrap_or(u64::MAX)) - self.taken
    }

    /// Takes the front of what came by a stream: how many bytes it was, and its header for the sender. Bytes that are the next to be read, of
    /// which none are kept, are shown to `pass` first: if that reads them, all of them, they are never kept.
    pub(super) fn handle(
        &mut self,
        now: u64,
        lane: Lane,
        bytes: &[u8],
        pass: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<(usize, Option<Header>), Broken> {
        let state = self.lanes.get_mut(&lane).ok_or(Broken::Lane(lane))?;
        if state.from < state.to {
            let left = usize::try_from(state.to - state.from).unwrap_or(usize::MAX);
            let (bytes, from) = (bytes.get(..left.min(bytes.len())).unwrap_or_default(), state.from);
            let count = bytes.len() as u64;
            state.from += count;
            state.got += count;
            state.since = state.since.or(Some(now));
            if from == self.taken && from == self.came.floor() && pass(bytes) {
                self.came.insert(from, from + count);
                self.consume(bytes.len());
            } else {
                self.keep(from, bytes)?;
            }
            return Ok((bytes.len(), None));
        }
        let count = (HEADER - state.filled).min(bytes.len());
        if let (Some(room), Some(more)) = (state.header.get_mut(state.filled..state.filled + count), bytes.get(..count))
        {
            room.copy_from_slice(more);
        }
        state.filled += count;
        if state.filled < HEADER {
            return Ok((count, None));
        }
        state.filled = 0;
        let header = Header::read(state.header, lane)?;
        Ok((count, self.handle_header(now, lane, header)?))
    }

    fn handle_header(&mut self, now: u64, lane: Lane, header: Header) -> Result<Option<Header>, Broken> {
        let Some(state) = self.lanes.get_mut(&lane) else { return Ok(None) };
        match header {
            Header::Data { .. } | Header::End { .. } if state.retired => {
                return Err(Broken::Retired(lane));
            }
            Header::Data { from, to } => {
                if let Some(end) = self.end.filter(|end| to > *end) {
                    return Err(Broken::End { end, at: to });
                }
                if to > self.granted {
                    return Err(Broken::Credit { to, credit: self.granted });
                }
                (state.from, state.to) = (from, to);
                self.highest = self.highest.max(to);
            }
            Header::End { at } => {
                if self.end.is_some_and(|end| end != at) || at < self.highest {
                    return Err(Broken::End { end: at, at: self.end.unwrap_or(self.highest) });
                }
                if at > self.granted {
                    return Err(Broken::Credit { to: at, credit: self.granted });
                }
                state.got += 1;
                state.since = state.since.or(Some(now));
                self.end = Some(at);
                self.came.insert(at, at + 1);
            }
            Header::Retire => {
                state.retired = true;
                return Ok(Some(header));
            }
            Header::Credit { .. } | Header::Got { .. } => return Ok(Some(header)),
        }
        Ok(None)
    }

    /// Keeps those bytes that were not here before.
    fn keep(&mut self, from: u64, bytes: &[u8]) -> Result<(), Broken> {
        let to = from + bytes.len() as u64;
        let mut at = from;
        while let Some((first, last)) = self.came.missing(at, to) {
            let range = (first - from) as usize..(last - from) as usize;
            self.store.write(first, bytes.get(range).unwrap_or_default());
            at = last;
        }
        self.came.insert(from, to);
        if self.came.holes() > MOST_HOLES { Err(Broken::Holes(MOST_HOLES)) } else { Ok(()) }
    }

    /// How far the other end may send.
    fn credit(&self) -> u64 {
        self.taken.saturating_add(self.window)
    }

    /// Adds what is due on a stream to `out`, unless that gets longer than `end`; and what is not yet, where bytes go with it.
    pub(super) fn transmit(&mut self, (now, more): (u64, bool), lane: Lane, end: usize, out: &mut Vec<u8>) {
        while let Some((lost, count)) = self.gone.front().copied().filter(|_| out.len() + HEADER <= end) {
            Header::Got { lane: lost, count }.write(lane, out);
            self.gone.pop_front();
        }
        let (position, credit, step) = (self.came.floor(), self.credit(), self.window / 4);
        // The other end waits for that before it closes.
        let is_whole = self.end.is_some_and(|end| position > end);
        let Some(state) = self.lanes.get_mut(&lane).filter(|_| out.len() + 2 * HEADER <= end) else { return };
        let due = state.due_at().is_some_and(|at| at <= now || more || is_whole);
        if due {
            Header::Got { lane, count: state.got }.write(lane, out);
            (state.acked, state.since) = (state.got, None);
        }
        // Each stream carries it: one of them may be about to fail.
        if due || credit >= state.credit + step {
            // Behind the end nothing is sent.
            let window = u32::try_from(credit.saturating_sub(position)).unwrap_or(u32::MAX);
            Header::Credit { position, window }.write(lane, out);
            state.credit = credit;
            self.granted = self.granted.max(position + u64::from(window));
        }
    }

    pub(super) fn deadline(&self) -> u64 {
        let times = self.lanes.values().filter_map(In::due_at);
        times.filter(|time| *time > self.handled).min().unwrap_or(u64::MAX)
    }

    pub(super) fn handle_time(&mut self, now: u64) {
        self.handled = self.handled.max(now);
    }
}
