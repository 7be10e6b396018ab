//! The receiving side of a message.

use madrigal_sys::piece::Piece;

use super::{BULK, Circuit, CircuitError};
use crate::endpoint::{Kind, Receive};
use crate::memory::lend_mut;

/// What a receiver wants of a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unpacks {
    /// It is there when [`Unpacking::unpack`] returns.
    Express,
    /// It is there when [`Unpacking::end`] returns.
    Cheaper,
}

/// A message that is being unpacked. Dropped before it ends, what was not unpacked so far is not received.
pub struct Unpacking<'c, 'd> {
    circuit: &'c mut Circuit,
    from: usize,
    packet: Vec<u8>,
    at: usize,
    /// Pieces that travel alone and are not received yet.
    bulk: Vec<&'d mut [u8]>,
    /// Bytes unpacked that the packet did not have.
    missing: usize,
}

impl Circuit {
    /// Waits for the next message of any node of the group.
    #[inline]
    pub fn begin_unpacking<'d>(&mut self) -> Result<Unpacking<'_, 'd>, CircuitError> {
        loop {
            if let Some((from, bytes)) = self.arrived()? {
                return Ok(Unpacking::new(self, from, bytes));
            }
            self.endpoint.worker().idle();
        }
    }

    /// The next message of any node of the group, if one is here.
    pub fn try_unpacking<'d>(&mut self) -> Result<Option<Unpacking<'_, 'd>>, CircuitError> {
        match self.arrived()? {
            Some((from, bytes)) => Ok(Some(Unpacking::new(self, from, bytes))),
            None => Ok(None),
        }
    }
}

impl<'c, 'd> Unpacking<'c, 'd> {
    #[inline]
    pub(super) fn new(circuit: &'c mut Circuit, from: usize, packet: Vec<u8>) -> Self {
        Self { circuit, from, packet, at: 0, bulk: Vec::new(), missing: 0 }
    }

    /// The sender: its place in the group.
    pub fn from(&self) -> usize {
        self.from
    }

    /// Takes the next piece.
    #[inline]
    pub fn unpack(&mut self, bytes: &'d mut [u8], mode: Unpacks) -> Result<(), CircuitError> {
        if bytes.len() <= BULK {
            self.small(bytes);
            return Ok(());
        }
        self.bulk.push(bytes);
        if mode == Unpacks::Express { self.receive_bulk() } else { Ok(()) }
    }

    /// Takes the next piece at once: as [`Unpacking::unpack`] with [`Unpacks::Express`], into bytes that need not be borrowed longer.
    #[inline]
    pub fn unpack_express(&mut self, bytes: &mut [u8]) -> Result<(), CircuitError> {
        if bytes.len() <= BULK {
            self.small(bytes);
            return Ok(());
        }
        self.receive_bulk()?;
        self.receive(&[lend_mut(bytes)])
    }

    #[inline]
    fn small(&mut self, bytes: &mut [u8]) {
        match self.packet.get(self.at..self.at + bytes.len()) {
            Some(here) => bytes.copy_from_slice(here),
            None => self.missing += bytes.len(),
        }
        self.at += bytes.len();
    }

    /// Receives the pieces that travel alone and were unpacked so far: they come in the order they were packed.
    #[cold]
    fn receive_bulk(&mut self) -> Result<(), CircuitError> {
        let pieces: Vec<_> = self.bulk.drain(..).map(lend_mut).collect();
        self.receive(&pieces)
    }

    /// Receives one message into each piece. Whatever happens, the pieces are no longer written when this returns.
    fn receive(&mut self, pieces: &[Piece]) -> Result<(), CircuitError> {
        let from = self.circuit.ranks.get(self.from).copied();
        let number = self.circuit.counts[self.from].1 - 1;
        let (mut posted, mut result) = (Vec::new(), Ok(()));
        for piece in pieces {
            let token = self.circuit.token();
            let parts = core::slice::from_ref(piece);
            let receive = Receive { from, tag: Some(number), ignore: 0, parts, token, multi: None };
            result = self.circuit.settled(self.from, self.circuit.endpoint.receive(&receive));
            if result.is_err() {
                break;
            }
            posted.push((token, piece.len()));
        }
        for (token, len) in posted {
            let got = self.circuit.wait_for(self.from, Kind::Received, token);
            let whole = got.and_then(|done| if done.len == len { Ok(()) } else { Err(self.mismatch(done.len, len)) });
            result = result.and(whole);
        }
        result
    }

    fn mismatch(&self, here: usize, asked: usize) -> CircuitError {
        CircuitError::Mismatch { rank: self.from, here, asked }
    }

    /// Waits until every piece is there. An error means that the two sides did not name the same pieces, or that the sender is lost.
    #[inline]
    pub fn end(mut self) -> Result<(), CircuitError> {
        if !self.bulk.is_empty() {
            self.receive_bulk()?;
        }
        let (here, asked) = (self.packet.len(), self.at);
        if here != asked || self.missing > 0 {
            return Err(self.mismatch(here, asked));
        }
        Ok(())
    }
}

impl Drop for Unpacking<'_, '_> {
    fn drop(&mut self) {
        self.circuit.used = core::mem::take(&mut self.packet);
    }
}
