//! What waits to be sent to a node: frames in order, and bulk that is cut into chunks between them.

use std::collections::VecDeque;

use madrigal_netaccess::message::Sent;

use super::state::{Route, State};
use super::{Core, PortSlot};
use crate::endpoint::wire::{Head, What};
use crate::memory::{GATHER, Pieces, lend, slices};
use crate::slab::Key;

/// Bytes of bulk sent in one frame, so that a small message waits for no more than that.
const CHUNK: usize = 256 << 10;
/// Frames sent before it is the turn of a chunk.
const BURST: u32 = 16;
/// Frames that may wait for one node before no more are taken from callers, ...
const MOST_QUEUED: usize = 4096;
/// ... and bytes of our own memory.
const MOST_HELD: usize = 64 << 20;
/// What may be held for a node that asks and takes no answers: more than comes of all that may be under way at once, ours and its.
const MOST_OWED: usize = 128 << 20;

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
    /// It is in the list of nodes to be looked at.
    pub(crate) attended: bool,
}

/// A frame to be sent.
pub(crate) struct Item {
    head: Head,
    body: Body,
    /// The operation that is told when everything was taken.
    then: Option<Key>,
}

enum Body {
    Owned(Vec<u8>),
    Lent(Pieces),
}

/// Bytes a peer asked for.
pub(crate) struct Stream {
    /// Our operation, told when everything was taken.
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

    /// A frame whose body lies in pieces, at most [`GATHER`] of them.
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
    fn len(&self) -> usize {
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

    /// The rest of a frame of which a port took `skip` bytes; nothing waits before it.
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

    /// Bytes of a region must not be looked at any more. What a port took part of is finished from a copy. The peers' operations.
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

    fn next(&mut self) -> Option<(Item, usize)> {
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

impl Core {
    /// Sends to a node what waits for it, as much as its port takes. True: nothing is left to do.
    pub(crate) fn flush(&mut self, node: u32) -> bool {
        let to = &self.state.nodes[node as usize];
        if (to.route == Route::None || to.sought) && !to.out.is_clear() {
            self.reach_out(node);
        }
        loop {
            let to = &mut self.state.nodes[node as usize];
            let (port, link) = match to.route {
                Route::Up { port, link } => (port, link),
                Route::Linking { .. } => return true,
                Route::None | Route::Down => return to.out.is_clear(),
            };
            let Some((item, skip)) = to.out.next() else { return true };
            match send_item(&mut self.ports[port], link, &item, skip) {
                Ok(Sent::All) => {
                    to.counters().sent(item.len());
                    if let Some(op) = item.then {
                        self.state.was_sent(op);
                    }
                }
                Ok(Sent::Part(more)) => {
                    to.out.current = Some((item, skip + more));
                    return false;
                }
                Err(why) => {
                    self.state.fail(node, why);
                    return true;
                }
            }
        }
    }

    /// Something is to be sent to a node that nobody has a way to.
    #[cold]
    fn reach_out(&mut self, node: u32) {
        let to = &mut self.state.nodes[node as usize];
        if core::mem::take(&mut to.sought) {
            // It was only looked for. Who sends has the whole time.
            if let (Route::Linking { port, .. }, Some(address)) = (to.route, &to.address) {
                let _ = self.ports[port].port.link(address);
            }
            return;
        }
        if let Err(why) = self.link(node) {
            self.state.fail(node, why);
        }
    }

    /// Sends what waits, to every node.
    pub(crate) fn flush_all(&mut self) -> usize {
        let (mut at, mut done) = (0, 0);
        while at < self.state.pending.len() {
            let node = self.state.pending[at];
            let before = self.state.nodes[node as usize].out.len();
            let clear = self.flush(node);
            done += before.saturating_sub(self.state.nodes[node as usize].out.len());
            if clear {
                self.state.pending.swap_remove(at);
                self.state.nodes[node as usize].out.attended = false;
            } else {
                at += 1;
            }
        }
        done
    }
}

fn send_item(
    slot: &mut PortSlot,
    link: madrigal_netaccess::message::Link,
    item: &Item,
    skip: usize,
) -> Result<Sent, madrigal_netaccess::message::LinkError> {
    let owned;
    let parts = match &item.body {
        Body::Lent(pieces) => pieces.all(),
        Body::Owned(bytes) if bytes.is_empty() => &[],
        Body::Owned(bytes) => {
            owned = [lend(bytes)];
            &owned
        }
    };
    let (slices, count) = slices(parts);
    slot.port.send(link, item.head.bytes(), &slices[..count], skip)
}

impl State {
    /// Queues an answer to what a peer asked for, as long as it takes them.
    pub(crate) fn answer(&mut self, node: u32, head: Head, body: Vec<u8>) {
        self.queue(node, head, body);
        self.check_owed(node);
    }

    /// The same of bytes.
    pub(crate) fn answer_by(&mut self, node: u32, stream: Stream) {
        self.nodes[node as usize].out.streams.push_back(stream);
        self.attend(node);
        self.check_owed(node);
    }

    fn check_owed(&mut self, node: u32) {
        if self.nodes[node as usize].out.held() > MOST_OWED {
            self.corrupt(node, "it asks for more and more, and takes no answers");
        }
    }

    /// Every byte of an operation was taken by a port.
    pub(crate) fn was_sent(&mut self, key: Key) {
        let Some(op) = self.ops.get(key) else { return };
        op.reading = false;
        if op.over {
            self.end(key, None);
        }
    }
}
