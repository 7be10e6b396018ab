//! Headers of messages: what a receiver sees of each before it moves any data.

use core::fmt;
use std::sync::Arc;

use madrigal_base::node::NodeAddress;

use crate::ports::PortAddress;

/// What a message is for (LANDA-HSN, section 3.2.3).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// It passes the others: a receiver finds it in front of them, and it has room of its own.
    Urgent = 0,
    /// What programs are about.
    Data = 1,
    /// Between the parts of a system; in order with data, and with room of its own.
    Management = 2,
}

/// Where the data of a message lie until they are read (LANDA-HSN, section 3.2.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Policy {
    /// In the receiver's process.
    Receiver = 0,
    /// In the sender's.
    Sender = 1,
    /// In a third process: of those that offer memory, the one with the least of it in use.
    Elsewhere = 2,
}

/// What a sender says of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Letter {
    /// The program's own: receivers select by it.
    pub tag: u64,
    /// What it is for.
    pub kind: Kind,
    /// Where its data lie.
    pub policy: Policy,
}

/// A message as its receiver sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// By which it is got or dropped; no other message of this mailbox ever has it.
    pub id: u64,
    /// The mailbox that it is from.
    pub source: Arc<PortAddress>,
    /// The sender's tag.
    pub tag: u64,
    /// What it is for.
    pub kind: Kind,
    /// Bytes of its data.
    pub size: u64,
    /// Which one of that source it is to this mailbox; the first one is 1.
    pub sequence: u64,
    /// Where its data were to lie.
    pub policy: Policy,
    /// Where they lie now.
    pub place: Place,
}

/// Where data lie.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// In this process.
    Here,
    /// In that one.
    At(NodeAddress),
}

/// Which messages are meant: all that agree with everything that is given.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Filter {
    /// From that mailbox.
    pub source: Option<PortAddress>,
    /// With that tag.
    pub tag: Option<u64>,
    /// Of that kind.
    pub kind: Option<Kind>,
}

/// How many bytes of data a process has in its memory for messages.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Held {
    /// Of its own messages, until the last receiver has them.
    pub own: u64,
    /// Of messages to it that are not read yet.
    pub received: u64,
    /// Of messages between others.
    pub offered: u64,
}

/// What is known of a process that offers memory: its load.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Load {
    /// Bytes that it offers.
    pub offers: u64,
    /// Bytes in use.
    pub held: u64,
    /// Bytes that were asked for and are on their way to it.
    pub asked: u64,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Urgent, Self::Data, Self::Management];

    /// The kind of that number.
    pub fn of_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == code)
    }
}

impl Policy {
    /// The policy of that number.
    pub fn of_code(code: u8) -> Option<Self> {
        [Self::Receiver, Self::Sender, Self::Elsewhere].into_iter().find(|policy| *policy as u8 == code)
    }
}

impl Filter {
    pub(super) fn takes(&self, source: &PortAddress, tag: u64, kind: Kind) -> bool {
        let same = |wanted: &PortAddress| is_same(wanted, source);
        self.source.as_ref().is_none_or(same)
            && self.tag.is_none_or(|wanted| wanted == tag)
            && self.kind.is_none_or(|wanted| wanted == kind)
    }
}

/// Whether two addresses are of one mailbox: hosts' addresses do not count.
pub(super) fn is_same(one: &PortAddress, other: &PortAddress) -> bool {
    one.name == other.name && (one.node.id, one.node.channel) == (other.node.id, other.node.channel)
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Urgent => "urgent",
            Self::Data => "data",
            Self::Management => "management",
        })
    }
}
