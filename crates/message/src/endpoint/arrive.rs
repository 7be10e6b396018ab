//! Messages that arrive: matched or unexpected, pulled or requested, piece by piece.

use madrigal_progress::message::{LinkIndex, Placement};
use madrigal_sys::piece;

use super::credit::{Load, MAX_KEPT};
use super::state::{Lies, Matched, Unexpected, UnexpectedBody};
use super::types::{Completion, Kind, PeerId, Status};
use super::wire::{DELIVERY, Ended, Head, LAST, Message, Seen, What};
use crate::memory::{Block, GATHER, Pieces};
use crate::slab::Key;
use crate::worker::out::Stream;
use crate::worker::state::{Arrived, Come, Does, NodeState, Op, Placed, State, Take};

/// The pieces a rendezvous may name.
pub(crate) const MAX_PIECES: usize = 64;
/// The bytes of one of them.
pub(crate) const RENDEZVOUS_PIECE: usize = 16;
/// Buffers kept to be used again, and the most they hold.
const SPARE: usize = 256;
const SPARE_LEN: usize = 16 << 10;

/// A frame as it came.
pub(crate) struct Came<'a> {
    pub(crate) node: u32,
    pub(crate) via: (usize, LinkIndex),
    pub(crate) head: Seen<'a>,
}

impl State {
    /// A whole message is here.
    #[inline]
    pub(crate) fn eager(&mut self, came: &Came<'_>, body: &[u8]) -> Option<()> {
        let message = came.head.message(0)?;
        let Some(from) = self.wants(came, &message, body) else { return Some(()) };
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.extend_from_slice(body);
        self.keep(came, from, message, bytes)
    }

    /// The same, in memory of its own.
    pub(crate) fn eager_block(&mut self, came: &Came<'_>, block: Block) -> Option<()> {
        let message = came.head.message(0)?;
        let from = self.wants(came, &message, block.bytes());
        let bytes = block.into_bytes();
        match from {
            Some(from) => self.keep(came, from, message, bytes),
            None => {
                self.recycle(bytes);
                Some(())
            }
        }
    }

    /// Gives a message to the receive that waits for it. If there is none, returns its peer: the message is kept as unexpected.
    #[inline]
    fn wants(&mut self, came: &Came<'_>, message: &Message, body: &[u8]) -> Option<PeerId> {
        let Some(from) = self.sender(came.node, came.head.to, came.head.from) else {
            // That endpoint is gone.
            self.taken(came.node, Load::Eager(body.len()));
            self.acknowledge(came.node, message.operation, Ended::Failed);
            return None;
        };
        let Some(matched) = self.match_message(came.head.to, from, message, body.len()) else { return Some(from) };
        piece::scatter(matched.pieces.all(), 0, body);
        self.taken(came.node, Load::Eager(body.len()));
        self.acknowledge(came.node, message.operation, Ended::Well);
        self.complete_receive(came.head.to, matched.completion, matched.many);
        None
    }

    /// Keeps an unexpected message.
    #[inline]
    fn keep(&mut self, came: &Came<'_>, from: PeerId, message: Message, bytes: Vec<u8>) -> Option<()> {
        let len = bytes.len();
        let endpoint = self.endpoint(came.head.to)?;
        let plain = !message.tagged && message.operation.is_none();
        if plain && endpoint.in_order && endpoint.matching(false).is_empty() {
            endpoint.inbox.push_back((came.node, from, bytes));
            return self.nodes[came.node as usize].credit.charge(Load::Eager(len));
        }
        self.nodes[came.node as usize].credit.charge(Load::Eager(len))?;
        let unexpected = Unexpected { message, len, body: UnexpectedBody::Eager(bytes) };
        self.endpoint(came.head.to)?.matching(message.tagged).keep(from.0, message.tag, unexpected);
        Some(())
    }

    /// A long message is on its way with its head: where does it go?
    pub(crate) fn place_eager(&mut self, came: &Came<'_>, len: usize, placement: &mut Placement) -> Option<Placed> {
        let message = came.head.message(0)?;
        let matched = self
            .sender(came.node, came.head.to, came.head.from)
            .and_then(|from| self.match_message(came.head.to, from, &message, len));
        let Some(matched) = matched else { return place_block(len, placement) };
        self.taken(came.node, Load::Eager(len));
        let (part, _) = matched.pieces.part(0, len, usize::MAX);
        placement.extend_from_slice(part.all());
        let Matched { completion, many, .. } = matched;
        Some(Placed::Receive(Arrived { channel: came.head.to, completion, many, ack: message.operation }))
    }

    fn acknowledge(&mut self, node: u32, operation: Option<u64>, ended: Ended) {
        if let Some(operation) = operation {
            self.report_end(node, operation, ended);
        }
    }

    /// The body of a receive has arrived.
    pub(crate) fn receive_arrived(&mut self, node: u32, arrived: Arrived) {
        self.acknowledge(node, arrived.ack, Ended::Well);
        self.complete_receive(arrived.channel, arrived.completion, arrived.many);
    }

    /// A message comes by rendezvous.
    pub(crate) fn rendezvous(&mut self, came: &Came<'_>, body: &[u8]) -> Option<()> {
        let (op, len) = (came.head.word(0)?, usize::try_from(came.head.word(1)?).ok()?);
        let message = came.head.message(2)?;
        let remote = read_pieces(body, len)?;
        let load = Load::Rendezvous(remote.len());
        let Some(from) = self.sender(came.node, came.head.to, came.head.from) else {
            self.taken(came.node, load);
            self.report_end(came.node, op, Ended::Failed);
            return Some(());
        };
        match self.match_message(came.head.to, from, &message, len) {
            Some(matched) => {
                self.taken(came.node, load);
                self.fetch(came.head.to, came.node, matched, Lies { op, remote, via: came.via });
            }
            None => {
                self.nodes[came.node as usize].credit.charge(load)?;
                let unexpected =
                    Unexpected { message, len, body: UnexpectedBody::Rendezvous(Lies { op, remote, via: came.via }) };
                self.endpoint(came.head.to)?.matching(message.tagged).keep(from.0, message.tag, unexpected);
            }
        }
        Some(())
    }

    /// Gets a message by rendezvous that found its receive: by single copy, if its pieces are known, else by a request to the sender.
    pub(crate) fn fetch(&mut self, channel: u16, node: u32, matched: Matched, lies: Lies) {
        let Lies { op: theirs, remote, via } = lies;
        let Matched { pieces, fits, completion, many } = matched;
        let near = self.near.get(via.0) == Some(&true);
        let near = near && !remote.is_empty() && self.nodes[node as usize].copies && fits > 0;
        let remote = if near { remote } else { Vec::new() };
        let take = Take { pieces, want: fits, got: 0, theirs: Some(theirs), remote, via, many, come: Come::Not };
        let key = self.ops.add(Op::new(channel, node, completion, Does::Take(take)));
        self.take_long(key, fits, near);
    }

    /// Requests from the peer what an operation takes.
    pub(crate) fn ask_for(&mut self, key: Key) {
        let Some(Op { node, does: Does::Take(take), .. }) = self.ops.get(key) else { return };
        let (node, want, theirs) = (*node, take.want, take.theirs);
        // It may be copied after all: the sender must not change it until it receives the end.
        let flags = if take.remote.is_empty() { 0 } else { DELIVERY };
        take.come = Come::Asked;
        let Some(theirs) = theirs else { return };
        if want == 0 {
            self.finish_take(key, Ended::Well);
            return;
        }
        let head = Head::new(What::Go, flags, 0, 0).word(theirs).word(want as u64).word(key);
        self.queue(node, head, Vec::new());
    }

    /// Everything an operation takes is here, or never will be.
    pub(crate) fn finish_take(&mut self, key: Key, ended: Ended) {
        let Some(Op { node, does: Does::Take(take), .. }) = self.ops.get(key) else { return };
        let (node, theirs) = (*node, take.theirs);
        if let Some(theirs) = theirs {
            self.report_end(node, theirs, ended);
        }
        let status = match ended {
            Ended::Well => None,
            Ended::Denied => Some(Status::Denied),
            Ended::Failed => Some(Status::Gone),
        };
        self.end(key, status);
    }

    /// A peer wants the bytes of a message of ours.
    pub(crate) fn go(&mut self, came: &Came<'_>) -> Option<()> {
        let (key, want, to) = (came.head.word(0)?, usize::try_from(came.head.word(1)?).ok()?, came.head.word(2)?);
        let Some(op) = self.ops.get(key).filter(|op| op.node == came.node) else { return Some(()) };
        let Does::Send { pieces, wait } = &op.does else { return None };
        if want > pieces.len() || op.reading {
            return None;
        }
        (op.reading, op.over) = (true, !wait && !came.head.has(DELIVERY));
        let source = pieces.clone();
        let stream = Stream { op: Some(key), to, source, offset: 0, end: want, region: None };
        self.answer_by(came.node, stream);
        Some(())
    }

    /// Where requested bytes go. Bytes that no operation waits for (any more) are dropped.
    pub(crate) fn place_data(&mut self, came: &Came<'_>, len: usize, placement: &mut Placement) -> Option<Placed> {
        let (key, offset) = (came.head.word(0)?, usize::try_from(came.head.word(1)?).ok()?);
        let Some(op) = self.ops.get(key).filter(|op| op.node == came.node) else { return Some(Placed::Nowhere) };
        let Does::Take(take) = &mut op.does else { return None };
        if offset.checked_add(len)? > take.want {
            return None;
        }
        if !matches!(take.come, Come::Asked | Come::Frames) {
            return Some(Placed::Nowhere);
        }
        take.come = Come::Frames;
        let (part, _) = take.pieces.part(offset, len, usize::MAX);
        placement.extend_from_slice(part.all());
        Some(Placed::Data { op: key, len })
    }

    /// So many bytes more are where an operation takes them.
    pub(crate) fn data_arrived(&mut self, key: Key, len: usize) {
        let Some(Op { does: Does::Take(take), .. }) = self.ops.get(key) else { return };
        take.got = take.got.saturating_add(len);
        if take.got >= take.want {
            self.finish_take(key, Ended::Well);
        }
    }

    /// Requested bytes, few enough to come at once.
    pub(crate) fn data(&mut self, came: &Came<'_>, body: &[u8]) -> Option<()> {
        let mut placement = Placement::new();
        if let Placed::Data { op, len } = self.place_data(came, body.len(), &mut placement)? {
            piece::scatter(&placement, 0, body);
            self.data_arrived(op, len);
        }
        Some(())
    }

    /// An operation of ours has ended at the peer.
    pub(crate) fn ended(&mut self, came: &Came<'_>) -> Option<()> {
        let key = came.head.word(0)?;
        let Some(op) = self.ops.get(key).filter(|op| op.node == came.node) else { return Some(()) };
        let ended = Ended::from_number(came.head.extra);
        if ended != Ended::Well {
            op.completion.status = if ended == Ended::Denied { Status::Denied } else { Status::Gone };
        }
        if !came.head.has(LAST) {
            return Some(());
        }
        match &op.does {
            // What is still being sent is finished first.
            _ if op.reading => op.over = true,
            Does::Take(_) if ended == Ended::Well => return None,
            Does::Ask { .. } => drop(self.drop_op(key)),
            _ => self.end(key, None),
        }
        Some(())
    }

    /// A receive was posted: the message it takes, if one waits.
    pub(crate) fn give_unexpected(&mut self, channel: u16, from: u32, matched: Matched, unexpected: Unexpected) {
        let node = self.endpoint(channel).and_then(|e| e.peers.get(from as usize)).map_or(0, |peer| peer.node);
        self.released(node, unexpected.load());
        match unexpected.body {
            UnexpectedBody::Eager(bytes) => {
                piece::scatter(matched.pieces.all(), 0, &bytes);
                self.recycle(bytes);
                self.acknowledge(node, unexpected.message.operation, Ended::Well);
                self.complete_receive(channel, matched.completion, matched.many);
            }
            UnexpectedBody::Rendezvous(_) if self.nodes[node as usize].state == NodeState::Down => {
                let completion = Completion { status: Status::Gone, len: 0, ..matched.completion };
                self.complete_receive(channel, completion, matched.many);
            }
            UnexpectedBody::Rendezvous(lies) => self.fetch(channel, node, matched, lies),
        }
    }

    /// Drops an unexpected message; its sender gets the same report as if it had been received.
    pub(crate) fn discard_unexpected(&mut self, channel: u16, from: PeerId, unexpected: Unexpected) {
        let pieces = Pieces::new(&[]);
        let completion = Completion::new(Kind::Received, 0);
        let node = self.endpoint(channel).and_then(|e| e.peers.get(from.0 as usize)).map_or(0, |peer| peer.node);
        self.released(node, unexpected.load());
        match unexpected.body {
            UnexpectedBody::Eager(bytes) => {
                self.recycle(bytes);
                self.acknowledge(node, unexpected.message.operation, Ended::Well);
            }
            UnexpectedBody::Rendezvous(Lies { op, remote, via }) => {
                let take = Take { pieces, want: 0, got: 0, theirs: Some(op), remote, via, many: None, come: Come::Not };
                let op = Op { silent: true, ..Op::new(channel, node, completion, Does::Take(take)) };
                let key = self.ops.add(op);
                self.ask_for(key);
            }
        }
    }

    /// Keeps the buffer of a small message.
    pub(crate) fn recycle(&mut self, mut bytes: Vec<u8>) {
        if self.spare.len() < SPARE && bytes.capacity() <= SPARE_LEN {
            bytes.clear();
            self.spare.push(bytes);
        }
    }
}

/// A body goes into memory of its own, and is read when it is whole.
pub(crate) fn place_block(len: usize, placement: &mut Placement) -> Option<Placed> {
    if len > MAX_KEPT {
        return None;
    }
    let mut block = Block::new(len);
    placement.push(block.piece());
    Some(Placed::Block(block))
}

/// The pieces of a rendezvous. `None`: nonsense.
fn read_pieces(body: &[u8], len: usize) -> Option<Vec<(u64, usize)>> {
    let (pairs, rest) = body.as_chunks::<RENDEZVOUS_PIECE>();
    if !rest.is_empty() || pairs.len() > MAX_PIECES {
        return None;
    }
    let word = |bytes: &[u8]| bytes.first_chunk::<8>().map(|word| u64::from_le_bytes(*word));
    let mut sum = 0usize;
    let mut pieces = Vec::with_capacity(pairs.len());
    for pair in pairs {
        let (at, size) = (word(pair)?, usize::try_from(word(pair.get(8..)?)?).ok()?);
        sum = sum.checked_add(size)?;
        pieces.push((at, size));
    }
    (pieces.is_empty() || sum == len).then_some(pieces)
}

/// The body of a rendezvous: where its pieces lie; none if there are too many of them.
pub(crate) fn write_pieces(pieces: &Pieces) -> Vec<u8> {
    let all = pieces.all();
    if all.len() > GATHER {
        return Vec::new();
    }
    let pair = |piece: &piece::Piece| [(piece.at() as u64).to_le_bytes(), (piece.len() as u64).to_le_bytes()];
    all.iter().flat_map(pair).flatten().collect()
}
