//! Circuit: a definite group of nodes that send each other messages made of pieces, packed and unpacked one by one.
//!
//! ```text
//!   begin_packing(to)  pack pack pack  end        begin_unpacking  unpack unpack unpack  end
//! ```
//! Both sides name the same pieces in the same order with the same lengths and modes; nothing of that is sent. A mode states what is
//! promised of a piece, and so which work can be left out:
//!
//! | sender | |
//! |---|---|
//! | [`Packs::Safer`] | the bytes may change as soon as the piece is packed: they are copied |
//! | `later` ([`Packing::pack_later`]) | the bytes may change until the message ends: what they are then is sent |
//! | [`Packs::Cheaper`] | the bytes do not change until the message ends |
//!
//! | receiver | |
//! |---|---|
//! | [`Unpacks::Express`] | the bytes are there when the piece is unpacked, so that they can determine what follows |
//! | [`Unpacks::Cheaper`] | the bytes are there when the message ends |
//!
//! Small pieces travel together, with the head, in one packet; a piece above [`BULK`] travels alone, straight from buffer to buffer.
//! A message is on its way when [`Packing::end`] returns, and its buffers are free: for a piece that travels alone this may wait for
//! the receiver, unless it is [`Packs::Safer`].
//!
//! **A sender that outruns a receiver waits for it.** A receiver keeps 64 MiB per sender that were not unpacked (256 bytes are added for
//! each message); then [`Packing::end`] waits until some are. So nodes that all send to each other must also unpack now and then.

mod group;
mod packing;
mod parts;
mod unpacking;

use std::sync::Arc;

use madrigal_base::node::NodeAddress;
use madrigal_progress::message::LinkError;

use crate::endpoint::{Completion, Kind, PeerId, PostError, Status};
use crate::{Endpoint, Worker};

pub use group::{Group, Packed, Unpacked};
pub use packing::{Packing, Packs};
use parts::{Bulk, Part};
pub use unpacking::{Unpacking, Unpacks};

/// Pieces longer than this travel alone.
pub const BULK: usize = 4 << 10;

/// The place of a peer that is not in the group.
const NON_MEMBER: usize = usize::MAX;

/// Why a message was not sent or received whole. A Circuit goes on with the other nodes.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CircuitError {
    /// The group does not have that many nodes, or we are not in it.
    #[error("no such node in the group")]
    NoSuchNode,
    /// The node cannot be reached, or is gone.
    #[error("node {rank} is lost: {why}")]
    Lost {
        /// Its place in the group.
        rank: usize,
        /// What is known of it.
        why: String,
    },
    /// The two sides do not name the same pieces.
    #[error("the message of node {rank} has {here} bytes, {asked} were asked for")]
    Mismatch {
        /// The sender.
        rank: usize,
        /// Bytes of small pieces it has.
        here: usize,
        /// Bytes of small pieces that were unpacked.
        asked: usize,
    },
}

/// The members of a group.
struct Members {
    ranks: Vec<PeerId>,
    /// Their places in the group, by the endpoint's number of a peer; [`NON_MEMBER`] for others.
    places: Vec<usize>,
    /// Our own.
    rank: usize,
}

impl Members {
    fn of(endpoint: &Endpoint, group: &[NodeAddress]) -> Result<Self, CircuitError> {
        let me = endpoint.address();
        let is_me = |address: &NodeAddress| (address.id, address.channel) == (me.id, me.channel);
        let rank = group.iter().position(is_me).ok_or(CircuitError::NoSuchNode)?;
        let ranks: Vec<_> = group.iter().map(|address| endpoint.peer(address)).collect();
        let mut places = vec![NON_MEMBER; ranks.iter().map(|peer| peer.0 as usize + 1).max().unwrap_or(0)];
        // Named twice, it is the first.
        ranks.iter().enumerate().rev().for_each(|(rank, peer)| places[peer.0 as usize] = rank);
        Ok(Self { ranks, places, rank })
    }
}

/// A group of nodes, and our place in it. One message is packed and one unpacked at a time.
pub struct Circuit {
    endpoint: Endpoint,
    ranks: Vec<PeerId>,
    /// Their places in the group, by the endpoint's number of a peer; [`NON_MEMBER`] for others.
    places: Vec<usize>,
    rank: usize,
    /// Messages with each node so far: sent, received.
    counts: Vec<(u64, u64)>,
    /// Copies of pieces that are still being sent, by token.
    outbox: Vec<(u64, Vec<u8>)>,
    /// Bytes in it.
    copied: usize,
    next_token: u64,
    /// Copies of small pieces, and what the message that is packed is made of.
    scratch: Vec<u8>,
    parts: Vec<Part>,
    bulk: Vec<Bulk>,
    done: Vec<Completion>,
    /// The packet that was unpacked last.
    used: Vec<u8>,
}

impl Circuit {
    /// Opens an endpoint for a Circuit; its address is what the others need.
    pub fn endpoint(worker: &Arc<Worker>) -> Result<Endpoint, crate::worker::OpenError> {
        worker.endpoint(worker.space())
    }

    /// Joins a group: all members name the same nodes in the same order, this one among them. Nothing is sent yet.
    pub fn join(endpoint: Endpoint, group: &[NodeAddress]) -> Result<Self, CircuitError> {
        let Members { ranks, places, rank } = Members::of(&endpoint, group)?;
        endpoint.take_in_order();
        let counts = vec![(0, 0); ranks.len()];
        let (outbox, scratch, parts, bulk) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (done, used) = (Vec::new(), Vec::new());
        Ok(Self {
            endpoint,
            ranks,
            places,
            rank,
            counts,
            outbox,
            copied: 0,
            next_token: 1,
            scratch,
            parts,
            bulk,
            done,
            used,
        })
    }

    /// Our place in the group.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many nodes there are.
    pub fn size(&self) -> usize {
        self.ranks.len()
    }

    /// Waits until everything sent so far has left. Call it before a long time without sending or receiving: a port that was full gets the
    /// rest of a message only while a caller makes progress.
    pub fn flush(&mut self) {
        self.endpoint.worker().flush(None);
    }

    /// The packet that came first: its sender's rank, its bytes.
    #[inline]
    fn arrived(&mut self) -> Result<Option<(usize, Vec<u8>)>, CircuitError> {
        while let Some((peer, packet)) = self.endpoint.next_plain(&mut self.used) {
            let rank = self.places.get(peer.0 as usize).copied().unwrap_or(NON_MEMBER);
            let bytes = match packet {
                Ok(bytes) => bytes,
                Err((len, claim)) => self.receive_long(rank, len, claim)?,
            };
            // Messages of others than members are passed over.
            if let Some(counts) = self.counts.get_mut(rank) {
                counts.1 += 1;
                return Ok(Some((rank, bytes)));
            }
        }
        Ok(None)
    }

    /// Receives a packet that came by rendezvous.
    #[cold]
    fn receive_long(
        &mut self,
        rank: usize,
        len: usize,
        claim: crate::endpoint::Claim,
    ) -> Result<Vec<u8>, CircuitError> {
        let mut bytes = vec![0; len];
        let piece = crate::memory::lend_mut(&mut bytes);
        let token = self.token();
        let receive =
            crate::endpoint::Receive { from: None, tag: None, ignore: 0, parts: &[piece], token, multi: None };
        let posted = self.endpoint.receive_claimed(claim, &receive);
        self.settled(rank, posted)?;
        self.wait_for(rank, Kind::Received, token)?;
        Ok(bytes)
    }

    fn token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token
    }

    fn settled<T>(&self, rank: usize, posted: Result<T, PostError>) -> Result<T, CircuitError> {
        posted.map_err(|error| self.lost(rank, &error.to_string()))
    }

    fn lost(&self, rank: usize, why: &str) -> CircuitError {
        let peer = self.ranks.get(rank).copied();
        let known = peer.and_then(|peer| self.endpoint.why(peer)).as_ref().map(LinkError::to_string);
        CircuitError::Lost { rank, why: known.unwrap_or_else(|| why.to_owned()) }
    }

    /// Waits for an operation. Whatever happens, it is complete when this returns.
    fn wait_for(&mut self, rank: usize, kind: Kind, token: u64) -> Result<Completion, CircuitError> {
        loop {
            if let Some(at) = self.done.iter().position(|done| (done.kind, done.token) == (kind, token)) {
                let done = self.done.swap_remove(at);
                return if done.status == Status::Ok {
                    Ok(done)
                } else {
                    Err(self.lost(rank, "the message was cut short"))
                };
            }
            if !self.poll() {
                self.endpoint.worker().idle();
            }
        }
    }

    /// Takes completions; copies that were sent are dropped. False: there were none.
    fn poll(&mut self) -> bool {
        let before = self.done.len();
        let done = &mut self.done;
        let count = self.endpoint.poll(&mut |completion| done.push(completion));
        let outbox = &mut self.outbox;
        let mut at = before;
        while let Some(done) = self.done.get(at) {
            let sent = outbox.iter().position(|(token, _)| done.kind == Kind::Sent && *token == done.token);
            match sent {
                Some(copy) => {
                    self.copied -= outbox.swap_remove(copy).1.len();
                    self.done.swap_remove(at);
                }
                None => at += 1,
            }
        }
        count > 0
    }
}

impl Drop for Circuit {
    fn drop(&mut self) {
        // Copies are ours until they were sent: the endpoint does not close before, or gives them up.
        while !self.outbox.is_empty() {
            if !self.poll() {
                self.endpoint.worker().idle();
            }
        }
    }
}
