//! Messages as they are posted: the sending side, and receives.

use madrigal_progress::message::{LinkError, LinkIndex, Port, Sent};
use madrigal_sys::piece::{self, Piece};

use super::arrive::{RENDEZVOUS_PIECE, write_pieces};
use super::credit::Load;
use super::matched::matched;
use super::state::{Many, Target, Unexpected, UnexpectedBody};
use super::types::{Claim, Completion, Kind, PeerId, PostError, Posted, Receive, Seen, Send, Status, Wanted};
use super::wire::{DATA, DELIVERY, Ended, Head, TAGGED, What};
use super::{Endpoint, Plain};
use crate::memory::{GATHER, Pieces, gather, slices};
use crate::worker::Core;
use crate::worker::out::Item;
use crate::worker::state::{Does, NodeState, Op};

impl Core {
    /// Where frames for a peer go now: its node, its channel there.
    #[inline]
    pub(super) fn route(&mut self, channel: u16, to: PeerId) -> Result<(u32, u16), PostError> {
        // A sender is at work, though nothing may come: its next poll must not sleep.
        self.state.idle.asks();
        let endpoint = self.state.endpoint(channel).ok_or(PostError::Invalid)?;
        let peer = *endpoint.peers.get(to.0 as usize).ok_or(PostError::Invalid)?;
        let node = &self.state.nodes[peer.node as usize];
        let is_full = node.out.is_full();
        match node.state {
            NodeState::Up { .. } => {}
            NodeState::Down => return Err(PostError::Unreachable),
            NodeState::None | NodeState::Linking { .. } => self.state.attend(peer.node),
        }
        if is_full {
            return Err(PostError::Again);
        }
        Ok((peer.node, peer.channel))
    }

    /// See [`Endpoint::has_room`].
    pub(super) fn has_room(&mut self, channel: u16, to: PeerId) -> bool {
        let peer = self.state.endpoint(channel).and_then(|endpoint| endpoint.peers.get(to.0 as usize).copied());
        let node = peer.and_then(|peer| self.state.nodes.get(peer.node as usize));
        node.is_none_or(|node| {
            node.state == NodeState::Down
                || node.credit.may_send() && node.credit.may_rendezvous() && !node.out.is_full()
        })
    }

    /// See [`Endpoint::send`].
    #[inline]
    pub(super) fn send(&mut self, channel: u16, send: &Send<'_>) -> Result<Posted, PostError> {
        let len = piece::total(send.parts);
        let (node, theirs) = self.route(channel, send.to)?;
        let to = &mut self.state.nodes[node as usize];
        // An injected message never goes by rendezvous: it goes at once, and is copied only if there is no room.
        if let NodeState::Up { port, link } = to.state
            && to.out.is_clear()
            && to.credit.may_send()
            && (len <= self.ports[port].eager || send.inject && len <= Endpoint::INJECT)
            && send.parts.len() <= GATHER
            && !send.delivery
        {
            to.credit.sends(Load::Eager(len));
            return self.send_now(channel, send, (node, theirs), (port, link));
        }
        self.send_later(channel, send, (node, theirs), len)
    }

    /// The usual case: the whole message goes out at once, straight from its buffers.
    #[inline]
    fn send_now(
        &mut self,
        channel: u16,
        send: &Send<'_>,
        (node, theirs): (u32, u16),
        (port, link): (usize, LinkIndex),
    ) -> Result<Posted, PostError> {
        let head = message_head(What::Eager, send, 0, theirs, channel);
        let head = head.maybe(send.tag).maybe(send.data);
        let port = &mut *self.ports[port].port;
        let sent = match send.parts {
            [one] => port.send(link, head.bytes(), &[one.slice()], 0),
            parts => send_parts(port, link, &head, parts),
        };
        match sent {
            Ok(Sent::All) => {
                self.state.nodes[node as usize].counters().sent(piece::total(send.parts));
                Ok(Posted::Done)
            }
            Ok(Sent::Part(taken)) => Ok(self.queue_eager(channel, send, node, head, taken)),
            Err(why) => {
                self.state.fail(node, why);
                self.settle();
                Err(PostError::Unreachable)
            }
        }
    }

    /// Queues a whole message, of which a port took `taken` bytes.
    fn queue_eager(&mut self, channel: u16, send: &Send<'_>, node: u32, head: Head, taken: usize) -> Posted {
        let (item, posted) = if send.inject {
            (Item::owned(head, gather(send.parts)), Posted::Done)
        } else {
            let key = self.sending(channel, send, node, true);
            (Item::lent(head, Pieces::new(send.parts), Some(key)), Posted::Pending)
        };
        self.queue_or_resume(node, item, taken);
        posted
    }

    fn queue_or_resume(&mut self, node: u32, item: Item, taken: usize) {
        if taken == 0 {
            self.state.queue_item(node, item);
        } else {
            self.state.nodes[node as usize].out.resume(item, taken);
            self.state.attend(node);
        }
    }

    /// An operation for a message of ours. `reading`: its bytes are queued now, else they go by rendezvous.
    fn sending(&mut self, channel: u16, send: &Send<'_>, node: u32, reading: bool) -> u64 {
        let pieces = Pieces::new(send.parts);
        let completion = Completion {
            tagged: send.tag.is_some(),
            len: pieces.len(),
            tag: send.tag.unwrap_or(0),
            from: Some(send.to),
            ..Completion::new(Kind::Sent, send.token)
        };
        let does = Does::Send { pieces, wait: send.delivery };
        let op = Op::new(channel, node, completion, does);
        self.state.ops.add(Op { silent: send.inject, reading, over: reading && !send.delivery, ..op })
    }

    /// Everything but the usual case.
    #[cold]
    fn send_later(
        &mut self,
        channel: u16,
        send: &Send<'_>,
        (node, theirs): (u32, u16),
        len: usize,
    ) -> Result<Posted, PostError> {
        if len > Endpoint::LONGEST || send.inject && len > Endpoint::INJECT {
            return Err(PostError::TooLong);
        }
        let whole = self.state.nodes[node as usize].credit.may_send();
        if send.inject && !whole {
            return Err(PostError::Again);
        }
        let posted = if send.inject || whole && len <= self.eager(channel, node) {
            self.send_whole(channel, send, node, theirs)
        } else {
            self.send_rendezvous(channel, send, (node, theirs), len)?
        };
        self.flush(node);
        self.settle();
        Ok(posted)
    }

    fn send_rendezvous(
        &mut self,
        channel: u16,
        send: &Send<'_>,
        (node, theirs): (u32, u16),
        len: usize,
    ) -> Result<Posted, PostError> {
        let to = &mut self.state.nodes[node as usize];
        if !to.credit.may_rendezvous() {
            return Err(PostError::Again);
        }
        let pieces = write_pieces(&Pieces::new(send.parts));
        to.credit.sends(Load::Rendezvous(pieces.len() / RENDEZVOUS_PIECE));
        let key = self.sending(channel, send, node, false);
        let head = message_head(What::Rendezvous, send, 0, theirs, channel);
        let head = head.word(key).word(len as u64).maybe(send.tag).maybe(send.data);
        self.state.queue_item(node, Item::copied(head, pieces, Some(key)));
        Ok(Posted::Pending)
    }

    /// The longest body sent eagerly.
    fn eager(&mut self, channel: u16, node: u32) -> usize {
        // Where messages are taken in order, the peer has no receives either.
        let receives = self.state.endpoint(channel).is_some_and(|endpoint| !endpoint.in_order);
        match self.state.nodes[node as usize].state {
            NodeState::Up { port, .. } | NodeState::Linking { port, .. } if receives => self.ports[port].unasked,
            NodeState::Up { port, .. } | NodeState::Linking { port, .. } => self.ports[port].eager,
            _ => self.ports.iter().map(|slot| slot.eager).min().unwrap_or(0),
        }
    }

    /// Queues a message whole: nothing of it can be sent now, or its delivery must be reported.
    fn send_whole(&mut self, channel: u16, send: &Send<'_>, node: u32, theirs: u16) -> Posted {
        self.state.nodes[node as usize].credit.sends(Load::Eager(piece::total(send.parts)));
        let wait = send.delivery && !send.inject;
        let head = message_head(What::Eager, send, if wait { DELIVERY } else { 0 }, theirs, channel);
        let head = head.maybe(send.tag).maybe(send.data);
        if send.inject {
            self.state.queue(node, head, gather(send.parts));
            return Posted::Done;
        }
        let key = self.sending(channel, send, node, true);
        let head = if wait { head.word(key) } else { head };
        let item = if send.parts.len() <= GATHER {
            Item::lent(head, Pieces::new(send.parts), Some(key))
        } else {
            // Too many pieces for one call: they are copied, and the buffers are free.
            Item::copied(head, gather(send.parts), Some(key))
        };
        self.state.queue_item(node, item);
        Posted::Pending
    }

    /// See [`Endpoint::receive`].
    #[inline]
    pub(super) fn receive(&mut self, channel: u16, receive: &Receive<'_>) -> Result<(), PostError> {
        let tagged = receive.tag.is_some();
        let (tag, from) = (receive.tag.unwrap_or(0), receive.from.map(|peer| peer.0));
        if let Some(peer) = receive.from {
            self.expect(channel, peer, tagged, tag, receive.ignore)?;
        }
        if let Some(least) = receive.multi {
            return self.receive_many(channel, receive, least);
        }
        let pieces = Pieces::new(receive.parts);
        let matching = self.state.endpoint(channel).ok_or(PostError::Invalid)?.matching(tagged);
        match matching.waiting(from, tag, receive.ignore).and_then(|at| matching.take_message(at, false)) {
            None => drop(matching.post(from, tag, receive.ignore, Target::One { pieces, token: receive.token })),
            Some((from, _, unexpected)) => self.give(channel, from, pieces, receive.token, unexpected),
        }
        Ok(())
    }

    /// Gives an unexpected message to a receive.
    #[cold]
    fn give(&mut self, channel: u16, from: u32, pieces: Pieces, token: u64, unexpected: Unexpected) {
        let matched = matched(pieces, token, PeerId(from), &unexpected.message, unexpected.len);
        self.state.give_unexpected(channel, from, matched, unexpected);
        self.flush_all();
        self.settle();
    }

    /// Whether the peer of a receive can still send.
    #[inline]
    fn expect(&mut self, channel: u16, peer: PeerId, tagged: bool, tag: u64, ignore: u64) -> Result<(), PostError> {
        let endpoint = self.state.endpoint(channel).ok_or(PostError::Invalid)?;
        let node = endpoint.peers.get(peer.0 as usize).ok_or(PostError::Invalid)?.node;
        if self.state.nodes[node as usize].state != NodeState::Down {
            return Ok(());
        }
        // What it sent before is still here.
        let endpoint = self.state.endpoint(channel).ok_or(PostError::Invalid)?;
        let waiting = endpoint.matching(tagged).waiting(Some(peer.0), tag, ignore);
        waiting.map(drop).ok_or(PostError::Unreachable)
    }

    /// Posts a buffer for many messages: those that wait go in at once.
    fn receive_many(&mut self, channel: u16, receive: &Receive<'_>, least: usize) -> Result<(), PostError> {
        let piece = receive.parts.first().copied().unwrap_or(Piece::EMPTY);
        if piece.len() < least.max(1) {
            return Err(PostError::Invalid);
        }
        let many = Many { piece, used: 0, least, token: receive.token, open: 0, closed: false };
        let key = self.state.many.add(many);
        let (tagged, tag) = (receive.tag.is_some(), receive.tag.unwrap_or(0));
        let from = receive.from.map(|peer| peer.0);
        loop {
            let matching = self.state.endpoint(channel).ok_or(PostError::Invalid)?.matching(tagged);
            let found = matching.waiting(from, tag, receive.ignore).and_then(|at| matching.take_message(at, false));
            let Some((from_peer, _, unexpected)) = found else {
                matching.post(from, tag, receive.ignore, Target::Many(key));
                break;
            };
            let Some(many) = self.state.many.get(key) else { break };
            let matched = many.next(key, PeerId(from_peer), &unexpected.message, unexpected.len);
            let closed = many.closed;
            self.state.give_unexpected(channel, from_peer, matched, unexpected);
            if closed {
                break;
            }
        }
        self.flush_all();
        self.settle();
        Ok(())
    }

    pub(super) fn peek(&mut self, channel: u16, wanted: &Wanted) -> Option<(u32, Seen)> {
        let tagged = wanted.tag.is_some();
        let matching = self.state.endpoint(channel)?.matching(tagged);
        let at = matching.waiting(wanted.from.map(|peer| peer.0), wanted.tag.unwrap_or(0), wanted.ignore)?;
        let waiting = matching.message(at)?;
        let Unexpected { message, len, .. } = waiting.message;
        Some((at, Seen { from: PeerId(waiting.from), tag: waiting.tag, len: *len, data: message.data }))
    }

    pub(super) fn claim(&mut self, channel: u16, wanted: &Wanted) -> Option<(Seen, Claim)> {
        let tagged = wanted.tag.is_some();
        let (message, seen) = self.peek(channel, wanted)?;
        self.state.endpoint(channel)?.matching(tagged).claim(message).then_some((seen, Claim { message, tagged }))
    }

    fn claimed(&mut self, channel: u16, claim: &Claim) -> Result<(u32, Unexpected), PostError> {
        let endpoint = self.state.endpoint(channel).ok_or(PostError::Invalid)?;
        let taken = endpoint.matching(claim.tagged).take_message(claim.message, true);
        taken.map(|(from, _, unexpected)| (from, unexpected)).ok_or(PostError::Invalid)
    }

    pub(super) fn receive_claimed(&mut self, channel: u16, claim: &Claim, to: &Receive<'_>) -> Result<(), PostError> {
        let (from, unexpected) = self.claimed(channel, claim)?;
        self.give(channel, from, Pieces::new(to.parts), to.token, unexpected);
        Ok(())
    }

    pub(super) fn discard(&mut self, channel: u16, claim: &Claim) -> Result<(), PostError> {
        let (from, unexpected) = self.claimed(channel, claim)?;
        self.state.discard_unexpected(channel, PeerId(from), unexpected);
        Ok(())
    }

    /// See [`Endpoint::next_plain`].
    #[inline]
    pub(super) fn next_plain(&mut self, channel: u16) -> Option<(PeerId, Plain)> {
        let endpoint = self.state.endpoint(channel)?;
        if let Some((node, from, bytes)) = endpoint.inbox.pop_front() {
            self.state.released(node, Load::Eager(bytes.len()));
            return Some((from, Ok(bytes)));
        }
        if endpoint.matching(false).is_empty() { None } else { self.next_unexpected(channel) }
    }

    /// Whether a plain message waits.
    pub(super) fn has_plain(&mut self, channel: u16) -> bool {
        let endpoint = self.state.endpoint(channel);
        endpoint.is_some_and(|endpoint| !endpoint.inbox.is_empty() || !endpoint.matching(false).is_empty())
    }

    /// The first unexpected plain message.
    fn next_unexpected(&mut self, channel: u16) -> Option<(PeerId, Plain)> {
        let message = self.state.endpoint(channel)?.matching(false).waiting(None, 0, u64::MAX)?;
        self.take_unexpected(channel, message, false)
    }

    /// The message that a receive would get, taken out of the matching.
    pub(super) fn take_wanted(&mut self, channel: u16, wanted: &Wanted) -> Option<(Seen, Plain)> {
        let (message, seen) = self.peek(channel, wanted)?;
        let (_, body) = self.take_unexpected(channel, message, wanted.tag.is_some())?;
        Some((seen, body))
    }

    /// An unexpected message: its bytes where they are here, else its length and a claim.
    fn take_unexpected(&mut self, channel: u16, message: u32, tagged: bool) -> Option<(PeerId, Plain)> {
        let matching = self.state.endpoint(channel)?.matching(tagged);
        if !matches!(matching.message(message)?.message.body, UnexpectedBody::Eager(_)) {
            let waiting = matching.message(message)?;
            let (from, len) = (PeerId(waiting.from), waiting.message.len);
            matching.claim(message);
            return Some((from, Err((len, Claim { message, tagged }))));
        }
        let (from, _, unexpected) = matching.take_message(message, false)?;
        let UnexpectedBody::Eager(bytes) = unexpected.body else { return None };
        let node = self.state.endpoint(channel)?.peers.get(from as usize)?.node;
        self.state.released(node, Load::Eager(bytes.len()));
        if let Some(operation) = unexpected.message.operation {
            self.state.report_end(node, operation, Ended::Well);
        }
        Some((PeerId(from), Ok(bytes)))
    }

    pub(super) fn cancel(&mut self, channel: u16, token: u64) -> bool {
        let found = [true, false]
            .into_iter()
            .find_map(|tagged| self.state.take_posted(channel, tagged, None, |posted| posted == token));
        let Some(completion) = found else { return false };
        self.state.complete(channel, Completion { status: Status::Canceled, ..completion });
        true
    }

    /// See [`Endpoint::cancel_send`].
    pub(super) fn cancel_send(&mut self, channel: u16, token: u64) -> bool {
        let meant = |op: &Op| op.channel == channel && !op.silent && op.completion.token == token;
        let keys = self.state.ops.keys(|op| meant(op) && matches!(op.does, Does::Send { .. }));
        let Some(&key) = keys.first() else { return false };
        let Some(Op { node, reading, does: Does::Send { pieces, .. }, .. }) = self.state.ops.get(key) else {
            return false;
        };
        let load = if *reading {
            Load::Eager(pieces.len())
        } else {
            Load::Rendezvous(write_pieces(pieces).len() / RENDEZVOUS_PIECE)
        };
        let to = &mut self.state.nodes[*node as usize];
        if !to.out.take_back(key) {
            return false;
        }
        to.credit.unsends(load);
        self.state.end(key, Some(Status::Canceled));
        true
    }

    /// Closes an endpoint. False: bodies are just arriving in its buffers, and `now` is false. With `now` the links they come by are cut.
    pub(super) fn close(&mut self, channel: u16, now: bool) -> bool {
        let placement = self.state.placement_for(channel);
        if !(now || placement.is_empty() && self.state.is_sent(channel)) {
            return false;
        }
        for (port, link) in placement {
            let node = self.state.links[port][link.0 as usize].node;
            self.abandon(node);
        }
        for key in self.state.ops.keys(|op| op.channel == channel && op.reading) {
            let node = self.state.ops.get(key).map(|op| op.node);
            node.into_iter().for_each(|node| self.abandon(node));
        }
        self.settle();
        for key in self.state.ops.keys(|op| op.channel == channel) {
            self.state.drop_op(key);
        }
        if let Some(slot) = self.state.endpoints.get_mut(usize::from(channel))
            && let Some(closed) = slot.take()
        {
            closed.unexpected().for_each(|(node, load)| self.state.released(node, load));
        }
        for node in &mut self.state.nodes {
            node.last = node.last.filter(|(ours, _, _)| *ours != channel);
        }
        true
    }
}

impl Core {
    /// Gives up a node whose frames do not end and may not go on.
    #[cold]
    fn abandon(&mut self, node: u32) {
        let id = self.state.nodes[node as usize].id;
        self.state.fail(node, LinkError::Gone { node: id, why: "it was too slow for an endpoint that closed".into() });
    }
}

/// Sends a message of several pieces, or none.
#[inline(never)]
fn send_parts(port: &mut dyn Port, link: LinkIndex, head: &Head, parts: &[Piece]) -> Result<Sent, LinkError> {
    let (parts, count) = slices(parts);
    port.send(link, head.bytes(), &parts[..count], 0)
}

#[inline]
fn message_head(what: What, send: &Send<'_>, flags: u8, to: u16, from: u16) -> Head {
    let tagged = if send.tag.is_some() { TAGGED } else { 0 };
    let data = if send.data.is_some() { DATA } else { 0 };
    Head::new(what, flags | tagged | data, to, from)
}
