//! A Circuit that several threads use at the same time, for languages without a borrow checker: messages are packed and unpacked apart from
//! it, any number at a time. The wire format is that of a [`Circuit`](super::Circuit).

use std::sync::{Arc, Mutex};

use madrigal_base::node::NodeAddress;
use madrigal_progress::message::LinkError;
use madrigal_sys::piece::{Piece, total};

use super::parts::{Bulk, Part};
use super::{BULK, CircuitError, Members};
use crate::endpoint::{Claim, Completion, Kind, PostError, Posted, Receive, Send, Status};
use crate::filing::{Filing, lock};
use crate::memory::{GATHER, gather, lend, lend_mut};
use crate::{Endpoint, Worker};

/// A group of nodes, and our place in it.
pub struct Group {
    filing: Filing,
    members: Members,
    /// Messages sent to each.
    sent: Vec<Mutex<u64>>,
    received: Mutex<Vec<u64>>,
}

/// A message that is packed, to be sent whole.
#[derive(Default)]
pub struct Packed {
    scratch: Vec<u8>,
    parts: Vec<Part>,
    bulk: Vec<Bulk>,
}

impl Packed {
    /// Adds a piece that may change at once.
    pub fn copy(&mut self, bytes: &[u8]) {
        if bytes.len() > BULK {
            self.bulk.push(Bulk::Copy(bytes.to_vec()));
            return;
        }
        let from = self.scratch.len();
        self.scratch.extend_from_slice(bytes);
        match self.parts.last_mut() {
            Some(Part::Copy { from: before, len }) if *before + *len == from => *len += bytes.len(),
            _ => self.parts.push(Part::Copy { from, len: bytes.len() }),
        }
    }

    /// Adds a piece that is lent until the message was sent: what it holds when [`Group::send`] is called is sent.
    pub fn lend(&mut self, piece: Piece) {
        if piece.len() > BULK {
            self.bulk.push(Bulk::Lent(piece));
        } else {
            self.parts.push(Part::Lent(piece));
        }
    }

    /// The small pieces.
    fn small(&self) -> Vec<Piece> {
        let piece = |part: &Part| match *part {
            Part::Lent(piece) => piece,
            Part::Copy { from, len } => lend(self.scratch.get(from..from + len).unwrap_or_default()),
        };
        self.parts.iter().map(piece).collect()
    }
}

/// A message that came and is unpacked piece by piece. Dropped before it ends, what was not unpacked so far is not received.
pub struct Unpacked {
    from: usize,
    /// Which message of that node's it is: its bulk pieces come under this number.
    place: u64,
    packet: Vec<u8>,
    at: usize,
    bulk: Vec<Piece>,
    missing: usize,
}

impl Unpacked {
    /// The sender: its place in the group.
    pub fn from(&self) -> usize {
        self.from
    }

    /// Takes the next piece. It is there when this returns if it is `express`, or small; else when [`Unpacked::end`] returns, until when
    /// the memory is lent.
    pub fn unpack(&mut self, group: &Group, piece: Piece, express: bool) -> Result<(), CircuitError> {
        if piece.len() > BULK {
            self.bulk.push(piece);
            return if express { self.receive_bulk(group) } else { Ok(()) };
        }
        self.small(piece.len(), |here| {
            piece.fill(here);
        });
        Ok(())
    }

    /// Takes the next piece at once: a number, which is a small one of 8 bytes, little end first. 0 where it is missing.
    pub fn number(&mut self) -> u64 {
        let mut number = [0; 8];
        self.small(number.len(), |here| number.copy_from_slice(here));
        u64::from_le_bytes(number)
    }

    fn small(&mut self, len: usize, take: impl FnOnce(&[u8])) {
        match self.packet.get(self.at..self.at + len) {
            Some(here) => take(here),
            None => self.missing += len,
        }
        self.at += len;
    }

    /// Waits until every piece is there. Whatever it returns, the pieces are no longer written.
    pub fn end(mut self, group: &Group) -> Result<(), CircuitError> {
        if !self.bulk.is_empty() {
            self.receive_bulk(group)?;
        }
        if self.packet.len() != self.at || self.missing > 0 {
            return Err(CircuitError::Mismatch { rank: self.from, here: self.packet.len(), asked: self.at });
        }
        Ok(())
    }

    fn receive_bulk(&mut self, group: &Group) -> Result<(), CircuitError> {
        let pieces = core::mem::take(&mut self.bulk);
        group.receive(self.from, self.place, &pieces)
    }
}

impl Group {
    /// Joins a group: all members name the same nodes in the same order, this one among them. Nothing is sent yet.
    pub fn join(endpoint: Endpoint, group: &[NodeAddress]) -> Result<Self, CircuitError> {
        let members = Members::of(&endpoint, group)?;
        endpoint.take_in_order();
        let sent = group.iter().map(|_| Mutex::new(0)).collect();
        let received = Mutex::new(vec![0; group.len()]);
        Ok(Self { filing: Filing::new(endpoint), members, sent, received })
    }

    /// Our place in the group.
    pub fn rank(&self) -> usize {
        self.members.rank
    }

    /// How many nodes there are.
    pub fn size(&self) -> usize {
        self.members.ranks.len()
    }

    /// The worker that carries its messages.
    pub fn worker(&self) -> &Arc<Worker> {
        self.filing.endpoint().worker()
    }

    /// Why nothing comes from a node any more; `None` while nothing is wrong, or where there is no such node.
    pub fn lost(&self, rank: usize) -> Option<CircuitError> {
        let why = self.filing.endpoint().why(*self.members.ranks.get(rank)?)?;
        Some(CircuitError::Lost { rank, why: why.to_string() })
    }

    /// Sends a message. Whatever it returns, memory that was lent to it is free. It waits as
    /// [`Packing::end`](super::Packing::end) does.
    pub fn send(&self, to: usize, mut packed: Packed) -> Result<(), CircuitError> {
        let sent = self.sent.get(to).ok_or(CircuitError::NoSuchNode)?;
        let small = packed.small();
        let gathered = if small.len() > GATHER { gather(&small) } else { Vec::new() };
        let one = [lend(&gathered)];
        let parts = if small.len() > GATHER { &one[..] } else { &small[..] };
        let token = self.filing.token();
        let (posted, number) = loop {
            let mut count = lock(sent);
            match self.post(to, None, parts, token) {
                Ok(posted) => {
                    *count += 1;
                    break (posted, *count - 1);
                }
                Err(PostError::Again) => {}
                Err(error) => return Err(self.failed(to, &error)),
            }
            drop(count);
            self.wait_for_room(to);
        };
        if posted == Posted::Pending {
            self.wait_for(to, Kind::Sent, token)?;
        }
        self.send_bulk(to, number, core::mem::take(&mut packed.bulk))
    }

    /// The message that came first, of any node, if one is here.
    pub fn try_receive(&self) -> Result<Option<Unpacked>, CircuitError> {
        loop {
            // Messages of a node are counted in the order they are taken.
            let mut received = lock(&self.received);
            let Some((peer, packet)) = self.filing.endpoint().next_plain(&mut Vec::new()) else { return Ok(None) };
            let from = self.members.places.get(peer.0 as usize).copied().unwrap_or(super::NON_MEMBER);
            let place = received.get_mut(from).map(|count| {
                *count += 1;
                *count - 1
            });
            drop(received);
            let packet = match packet {
                Ok(packet) => packet,
                Err((len, claim)) => self.receive_long(from, len, claim)?,
            };
            // Messages of others than members are passed over.
            if let Some(place) = place {
                return Ok(Some(Unpacked { from, place, packet, at: 0, bulk: Vec::new(), missing: 0 }));
            }
        }
    }

    #[cold]
    fn receive_long(&self, rank: usize, len: usize, claim: Claim) -> Result<Vec<u8>, CircuitError> {
        let mut bytes = vec![0; len];
        let (piece, token) = (lend_mut(&mut bytes), self.filing.token());
        let receive = Receive { from: None, tag: None, ignore: 0, parts: &[piece], token, multi: None };
        self.filing.endpoint().receive_claimed(claim, &receive).map_err(|error| self.failed(rank, &error))?;
        self.wait_for(rank, Kind::Received, token)?;
        Ok(bytes)
    }

    /// Receives one message of the number into each piece. Whatever happens, the pieces are no longer written when this returns.
    fn receive(&self, from: usize, number: u64, pieces: &[Piece]) -> Result<(), CircuitError> {
        let peer = self.members.ranks.get(from).copied();
        let (mut posted, mut result) = (Vec::new(), Ok(()));
        for piece in pieces {
            let (token, parts) = (self.filing.token(), core::slice::from_ref(piece));
            let receive = Receive { from: peer, tag: Some(number), ignore: 0, parts, token, multi: None };
            result = self.filing.endpoint().receive(&receive).map_err(|error| self.failed(from, &error));
            if result.is_err() {
                break;
            }
            posted.push((token, piece.len()));
        }
        for (token, len) in posted {
            let whole = self.wait_for(from, Kind::Received, token).and_then(|done| {
                let mismatch = CircuitError::Mismatch { rank: from, here: done.len, asked: len };
                if done.len == len { Ok(()) } else { Err(mismatch) }
            });
            result = result.and(whole);
        }
        result
    }

    /// Sends the pieces that travel alone, and waits until those that are not ours were sent.
    fn send_bulk(&self, to: usize, number: u64, bulk: Vec<Bulk>) -> Result<(), CircuitError> {
        let (mut waiting, mut result) = (Vec::new(), Ok(()));
        for bulk in bulk {
            let token = self.filing.token();
            let posted = match bulk {
                Bulk::Copy(bytes) => {
                    self.filing.keep(bytes, |piece, token| self.post_when_room(to, number, piece, token))
                }
                Bulk::Lent(piece) => self.post_when_room(to, number, piece, token),
            };
            match posted {
                Ok(Posted::Done) => {}
                Ok(Posted::Pending) => waiting.push(token),
                Err(error) => {
                    result = Err(self.failed(to, &error));
                    break;
                }
            }
        }
        for token in waiting {
            result = self.wait_for(to, Kind::Sent, token).map(drop).and(result);
        }
        result
    }

    fn post_when_room(&self, to: usize, number: u64, piece: Piece, token: u64) -> Result<Posted, PostError> {
        let peer = *self.members.ranks.get(to).ok_or(PostError::Invalid)?;
        self.filing.post_when_room(peer, || self.post(to, Some(number), &[piece], token))
    }

    fn post(&self, to: usize, tag: Option<u64>, parts: &[Piece], token: u64) -> Result<Posted, PostError> {
        let to = *self.members.ranks.get(to).ok_or(PostError::Invalid)?;
        let inject = tag.is_none() && total(parts) <= Endpoint::INJECT;
        self.filing.endpoint().send(&Send { to, tag, data: None, parts, token, inject, delivery: false })
    }

    fn wait_for_room(&self, to: usize) {
        if let Some(peer) = self.members.ranks.get(to) {
            self.filing.wait_for_room(*peer);
        }
    }

    /// Waits for an operation. Whatever happens, it is complete when this returns.
    fn wait_for(&self, rank: usize, kind: Kind, token: u64) -> Result<Completion, CircuitError> {
        let done = self.filing.wait(kind, token);
        if done.status == Status::Ok { Ok(done) } else { Err(self.because(rank, "the message was cut short")) }
    }

    fn failed(&self, rank: usize, error: &PostError) -> CircuitError {
        self.because(rank, &error.to_string())
    }

    fn because(&self, rank: usize, why: &str) -> CircuitError {
        let peer = self.members.ranks.get(rank).copied();
        let known = peer.and_then(|peer| self.filing.endpoint().why(peer)).as_ref().map(LinkError::to_string);
        CircuitError::Lost { rank, why: known.unwrap_or_else(|| why.to_owned()) }
    }
}
