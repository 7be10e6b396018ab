//! What one stream of a stripe was given to carry, how much of it the other end has, and what follows of its speed.

use std::collections::VecDeque;

use super::figures::{Figures, MILLISECOND, SECOND, ratio};
use crate::contract::Broken;
use crate::ranges::Ranges;

/// A rate is measured over so long at least.
const INTERVAL: u64 = 50 * MILLISECOND;
/// A stream without any acknowledgement for three of its time-outs is stalled: these bound that, and this is it where nothing is known.
const STALLED: (u64, u64) = (600 * MILLISECOND, 10 * SECOND);
const STALLED_NEW: u64 = 3 * SECOND;
/// The shortest time-out.
const TIME_OUT: u64 = 200 * MILLISECOND;

/// A piece that a stream carries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    /// Where it lies in the link.
    pub(super) from: u64,
    pub(super) to: u64,
    /// How many bytes were to be carried with it.
    until: u64,
    /// When its last byte was sent; until then, when it was begun.
    at: u64,
    /// Another stream carries it, too; or none can, for its bytes are not kept.
    pub(super) again: bool,
}

/// A stream, as the sender has it.
#[derive(Debug)]
pub(super) struct Out {
    pieces: VecDeque<Piece>,
    /// How many bytes were to be carried, were sent, and came.
    assigned: u64,
    sent: u64,
    acked: u64,
    pub(super) figures: Figures,
    /// When so many bytes had come: since then the rate is measured.
    meter: Option<(u64, u64)>,
    /// There was not enough to carry when so many had been sent.
    limited: u64,
    /// When an acknowledgement came, or there was something to be acknowledged.
    progress: u64,
    pub(super) stalled: bool,
    /// It was left without work, for a faster one.
    pub(super) waits: bool,
    /// It gets no more; and whether that was sent to the other end.
    pub(super) retired: bool,
    pub(super) reported: bool,
}

impl Out {
    pub(super) fn new(now: u64) -> Self {
        Self {
            pieces: VecDeque::new(),
            assigned: 0,
            sent: 0,
            acked: 0,
            figures: Figures::default(),
            meter: None,
            limited: 0,
            progress: now,
            stalled: false,
            waits: false,
            retired: false,
            reported: false,
        }
    }

    /// Pieces that are not acknowledged whole.
    pub(super) fn pieces(&self) -> &VecDeque<Piece> {
        &self.pieces
    }

    pub(super) fn pieces_mut(&mut self) -> impl Iterator<Item = &mut Piece> {
        self.pieces.iter_mut()
    }

    /// Bytes that are not acknowledged.
    pub(super) fn unacked(&self) -> u64 {
        self.assigned - self.acked
    }

    /// It carries this.
    pub(super) fn assign(&mut self, now: u64, from: u64, to: u64) {
        if self.pieces.is_empty() {
            (self.progress, self.meter) = (now, None);
        }
        self.assigned += to - from;
        self.pieces.push_back(Piece { from, to, until: self.assigned, at: now, again: false });
    }

    /// The unsent bytes of the piece that was begun last.
    pub(super) fn unsent(&self) -> Option<(u64, u64)> {
        let last = self.pieces.back().filter(|_| self.sent < self.assigned)?;
        Some((last.to - (self.assigned - self.sent), last.to))
    }

    /// So many bytes were sent.
    pub(super) fn sent(&mut self, now: u64, count: u64) {
        self.sent += count;
        if let Some(last) = self.pieces.back_mut().filter(|_| self.sent == self.assigned) {
            last.at = now;
        }
    }

    /// It could carry more than there is.
    pub(super) fn starve(&mut self) {
        self.limited = self.sent;
    }

    /// The other end has so many bytes of it.
    pub(super) fn ack(&mut self, now: u64, count: u64, done: &mut Ranges) -> Result<(), Broken> {
        if count > self.sent {
            return Err(Broken::Unsent { got: count, sent: self.sent });
        }
        if count <= self.acked {
            // It went by another stream, and came later than another one.
            return Ok(());
        }
        (self.acked, self.progress, self.stalled) = (count, now, false);
        let (mut whole, oldest) = (None, self.pieces.front().map_or(now, |piece| piece.at));
        while let Some(piece) = self.pieces.front().filter(|piece| piece.until <= count).copied() {
            done.insert(piece.from, piece.to);
            whole = Some(piece);
            self.pieces.pop_front();
        }
        if let Some(piece) = self.pieces.front() {
            done.insert(piece.from, piece.to.saturating_sub(piece.until - count));
        }
        if let Some(piece) = whole {
            self.figures.saw_trip(now.saturating_sub(piece.at));
        }
        self.measure(now, oldest);
        Ok(())
    }

    /// What follows for the rate of an acknowledgement; the oldest piece was sent then.
    fn measure(&mut self, now: u64, oldest: u64) {
        let Some((since, before)) = self.meter else {
            if self.figures.rate == 0 {
                // It is no slower than this.
                let took = now.saturating_sub(oldest).max(MILLISECOND);
                self.figures.saw_rate(ratio(self.acked, SECOND, took), true);
            }
            // What is on its way behind these bytes comes at the stream's own pace.
            self.meter = (!self.pieces.is_empty()).then_some((now, self.acked));
            return;
        };
        let took = now.saturating_sub(since);
        if took >= INTERVAL {
            self.figures.saw_rate(ratio(self.acked - before, SECOND, took), before < self.limited);
            self.meter = Some((now, self.acked));
        }
        if self.pieces.is_empty() {
            self.meter = None;
        }
    }

    /// When it will be stalled, if nothing is acknowledged until then.
    pub(super) fn stalls_at(&self) -> Option<u64> {
        let waits = !self.pieces.is_empty() && !self.stalled;
        let time_out = (self.figures.trip + 4 * self.figures.deviation).max(TIME_OUT);
        let patience = if self.figures.trip == 0 { STALLED_NEW } else { (3 * time_out).clamp(STALLED.0, STALLED.1) };
        waits.then(|| self.progress.saturating_add(patience))
    }

    /// When a piece of it should have been acknowledged; where nothing is known, that the fastest one would have brought it.
    pub(super) fn overdue_at(&self, piece: &Piece, fastest: u64) -> u64 {
        piece.at.saturating_add(if self.figures.are_known() { self.figures.overdue() } else { fastest })
    }

    /// When a piece of it will be acknowledged, as far as can be known.
    fn arrival(&self, now: u64, piece: &Piece) -> u64 {
        let by_trip = piece.at.saturating_add(self.figures.trip);
        by_trip.max(now.saturating_add(self.figures.takes(piece.until.saturating_sub(self.acked))))
    }

    /// Whether another stream, the fastest, should carry a piece of it, too: it should have come, or will not soon.
    pub(super) fn is_late(&self, now: u64, piece: &Piece, fastest: &Figures) -> bool {
        let soon = now.saturating_add(2 * fastest.trip);
        let known = self.figures.are_known();
        self.overdue_at(piece, fastest.trip) <= now || (known && self.arrival(now, piece) > soon)
    }

    /// Whether everything was sent, and came.
    pub(super) fn is_idle(&self) -> bool {
        self.pieces.is_empty()
    }
}
