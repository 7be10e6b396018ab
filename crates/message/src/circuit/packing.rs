//! The sending side of a message.

use core::cell::Cell;
use core::marker::PhantomData;

use madrigal_sys::piece::{Piece, total};

use super::parts::{Bulk, Part};
use super::{BULK, Circuit, CircuitError};
use crate::Endpoint;
use crate::endpoint::{Kind, PeerId, PostError, Posted, Send};
use crate::memory::{GATHER, gather, lend, lend_cells};

/// What a sender promises of a piece; see also [`Packing::pack_later`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Packs {
    /// Nothing: the bytes may change as soon as the piece is packed.
    Safer,
    /// It stays as it is until the message ends.
    Cheaper,
}

/// Bytes of copies that may still be on their way when another one is made.
const MOST_COPIED: usize = 64 << 20;

/// A message that is being packed.
pub struct Packing<'c, 'd> {
    circuit: &'c mut Circuit,
    to: usize,
    peer: PeerId,
    _lent: PhantomData<&'d [Cell<u8>]>,
}

impl<'c, 'd> Packing<'c, 'd> {
    #[inline]
    pub(super) fn new(circuit: &'c mut Circuit, to: usize, peer: PeerId) -> Self {
        circuit.scratch.clear();
        circuit.parts.clear();
        circuit.bulk.clear();
        Self { circuit, to, peer, _lent: PhantomData }
    }

    /// Adds a piece.
    #[inline]
    pub fn pack(&mut self, bytes: &'d [u8], mode: Packs) {
        match (mode, bytes.len() > BULK) {
            (Packs::Safer, _) => self.pack_safer(bytes),
            (Packs::Cheaper, true) => self.circuit.bulk.push(Bulk::Lent(lend(bytes))),
            (Packs::Cheaper, false) => self.circuit.parts.push(Part::Lent(lend(bytes))),
        }
    }

    /// Adds a piece that may change at once: as [`Packing::pack`] with [`Packs::Safer`], of bytes that need not be borrowed longer.
    pub fn pack_safer(&mut self, bytes: &[u8]) {
        if bytes.len() > BULK {
            self.circuit.bulk.push(Bulk::Copy(bytes.to_vec()));
            return;
        }
        let from = self.circuit.scratch.len();
        self.circuit.scratch.extend_from_slice(bytes);
        match self.circuit.parts.last_mut() {
            // Behind the last copy: one part.
            Some(Part::Copy { from: before, len }) if *before + *len == from => *len += bytes.len(),
            _ => self.circuit.parts.push(Part::Copy { from, len: bytes.len() }),
        }
    }

    /// Adds a piece that may still change: what it holds when the message ends is sent.
    pub fn pack_later(&mut self, bytes: &'d [Cell<u8>]) {
        let piece = lend_cells(bytes);
        if bytes.len() > BULK {
            self.circuit.bulk.push(Bulk::Lent(piece));
        } else {
            self.circuit.parts.push(Part::Lent(piece));
        }
    }

    /// Sends the message. The buffers are free when this returns, whatever it returns; for pieces above [`BULK`] that were not copied
    /// it waits for the receiver, and so it does where that has not unpacked 64 MiB of smaller ones, or copies of as much are still to be
    /// sent.
    #[inline]
    pub fn end(self) -> Result<(), CircuitError> {
        let Self { circuit, to, peer, .. } = self;
        let number = circuit.counts[to].0;
        let token = circuit.token();
        let posted = match circuit.parts[..] {
            [one] => circuit.post(peer, None, &[circuit.piece(one)], token),
            _ => circuit.post_parts(peer, token),
        };
        let posted = circuit.settled(to, posted)?;
        circuit.counts[to].0 += 1;
        if posted == Posted::Pending {
            circuit.wait_for(to, Kind::Sent, token)?;
        }
        if circuit.bulk.is_empty() { Ok(()) } else { circuit.send_bulk(to, peer, number) }
    }
}

impl Circuit {
    /// Begins a message to a node of the group. Nothing is sent before it ends; dropping it sends nothing.
    #[inline]
    pub fn begin_packing<'d>(&mut self, to: usize) -> Result<Packing<'_, 'd>, CircuitError> {
        let peer = *self.ranks.get(to).ok_or(CircuitError::NoSuchNode)?;
        Ok(Packing::new(self, to, peer))
    }

    fn piece(&self, part: Part) -> Piece {
        match part {
            Part::Lent(piece) => piece,
            Part::Copy { from, len } => lend(self.scratch.get(from..from + len).unwrap_or_default()),
        }
    }

    /// Sends a packet of several parts, or none.
    #[inline(never)]
    fn post_parts(&mut self, to: PeerId, token: u64) -> Result<Posted, PostError> {
        let mut parts = [Piece::EMPTY; GATHER];
        if let Some(count) = self.small(&mut parts) {
            return self.post(to, None, &parts[..count], token);
        }
        // Too many for one call.
        let whole: Vec<_> = self.parts.iter().map(|part| self.piece(*part)).collect();
        self.keep(to, None, gather(&whole), token)
    }

    /// The parts of the packet; how many. `None`: more than a call takes.
    #[inline]
    fn small(&self, pieces: &mut [Piece]) -> Option<usize> {
        for (i, part) in self.parts.iter().enumerate() {
            *pieces.get_mut(i)? = self.piece(*part);
        }
        Some(self.parts.len())
    }

    /// Sends when there is room.
    #[inline]
    fn post(&mut self, to: PeerId, tag: Option<u64>, parts: &[Piece], token: u64) -> Result<Posted, PostError> {
        loop {
            // A small message is copied if it cannot be sent at once: then its sender does not wait.
            let inject = tag.is_none() && total(parts) <= Endpoint::INJECT;
            let send = Send { to, tag, data: None, parts, token, inject, delivery: false };
            match self.endpoint.send(&send) {
                Err(PostError::Again) => self.wait_for_room(to),
                posted => return posted,
            }
        }
    }

    /// Waits until more can be sent to a node: what it has not unpacked fills its window.
    #[cold]
    fn wait_for_room(&mut self, to: PeerId) {
        while !self.endpoint.has_room(to) {
            if !self.poll() {
                self.endpoint.worker().idle();
            }
        }
    }

    /// Sends bytes of our own, which are kept until they were sent.
    fn keep(&mut self, to: PeerId, tag: Option<u64>, bytes: Vec<u8>, token: u64) -> Result<Posted, PostError> {
        while self.copied > MOST_COPIED {
            if !self.poll() {
                self.endpoint.worker().idle();
            }
        }
        let posted = self.post(to, tag, &[lend(&bytes)], token)?;
        if posted == Posted::Pending {
            self.copied += bytes.len();
            self.outbox.push((token, bytes));
        }
        Ok(Posted::Done)
    }

    /// Sends the pieces that travel alone, and waits until those that are not ours were sent.
    #[cold]
    fn send_bulk(&mut self, to: usize, peer: PeerId, number: u64) -> Result<(), CircuitError> {
        let mut waiting = Vec::new();
        let mut failed = None;
        for bulk in core::mem::take(&mut self.bulk) {
            let token = self.token();
            let posted = match bulk {
                Bulk::Copy(bytes) => self.keep(peer, Some(number), bytes, token),
                Bulk::Lent(piece) => self.post(peer, Some(number), &[piece], token),
            };
            match posted {
                Ok(Posted::Done) => {}
                Ok(Posted::Pending) => waiting.push(token),
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        let mut result = self.settled(to, failed.map_or(Ok(()), Err));
        // Every buffer must be free before this returns.
        for token in waiting {
            result = self.wait_for(to, Kind::Sent, token).map(drop).and(result);
        }
        result
    }
}
