//! Memory that peers may reach: regions, bytes put and got, operations on numbers; the side that owns the memory.

use madrigal_progress::message::Placement;
use madrigal_sys::piece::Piece;

use super::arrive::{Came, place_block};
use super::atomic::{self, AtomicOp, AtomicType};
use super::regions::Known;
use super::types::{Completion, Kind, PeerId, Region};
use super::wire::{DATA, Ended, FETCH, Head, LAST, WRITE, What};
use crate::memory::{Pieces, gather};
use crate::worker::out::Stream;
use crate::worker::state::{Does, Op, Placed, State};

/// The most bytes one operation on numbers works on.
pub(crate) const MAX_ATOMIC: usize = 4096;
/// Completions that may wait at an endpoint when a peer reports a put; beyond them its link is given up.
const MOST_REPORTED: usize = 1 << 20;

impl State {
    /// The memory a peer names, if it may do that to it.
    fn named(&self, channel: u16, key: u64, at: u64, len: usize, flags: u8) -> Option<Piece> {
        let space = self.endpoints.get(usize::from(channel))?.as_ref()?.space;
        let region = self.spaces.get(space)?.get(&key)?.region;
        let allowed = (flags & FETCH == 0 || region.read) && (flags & WRITE == 0 || region.write);
        let offset = usize::try_from(at.checked_sub(region.origin)?).ok()?;
        let fits = offset.checked_add(len)? <= region.memory.len();
        (allowed && fits).then(|| region.memory.part(offset, len))
    }

    /// Reports to the peer how its operation ended; and to the endpoint, if bytes came with a number.
    fn put_done(&mut self, came: &Came<'_>, ended: Ended, len: usize) -> Option<()> {
        let op = came.head.word(2)?;
        let last = came.head.has(LAST);
        if last || ended != Ended::Well {
            let flags = if last { LAST } else { 0 };
            let head = Head::new(What::End, flags, 0, 0).extra(ended as u16).word(op);
            self.answer(came.node, head, Vec::new());
        }
        if last && ended == Ended::Well && came.head.has(DATA) {
            self.remote_put(came, came.head.word(5)?, len);
        }
        Some(())
    }

    /// Reports to an endpoint that a peer wrote to its memory.
    fn remote_put(&mut self, came: &Came<'_>, data: u64, len: usize) {
        let from = self.sender(came.node, came.head.to, came.head.from);
        let completion = Completion { data: Some(data), from, len, ..Completion::new(Kind::RemotePut, 0) };
        self.complete(came.head.to, completion);
        if self.endpoint(came.head.to).is_some_and(|endpoint| endpoint.done.len() > MOST_REPORTED) {
            self.corrupt(came.node, "it writes more and more, and nobody asks what was written");
        }
    }

    /// Where bytes for a region go, if those of all frames fit there. `None`: the frame makes no sense.
    fn put_place(&self, came: &Came<'_>, len: usize) -> Option<Option<Piece>> {
        let (key, at) = (came.head.word(0)?, came.head.word(1)?);
        let (offset, all) = (usize::try_from(came.head.word(3)?).ok()?, usize::try_from(came.head.word(4)?).ok()?);
        if offset.checked_add(len)? > all {
            return None;
        }
        Some(self.named(came.head.to, key, at, all, WRITE).map(|memory| memory.part(offset, len)))
    }

    /// Bytes for a region, few enough to come at once.
    pub(crate) fn put(&mut self, came: &Came<'_>, body: &[u8]) -> Option<()> {
        match self.put_place(came, body.len())? {
            Some(memory) => {
                memory.fill(body);
                self.put_done(came, Ended::Well, body.len())
            }
            None => self.put_done(came, Ended::Denied, 0),
        }
    }

    pub(crate) fn place_put(&mut self, came: &Came<'_>, len: usize, placement: &mut Placement) -> Option<Placed> {
        let key = came.head.word(0)?;
        let Some(memory) = self.put_place(came, len)? else { return Some(Placed::Nowhere) };
        let space = self.endpoints.get(usize::from(came.head.to))?.as_ref()?.space;
        placement.push(memory);
        Some(Placed::Put { space, key, len })
    }

    pub(crate) fn put_arrived(&mut self, came: &Came<'_>, placed: Option<usize>) -> Option<()> {
        match placed {
            Some(len) => self.put_done(came, Ended::Well, len),
            None => self.put_done(came, Ended::Denied, 0),
        }
    }

    /// A peer wants bytes of a region.
    pub(crate) fn get(&mut self, came: &Came<'_>) -> Option<()> {
        let (key, at) = (came.head.word(0)?, came.head.word(1)?);
        let (len, op) = (usize::try_from(came.head.word(2)?).ok()?, came.head.word(3)?);
        let Some(memory) = self.named(came.head.to, key, at, len, FETCH).filter(|memory| !memory.is_empty()) else {
            self.report_end(came.node, op, Ended::Denied);
            return Some(());
        };
        let space = self.endpoints.get(usize::from(came.head.to))?.as_ref()?.space;
        let source = Pieces::One(memory);
        let stream = Stream { op: None, to: op, source, offset: 0, end: len, region: Some((space, key)) };
        self.answer_by(came.node, stream);
        Some(())
    }

    /// A peer wants something done to numbers.
    pub(crate) fn atomic(&mut self, came: &Came<'_>, body: &[u8]) -> Option<()> {
        let (key, at) = (came.head.word(0)?, came.head.word(1)?);
        let (count, theirs) = (usize::try_from(came.head.word(2)?).ok()?, came.head.word(3)?);
        let op = AtomicOp::from_number(u32::from(came.head.extra >> 8))?;
        let of = AtomicType::from_number(u32::from(came.head.extra & 0xff))?;
        let len = count.checked_mul(of.size()).filter(|len| *len <= MAX_ATOMIC)?;
        let fetch = came.head.has(FETCH);
        let rights = if op == AtomicOp::Read { FETCH } else { WRITE } | if fetch { FETCH } else { 0 };
        let (operand, compare) = body.split_at_checked(if op == AtomicOp::Read { 0 } else { len })?;
        let Some(memory) = self.named(came.head.to, key, at, len, rights) else {
            self.report_end(came.node, theirs, Ended::Denied);
            return Some(());
        };
        let old = gather(&[memory]);
        let mut new = old.clone();
        if atomic::apply(op, of, &mut new, operand, compare).is_none() {
            self.report_end(came.node, theirs, Ended::Denied);
            return Some(());
        }
        memory.fill(&new);
        if fetch && len > 0 {
            self.answer(came.node, Head::new(What::Data, 0, 0, 0).word(theirs).word(0), old);
        } else {
            self.report_end(came.node, theirs, Ended::Well);
        }
        Some(())
    }

    /// A peer requests where a region lies.
    pub(crate) fn ask(&mut self, came: &Came<'_>) -> Option<()> {
        let (key, op) = (came.head.word(0)?, came.head.word(1)?);
        let space = self.endpoints.get(usize::from(came.head.to)).and_then(|e| Some(e.as_ref()?.space));
        let found = space.and_then(|space| self.spaces.get_mut(space)?.get_mut(&key));
        let (flags, ended, words) = match found {
            Some(exposed) => {
                let who = (came.node, came.head.from, came.head.to);
                if !exposed.holders.contains(&who) {
                    exposed.holders.push(who);
                }
                let Region { memory, origin, read, write, .. } = exposed.region;
                let flags = if read { FETCH } else { 0 } | if write { WRITE } else { 0 };
                (flags, Ended::Well, [memory.at() as u64, memory.len() as u64, origin])
            }
            None => (0, Ended::Denied, [0; 3]),
        };
        let head = Head::new(What::Region, flags, 0, 0).extra(ended as u16).word(op);
        let head = words.into_iter().fold(head, Head::word);
        self.answer(came.node, head, Vec::new());
        Some(())
    }

    /// A peer reported where its region lies.
    pub(crate) fn region(&mut self, came: &Came<'_>) -> Option<()> {
        let op = came.head.word(0)?;
        let Some(asked) = self.ops.get(op).filter(|op| op.node == came.node) else { return Some(()) };
        let Does::Ask { peer, key } = asked.does else { return None };
        let channel = asked.channel;
        self.drop_op(op);
        let known = match Ended::from_number(came.head.extra) {
            Ended::Well => Known::At {
                base: came.head.word(1)?,
                len: came.head.word(2)?,
                origin: came.head.word(3)?,
                read: came.head.has(FETCH),
                write: came.head.has(WRITE),
            },
            _ => Known::Nowhere,
        };
        if let Some(endpoint) = self.endpoint(channel)
            && let Some(asked @ Known::Asked) = endpoint.regions.get_mut(&(peer, key))
        {
            *asked = known;
        }
        Some(())
    }

    /// A peer withdrew a region.
    pub(crate) fn forget(&mut self, came: &Came<'_>) -> Option<()> {
        let key = came.head.word(0)?;
        let peer = self.sender(came.node, came.head.to, came.head.from);
        if let (Some(peer), Some(endpoint)) = (peer, self.endpoint(came.head.to)) {
            endpoint.regions.remove(&(peer, key));
        }
        Some(())
    }

    /// A peer put bytes straight into our memory.
    pub(crate) fn wrote(&mut self, came: &Came<'_>) -> Option<()> {
        let (data, len) = (came.head.word(0)?, usize::try_from(came.head.word(1)?).ok()?);
        self.remote_put(came, data, len);
        Some(())
    }

    /// Whether bytes are on their way into a region.
    pub(crate) fn is_placement(&self, space: usize, key: u64) -> bool {
        let here = |placed: &Placed| matches!(placed, Placed::Put { space: s, key: k, .. } if (*s, *k) == (space, key));
        self.links.iter().flatten().any(|link| here(&link.placed))
    }

    /// Withdraws a region: its memory is no longer touched.
    pub(crate) fn withdraw(&mut self, space: usize, key: u64) {
        let Some(exposed) = self.spaces.get_mut(space).and_then(|regions| regions.remove(&key)) else { return };
        for (node, to, from) in exposed.holders {
            self.queue(node, Head::new(What::Forget, 0, to, from).word(key), Vec::new());
        }
        for node in 0..self.nodes.len() as u32 {
            for op in self.nodes[node as usize].out.withdraw(space, key) {
                self.report_end(node, op, Ended::Denied);
            }
        }
    }

    /// The body of an operation on numbers that is not short.
    pub(crate) fn place_any(&mut self, len: usize, placement: &mut Placement) -> Option<Placed> {
        place_block(len, placement)
    }

    /// What is known of a peer's region, for single copies. `None`: nothing yet; a request is sent.
    pub(crate) fn reach(&mut self, channel: u16, peer: PeerId, key: u64) -> Option<Known> {
        let endpoint = self.endpoint(channel)?;
        let node = endpoint.peers.get(peer.0 as usize)?;
        let (node, theirs) = (node.node, node.channel);
        if let Some(known) = endpoint.regions.get(&(peer, key)) {
            return Some(*known);
        }
        endpoint.regions.insert((peer, key), Known::Asked);
        let op = Op::new(channel, node, Completion::new(Kind::Got, 0), Does::Ask { peer, key });
        let op = self.ops.add(Op { silent: true, ..op });
        self.queue(node, Head::new(What::Ask, 0, theirs, channel).word(key).word(op), Vec::new());
        None
    }
}
