//! One stream of a multiplexed connection: what waits to be sent and to be read, and the credits for both.

use std::collections::VecDeque;

use super::wire::Class;

/// How a direction ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// Not yet.
    Open,
    /// When everything before it has gone.
    Wanted,
    /// It has.
    Done,
}

/// A stream, as one end sees it.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) class: Class,
    /// Waits to be sent.
    pub(super) out: VecDeque<u8>,
    /// How much of it the peer has room for.
    pub(super) credit: u64,
    pub(super) out_end: End,
    /// A write was not taken whole: an event reports when there is room.
    pub(super) write_waits: bool,
    /// It stands in the list of those that can send.
    pub(super) listed: bool,
    /// Waits to be read.
    pub(super) inbox: VecDeque<u8>,
    pub(super) in_end: End,
    /// Whoever reads it has seen the end.
    pub(super) end_seen: bool,
    /// How much the peer may still send.
    pub(super) granted: u64,
    /// How much may be granted and unread together.
    pub(super) window: u64,
    /// It stands in the list of those that have credit to give.
    pub(super) gives: bool,
    /// Bytes of its quantum that it has used.
    pub(super) used: usize,
    /// Bytes read since this time.
    read: u64,
    since: u64,
}

impl Stream {
    pub(super) fn new(class: Class, window: u64, now: u64) -> Self {
        Self {
            class,
            out: VecDeque::new(),
            credit: window,
            out_end: End::Open,
            write_waits: false,
            listed: false,
            inbox: VecDeque::new(),
            in_end: End::Open,
            end_seen: false,
            granted: window,
            window,
            gives: false,
            used: 0,
            read: 0,
            since: now,
        }
    }

    /// Whether there is something that may be sent now.
    pub(super) fn can_send(&self) -> bool {
        (!self.out.is_empty() && self.credit > 0) || (self.out.is_empty() && self.out_end == End::Wanted)
    }

    /// What could be granted: the window less what is granted and what is unread.
    pub(super) fn to_give(&self) -> u64 {
        if self.in_end == End::Open { self.window.saturating_sub(self.granted + self.inbox.len() as u64) } else { 0 }
    }

    /// Whether it is worth a frame: half of the window, so that small reads make few frames.
    pub(super) fn should_give(&self) -> bool {
        self.to_give() >= (self.window / 2).max(1)
    }

    /// Counts `taken` bytes as read at `now`. When a whole window has been read since the last result: how long that took.
    pub(super) fn pace(&mut self, now: u64, taken: u64) -> Option<u64> {
        self.read += taken;
        if self.read < self.window {
            return None;
        }
        self.read = 0;
        let took = now.saturating_sub(std::mem::replace(&mut self.since, now));
        (self.in_end == End::Open).then_some(took)
    }

    /// Whether both directions are over, and known to be.
    pub(super) fn is_over(&self) -> bool {
        self.out_end == End::Done && self.end_seen
    }

    /// Takes up to `buffer.len()` bytes of what waits to be read.
    pub(super) fn take(&mut self, buffer: &mut [u8]) -> usize {
        let mut taken = 0;
        while let Some(room) = buffer.get_mut(taken..).filter(|room| !room.is_empty()) {
            let (front, _) = self.inbox.as_slices();
            let count = front.len().min(room.len());
            if count == 0 {
                break;
            }
            room[..count].copy_from_slice(&front[..count]);
            self.inbox.drain(..count);
            taken += count;
        }
        taken
    }
}
