//! The state of one endpoint.

use std::collections::{HashMap, VecDeque};

use madrigal_progress::message::LinkIndex;
use madrigal_sys::piece::Piece;

use super::credit::Load;
use super::matching::Matching;
use super::regions::Known;
use super::types::{Completion, PeerId};
use super::wire::Message;
use crate::memory::Pieces;
use crate::slab::Key;

/// An endpoint: its peers, what it waits for, what waits for it.
pub(crate) struct EndpointState {
    pub(crate) space: usize,
    pub(crate) peers: Vec<Peer>,
    known: HashMap<(u32, u16), PeerId>,
    /// Tagged messages, and plain ones.
    matching: [Matching<Target, Unexpected>; 2],
    /// Its owner takes plain messages only one by one as they came, so that none of them need be matched.
    pub(crate) in_order: bool,
    /// Such messages, with the nodes they are from; those in the matching came later.
    pub(crate) inbox: VecDeque<(u32, PeerId, Vec<u8>)>,
    pub(crate) done: VecDeque<Completion>,
    /// Regions of peers, by peer and key.
    pub(crate) regions: HashMap<(PeerId, u64), Known>,
}

/// An endpoint somewhere.
#[derive(Clone, Copy)]
pub(crate) struct Peer {
    pub(crate) node: u32,
    pub(crate) channel: u16,
}

/// Whether a receive waits for a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Awaited {
    No,
    /// A receive for any peer.
    AsAny,
    /// A receive for this node's messages alone.
    Itself,
}

/// Where a message goes.
pub(crate) enum Target {
    One { pieces: Pieces, token: u64 },
    Many(Key),
}

/// A buffer for many messages.
pub(crate) struct Many {
    pub(crate) piece: Piece,
    pub(crate) used: usize,
    /// It is closed when less is free.
    pub(crate) least: usize,
    pub(crate) token: u64,
    /// Messages on their way into it.
    pub(crate) open: usize,
    pub(crate) closed: bool,
}

/// An unexpected message: no receive took it.
pub(crate) struct Unexpected {
    pub(crate) message: Message,
    pub(crate) len: usize,
    pub(crate) body: UnexpectedBody,
}

impl Unexpected {
    pub(crate) fn load(&self) -> Load {
        match &self.body {
            UnexpectedBody::Eager(bytes) => Load::Eager(bytes.len()),
            UnexpectedBody::Rendezvous(lies) => Load::Rendezvous(lies.remote.len()),
        }
    }
}

pub(crate) enum UnexpectedBody {
    Eager(Vec<u8>),
    /// It lies with the sender.
    Rendezvous(Lies),
}

/// Where a message by rendezvous lies: its sender's operation, its pieces, the link that reported them.
pub(crate) struct Lies {
    pub(crate) op: u64,
    pub(crate) remote: Vec<(u64, usize)>,
    pub(crate) via: (usize, LinkIndex),
}

/// A receive that got its message: where it goes, and the completion when it is there.
pub(crate) struct Matched {
    pub(crate) pieces: Pieces,
    /// Bytes that fit.
    pub(crate) fits: usize,
    pub(crate) completion: Completion,
    pub(crate) many: Option<Key>,
}

impl EndpointState {
    pub(crate) fn new(space: usize) -> Self {
        Self {
            space,
            peers: Vec::new(),
            known: HashMap::new(),
            matching: [Matching::default(), Matching::default()],
            in_order: false,
            inbox: VecDeque::new(),
            done: VecDeque::new(),
            regions: HashMap::new(),
        }
    }

    /// The number of a peer, known from now on.
    pub(crate) fn peer(&mut self, node: u32, channel: u16) -> PeerId {
        *self.known.entry((node, channel)).or_insert_with(|| {
            self.peers.push(Peer { node, channel });
            PeerId(self.peers.len() as u32 - 1)
        })
    }

    /// The peers that live in a node.
    pub(crate) fn peers_at(&self, node: u32) -> Vec<PeerId> {
        let all = self.peers.iter().enumerate();
        all.filter(|(_, peer)| peer.node == node).map(|(i, _)| PeerId(i as u32)).collect()
    }

    /// Reports the nodes a receive waits for: one for their messages alone, or for tagged ones of any node.
    pub(crate) fn awaited(&self, tell: &mut impl FnMut(u32, Awaited)) {
        let [plain, with_tags] = &self.matching;
        if with_tags.awaited().any(|from| from.is_none()) {
            self.peers.iter().for_each(|peer| tell(peer.node, Awaited::AsAny));
        }
        let named = plain.awaited().chain(with_tags.awaited()).flatten();
        named.filter_map(|peer| self.peers.get(peer as usize)).for_each(|peer| tell(peer.node, Awaited::Itself));
    }

    /// Unexpected messages: their nodes, and what they cost.
    pub(crate) fn unexpected(&self) -> impl Iterator<Item = (u32, Load)> {
        let all = self.matching.iter().flat_map(Matching::messages);
        let unexpected = all.filter_map(|it| Some((self.peers.get(it.from as usize)?.node, it.message.load())));
        unexpected.chain(self.inbox.iter().map(|(node, _, bytes)| (*node, Load::Eager(bytes.len()))))
    }

    #[inline]
    pub(crate) fn matching(&mut self, tagged: bool) -> &mut Matching<Target, Unexpected> {
        let [plain, with_tags] = &mut self.matching;
        if tagged { with_tags } else { plain }
    }
}
