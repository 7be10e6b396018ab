//! What the mailboxes of a process know, guarded by the one lock of the hub. No I/O.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use super::buffer::Buffer;
use super::error::MailError;
use super::header::Load;
use super::inbox::Inbox;
use super::lines::{Incoming, Outgoing};
use super::store::Store;
use super::wire::Kept;
use crate::endpoint::PeerId;
use crate::memory::Block;
use crate::ports::PortAddress;

/// See the module.
pub(super) struct State {
    pub(super) boxes: BTreeMap<u32, Inbox>,
    pub(super) outgoing: HashMap<u32, Outgoing>,
    /// The lines of a mailbox, by their receivers' nodes and channels, and names.
    routes: HashMap<(u32, u64, u16), Vec<(String, u32)>>,
    pub(super) incoming: HashMap<u32, Incoming>,
    pub(super) store: Store,
    /// Data on their way to us, by token.
    pub(super) fetches: HashMap<u64, Fetch>,
    /// Data on their way from us, by token.
    pub(super) sending: HashMap<u64, Buffer>,
    /// Data that third processes are asked to keep, by request.
    pub(super) requests: HashMap<u64, Request>,
    /// Those that are known to offer memory.
    pub(super) stores: Vec<Offering>,
    /// Messages whose data are to lie here, and for which there was no room: mailbox and number.
    pub(super) early: VecDeque<(u32, u64)>,
    /// Bytes of data that lie here or come, and how many they may be before data are left where they are.
    pub(super) received: u64,
    pub(super) most_received: u64,
    /// What there was no room for, of each process in order.
    pub(super) owed: HashMap<PeerId, VecDeque<Owing>>,
    /// Processes that have no mailboxes any more.
    pub(super) over: HashSet<PeerId>,
    last: u32,
    pub(super) looked: u64,
}

/// Data on their way to us.
pub(super) struct Fetch {
    pub(super) from: PeerId,
    /// The key there.
    pub(super) key: u64,
    pub(super) block: Block,
    pub(super) wanted: Wanted,
}

/// What fetched data are for.
pub(super) enum Wanted {
    /// A message of a mailbox.
    Message { inbox: u32, id: u64 },
    /// To be kept for others.
    Storage { by: PeerId, request: u64, holders: Vec<PeerId> },
    /// Nothing any more: only the memory is still lent, and so many bytes count as received ones.
    Nothing(u64),
}

/// Data that a third process is asked to keep.
pub(super) struct Request {
    pub(super) asked: PeerId,
    /// Of the data here.
    pub(super) key: u64,
    /// It fetches them.
    pub(super) has_begun: bool,
    pub(super) answer: Option<Answer>,
}

pub(super) type Answer = Result<Kept, String>;

/// A process that offers memory, as we know it.
pub(super) struct Offering {
    pub(super) address: Arc<PortAddress>,
    pub(super) peer: PeerId,
    /// As it was told last.
    pub(super) load: Load,
}

/// What is to be sent when there is room.
pub(super) enum Owing {
    Call(Vec<u8>),
    /// Data, for a fetch of that token.
    Data(u64, Buffer),
}

impl State {
    pub(super) fn new(most_own: u64, most_received: u64) -> Self {
        Self {
            boxes: BTreeMap::new(),
            outgoing: HashMap::new(),
            routes: HashMap::new(),
            incoming: HashMap::new(),
            store: Store::new(most_own),
            fetches: HashMap::new(),
            sending: HashMap::new(),
            requests: HashMap::new(),
            stores: Vec::new(),
            early: VecDeque::new(),
            received: 0,
            most_received,
            owed: HashMap::new(),
            over: HashSet::new(),
            last: 0,
            looked: 0,
        }
    }

    /// A number for a mailbox or a line, never given before.
    pub(super) fn number(&mut self) -> u32 {
        self.last = self.last.wrapping_add(1);
        self.last
    }

    /// A message whose data are to lie here as soon as there is room.
    pub(super) fn add_early(&mut self, inbox: u32, id: u64) {
        let Self { early, boxes, .. } = self;
        if early.len() == early.capacity() {
            // The first one may wait for long, and those behind it be taken meanwhile.
            early.retain(|(inbox, id)| boxes.get_mut(inbox).is_some_and(|inbox| inbox.item(*id).is_some()));
            early.reserve(1 + early.len());
        }
        early.push_back((inbox, id));
    }

    /// The mailbox of that name.
    pub(super) fn named(&self, name: &str) -> Option<u32> {
        self.boxes.iter().find(|(_, inbox)| inbox.name.as_deref() == Some(name)).map(|(number, _)| *number)
    }

    /// The line from a mailbox to another, if there is one.
    pub(super) fn route(&self, by: u32, to: &PortAddress) -> Option<u32> {
        let at = self.routes.get(&(by, to.node.id.number(), to.node.channel))?;
        at.iter().find(|(name, _)| *name == to.name).map(|(_, line)| *line)
    }

    /// A new line: its number.
    pub(super) fn add_route(&mut self, by: u32, to: &PortAddress, peer: PeerId) -> u32 {
        let line = self.number();
        let key = (by, to.node.id.number(), to.node.channel);
        self.routes.entry(key).or_default().push((to.name.clone(), line));
        self.outgoing.insert(line, Outgoing::new(by, Arc::new(to.clone()), peer));
        line
    }

    /// A line is no more.
    pub(super) fn remove_route(&mut self, line: u32) -> Option<Outgoing> {
        let gone = self.outgoing.remove(&line)?;
        let key = (gone.by, gone.to.node.id.number(), gone.to.node.channel);
        if let Some(at) = self.routes.get_mut(&key) {
            at.retain(|(_, known)| *known != line);
            if at.is_empty() {
                self.routes.remove(&key);
            }
        }
        Some(gone)
    }

    /// Whether a line may be used; one that is over is forgotten, so that the next message asks anew.
    pub(super) fn is_open(&mut self, line: u32) -> Result<bool, MailError> {
        let Some(out) = self.outgoing.get(&line) else { return Err(MailError::Closed) };
        out.is_open().inspect_err(|_| drop(self.remove_route(line)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_that_were_taken_are_not_waited_for() {
        let mut state = State::new(0, 0);
        state.boxes.insert(1, Inbox::new("in", 1));
        (0..100_000).for_each(|id| state.add_early(1, id));
        assert!(state.early.len() < 10 && state.early.back() == Some(&(1, 99_999)));
    }
}
