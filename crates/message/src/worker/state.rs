//! The state of a worker, apart from its ports: nodes, links, endpoints, operations on their way.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use madrigal_base::node::{NodeAddress, NodeId};
use madrigal_progress::message::{LinkError, LinkIndex};
use madrigal_report::ranks::{Counters, Rank, Ranks};

use super::idle::Idle;
use super::out::{Item, Out};
use crate::endpoint::credit::Credit;
use crate::endpoint::refused::Refused;
use crate::endpoint::regions::Exposed;
use crate::endpoint::state::{Awaited, EndpointState, Many};
use crate::endpoint::types::{Completion, Kind, PeerId, Status};
use crate::endpoint::wire::{Ended, Head, Message, What};
use crate::memory::{Block, Pieces};
use crate::slab::{Key, Slab};

/// Everything but the ports, so that a polled port can report to it.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) nodes: Vec<Node>,
    pub(crate) by_id: HashMap<NodeId, u32>,
    /// By port, then by link.
    pub(crate) links: Vec<Vec<LinkState>>,
    /// By channel.
    pub(crate) endpoints: Vec<Option<Box<EndpointState>>>,
    /// Regions, by space.
    pub(crate) spaces: Vec<HashMap<u64, Exposed>>,
    pub(crate) ops: Slab<Op>,
    /// Receives of many messages.
    pub(crate) many: Slab<Many>,
    /// By port: whether its peers are on this host, so that their memory may be within reach.
    pub(crate) near: Vec<bool>,
    pub(crate) idle: Arc<Idle>,
    /// Messages to be pulled.
    pub(crate) pulls: VecDeque<Key>,
    /// Requested messages that could be pulled, and since when.
    pub(crate) asked: VecDeque<(Key, u64)>,
    /// Polls that found nothing while there were some.
    pub(crate) waits: u32,
    /// Links that must be cut before operations on them are reported as complete.
    pub(crate) cuts: Vec<(usize, LinkIndex)>,
    /// Nodes that must be sent something, or linked.
    pub(crate) pending: Vec<u32>,
    /// Buffers of small messages, for reuse.
    pub(crate) spare: Vec<Vec<u8>>,
    /// Nodes that could not be reached, or do not answer, and how, until a caller takes them.
    pub(crate) lost: Vec<(u32, LinkError)>,
    /// The table in which others can read about our nodes; `None`: there is none.
    pub(crate) ranks: Option<Ranks>,
    /// Nodes whose record there is stale.
    pub(crate) stale: Vec<u32>,
}

/// The id of a new node.
pub(super) fn new_id() -> Option<NodeId> {
    core::iter::repeat_with(madrigal_sys::process::random).find_map(NodeId::new)
}

/// A process we know.
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) address: Option<NodeAddress>,
    pub(crate) state: NodeState,
    pub(crate) out: Out,
    /// Every link to it that came up, by port.
    pub(crate) links: Vec<(usize, LinkIndex)>,
    /// Single copies were not refused so far.
    pub(crate) copies: bool,
    pub(crate) why: Option<LinkError>,
    /// The first port that was not tried yet.
    pub(crate) tried: usize,
    /// It is sought though nothing must be sent to it.
    pub(crate) sought: bool,
    /// Drivers that refused, and why.
    pub(crate) rejected: Vec<(String, String)>,
    /// The channels, ours and theirs, of the last message, and what they mean: it is often the same.
    pub(crate) last: Option<(u16, u16, PeerId)>,
    pub(crate) record: Record,
    pub(crate) credit: Credit,
    /// Nothing can be sent to it.
    pub(crate) refused: Option<Refused>,
    /// Requests for operations on its memory that are not complete.
    pub(crate) asked: usize,
}

/// Where the traffic to and from a node is counted.
pub(crate) enum Record {
    /// Where others read it, with the rest of the node's record.
    Listed(&'static Rank),
    /// Here, for there was no room.
    Own(Box<Counters>),
}

/// How frames for a node go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NodeState {
    /// Nothing was tried.
    None,
    /// A port tries.
    Linking { port: usize, link: LinkIndex },
    /// Thus.
    Up { port: usize, link: LinkIndex },
    /// It cannot be reached, or is gone.
    Down,
}

/// A link of a port.
pub(crate) struct LinkState {
    pub(crate) node: u32,
    pub(crate) up: bool,
    pub(crate) placed: Placed,
}

/// A link that was not reported yet.
pub(crate) const NOBODY: u32 = u32::MAX;

/// Where the body that is on its way over a link goes.
#[derive(Default)]
pub(crate) enum Placed {
    /// Away, or nothing is on its way.
    #[default]
    Nowhere,
    /// Into memory of our own, to be handled when it is whole.
    Block(Block),
    /// Into a receive.
    Receive(Arrived),
    /// Into the memory of an operation.
    Data { op: Key, len: usize },
    /// Into a region.
    Put { space: usize, key: u64, len: usize },
}

/// A receive that completes once the body has arrived.
pub(crate) struct Arrived {
    pub(crate) channel: u16,
    pub(crate) completion: Completion,
    pub(crate) many: Option<Key>,
    pub(crate) ack: Option<u64>,
}

/// An operation on its way, known to the peer by its number.
pub(crate) struct Op {
    pub(crate) channel: u16,
    pub(crate) node: u32,
    /// Its completion.
    pub(crate) completion: Completion,
    /// There is no completion: it was injected.
    pub(crate) silent: bool,
    /// Its bytes are still being taken from the caller's buffers, ...
    pub(crate) reading: bool,
    /// ... and once they were, it is over.
    pub(crate) over: bool,
    pub(crate) does: Does,
}

pub(crate) enum Does {
    /// A message by rendezvous; whether the sender waits until it is delivered.
    Send { pieces: Pieces, wait: bool },
    /// Requested bytes for us.
    Take(Take),
    /// An operation that the peer answers with an end, or that is queued.
    Wait,
    /// A request for a region of the peer.
    Ask { peer: PeerId, key: u64 },
}

pub(crate) struct Take {
    pub(crate) pieces: Pieces,
    /// How many bytes come, ...
    pub(crate) want: usize,
    /// ... and how many have.
    pub(crate) got: usize,
    /// The peer's operation, which is sent the end.
    pub(crate) theirs: Option<u64>,
    /// Where the bytes lie at the peer, and the link that reported it.
    pub(crate) remote: Vec<(u64, usize)>,
    pub(crate) via: (usize, LinkIndex),
    pub(crate) many: Option<Key>,
    pub(crate) come: Come,
}

/// How bytes come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Come {
    /// Not so far, and no request was sent.
    Not,
    /// They were requested, and none came.
    Asked,
    /// In frames.
    Frames,
    /// They are copied out of the peer's memory; frames that come all the same are late.
    Copies,
}

impl Op {
    pub(crate) fn new(channel: u16, node: u32, completion: Completion, does: Does) -> Self {
        Self { channel, node, completion, silent: false, reading: false, over: false, does }
    }
}

impl Completion {
    pub(crate) fn new(kind: Kind, token: u64) -> Self {
        Self {
            token,
            kind,
            tagged: false,
            last: true,
            status: Status::Ok,
            len: 0,
            at: 0,
            tag: 0,
            data: None,
            from: None,
        }
    }

    pub(crate) fn received(token: u64, from: PeerId, message: &Message) -> Self {
        let (tag, data, tagged) = (message.tag, message.data, message.tagged);
        Self { tagged, tag, data, from: Some(from), ..Self::new(Kind::Received, token) }
    }
}

impl Node {
    fn new(id: NodeId, rank: Option<&'static Rank>) -> Self {
        Self {
            id,
            address: None,
            state: NodeState::None,
            out: Out::default(),
            links: Vec::new(),
            copies: true,
            why: None,
            tried: 0,
            sought: false,
            rejected: Vec::new(),
            last: None,
            record: rank.map_or_else(|| Record::Own(Box::default()), Record::Listed),
            credit: Credit::default(),
            refused: None,
            asked: 0,
        }
    }

    /// What was sent to it and received from it.
    #[inline]
    pub(crate) fn counters(&self) -> &Counters {
        match &self.record {
            Record::Listed(rank) => rank.counters(),
            Record::Own(counters) => counters,
        }
    }

    /// As if nothing had been tried.
    pub(crate) fn try_anew(&mut self) {
        (self.state, self.tried, self.sought, self.why) = (NodeState::None, 0, false, None);
        self.rejected.clear();
    }
}

impl State {
    /// The node of that id, known from now on.
    pub(crate) fn node(&mut self, id: NodeId) -> u32 {
        *self.by_id.entry(id).or_insert_with(|| {
            let node = self.nodes.len() as u32;
            self.nodes.push(Node::new(id, self.ranks.as_mut().and_then(Ranks::add)));
            self.stale.push(node);
            node
        })
    }

    /// The link of a port, known from now on.
    pub(crate) fn link(&mut self, port: usize, link: LinkIndex) -> Option<&mut LinkState> {
        let links = self.links.get_mut(port)?;
        let at = link.0 as usize;
        while links.len() <= at {
            links.push(LinkState { node: NOBODY, up: false, placed: Placed::Nowhere });
        }
        links.get_mut(at)
    }

    #[inline]
    pub(crate) fn endpoint(&mut self, channel: u16) -> Option<&mut EndpointState> {
        self.endpoints.get_mut(usize::from(channel))?.as_deref_mut()
    }

    /// Lists the node to be visited when progress is made.
    pub(crate) fn attend(&mut self, node: u32) {
        let out = &mut self.nodes[node as usize].out;
        if !out.attended {
            out.attended = true;
            self.pending.push(node);
        }
    }

    /// Queues a frame of our own making.
    pub(crate) fn queue(&mut self, node: u32, head: Head, body: Vec<u8>) {
        self.queue_item(node, Item::owned(head, body));
    }

    pub(crate) fn queue_item(&mut self, node: u32, item: Item) {
        let to = &mut self.nodes[node as usize];
        if to.state != NodeState::Down {
            to.out.push(item);
            self.attend(node);
        }
    }

    /// Reports to a peer how its operation ended.
    pub(crate) fn report_end(&mut self, node: u32, operation: u64, ended: Ended) {
        let head = Head::new(What::End, LAST_FLAG, 0, 0).extra(ended as u16).word(operation);
        self.answer(node, head, Vec::new());
    }

    /// Reports a completion to an endpoint.
    #[inline]
    pub(crate) fn complete(&mut self, channel: u16, completion: Completion) {
        if let Some(endpoint) = self.endpoint(channel) {
            endpoint.done.push_back(completion);
        }
    }

    /// Adds an operation requested of a peer.
    pub(crate) fn ask_op(&mut self, op: Op) -> Key {
        self.nodes[op.node as usize].asked += 1;
        self.ops.add(op)
    }

    /// Takes an operation out.
    pub(crate) fn drop_op(&mut self, key: Key) -> Option<Op> {
        let op = self.ops.remove(key)?;
        if matches!(op.does, Does::Wait | Does::Take(Take { theirs: None, .. })) {
            self.nodes[op.node as usize].asked -= 1;
        }
        Some(op)
    }

    /// Ends an operation.
    pub(crate) fn end(&mut self, key: Key, status: Option<Status>) {
        let Some(op) = self.drop_op(key) else { return };
        let mut completion = op.completion;
        if let Some(status) = status {
            completion.status = status;
        }
        if op.silent {
            return;
        }
        match op.does {
            Does::Take(Take { many, .. }) => self.complete_receive(op.channel, completion, many),
            _ => self.complete(op.channel, completion),
        }
    }

    /// Reports the end of a receive, which may be one of many in one buffer.
    pub(crate) fn complete_receive(&mut self, channel: u16, mut completion: Completion, many: Option<Key>) {
        if let Some(key) = many
            && let Some(all) = self.many.get(key)
        {
            all.open -= 1;
            completion.last = all.closed && all.open == 0;
            if completion.last {
                self.many.remove(key);
            }
        }
        self.complete(channel, completion);
    }

    /// The peer broke the protocol: nothing of it counts from now on.
    pub(crate) fn corrupt(&mut self, node: u32, what: &str) {
        let id = self.nodes[node as usize].id;
        self.fail(node, LinkError::Corrupt { node: id, what: what.to_owned() });
    }

    /// A node is lost: whatever was to come from it or go to it ends now.
    pub(crate) fn fail(&mut self, node: u32, why: LinkError) {
        let lost = &mut self.nodes[node as usize];
        if lost.state == NodeState::Down {
            return;
        }
        lost.state = NodeState::Down;
        if matches!(why, LinkError::Unreachable { .. }) {
            self.lost.push((node, why.clone()));
        }
        lost.why = Some(why);
        self.stale.push(node);
        lost.out.clear();
        let links = core::mem::take(&mut lost.links);
        for &(port, link) in &links {
            let placed = self.link(port, link).map(|link| core::mem::take(&mut link.placed));
            if let Some(Placed::Receive(arrived)) = placed {
                let completion = Completion { status: Status::Gone, len: 0, ..arrived.completion };
                self.complete_receive(arrived.channel, completion, arrived.many);
            }
        }
        self.cuts.extend(links);
        for key in self.ops.keys(|op| op.node == node) {
            self.end(key, Some(Status::Gone));
        }
        for channel in 0..self.endpoints.len() as u32 {
            self.fail_receives(channel as u16, node);
        }
    }

    /// Whether a receive waits for messages of that node alone.
    pub(crate) fn is_awaited(&self, node: u32) -> bool {
        let mut found = false;
        for endpoint in self.endpoints.iter().flatten() {
            endpoint.awaited(&mut |awaited, how| found |= awaited == node && how == Awaited::Itself);
        }
        found
    }

    /// The links by which bodies are just arriving in buffers of an endpoint.
    pub(crate) fn placement_for(&mut self, channel: u16) -> Vec<(usize, LinkIndex)> {
        let mut placement = Vec::new();
        for (port, links) in self.links.iter().enumerate() {
            for (i, link) in links.iter().enumerate() {
                let ours = match &link.placed {
                    Placed::Receive(arrived) => arrived.channel == channel,
                    Placed::Data { op, .. } => self.ops.get(*op).is_some_and(|op| op.channel == channel),
                    _ => false,
                };
                if ours {
                    placement.push((port, LinkIndex(i as u32)));
                }
            }
        }
        placement
    }

    /// Whether no buffer of an endpoint is being sent from.
    pub(crate) fn is_sent(&self, channel: u16) -> bool {
        self.ops.keys(|op| op.channel == channel && op.reading).is_empty()
    }

    /// Ends the receives of an endpoint that only that node could have served.
    fn fail_receives(&mut self, channel: u16, node: u32) {
        let Some(endpoint) = self.endpoint(channel) else { return };
        let peers = endpoint.peers_at(node);
        for peer in peers {
            for tagged in [false, true] {
                while let Some(completion) = self.take_posted(channel, tagged, Some(peer), |_| true) {
                    self.complete(channel, Completion { status: Status::Gone, from: Some(peer), ..completion });
                }
            }
        }
    }
}

const LAST_FLAG: u8 = crate::endpoint::wire::LAST;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_are_not_listed_count_for_themselves() {
        let mut state = State::default();
        let nodes = [1, 2].map(|id| state.node(NodeId::new(id).expect("a number")));
        state.nodes[nodes[0] as usize].counters().sent(5);
        let sent =
            |node: u32| state.nodes[node as usize].counters().sent_bytes.load(core::sync::atomic::Ordering::Relaxed);
        assert_eq!(nodes.map(sent), [5, 0]);
    }
}
