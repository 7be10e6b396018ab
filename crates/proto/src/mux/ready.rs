//! The streams that have something to send, and which of them goes next: what is urgent, then data, then bulk; round robin in each class.

use std::collections::VecDeque;

use super::wire::{Class, StreamId};

/// Where there are both, one frame of so many is bulk, the others are data.
pub const BULK_SHARE: u32 = 16;

/// The streams, by their classes.
#[derive(Default)]
pub(super) struct Ready {
    queues: [VecDeque<StreamId>; 3],
    /// Frames of data that went while bulk waited, since bulk went last.
    passed: u32,
}

impl Ready {
    pub(super) fn is_empty(&self) -> bool {
        self.queues.iter().all(VecDeque::is_empty)
    }

    /// A stream stands at the end of its class's line.
    pub(super) fn push(&mut self, class: Class, id: StreamId) {
        self.queues[class as usize].push_back(id);
    }

    /// One that has not had its quantum goes on.
    pub(super) fn push_front(&mut self, class: Class, id: StreamId) {
        self.queues[class as usize].push_front(id);
    }

    /// Takes the stream that goes next.
    pub(super) fn pop(&mut self) -> Option<StreamId> {
        let [urgent, data, bulk] = &mut self.queues;
        if let Some(id) = urgent.pop_front() {
            return Some(id);
        }
        let is_bulk_next = data.is_empty() || !bulk.is_empty() && self.passed + 1 >= BULK_SHARE;
        self.passed = if is_bulk_next || bulk.is_empty() { 0 } else { self.passed + 1 };
        if is_bulk_next { bulk.pop_front() } else { data.pop_front() }
    }
}
