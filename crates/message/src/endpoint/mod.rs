//! Endpoints: messages that are matched, and memory that can be reached, among any number of peers.
//!
//! * **Messages** go from one endpoint to another and are matched there by tag, or in order if they have none; messages of one pair
//!   are matched in the order they were sent, whatever their size. A short one is sent at once, with its head, straight from the
//!   sender's buffer; a long one goes by rendezvous, and once its receive is known copied straight from buffer to buffer by a single copy,
//!   or, where that cannot be, sent in chunks that let small messages pass.
//! * **Memory** is exposed as regions with keys; peers put, get, and do atomic operations without a call of the owner (but it must make
//!   progress, unless single copies work).
//! * **Completions** are taken by [`Endpoint::poll`]. Nothing blocks.
//!
//! What no receive takes is bounded. Of every node 64 MiB are taken without a request. Then its messages go by rendezvous, however short,
//! and injecting more is refused ([`PostError::Again`]) until receives take some. Of rendezvous 16 MiB are kept, some 60,000; then those
//! are refused too. Of operations on a node's memory 16,384 may be under way. A peer that exceeds one of these limits is given up, with the
//! reason ([`LinkError::Corrupt`]), and so is one that keeps sending requests and does not read the answers.
//!
//! A peer that is gone completes every operation to and from it with [`Status::Gone`]; receives for any peer stay.

pub(crate) mod arrive;
pub mod atomic;
pub(crate) mod credit;
mod flow;
mod matched;
pub(crate) mod matching;
mod post;
pub(crate) mod refused;
pub(crate) mod regions;
pub(crate) mod remote;
mod rma;
mod stall;
pub(crate) mod state;
pub(crate) mod types;
pub(crate) mod wire;

use std::collections::VecDeque;
use std::sync::Arc;

use madrigal_base::node::NodeAddress;
use madrigal_progress::message::LinkError;
use madrigal_sys::time;

use crate::worker::state::NodeState;
use crate::worker::{OpenError, Space, Worker};
pub use stall::Stall;
use state::EndpointState;
pub use types::{
    Atomic, Claim, Completion, ExposeError, Get, Kind, PeerId, PostError, Posted, Put, Receive, Region, Seen, Send,
    Status, Wanted,
};

/// A message without its head: its bytes; or its length and a claim where it came by rendezvous.
pub(crate) type Plain = Result<Vec<u8>, (usize, Claim)>;

/// What [`Endpoint::take`] finds.
pub(crate) enum Taken {
    /// The message: its bytes, or, where it came by rendezvous, its length and a claim.
    Message(Seen, Plain),
    /// Not that one, but plain messages.
    PlainOnes,
    Nothing,
}

/// How long closing an endpoint waits for bodies that are just arriving in its buffers.
const CLOSE_NS: u64 = 2_000_000_000;

/// A channel of a worker: peers, messages, memory. May be used by several threads, one at a time inside.
pub struct Endpoint {
    worker: Arc<Worker>,
    channel: u16,
}

impl Worker {
    /// Opens an endpoint: a channel of its own, through which the regions of `space` can be reached.
    pub fn endpoint(self: &Arc<Self>, space: Space) -> Result<Endpoint, OpenError> {
        let mut core = self.core();
        let channel = core.free_channel().ok_or(OpenError::NoChannel)?;
        let endpoints = &mut core.state.endpoints;
        if endpoints.len() <= usize::from(channel) {
            endpoints.resize_with(usize::from(channel) + 1, || None);
        }
        endpoints[usize::from(channel)] = Some(Box::new(EndpointState::new(space.0 as usize)));
        drop(core);
        Ok(Endpoint::new(Arc::clone(self), channel))
    }
}

impl Endpoint {
    /// The most bytes that can be injected.
    pub const INJECT: usize = 64 << 10;
    /// The most bytes of a message.
    pub const LONGEST: usize = 1 << 40;
    /// The most bytes of the numbers of one atomic operation.
    pub const ATOMIC: usize = remote::MAX_ATOMIC;

    pub(crate) fn new(worker: Arc<Worker>, channel: u16) -> Self {
        Self { worker, channel }
    }

    /// The worker it belongs to.
    pub fn worker(&self) -> &Arc<Worker> {
        &self.worker
    }

    /// By which others reach it.
    pub fn address(&self) -> NodeAddress {
        NodeAddress { channel: self.channel, ..self.worker.address().clone() }
    }

    /// The peer at that address: the same number each time. Nothing is sent yet.
    pub fn peer(&self, at: &NodeAddress) -> PeerId {
        let mut core = self.worker.core();
        // However this process is to be reached, it reaches itself inside.
        let (channel, at) = (at.channel, if core.is_own(at.id) { self.worker.address() } else { at });
        let node = core.state.node(at.id);
        let known = &mut core.state.nodes[node as usize];
        // More addresses are better.
        let count = |address: &NodeAddress| address.addresses.len() + address.foreign.len();
        if known.address.as_ref().is_none_or(|known| count(known) < count(at)) {
            known.address = Some(at.clone());
            core.state.stale.push(node);
        }
        core.state.endpoint(self.channel).map_or(PeerId(u32::MAX), |endpoint| endpoint.peer(node, channel))
    }

    /// The identity of a peer: its node and channel, and addresses as far as they are known.
    pub fn who(&self, peer: PeerId) -> Option<NodeAddress> {
        let mut core = self.worker.core();
        let peer = core.state.endpoint(self.channel)?.peers.get(peer.0 as usize).copied()?;
        let node = &core.state.nodes[peer.node as usize];
        let bare = NodeAddress::bare(node.id);
        Some(NodeAddress { channel: peer.channel, ..node.address.clone().unwrap_or(bare) })
    }

    /// Whether everything that comes from a peer comes by links with that stack; or from this process itself.
    pub(crate) fn comes_by(&self, peer: PeerId, stack: &str) -> bool {
        let mut core = self.worker.core();
        let endpoint = core.state.endpoint(self.channel);
        let Some(peer) = endpoint.and_then(|endpoint| endpoint.peers.get(peer.0 as usize).copied()) else {
            return false;
        };
        let Some(node) = core.state.nodes.get(peer.node as usize) else { return false };
        let is_so = |(port, _): &(usize, _)| core.ports.get(*port).is_some_and(|slot| slot.name == stack);
        core.is_own(node.id) || !node.links.is_empty() && node.links.iter().all(is_so)
    }

    /// Why a peer cannot be reached, or is gone; `None` while nothing is wrong.
    pub fn why(&self, peer: PeerId) -> Option<LinkError> {
        let mut core = self.worker.core();
        let peer = core.state.endpoint(self.channel)?.peers.get(peer.0 as usize).copied()?;
        let node = &core.state.nodes[peer.node as usize];
        // That one driver did not reach it is told where no other one does.
        if node.state == NodeState::Down { node.why.clone() } else { None }
    }

    /// Sends a message.
    #[inline]
    pub fn send(&self, send: &Send<'_>) -> Result<Posted, PostError> {
        self.worker.core().send(self.channel, send)
    }

    /// Whether a message to a peer would be taken now, or is known to fail.
    pub(crate) fn has_room(&self, to: PeerId) -> bool {
        self.worker.core().has_room(self.channel, to)
    }

    /// For a caller that was refused with [`PostError::Again`]: what is pending, once all sends to that peer were refused for ten seconds
    /// of repeated attempts. It is reported once, until something is sent again.
    pub fn stalled(&self, to: PeerId) -> Option<Stall> {
        self.worker.core().stalled(self.channel, to)
    }

    /// Posts a buffer for a message.
    #[inline]
    pub fn receive(&self, receive: &Receive<'_>) -> Result<(), PostError> {
        self.worker.core().receive(self.channel, receive)
    }

    /// The message a receive would get that were posted now; makes progress first.
    pub fn peek(&self, wanted: &Wanted) -> Option<Seen> {
        let mut core = self.worker.core();
        core.progress();
        core.peek(self.channel, wanted).map(|(_, seen)| seen)
    }

    /// The same, and takes the message out, so that no receive gets it.
    pub fn claim(&self, wanted: &Wanted) -> Option<(Seen, Claim)> {
        let mut core = self.worker.core();
        core.progress();
        core.claim(self.channel, wanted)
    }

    /// Receives a claimed message; of `receive`, buffers and token count.
    pub fn receive_claimed(&self, claim: Claim, receive: &Receive<'_>) -> Result<(), PostError> {
        self.worker.core().receive_claimed(self.channel, &claim, receive)
    }

    /// Throws a claimed message away.
    pub fn discard(&self, claim: Claim) -> Result<(), PostError> {
        self.worker.core().discard(self.channel, &claim)
    }

    /// Takes a posted receive back that got no message yet: it completes as [`Status::Canceled`]. False: there is none of that token.
    pub fn cancel(&self, token: u64) -> bool {
        self.worker.core().cancel(self.channel, token)
    }

    /// Takes back a message that the peer does not know of yet: it completes as [`Status::Canceled`], and its buffers are free. False:
    /// there is none of that token, or it is too late.
    pub fn cancel_send(&self, token: u64) -> bool {
        self.worker.core().cancel_send(self.channel, token)
    }

    /// Lets peers reach memory, through every endpoint of the same space.
    ///
    /// The memory must stay until [`Endpoint::withdraw`]. A region whose key is in use is refused.
    pub fn expose(&self, region: Region) -> Result<(), ExposeError> {
        self.worker.core().expose(self.channel, region)
    }

    /// Ends that. [`PostError::Again`]: bytes are just arriving there; make progress and try again.
    pub fn withdraw(&self, key: u64) -> Result<(), PostError> {
        self.worker.core().withdraw(self.channel, key)
    }

    /// Puts bytes into a peer's memory.
    pub fn put(&self, put: &Put<'_>) -> Result<Posted, PostError> {
        self.worker.core().put(self.channel, put)
    }

    /// Gets bytes of a peer's memory.
    pub fn get(&self, get: &Get<'_>) -> Result<Posted, PostError> {
        self.worker.core().get(self.channel, get)
    }

    /// Does something to numbers in a peer's memory.
    pub fn atomic(&self, atomic: &Atomic<'_>) -> Result<Posted, PostError> {
        self.worker.core().atomic(self.channel, atomic)
    }

    /// From now on only [`Endpoint::next_plain`] takes plain messages: none is received, peeked or claimed.
    pub(crate) fn take_in_order(&self) {
        if let Some(endpoint) = self.worker.core().state.endpoint(self.channel) {
            endpoint.in_order = true;
        }
    }

    /// The plain message that came first, whole; or, where it came by rendezvous, its length and a claim. Makes progress if there is none.
    /// `used`: the buffer of the last one, if it is no longer needed.
    #[inline]
    pub(crate) fn next_plain(&self, used: &mut Vec<u8>) -> Option<(PeerId, Plain)> {
        let mut core = self.worker.core();
        if used.capacity() > 0 {
            core.state.recycle(core::mem::take(used));
        }
        if let Some(next) = core.next_plain(self.channel) {
            return Some(next);
        }
        core.progress();
        core.next_plain(self.channel)
    }

    /// The message that a receive would get that were posted now, taken out of the matching. Makes progress if there is none.
    #[inline]
    pub(crate) fn take(&self, wanted: &Wanted) -> Taken {
        let mut core = self.worker.core();
        if let Some((seen, body)) = core.take_wanted(self.channel, wanted) {
            return Taken::Message(seen, body);
        }
        core.progress();
        match core.take_wanted(self.channel, wanted) {
            Some((seen, body)) => Taken::Message(seen, body),
            None if core.has_plain(self.channel) => Taken::PlainOnes,
            None => Taken::Nothing,
        }
    }

    /// The plain message that came first, as [`Endpoint::take`], if it is here; without progress.
    pub(crate) fn plain_here(&self) -> Option<(PeerId, Plain)> {
        self.worker.core().next_plain(self.channel)
    }

    /// The plain message that came first, if it is here whole and no receive took it: its sender, and its bytes. Makes progress if there is
    /// none.
    pub fn take_plain(&self) -> Option<(PeerId, Vec<u8>)> {
        let (from, plain) = self.next_plain(&mut Vec::new())?;
        match plain {
            Ok(bytes) => Some((from, bytes)),
            Err((_, claim)) => {
                // It is longer than it may be.
                let _ = self.discard(claim);
                None
            }
        }
    }

    /// Reports completions one by one, after making progress if there are none; returns how many. `tell` may use the endpoint.
    #[inline]
    pub fn poll(&self, tell: &mut impl FnMut(Completion)) -> usize {
        let mut count = 0;
        while let Some(completion) = self.next(count == 0) {
            count += 1;
            tell(completion);
        }
        count
    }

    /// Moves all completions to the end of `done`. With `progress`, makes progress first if there are none. Returns how many there were.
    #[inline]
    pub fn drain(&self, done: &mut VecDeque<Completion>, progress: bool) -> usize {
        let mut core = self.worker.core();
        if progress && core.state.endpoint(self.channel).is_none_or(|endpoint| endpoint.done.is_empty()) {
            core.progress();
        }
        let Some(endpoint) = core.state.endpoint(self.channel) else { return 0 };
        let count = endpoint.done.len();
        if count > 0 && done.is_empty() {
            core::mem::swap(&mut endpoint.done, done);
        } else if count > 0 {
            done.append(&mut endpoint.done);
        }
        count
    }

    /// The next completion; with `progress`, made if there was none.
    #[inline]
    pub fn next(&self, progress: bool) -> Option<Completion> {
        let mut core = self.worker.core();
        let done = core.state.endpoint(self.channel)?.done.pop_front();
        if done.is_some() || !progress {
            return done;
        }
        core.progress();
        core.state.endpoint(self.channel)?.done.pop_front()
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let until = time::now_ns() + CLOSE_NS;
        loop {
            let mut core = self.worker.core();
            core.progress();
            if core.close(self.channel, time::now_ns() >= until) {
                return;
            }
            drop(core);
            self.worker.idle();
        }
    }
}
