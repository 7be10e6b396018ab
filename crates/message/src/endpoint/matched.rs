//! Which receive a message goes into.

use super::state::{Many, Matched, Target};
use super::types::{Completion, Kind, PeerId, Status};
use super::wire::Message;
use crate::memory::Pieces;
use crate::slab::Key;
use crate::worker::state::State;

impl State {
    /// The peer of an endpoint that a frame comes from.
    #[inline]
    pub(crate) fn sender(&mut self, node: u32, to: u16, from: u16) -> Option<PeerId> {
        if let Some((ours, theirs, peer)) = self.nodes[node as usize].last
            && (ours, theirs) == (to, from)
        {
            return Some(peer);
        }
        let peer = self.endpoint(to)?.peer(node, from);
        self.nodes[node as usize].last = Some((to, from, peer));
        Some(peer)
    }

    /// The receive a message goes into, if one is posted, made ready to take it.
    #[inline]
    pub(crate) fn match_message(
        &mut self,
        channel: u16,
        from: PeerId,
        message: &Message,
        len: usize,
    ) -> Option<Matched> {
        let endpoint = self.endpoints.get_mut(usize::from(channel))?.as_deref_mut()?;
        let matching = endpoint.matching(message.tagged);
        let at = matching.wanted(from.0, message.tag)?;
        if let Some(&mut Target::Many(key)) = matching.receive(at) {
            let many = self.many.get(key)?;
            let matched = many.next(key, from, message, len);
            if many.closed {
                matching.take_receive(at);
            }
            return Some(matched);
        }
        match matching.take_receive(at)? {
            Target::One { pieces, token } => Some(matched(pieces, token, from, message, len)),
            Target::Many(_) => None,
        }
    }

    /// Takes back a posted receive; returns its completion.
    pub(crate) fn take_posted(
        &mut self,
        channel: u16,
        tagged: bool,
        from: Option<PeerId>,
        meant: impl Fn(u64) -> bool,
    ) -> Option<Completion> {
        let endpoint = self.endpoints.get_mut(usize::from(channel))?.as_deref_mut()?;
        let matching = endpoint.matching(tagged);
        // A receive is identified by its token; that of a buffer of many lies elsewhere.
        let tokens: Vec<_> = self.many.keys(|many| meant(many.token));
        let at = matching.posted(from.map(|peer| peer.0), |target| match target {
            Target::One { token, .. } => meant(*token),
            Target::Many(key) => tokens.contains(key),
        })?;
        let (token, last) = match matching.take_receive(at)? {
            Target::One { token, .. } => (token, true),
            Target::Many(key) => {
                let many = self.many.get(key)?;
                many.closed = true;
                let (token, last) = (many.token, many.open == 0);
                if last {
                    self.many.remove(key);
                }
                (token, last)
            }
        };
        let mut completion = Completion::new(Kind::Received, token);
        (completion.tagged, completion.last) = (tagged, last);
        Some(completion)
    }
}

impl Many {
    /// Makes room for one message more, and closes if that was the last one.
    pub(crate) fn next(&mut self, key: Key, from: PeerId, message: &Message, len: usize) -> Matched {
        let piece = self.piece.part(self.used, len);
        self.used += piece.len();
        self.open += 1;
        self.closed = self.piece.len() - self.used < self.least.max(1);
        let matched = matched(Pieces::One(piece), self.token, from, message, len);
        Matched { many: Some(key), ..matched }
    }
}

/// A receive of one message.
#[inline]
pub(crate) fn matched(pieces: Pieces, token: u64, from: PeerId, message: &Message, len: usize) -> Matched {
    let room = pieces.len();
    let mut completion = Completion::received(token, from, message);
    completion.at = pieces.at();
    completion.len = len.min(room);
    if len > room {
        completion.status = Status::Truncated(len);
    }
    Matched { pieces, fits: len.min(room), completion, many: None }
}
