//! The contract between the engine and drivers of *messages*: frames from any node of a job to any other.
//!
//! ```text
//!   MessageDriver --open--> Port --link(address)--> LinkIndex    send(link, head, body)
//!                             |--poll--> Sink: up, frame | place + arrived, down
//! ```
//! A process has one [`Port`] per driver, whatever the number of its peers: a poll reads one place. A frame is a head, which the layer
//! above understands, and a body. Frames of one link arrive whole, once, and in the order they were sent.
//!
//! **Copies.** A body is taken from the sender's buffers when it is sent; what a link cannot take at once stays there, and the frame is
//! continued later. A long body is received where the layer above wants it ([`Sink::place`]).
//!
//! **Threads.** A port is used by one thread at a time (`&mut self`); it starts none and never blocks.
//!
//! **Waiting.** A polling caller needs nothing else. To sleep: [`Port::arm`] (true: poll again instead), then poll the
//! [`Port::descriptor`]s of all ports at most until the earliest [`Port::deadline`]; afterwards call [`Port::woken`] and poll.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;

use madrigal_base::node::{NodeAddress, NodeId};
use madrigal_sys::piece::Piece;

use crate::driver::{Facts, Place};
use crate::wait::Peer;

/// The longest head of a frame. A short frame is one whose body is at most [`Port::short`] bytes.
pub const MAX_HEAD: usize = 64;

/// A peer as one port knows it: an index, small and dense, never used again while the port lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct LinkIndex(pub u32);

/// A way to move messages between nodes.
pub trait MessageDriver: Send + Sync {
    /// Its name, as paths show it. Never changes.
    fn name(&self) -> &'static str;

    /// What it is. Never changes.
    fn facts(&self) -> Facts;

    /// Whether it can work here, else one sentence why not. Does not block; leaves nothing behind.
    fn usable(&self, place: &Place) -> Result<(), String>;

    /// Opens this process's place at it: from now on others can link to `me`, until the port is dropped. Does not block.
    fn open(&self, me: NodeId, place: &Place) -> Result<Box<dyn Port>, String>;
}

/// A process's place at a driver of messages. Dropping it closes every link; frames taken before are still delivered.
pub trait Port: Send {
    /// Adds to our own address what others need to reach this port.
    fn publish(&self, address: &mut NodeAddress);

    /// Begins to reach a node, or returns the link there already is, for instance because the peer was first. Does not block. The link is
    /// usable once [`Sink::up`] was called; until then [`Port::send`] takes nothing. `Err`: one sentence why this driver will never reach
    /// that node (another host, another user, nothing published).
    ///
    /// Another call for a link that is not up gives the attempt its whole time again.
    ///
    /// A node that cannot be dialled from here (a firewall, NAT) is reached only if it links to us. So a process that waits long for a node
    /// should link to it too.
    fn link(&mut self, to: &NodeAddress) -> Result<LinkIndex, String>;

    /// Sends the frame made of `head` (at most [`MAX_HEAD`] bytes) and the pieces of `body`, of which the first `skip` bytes of head
    /// and body together were taken by earlier calls. Does not block; the buffers are the caller's again when it returns. Every piece
    /// of `body` is passed again each time. Once a call took part of a frame, only the rest of it may be sent on that link; a short
    /// frame is taken whole or not at all.
    fn send(&mut self, link: LinkIndex, head: &[u8], body: &[IoSlice<'_>], skip: usize) -> Result<Sent, LinkError>;

    /// Polls for frames, links that came up and links that went down, bounded work; returns how much there was. An idle poll costs no
    /// system call (a driver of descriptors makes one every so many polls, or after [`Port::woken`]). `sink` must not be entered again from
    /// within.
    fn poll(&mut self, sink: &mut dyn Sink) -> usize;

    /// Bodies up to this many bytes are short. Never changes.
    fn short(&self) -> usize;

    /// Bodies up to this many bytes are better sent eagerly than by rendezvous, though unexpected ones must be kept and copied; 0 where
    /// nothing is known of that. Never changes.
    fn unasked(&self) -> usize {
        0
    }

    /// Copies from the memory of the peer straight to ours: from `remote` (address and length in the peer's process) to `local`, the
    /// lengths being equal in sum. Blocks for as long as the copy takes. [`SingleCopy::No`] where the system forbids it or the driver
    /// cannot: the caller sends frames instead. Each side guarantees its pieces: the peer `remote` until it is notified that the copy is
    /// over, the caller `local` during the call.
    fn pull(&mut self, _link: LinkIndex, _remote: &[(u64, usize)], _local: &[(u64, usize)]) -> SingleCopy {
        SingleCopy::No
    }

    /// The same the other way: from `local` to `remote`.
    fn push(&mut self, _link: LinkIndex, _local: &[(u64, usize)], _remote: &[(u64, usize)]) -> SingleCopy {
        SingleCopy::No
    }

    /// Ends a link: the peer broke the protocol of the layer above, or is not wanted any more. From now on nothing is received or sent on
    /// it, and no memory that was placed for it is touched. The peer gets a [`Sink::down`]; this side does not. A link that is down
    /// already, or never was: nothing happens.
    fn cut(&mut self, link: LinkIndex);

    /// Announces that there is no further poll until a descriptor is reported. True: something is there; do not sleep.
    fn arm(&mut self) -> bool;

    /// The descriptor to poll for input, the same one for the life of the port; `None`: nothing ever comes by itself.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// To be called after a sleep, whatever ended it. Takes out what made the descriptor ready.
    fn woken(&mut self);

    /// When [`Port::poll`] must be called even if nothing comes (nanoseconds of the monotonic clock): an attempt that times out.
    fn deadline(&self) -> Option<u64> {
        None
    }

    /// Where the peer of a link was last seen running.
    fn peer(&self, _link: LinkIndex) -> Peer {
        Peer::Unknown
    }

    /// How the link goes, for people: for instance `10.0.0.1:4000 -> 10.0.0.2:4001`, or `inbox, single copy`; and candidates tried
    /// and rejected, each with its reason.
    fn explain(&self, link: LinkIndex) -> Explained;
}

/// What a port reports about a link.
#[derive(Clone, Default, Debug)]
pub struct Explained {
    /// How it goes; empty while it is not up.
    pub path: String,
    /// What was tried and rejected: `(what, why)`.
    pub rejected: Vec<(String, String)>,
}

/// What [`Port::send`] took.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// Everything: the peer will get it unless the link goes down.
    All,
    /// So many bytes more, 0 where there is no room now or the link is not up yet.
    Part(usize),
}

/// How a single copy ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SingleCopy {
    /// Everything was copied.
    Done,
    /// It cannot be done on this link, ever: nothing was copied.
    No,
    /// The peer is gone or named memory it does not have; part may have been copied.
    Failed,
}

/// Why a link is down. Nothing more is received or sent on it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// Nothing worked in time. Says which addresses were tried, and what each gave.
    #[error("cannot reach node {node}: {tried}")]
    Unreachable {
        /// The node.
        node: NodeId,
        /// Address by address.
        tried: String,
        /// Every address refused at last, and nothing else leads there: most likely its process is not there any more.
        absent: bool,
    },
    /// Nothing has come back for long; the link is not down yet.
    #[error("node {node} has not answered for {seconds} s")]
    Silent {
        /// Who.
        node: NodeId,
        /// For how long.
        seconds: u64,
    },
    /// The peer closed, died or was cut off.
    #[error("node {node} is gone: {why}")]
    Gone {
        /// Who.
        node: NodeId,
        /// What showed it.
        why: String,
    },
    /// The peer broke the protocol.
    #[error("node {node} sent nonsense: {what}")]
    Corrupt {
        /// Who.
        node: NodeId,
        /// What it did.
        what: String,
    },
}

/// Where a long body goes: pieces of lent memory ([`madrigal_sys::piece::scatter`] copies into them).
pub type Placement = Vec<Piece>;

/// Puts the pieces of a frame behind its first `skip` bytes, of `front` and the pieces of `body` together, into `list`, as many as it has room
/// for; how many.
#[inline]
pub fn gather<'a>(front: &'a [u8], body: &'a [IoSlice<'_>], mut skip: usize, list: &mut [IoSlice<'a>]) -> usize {
    let mut used = 0;
    for piece in core::iter::once(front).chain(body.iter().map(|piece| &piece[..])) {
        let part = piece.get(skip..).unwrap_or_default();
        skip = skip.saturating_sub(piece.len());
        if part.is_empty() {
            continue;
        }
        let Some(place) = list.get_mut(used) else { break };
        *place = IoSlice::new(part);
        used += 1;
    }
    used
}

/// The layer above, as a port sees it. It may not call the port from within.
pub trait Sink {
    /// A link is usable, by our wish or the peer's. The id was verified.
    fn up(&mut self, link: LinkIndex, node: NodeId);

    /// A link is down for good; called once.
    fn down(&mut self, link: LinkIndex, why: LinkError);

    /// The other end of a link, its system too, has not answered for so many seconds; called once each time. The link is not down yet.
    fn silent(&mut self, _link: LinkIndex, _seconds: u64) {}

    /// A frame is here whole. The bytes are lent until this returns.
    fn frame(&mut self, link: LinkIndex, head: &[u8], body: &[u8]);

    /// A frame's body of `len` bytes is on its way: appends to `placement`, which is empty, where it goes. The pieces must stay valid until
    /// [`Sink::arrived`] or [`Sink::down`] is called for this link. Pieces of less than `len` bytes in sum: the rest is dropped.
    fn place(&mut self, link: LinkIndex, head: &[u8], len: usize, placement: &mut Placement);

    /// The body of the frame that was placed last on this link has arrived.
    fn arrived(&mut self, link: LinkIndex, head: &[u8]);

    /// Whether tasks outnumber processors, so that much may happen from one poll to the next.
    fn crowded(&self) -> bool {
        false
    }
}
