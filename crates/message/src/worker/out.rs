//! What waits to be sent to a node: frames in order, and bulk that is cut into chunks between them.

use std::collections::VecDeque;

use crate::endpoint::wire::{Head, What};
use crate::memory::{GATHER, Pieces};
use crate::slab::Key;

/// Bytes of bulk sent in one frame, so that a small message waits for no more than that.
const CHUNK: usize = 256 << 10;
/// Frames sent before the next chunk.
const BURST: u32 = 16;
/// Frames that may wait for one node before no more are taken from callers, ...
const MOST_QUEUED: usize = 4096;
/// ... and bytes of our own memory.
const MOST_HELD: usize = 64 << 20;
/// What waits for one node.
#[derive(Default)]
pub(crate) struct Out {
    /// The frame a port took part of, or refused last, and how much it took.
    current: Option<(Item, usize)>,
    queue: VecDeque<Item>,
    pub(crate) streams: VecDeque<Stream>,
    /// Bytes of our own memory that the queue holds.
    held: usize,
    burst: u32,
    /// It is in the list of nodes to be visited.
    pub(crate) attended: bool,
}

/// A frame to be sent.
pub(crate) struct Item {
    pub(crate) head: Head,
    pub(crate) body: Body,
    /// The operation that completes when everything was taken.
    pub(crate) then: Option<Key>,
}

pub(crate) enum Body {
    Owned(Vec<u8>),
    Lent(Pieces),
}

/// Bytes that a peer requested.
pub(crate) struct Stream {
    /// Our operation, which completes when everything was taken.
    pub(crate) op: Option<Key>,
    /// The peer's.
    pub(crate) to: u64,
    pub(crate) source: Pieces,
    pub(crate) offset: usize,
    pub(crate) end: usize,
    /// The region they come from, by space and key.
    pub(crate) region: Option<(usize, u64)>,
}

impl Item {
    pub(crate) fn owned(head: Head, body: Vec<u8>) -> Self {
        Self { head, body: Body::Owned(body), then: None }
    }

    /// The same, of an operation.
    pub(crate) fn copied(head: Head, body: Vec<u8>, then: Option<Key>) -> Self {
        Self { head, body: Body::Owned(body), then }
    }

    /// A frame whose body lies in at most [`GATHER`] pieces.
    pub(crate) fn lent(head: Head, pieces: Pieces, then: Option<Key>) -> Self {
        Self { head, body: Body::Lent(pieces), then }
    }
}

impl Item {
    /// Bytes of our own memory it holds.
    fn held(&self) -> usize {
        size_of::<Self>() + if let Body::Owned(bytes) = &self.body { bytes.len() } else { 0 }
    }

    /// Bytes of the body.
    pub(crate) fn len(&self) -> usize {
        match &self.body {
            Body::Owned(bytes) => bytes.len(),
            Body::Lent(pieces) => pieces.len(),
        }
    }
}

impl Out {
    /// Whether a frame may be sent now without overtaking another.
    #[inline]
    pub(crate) fn is_clear(&self) -> bool {
        self.current.is_none() && self.queue.is_empty() && self.streams.is_empty()
    }

    /// Adds a frame.
    pub(crate) fn push(&mut self, item: Item) {
        self.held += item.held();
        self.queue.push_back(item);
    }

    /// Bytes of our own memory that wait.
    pub(crate) fn held(&self) -> usize {
        self.held + self.streams.len() * size_of::<Stream>()
    }

    /// Whether no more is taken from callers.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.queue.len() >= MOST_QUEUED || self.held() >= MOST_HELD
    }

    /// How many frames wait.
    pub(crate) fn len(&self) -> usize {
        self.queue.len() + self.streams.len() + usize::from(self.current.is_some())
    }

    /// Puts back the rest of a frame after a port took `skip` bytes; nothing waits before it.
    pub(crate) fn resume(&mut self, item: Item, skip: usize) {
        self.current = Some((item, skip));
    }

    /// Takes out the frame of an operation, if nothing of it was sent; whether there was one.
    pub(crate) fn take_back(&mut self, key: Key) -> bool {
        let Some(at) = self.queue.iter().position(|item| item.then == Some(key)) else { return false };
        if let Some(item) = self.queue.remove(at) {
            self.held -= item.held();
        }
        true
    }

    pub(crate) fn clear(&mut self) {
        self.current = None;
        self.queue.clear();
        self.streams.clear();
        self.held = 0;
    }

    /// Bytes of a region must not be read any more. What a port took part of is finished from a copy. The peers' operations.
    pub(crate) fn withdraw(&mut self, space: usize, key: u64) -> Vec<u64> {
        if let Some((item, _)) = &mut self.current
            && let Body::Lent(pieces) = &item.body
            && item.then.is_none()
        {
            item.body = Body::Owned(crate::memory::gather(pieces.all()));
        }
        let theirs = self.streams.iter().filter(|s| s.region == Some((space, key))).map(|s| s.to).collect();
        self.streams.retain(|stream| stream.region != Some((space, key)));
        theirs
    }

    /// What must be sent next, and how much of it was.
    pub(crate) fn next(&mut self) -> Option<(Item, usize)> {
        if let Some(current) = self.current.take() {
            return Some(current);
        }
        if (self.burst < BURST || self.streams.is_empty())
            && let Some(item) = self.queue.pop_front()
        {
            self.burst += 1;
            self.held -= item.held();
            return Some((item, 0));
        }
        self.burst = 0;
        let mut stream = self.streams.pop_front()?;
        let (part, len) = stream.source.part(stream.offset, CHUNK.min(stream.end - stream.offset), GATHER);
        let head = Head::new(What::Data, 0, 0, 0).word(stream.to).word(stream.offset as u64);
        stream.offset += len;
        let last = stream.offset >= stream.end || len == 0;
        let then = stream.op.filter(|_| last);
        if !last {
            self.streams.push_back(stream);
        }
        Some((Item::lent(head, part, then), 0))
    }
}
