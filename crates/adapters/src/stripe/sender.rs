//! The sending half: one queue, from which streams take pieces as they can; what was sent is kept until the other end has it.

use std::collections::BTreeMap;

use super::Limits;
use super::figures::{self, Figures};
use super::out::{Out, Piece};
use super::store::{CHUNK, Store};
use super::wire::{HEADER, Header, LONGEST};
use crate::contract::{Broken, Lane};
use crate::ranges::{Ranges, Spans};

/// How far one may send before the other end has sent anything; every receiver has room for it.
pub(super) const FIRST_CREDIT: u64 = 256 << 10;
/// The most pieces that are not acknowledged.
const MOST_PIECES: usize = 2048;
/// What a stream without measurements may have unacknowledged, beside others.
const TRIAL: u64 = 64 << 10;
/// The least that may wait for a stream to take it.
const QUEUE: u64 = 256 << 10;
/// In place of bytes that the other end has already.
static NOTHING: [u8; CHUNK] = [0; CHUNK];

#[derive(Debug)]
pub(super) struct Sender {
    backlog: u64,
    store: Store,
    /// How many bytes were written, and whether these are all.
    total: u64,
    ended: bool,
    /// What no stream was given yet begins here. The end counts as one byte.
    next: u64,
    /// What the other end has.
    done: Ranges,
    /// What has to be given to a stream again.
    again: Spans,
    /// How far may be sent, and how much may lie behind the first hole.
    credit: u64,
    window: u64,
    /// Bytes up to here may not be kept: they [passed](Self::pass).
    passed: u64,
    /// Writes have filled the queue since it was empty: there is more where this came from.
    filled: bool,
    lanes: BTreeMap<Lane, Out>,
    handled: u64,
}

impl Sender {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            backlog: limits.backlog as u64,
            store: Store::default(),
            total: 0,
            ended: false,
            next: 0,
            done: Ranges::default(),
            again: Spans::default(),
            credit: FIRST_CREDIT,
            window: FIRST_CREDIT,
            passed: 0,
            filled: false,
            lanes: BTreeMap::new(),
            handled: 0,
        }
    }

    pub(super) fn add(&mut self, now: u64, lane: Lane) {
        self.lanes.insert(lane, Out::new(now));
    }

    /// A stream is gone: others carry what the other end has not acknowledged.
    pub(super) fn remove(&mut self, lane: Lane) {
        if let Some(out) = self.lanes.remove(&lane) {
            out.pieces().iter().filter(|piece| !piece.again).for_each(|piece| self.again.insert(piece.from, piece.to));
        }
    }

    /// Whether everything that the other end does not have is kept here.
    pub(super) fn keeps_all(&self) -> bool {
        self.done.floor() >= self.passed
    }

    /// Whether a stream gets no more.
    pub(super) fn is_retired(&self, lane: Lane) -> bool {
        self.lanes.get(&lane).is_some_and(|out| out.retired)
    }

    /// A stream gets no more.
    pub(super) fn retire(&mut self, lane: Lane) {
        if let Some(out) = self.lanes.get_mut(&lane) {
            out.retired = true;
        }
    }

    /// Whether a stream was retired, and nothing is left of what it carried.
    pub(super) fn is_over(&self, lane: Lane) -> bool {
        self.lanes.get(&lane).is_none_or(|out| out.reported && out.is_idle())
    }

    pub(super) fn room(&self) -> usize {
        if self.ended {
            return 0;
        }
        let kept = self.total - self.done.floor().min(self.total);
        let room = self.backlog.saturating_sub(kept).min(self.queue().saturating_sub(self.unsent()));
        usize::try_from(room).unwrap_or(usize::MAX)
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.room());
        self.store.write(self.total, bytes.get(..count).unwrap_or_default());
        self.total += count as u64;
        self.filled |= self.room() == 0;
        count
    }

    /// How many bytes a stream may be given that are not kept: it is the only one, and nothing is to go before them.
    pub(super) fn passable(&self, lane: Lane) -> u64 {
        let is_idle = !self.ended && self.unsent() == 0 && self.again.is_empty();
        let can = |out: &Out| !out.retired && out.unsent().is_none() && out.pieces().len() < MOST_PIECES;
        let only = self.lanes.get(&lane).filter(|_| self.lanes.len() == 1);
        if is_idle && only.is_some_and(can) { self.headroom().min(LONGEST) } else { 0 }
    }

    /// A stream was given so many bytes that are not kept, as a piece of their own. Returns its header.
    pub(super) fn pass(&mut self, now: u64, lane: Lane, count: u64) -> Header {
        let (from, to) = (self.total, self.total + count);
        (self.total, self.next, self.passed) = (to, to, to);
        if let Some(state) = self.lanes.get_mut(&lane) {
            state.assign(now, from, to);
            state.pieces_mut().filter(|piece| piece.from == from).for_each(|piece| piece.again = true);
            state.sent(now, count);
        }
        Header::Data { from, to }
    }

    /// There was nothing for a stream.
    pub(super) fn starve(&mut self, lane: Lane) {
        self.filled &= self.unsent() > 0;
        if let Some(state) = self.lanes.get_mut(&lane) {
            state.starve();
        }
    }

    pub(super) fn finish(&mut self) {
        (self.ended, self.filled) = (true, false);
    }

    /// Whether the other end has everything, the end too where there is one.
    pub(super) fn is_flushed(&self) -> bool {
        self.done.floor() >= self.total + u64::from(self.ended)
    }

    pub(super) fn held(&self) -> usize {
        self.store.held()
    }

    /// How many bytes the streams carry together, a second, as far as it is known.
    pub(super) fn rate(&self) -> u64 {
        self.lanes.values().filter(|out| !out.retired).map(|out| out.figures.rate).sum()
    }

    #[cfg(test)]
    pub(super) fn figures(&self, lane: Lane) -> Figures {
        self.lanes.get(&lane).map(|out| out.figures).unwrap_or_default()
    }

    /// The other end has everything up to a position, and room behind it.
    pub(super) fn handle_credit(&mut self, position: u64, window: u32) -> Result<(), Broken> {
        if position > self.next {
            return Err(Broken::Unsent { got: position, sent: self.next });
        }
        self.done.insert(0, position);
        self.window = self.window.max(window.into());
        // It may have been overtaken by a later one on another stream.
        self.credit = self.credit.max(position.saturating_add(window.into()));
        self.forget();
        Ok(())
    }

    /// The other end has so many bytes of a stream; which may be gone.
    pub(super) fn handle_got(&mut self, now: u64, lane: Lane, count: u64) -> Result<(), Broken> {
        if let Some(out) = self.lanes.get_mut(&lane) {
            out.ack(now, count, &mut self.done)?;
            self.forget();
        }
        Ok(())
    }

    fn forget(&mut self) {
        self.store.drop_until(self.done.floor().min(self.total));
    }

    /// Whether a stream is not in the middle of a piece.
    pub(super) fn is_between(&self, lane: Lane) -> bool {
        self.lanes.get(&lane).is_none_or(|out| out.unsent().is_none())
    }

    /// Whether there is something that no stream was given yet.
    pub(super) fn has_more(&self) -> bool {
        self.unsent() > 0
    }

    /// Adds bytes for a stream to `out`, of one piece, unless that gets longer than `end`; whether there may be more.
    pub(super) fn transmit(&mut self, now: u64, lane: Lane, end: usize, out: &mut Vec<u8>) -> bool {
        if out.len() >= end || !self.lanes.contains_key(&lane) {
            return false;
        }
        if self.go_on(now, lane, end, out) {
            return true;
        }
        if out.len() + HEADER > end {
            return false;
        }
        let Some((from, to)) = self.next_piece(now, lane) else {
            self.starve(lane);
            self.report_retired(lane, end, out);
            return false;
        };
        let header = if from == self.total { Header::End { at: from } } else { Header::Data { from, to } };
        header.write(lane, out);
        if let Some(state) = self.lanes.get_mut(&lane) {
            state.assign(now, from, to);
            if from == self.total {
                state.sent(now, 1);
            }
        }
        true
    }

    /// Sends more of the piece that a stream has begun; whether there was one.
    fn go_on(&mut self, now: u64, lane: Lane, end: usize, out: &mut Vec<u8>) -> bool {
        let Some(state) = self.lanes.get_mut(&lane) else { return false };
        let Some((from, to)) = state.unsent() else { return false };
        let most = (to - from).min(end.saturating_sub(out.len()) as u64);
        let bytes = match self.done.floor().saturating_sub(from).min(most) {
            0 => self.store.read(from, most),
            // The other end has had these by another stream, and drops them.
            had => NOTHING.get(..usize::try_from(had).unwrap_or(CHUNK).min(CHUNK)).unwrap_or_default(),
        };
        out.extend_from_slice(bytes);
        state.sent(now, bytes.len() as u64);
        true
    }

    /// Sends the other end once that a stream without work was retired.
    fn report_retired(&mut self, lane: Lane, end: usize, out: &mut Vec<u8>) {
        let Some(state) = self.lanes.get_mut(&lane) else { return };
        if state.retired && !state.reported && out.len() + HEADER <= end {
            state.reported = true;
            Header::Retire.write(lane, out);
        }
    }

    /// How much may lie between the first byte that the other end does not have and the last that was sent.
    fn span(&self) -> u64 {
        self.window.min(self.backlog)
    }

    /// How much more may be sent before the first byte that the other end does not have holds everything up.
    fn headroom(&self) -> u64 {
        self.credit.min(self.done.floor().saturating_add(self.backlog)).saturating_sub(self.next)
    }

    /// Bytes that no stream was given yet.
    fn unsent(&self) -> u64 {
        self.total - self.next.min(self.total)
    }

    /// How many may wait for that.
    fn queue(&self) -> u64 {
        self.lanes.values().map(|out| 2 * out.figures.piece(self.span())).sum::<u64>().max(QUEUE)
    }

    /// What a stream that can carry more carries next.
    fn next_piece(&mut self, now: u64, lane: Lane) -> Option<(u64, u64)> {
        let state = self.lanes.get(&lane).filter(|out| self.is_usable(out))?;
        let own = state.figures;
        let size = own.piece(self.span());
        if !own.are_known() && state.unacked() >= TRIAL && self.lanes.len() > 1 {
            return None;
        }
        let few = self.lanes.values().map(|out| out.pieces().len()).sum::<usize>() < MOST_PIECES;
        let fresh = if few { self.total.min(self.credit).saturating_sub(self.next) } else { 0 };
        let ends = self.ended && self.next == self.total;
        if self.again.is_empty() && fresh == 0 && !ends {
            return self.late_piece(now, lane);
        }
        // The window is about to be full: what keeps it so comes first. Sooner, while what is known of streams is little.
        let unsure = self.lanes.values().any(|out| !out.figures.are_known());
        let tight = own.carries(own.trip).max(if unsure { self.span() / 4 * 3 } else { 0 });
        if own.are_known()
            && self.headroom() <= tight
            && let Some(late) = self.late_piece(now, lane)
        {
            return Some(late);
        }
        let waits = self.leaves_to_others(lane);
        let state = self.lanes.get_mut(&lane)?;
        state.waits = waits;
        if waits {
            return None;
        }
        if let Some(again) = self.take_again(size) {
            return Some(again);
        }
        let count = if ends { 1 } else { fresh.min(size) };
        if count == 0 {
            return self.late_piece(now, lane);
        }
        let from = self.next;
        self.next += count;
        Some((from, from + count))
    }

    /// The first of what has to be given to a stream again, and has not come meanwhile.
    fn take_again(&mut self, size: u64) -> Option<(u64, u64)> {
        while let Some((from, to)) = self.again.take_first() {
            let Some((first, last)) = self.done.missing(from, to) else { continue };
            // The end stands alone.
            let most = if first < self.total { size.min(LONGEST).min(self.total - first) } else { 1 };
            let last = last.min(first + most);
            self.again.insert(last, to);
            return Some((first, last));
        }
        None
    }

    fn is_usable(&self, out: &Out) -> bool {
        !out.retired && (!out.stalled || self.lanes.values().all(|out| out.stalled || out.retired))
    }

    /// The other streams that can be used and are known.
    fn others(&self, lane: Lane) -> impl Iterator<Item = &Figures> {
        let usable = self.lanes.iter().filter(move |(other, out)| **other != lane && self.is_usable(out));
        usable.map(|(_, out)| &out.figures).filter(|figures| figures.are_known())
    }

    /// Whether a stream should not take a piece, because the link is sooner done without it.
    fn leaves_to_others(&self, lane: Lane) -> bool {
        let Some(state) = self.lanes.get(&lane).filter(|out| out.figures.are_known()) else { return false };
        let own = &state.figures;
        let faster = self.others(lane).filter(|other| other.trip < own.trip).map(|other| other.rate).sum();
        if figures::would_block(faster, own, self.span()) {
            return true;
        }
        if self.filled {
            return false;
        }
        let left = self.again.bytes() + self.unsent();
        let best = self.others(lane).min_by_key(|other| other.trip.saturating_add(other.takes(left)));
        best.is_some_and(|best| figures::should_wait(best, own, left, state.waits))
    }

    /// If nothing else must be sent and this is the fastest stream: the first piece that another one will not bring soon.
    fn late_piece(&mut self, now: u64, lane: Lane) -> Option<(u64, u64)> {
        let own = self.lanes.get(&lane)?.figures;
        if !own.are_known() || self.others(lane).any(|other| other.trip < own.trip) {
            return None;
        }
        let others = self.lanes.iter().filter(|(other, _)| **other != lane);
        let first = others.filter_map(|(other, out)| {
            let late = |piece: &&Piece| !piece.again && out.is_late(now, piece, &own);
            let missing = |piece: &&Piece| self.done.missing(piece.from, piece.to).is_some();
            let piece = out.pieces().iter().filter(late).filter(missing).min_by_key(|piece| piece.from)?;
            Some((piece.from, piece.to, *other))
        });
        let (from, to, other) = first.min()?;
        let out = self.lanes.get_mut(&other)?;
        out.pieces_mut().filter(|piece| piece.from == from).for_each(|piece| piece.again = true);
        self.again.insert(from, to);
        self.take_again(own.piece(self.span()))
    }

    pub(super) fn deadline(&self) -> u64 {
        let blocked = self.next >= self.total.min(self.credit);
        let known = self.lanes.values().map(|out| &out.figures).filter(|figures| figures.are_known());
        let fastest = known.map(|figures| figures.trip).min().filter(|_| blocked && self.lanes.len() > 1);
        let times = self.lanes.values().flat_map(|out| {
            let piece = out.pieces().iter().find(|piece| !piece.again);
            let overdue = fastest.and_then(|fastest| piece.map(|piece| out.overdue_at(piece, fastest)));
            [out.stalls_at(), overdue]
        });
        times.flatten().filter(|time| *time > self.handled).min().unwrap_or(u64::MAX)
    }

    /// Streams from which nothing comes: others carry what they have.
    pub(super) fn handle_time(&mut self, now: u64) {
        self.handled = self.handled.max(now);
        for out in self.lanes.values_mut().filter(|out| out.stalls_at().is_some_and(|time| time <= now)) {
            out.stalled = true;
            for piece in out.pieces_mut().filter(|piece| !piece.again) {
                piece.again = true;
                self.again.insert(piece.from, piece.to);
            }
        }
    }
}
