//! A Circuit: opened, joined, and messages that are packed and unpacked by several threads.

use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use madrigal::circuit::{CircuitError, Group, Packed, Unpacked};
use madrigal::workers::Reached;
use madrigal::{Circuit as Api, Endpoint, time};
use madrigal_base::node::NodeAddress;
use madrigal_sys::piece::Piece;

use crate::codes::*;
use crate::failure::Failure;
use crate::runtime::{Runtime, deadline};
use crate::slot::{lock, lock_or_busy};

/// A flush checks so often whether the Circuit was closed, in nanoseconds.
const CLOSED_CHECK_NS: u64 = 50_000_000;
/// Polls between two reads of the clock, and between two checks for lost nodes. A poll in vain may end in a sleep of some milliseconds.
const CLOCK_POLLS: u32 = 8;
const LOST_POLLS: u32 = 64;

/// A place in a group that is joined, or will be.
pub(crate) struct Circuit {
    pub(crate) runtime: Arc<Runtime>,
    /// Whether each message begins with its tag.
    pub(crate) has_tags: bool,
    pub(crate) address: NodeAddress,
    /// Until the group is joined.
    endpoint: Mutex<Option<Endpoint>>,
    group: OnceLock<Group>,
    /// The group's addresses, by rank.
    nodes: OnceLock<Vec<NodeAddress>>,
    /// Messages without a waiting receiver, in the order they came.
    backlog: Mutex<VecDeque<Message>>,
    closed: AtomicBool,
}

/// A node, and how it is reached, if it is known.
pub(crate) struct Known {
    pub(crate) address: NodeAddress,
    pub(crate) reached: Option<Reached>,
}

/// A message that came, and its tag.
pub(crate) struct Message {
    tag: u64,
    unpacked: Unpacked,
}

/// A message that is being packed.
pub(crate) struct Packing {
    pub(crate) circuit: Arc<Circuit>,
    to: usize,
    /// `None` once it has ended.
    packed: Mutex<Option<Packed>>,
}

/// A message that is being unpacked, by one thread at a time. `None` once it has ended.
pub(crate) struct Unpacking {
    pub(crate) circuit: Arc<Circuit>,
    pub(crate) from: usize,
    pub(crate) tag: u64,
    message: Mutex<Option<Message>>,
}

/// When the bytes of a piece may change.
#[derive(Clone, Copy)]
pub(crate) enum Promise {
    Safer,
    Later,
    Cheaper,
}

/// Which message is wanted.
pub(crate) struct Wanted {
    /// `None`: of any node.
    pub(crate) from: Option<usize>,
    pub(crate) tag: u64,
    /// Bits of it that do not count.
    pub(crate) ignore: u64,
}

impl Circuit {
    pub(crate) fn open(runtime: &Arc<Runtime>, has_tags: bool) -> Result<Arc<Self>, Failure> {
        let endpoint = Api::endpoint(&runtime.worker()?)
            .map_err(|error| Failure::new(MDG_EUNUSABLE, format!("cannot open a Circuit: {error}")))?;
        Ok(Arc::new(Self {
            runtime: Arc::clone(runtime),
            has_tags,
            address: endpoint.address(),
            endpoint: Mutex::new(Some(endpoint)),
            group: OnceLock::new(),
            nodes: OnceLock::new(),
            backlog: Mutex::default(),
            closed: AtomicBool::new(false),
        }))
    }

    /// Joins a group; our place in it.
    pub(crate) fn join(&self, nodes: &[NodeAddress]) -> Result<usize, Failure> {
        let mut endpoint = lock(&self.endpoint);
        let is_me = |node: &NodeAddress| (node.id, node.channel) == (self.address.id, self.address.channel);
        if !nodes.iter().any(is_me) {
            return Err(Failure::new(MDG_ERANK, "this Circuit's own address is not in the group"));
        }
        let joining =
            endpoint.take().ok_or_else(|| Failure::new(MDG_EBUSY, "the Circuit has joined a group before"))?;
        let group = Group::join(joining, nodes).map_err(Failure::from)?;
        let rank = group.rank();
        // The endpoint was there, so no group was set.
        let _ = (self.nodes.set(nodes.to_vec()), self.group.set(group));
        Ok(rank)
    }

    /// The group, once it is joined.
    fn group(&self) -> Result<&Group, Failure> {
        self.group.get().ok_or_else(|| Failure::new(MDG_EBUSY, "the Circuit has not joined a group yet"))
    }

    /// The nodes of the group, by rank, and what is known of each.
    pub(crate) fn nodes(&self) -> Vec<Known> {
        let reached = self.group.get().map(|group| group.worker().reached()).unwrap_or_default();
        let known = |address: &NodeAddress| {
            let reached = reached.iter().find(|reached| reached.node == address.id).cloned();
            Known { address: address.clone(), reached }
        };
        self.nodes.get().map(|nodes| nodes.iter().map(known).collect()).unwrap_or_default()
    }

    /// The threads that wait for a message return.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Waits until everything that was sent has left.
    pub(crate) fn flush(&self, timeout_ns: i64) -> Result<(), Failure> {
        let (group, deadline) = (self.group()?, deadline(timeout_ns));
        loop {
            let next_check = time::now_ns().saturating_add(CLOSED_CHECK_NS);
            if group.worker().flush(Some(deadline.map_or(next_check, |at| at.min(next_check)))) {
                return Ok(());
            }
            if self.is_closed() {
                return Err(closed());
            }
            if deadline.is_some_and(|at| time::now_ns() >= at) {
                return Err(Failure::new(MDG_ETIMEDOUT, "not everything that was sent has left in time"));
            }
        }
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire) || self.runtime.is_shut()
    }

    /// Waits for a message; `None`: none came in time.
    pub(crate) fn receive(&self, wanted: &Wanted, timeout_ns: i64) -> Result<Option<Message>, Failure> {
        let group = self.group()?;
        if wanted.from.is_some_and(|rank| rank >= group.size()) {
            return Err(Failure::from(CircuitError::NoSuchNode));
        }
        let deadline = deadline(timeout_ns);
        let mut polls = 0u32;
        loop {
            if let Some(message) = self.next(group, wanted)? {
                return Ok(Some(message));
            }
            if timeout_ns == 0 {
                return Ok(None);
            }
            let has_changed = group.worker().idle();
            polls = polls.wrapping_add(1);
            if has_changed || polls.is_multiple_of(LOST_POLLS) {
                self.give_up_if_in_vain(group, wanted)?;
            }
            if polls.is_multiple_of(CLOCK_POLLS) && deadline.is_some_and(|at| time::now_ns() >= at) {
                return Ok(None);
            }
        }
    }

    /// The first message here that is wanted.
    fn next(&self, group: &Group, wanted: &Wanted) -> Result<Option<Message>, Failure> {
        let mut backlog = lock(&self.backlog);
        if let Some(at) = backlog.iter().position(|message| wanted.fits(message)) {
            return Ok(backlog.remove(at));
        }
        while let Some(mut unpacked) = group.try_receive()? {
            let tag = if self.has_tags { unpacked.number() } else { 0 };
            let message = Message { tag, unpacked };
            if wanted.fits(&message) {
                return Ok(Some(message));
            }
            backlog.push_back(message);
        }
        Ok(None)
    }

    /// An error if no such message can come any more.
    #[cold]
    fn give_up_if_in_vain(&self, group: &Group, wanted: &Wanted) -> Result<(), Failure> {
        if self.is_closed() {
            return Err(closed());
        }
        let lost = match wanted.from {
            Some(rank) => group.lost(rank),
            // From any node: only if no other node is left.
            None => {
                let mut others = (0..group.size()).filter(|rank| *rank != group.rank());
                let lost: Option<Vec<_>> = others.by_ref().map(|rank| group.lost(rank)).collect();
                lost.and_then(|lost| lost.into_iter().next())
            }
        };
        lost.map_or(Ok(()), |lost| Err(Failure::from(lost)))
    }
}

impl Wanted {
    fn fits(&self, message: &Message) -> bool {
        self.from.is_none_or(|from| from == message.unpacked.from()) && (self.tag ^ message.tag) & !self.ignore == 0
    }
}

impl Packing {
    pub(crate) fn begin(circuit: Arc<Circuit>, to: usize, tag: u64) -> Result<Self, Failure> {
        if to >= circuit.group()?.size() {
            return Err(Failure::from(CircuitError::NoSuchNode));
        }
        if tag != 0 && !circuit.has_tags {
            return Err(Failure::new(MDG_EINVAL, "the Circuit was opened without MDG_TAGS, so tags are 0"));
        }
        let mut packed = Packed::default();
        if circuit.has_tags {
            packed.copy(&tag.to_le_bytes());
        }
        Ok(Self { circuit, to, packed: Mutex::new(Some(packed)) })
    }

    pub(crate) fn pack(&self, piece: Piece, promise: Promise) -> Result<(), Failure> {
        let mut packed = lock(&self.packed);
        let packed = packed.as_mut().ok_or_else(ended)?;
        match promise {
            Promise::Safer => packed.copy(piece.bytes()),
            Promise::Later | Promise::Cheaper => packed.lend(piece),
        }
        Ok(())
    }

    /// Sends the message.
    pub(crate) fn end(&self) -> Result<(), Failure> {
        let packed = lock(&self.packed).take().ok_or_else(ended)?;
        Ok(self.circuit.group()?.send(self.to, packed)?)
    }
}

impl Unpacking {
    pub(crate) fn new(circuit: Arc<Circuit>, message: Message) -> Self {
        let (from, tag) = (message.unpacked.from(), message.tag);
        Self { circuit, from, tag, message: Mutex::new(Some(message)) }
    }

    pub(crate) fn unpack(&self, piece: Piece, express: bool) -> Result<(), Failure> {
        let mut message = lock_or_busy(&self.message, "this message")?;
        let message = message.as_mut().ok_or_else(ended)?;
        Ok(message.unpacked.unpack(self.circuit.group()?, piece, express)?)
    }

    /// What is left of it, for the thread that ends it or throws it away: memory that was lent to it is free with that. An error if
    /// another thread is unpacking.
    pub(crate) fn rest(&self) -> Result<MutexGuard<'_, Option<Message>>, Failure> {
        lock_or_busy(&self.message, "this message")
    }

    /// Waits until all of it is there.
    pub(crate) fn end(&self, rest: &mut Option<Message>) -> Result<(), Failure> {
        let message = rest.take().ok_or_else(ended)?;
        Ok(message.unpacked.end(self.circuit.group()?)?)
    }
}

#[cold]
fn closed() -> Failure {
    Failure::new(MDG_ECLOSED, "the Circuit is closed")
}

#[cold]
fn ended() -> Failure {
    Failure::new(MDG_EHANDLE, "the message has ended")
}
