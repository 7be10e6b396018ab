//! A mailbox as its process has it: the messages in it, in the order in which they are found. No I/O.
//!
//! ```text
//!   a message's data:   away --fetch--> coming --arrived--> here
//!                        ^                |
//!                        +----- failed ---+        got (here only) or dropped (ever): the message is out
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use madrigal_base::node::NodeAddress;

use super::buffer::Buffer;
use super::error::MailError;
use super::header::{Filter, Header, Kind, Place, Policy};
use super::wire::Kept;
use crate::ports::{Change, PortAddress};

/// The most changes that are remembered.
const MOST_CHANGES: usize = 1 << 16;

/// A mailbox.
pub(super) struct Inbox {
    /// `None`: it is closed, and waits for its senders to leave.
    pub(super) name: Option<String>,
    pub(super) places: u32,
    /// Urgent ones first; each kind in the order in which they came.
    items: BTreeMap<(bool, u64), Item>,
    last: u64,
    changes: VecDeque<Change>,
}

/// A message in it.
pub(super) struct Item {
    /// The line that it came by.
    pub(super) line: u32,
    pub(super) source: Arc<PortAddress>,
    pub(super) tag: u64,
    pub(super) kind: Kind,
    pub(super) size: u64,
    pub(super) sequence: u64,
    pub(super) policy: Policy,
    pub(super) body: Body,
    /// Why its data did not come, for the next one who asks for them.
    pub(super) failed: Option<MailError>,
}

/// Where the data of a message are.
pub(super) enum Body {
    /// Here, and so many bytes of them count as received ones.
    Here(Buffer, u64),
    Away(Holder),
    /// A fetch of that token brings them.
    Coming(Holder, u64),
}

/// The process that keeps data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Holder {
    pub(super) at: NodeAddress,
    pub(super) kept: Kept,
}

impl Inbox {
    pub(super) fn new(name: &str, places: u32) -> Self {
        let (items, changes) = (BTreeMap::new(), VecDeque::new());
        Self { name: Some(name.to_owned()), places, items, last: 0, changes }
    }

    /// Puts a message into it: its number.
    pub(super) fn add(&mut self, item: Item) -> u64 {
        self.last += 1;
        self.items.insert((item.kind != Kind::Urgent, self.last), item);
        self.last
    }

    pub(super) fn item(&mut self, id: u64) -> Option<&mut Item> {
        let key = [(false, id), (true, id)].into_iter().find(|key| self.items.contains_key(key))?;
        self.items.get_mut(&key)
    }

    pub(super) fn header(&self, id: u64) -> Option<Header> {
        let item = self.items.get(&(false, id)).or_else(|| self.items.get(&(true, id)))?;
        Some(item.header(id))
    }

    /// Takes a message out.
    pub(super) fn take(&mut self, id: u64) -> Option<Item> {
        self.items.remove(&(false, id)).or_else(|| self.items.remove(&(true, id)))
    }

    /// The first one that is meant.
    pub(super) fn first(&self, filter: &Filter) -> Option<Header> {
        self.items.iter().find(|(_, item)| item.is_meant(filter)).map(|((_, id), item)| item.header(*id))
    }

    /// All that are meant, at most so many.
    pub(super) fn list(&self, filter: &Filter, most: usize) -> Vec<Header> {
        let meant = self.items.iter().filter(|(_, item)| item.is_meant(filter));
        meant.take(most).map(|((_, id), item)| item.header(*id)).collect()
    }

    /// Takes all out.
    pub(super) fn take_all(&mut self) -> Vec<Item> {
        core::mem::take(&mut self.items).into_values().collect()
    }

    /// Where nobody asks, the oldest ones are forgotten.
    pub(super) fn note(&mut self, change: Change) {
        if self.changes.len() >= MOST_CHANGES {
            self.changes.pop_front();
        }
        self.changes.push_back(change);
    }

    pub(super) fn take_changes(&mut self) -> Vec<Change> {
        self.changes.drain(..).collect()
    }
}

impl Item {
    fn is_meant(&self, filter: &Filter) -> bool {
        filter.takes(&self.source, self.tag, self.kind)
    }

    fn header(&self, id: u64) -> Header {
        let place = match &self.body {
            Body::Here(..) => Place::Here,
            Body::Away(holder) | Body::Coming(holder, _) => Place::At(holder.at.clone()),
        };
        let (tag, kind, size, sequence, policy) = (self.tag, self.kind, self.size, self.sequence, self.policy);
        Header { id, source: Arc::clone(&self.source), tag, kind, size, sequence, policy, place }
    }
}

#[cfg(test)]
mod tests {
    use madrigal_base::node::NodeId;

    use super::*;

    fn item(tag: u64, kind: Kind) -> Item {
        let node = NodeAddress::bare(NodeId::new(1).expect("a number"));
        let source = Arc::new(PortAddress { name: format!("from {tag}"), node });
        let body = Body::Here(Buffer::from(Vec::new()), 0);
        Item { line: 1, source, tag, kind, size: 0, sequence: 1, policy: Policy::Receiver, body, failed: None }
    }

    #[test]
    fn the_urgent_are_found_first_and_the_others_as_they_came() {
        let mut inbox = Inbox::new("in", 4);
        let kinds = [Kind::Data, Kind::Urgent, Kind::Management, Kind::Urgent, Kind::Data];
        kinds.into_iter().zip(0..).for_each(|(kind, tag)| assert_eq!(inbox.add(item(tag, kind)), tag + 1));
        let tags = |inbox: &Inbox, filter: &Filter| -> Vec<u64> {
            inbox.list(filter, 9).iter().map(|header| header.tag).collect()
        };
        assert_eq!(tags(&inbox, &Filter::default()), [1, 3, 0, 2, 4]);
        assert_eq!(inbox.list(&Filter::default(), 2).len(), 2);
        let of = |kind| Filter { kind: Some(kind), ..Filter::default() };
        assert_eq!(tags(&inbox, &of(Kind::Data)), [0, 4]);
        let source = inbox.item(3).map(|item| (*item.source).clone());
        assert_eq!(tags(&inbox, &Filter { source, ..Filter::default() }), [2]);
        assert_eq!(tags(&inbox, &Filter { tag: Some(2), ..of(Kind::Data) }), [0u64; 0]);
        assert!(inbox.take(2).is_some_and(|item| item.tag == 1) && inbox.take(2).is_none() && inbox.take(9).is_none());
        assert_eq!(inbox.first(&Filter::default()).map(|header| (header.id, header.tag)), Some((4, 3)));
        assert_eq!(inbox.take_all().len(), 4);
        assert_eq!(inbox.add(item(9, Kind::Urgent)), 6, "numbers are never used again");
    }
}
