//! Reaching the memory of peers: the requesting side.

use madrigal_progress::message::SingleCopy;
use madrigal_report::ranks;
use madrigal_sys::piece;

use super::Endpoint;
use super::atomic::{AtomicOp, is_supported};
use super::regions::{Exposed, Known};
use super::remote::MAX_ATOMIC;
use super::types::{Atomic, Completion, ExposeError, Get, Kind, PeerId, PostError, Posted, Put, Region};
use super::wire::{DATA, FETCH, Head, LAST, What};
use crate::memory::{GATHER, Pieces, gather};
use crate::worker::Core;
use crate::worker::out::Item;
use crate::worker::state::{Does, NodeState, Op, Take};

/// Fewer bytes are put by a frame, which costs less than a system call, unless the peer is likely not to run now: only it could answer.
const LEAST_PUSH: usize = 2048;
/// Bytes put by one frame.
const CHUNK: usize = 256 << 10;
/// Operations under way on one node: this bounds what it owes us.
const MOST_ASKED: usize = 16 << 10;

impl Core {
    pub(super) fn expose(&mut self, channel: u16, region: Region) -> Result<(), ExposeError> {
        let space = self.state.endpoint(channel).map_or(usize::MAX, |endpoint| endpoint.space);
        let regions = self.state.spaces.get_mut(space).ok_or(ExposeError::InUse)?;
        match regions.entry(region.key) {
            std::collections::hash_map::Entry::Occupied(_) => Err(ExposeError::InUse),
            std::collections::hash_map::Entry::Vacant(place) => {
                place.insert(Exposed::new(region));
                Ok(())
            }
        }
    }

    pub(super) fn withdraw(&mut self, channel: u16, key: u64) -> Result<(), PostError> {
        let space = self.state.endpoint(channel).ok_or(PostError::Invalid)?.space;
        if self.state.is_placement(space, key) {
            return Err(PostError::Again);
        }
        self.state.withdraw(space, key);
        self.flush_all();
        self.settle();
        Ok(())
    }

    /// The route for a request to a peer: as [`Core::route`], unless very much of that kind is under way.
    fn ask_route(&mut self, channel: u16, to: PeerId) -> Result<(u32, u16), PostError> {
        let (node, theirs) = self.route(channel, to)?;
        if self.state.nodes[node as usize].asked >= MOST_ASKED {
            return Err(PostError::Again);
        }
        Ok((node, theirs))
    }

    /// Copies between the memory of a peer and ours at once, where that can be done. `None`: it cannot.
    fn copy(&mut self, channel: u16, node: u32, of: (PeerId, u64, u64), local: &Pieces, writes: bool) -> Option<()> {
        let (peer, key, at) = of;
        let to = &self.state.nodes[node as usize];
        let NodeState::Up { port, link } = to.state else { return None };
        if !to.copies {
            return None;
        }
        let len = local.len();
        let address = self.state.reach(channel, peer, key)?.address(at, len, writes)?;
        let parts: Vec<_> = local.all().iter().map(|piece| (piece.at() as u64, piece.len())).collect();
        let port = &mut self.ports[port].port;
        let remote = [(address, len)];
        let copied = if writes { port.push(link, &parts, &remote) } else { port.pull(link, &remote, &parts) };
        match copied {
            SingleCopy::Done => {
                let counters = self.state.nodes[node as usize].counters();
                ranks::add(if writes { &counters.copied_out } else { &counters.copied_in }, len as u64);
                return Some(());
            }
            SingleCopy::No => self.state.refused_copies(node),
            // The frames that follow find out what is wrong.
            SingleCopy::Failed => {
                let known = self.state.endpoint(channel)?.regions.get_mut(&(peer, key))?;
                *known = Known::Nowhere;
            }
        }
        None
    }

    pub(super) fn put(&mut self, channel: u16, put: &Put<'_>) -> Result<Posted, PostError> {
        let len = piece::total(put.parts);
        let (node, theirs) = self.ask_route(channel, put.to)?;
        if len > Endpoint::LONGEST || put.inject && len > Endpoint::INJECT {
            return Err(PostError::TooLong);
        }
        let pieces = Pieces::new(put.parts);
        // What was queued before comes first.
        let clear = self.state.nodes[node as usize].out.is_clear();
        let least = if self.state.idle.is_crowded() { 1 } else { LEAST_PUSH };
        if clear && len >= least && self.copy(channel, node, (put.to, put.key, put.at), &pieces, true).is_some() {
            if let Some(data) = put.data {
                let head = Head::new(What::Wrote, 0, theirs, channel).word(data).word(len as u64);
                self.state.queue(node, head, Vec::new());
                self.flush_all();
            }
            self.settle();
            return Ok(Posted::Done);
        }
        let completion = Completion { len, from: Some(put.to), ..Completion::new(Kind::Put, put.token) };
        let op = Op { reading: !put.inject, ..Op::new(channel, node, completion, Does::Wait) };
        let key = self.state.ask_op(op);
        self.queue_put(channel, put, (node, theirs), &pieces, key);
        self.flush(node);
        self.settle();
        Ok(Posted::Pending)
    }

    /// Queues the frames of a put.
    fn queue_put(&mut self, channel: u16, put: &Put<'_>, (node, theirs): (u32, u16), pieces: &Pieces, key: u64) {
        let all = pieces.len();
        let mut offset = 0;
        loop {
            let (part, len) = pieces.part(offset, CHUNK, GATHER);
            let last = offset + len == all;
            let data = put.data.filter(|_| last);
            let flags = if last { LAST } else { 0 } | if data.is_some() { DATA } else { 0 };
            let head = Head::new(What::Put, flags, theirs, channel);
            let head = head.word(put.key).word(put.at).word(key).word(offset as u64).word(all as u64).maybe(data);
            let item = if put.inject {
                Item::owned(head, gather(part.all()))
            } else {
                Item::lent(head, part, Some(key).filter(|_| last))
            };
            self.state.queue_item(node, item);
            offset += len;
            if last {
                return;
            }
        }
    }

    pub(super) fn get(&mut self, channel: u16, get: &Get<'_>) -> Result<Posted, PostError> {
        let pieces = Pieces::new(get.parts);
        let len = pieces.len();
        let (node, theirs) = self.ask_route(channel, get.from)?;
        if len > Endpoint::LONGEST {
            return Err(PostError::TooLong);
        }
        // What was put before must be there: frames of ours that still wait come first.
        let clear = self.state.nodes[node as usize].out.is_clear();
        if len == 0 || clear && self.copy(channel, node, (get.from, get.key, get.at), &pieces, false).is_some() {
            self.settle();
            return Ok(Posted::Done);
        }
        let completion = Completion { len, from: Some(get.from), ..Completion::new(Kind::Got, get.token) };
        let key = self.state.ask_op(Op::new(channel, node, completion, Does::Take(Take::asked(pieces))));
        let head = Head::new(What::Get, 0, theirs, channel).word(get.key).word(get.at).word(len as u64).word(key);
        self.state.queue(node, head, Vec::new());
        self.flush(node);
        self.settle();
        Ok(Posted::Pending)
    }

    pub(super) fn atomic(&mut self, channel: u16, atomic: &Atomic<'_>) -> Result<Posted, PostError> {
        let (node, theirs) = self.ask_route(channel, atomic.to)?;
        let len = atomic.count.saturating_mul(atomic.of.size());
        if len > MAX_ATOMIC {
            return Err(PostError::TooLong);
        }
        let result = Pieces::new(atomic.result);
        let fetch = result.len() > 0;
        let reads = atomic.op == AtomicOp::Read;
        let mut body = if reads { Vec::new() } else { gather(atomic.operand) };
        let fits = body.len() == if reads { 0 } else { len };
        if atomic.op.compares() {
            body.extend(gather(atomic.compare));
        }
        let fits = fits && body.len() == len * (usize::from(!reads) + usize::from(atomic.op.compares()));
        if !is_supported(atomic.op, atomic.of) || len == 0 || !fits || fetch && result.len() != len {
            return Err(PostError::Invalid);
        }
        let completion = Completion { len, from: Some(atomic.to), ..Completion::new(Kind::Atomic, atomic.token) };
        let does = if fetch { Does::Take(Take::asked(result)) } else { Does::Wait };
        let key = self.state.ask_op(Op::new(channel, node, completion, does));
        let head = Head::new(What::Atomic, if fetch { FETCH } else { 0 }, theirs, channel);
        let head = head.extra(u16::from(atomic.op as u8) << 8 | u16::from(atomic.of as u8));
        let head = head.word(atomic.key).word(atomic.at).word(atomic.count as u64).word(key);
        self.state.queue(node, head, body);
        self.flush(node);
        self.settle();
        Ok(Posted::Pending)
    }
}
