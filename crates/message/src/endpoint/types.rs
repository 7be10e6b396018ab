//! Operations of an [`Endpoint`](super::Endpoint), and their results.

use madrigal_sys::piece::Piece;

use super::atomic::{AtomicOp, AtomicType};

/// Another endpoint, as one endpoint knows it: an index, small and dense.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PeerId(pub u32);

/// A message to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Send<'a> {
    /// The receiver.
    pub to: PeerId,
    /// What it is matched by; `None` for a plain message. The two kinds never match each other.
    pub tag: Option<u64>,
    /// A number that comes with it.
    pub data: Option<u64>,
    /// Its bytes. Lent until it completes, or, with `inject` or where it is [`Posted::Done`], until the call returns.
    pub parts: &'a [Piece],
    /// Comes back in its completion.
    pub token: u64,
    /// The buffers are free at return, and there is no completion; at most [`Endpoint::INJECT`](super::Endpoint::INJECT) bytes.
    pub inject: bool,
    /// To complete only when the receiver has it in its buffer.
    pub delivery: bool,
}

/// How an operation began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Posted {
    /// It is complete, and successful: the buffers are free, no completion follows.
    Done,
    /// A completion follows.
    Pending,
}

/// Why an operation did not begin. Nothing of it happened, and no completion follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// Too much is waiting already: make progress and try again.
    #[error("too much is waiting; try again")]
    Again,
    /// More bytes or pieces than one operation takes.
    #[error("longer than an operation may be")]
    TooLong,
    /// The peer cannot be reached, or is gone; [`Endpoint::why`](super::Endpoint::why) has the reason.
    #[error("the peer cannot be reached")]
    Unreachable,
    /// There is no such peer, or the operation is impossible.
    #[error("no such peer or operation")]
    Invalid,
}

/// A buffer for a message.
#[derive(Clone, Copy, Debug)]
pub struct Receive<'a> {
    /// The sender; `None` for any.
    pub from: Option<PeerId>,
    /// What its tag must be; `None` for a plain message.
    pub tag: Option<u64>,
    /// Bits of the tag that do not count.
    pub ignore: u64,
    /// Where it goes. Lent until it completes or is cancelled; in [`Receive::multi`] until the completion marked as last.
    pub parts: &'a [Piece],
    /// Comes back in its completion.
    pub token: u64,
    /// Takes message after message, one behind the other, until fewer bytes than this are free. Only the first part is used.
    pub multi: Option<usize>,
}

/// Which message is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// The sender; `None` for any.
    pub from: Option<PeerId>,
    /// What its tag must be; `None` for a plain message.
    pub tag: Option<u64>,
    /// Bits of the tag that do not count.
    pub ignore: u64,
}

/// A message that is here, eagerly or by rendezvous, and that no receive took.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// The sender.
    pub from: PeerId,
    /// Its tag; 0 for a plain message.
    pub tag: u64,
    /// How long it is.
    pub len: usize,
    /// The number that came with it.
    pub data: Option<u64>,
}

/// A message taken out of the matching; its holder receives or discards it.
#[derive(PartialEq, Eq, Debug)]
pub struct Claim {
    pub(crate) message: u32,
    pub(crate) tagged: bool,
}

impl Claim {
    /// As a number, for a program that cannot hold it otherwise.
    pub fn into_number(self) -> u64 {
        u64::from(self.message) << 1 | u64::from(self.tagged)
    }

    /// What [`Claim::into_number`] gave. A number used twice, or made up, is found out when it is used.
    pub fn from_number(number: u64) -> Self {
        Self { message: (number >> 1) as u32, tagged: number & 1 != 0 }
    }
}

/// Memory that peers may read and write by a key.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// By which they name it.
    pub key: u64,
    /// The memory. Lent until the region is withdrawn.
    pub memory: Piece,
    /// What peers call its first byte: 0, or its address where they name addresses.
    pub origin: u64,
    /// Whether they may read it.
    pub read: bool,
    /// Whether they may write it.
    pub write: bool,
}

/// Why a region is not exposed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExposeError {
    /// The key is taken.
    #[error("the key is in use")]
    InUse,
}

/// Bytes for a peer's memory.
#[derive(Clone, Copy, Debug)]
pub struct Put<'a> {
    /// Whose.
    pub to: PeerId,
    /// Which region of its.
    pub key: u64,
    /// Where in it, counted from [`Region::origin`].
    pub at: u64,
    /// The bytes. Lent until it completes, with `inject` until the call returns.
    pub parts: &'a [Piece],
    /// A number: the peer's endpoint gets it with a [`Kind::RemotePut`].
    pub data: Option<u64>,
    /// Comes back in the completion, which comes when the bytes are in the peer's memory, with `inject` too.
    pub token: u64,
    /// The buffers are free at return; at most [`Endpoint::INJECT`](super::Endpoint::INJECT) bytes.
    pub inject: bool,
}

/// Bytes of a peer's memory.
#[derive(Clone, Copy, Debug)]
pub struct Get<'a> {
    /// Whose.
    pub from: PeerId,
    /// Which region of its.
    pub key: u64,
    /// Where in it, counted from [`Region::origin`].
    pub at: u64,
    /// Where the bytes go. Lent until it completes.
    pub parts: &'a [Piece],
    /// Comes back in the completion.
    pub token: u64,
}

/// An operation on numbers in a peer's memory, each of them done as one.
#[derive(Clone, Copy, Debug)]
pub struct Atomic<'a> {
    /// Whose.
    pub to: PeerId,
    /// Which region of its.
    pub key: u64,
    /// Where in it, counted from [`Region::origin`].
    pub at: u64,
    /// What is done.
    pub op: AtomicOp,
    /// To what.
    pub of: AtomicType,
    /// How many numbers.
    pub count: usize,
    /// The operand, `count` numbers; unused by [`AtomicOp::Read`]. Free at return.
    pub operand: &'a [Piece],
    /// What is compared with; used only where the operation compares (or takes a mask). Free at return.
    pub compare: &'a [Piece],
    /// Where the previous numbers go; empty if they are not wanted. Lent until it completes.
    pub result: &'a [Piece],
    /// Comes back in the completion.
    pub token: u64,
}

/// What has completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A message of ours was sent.
    Sent,
    /// A message was received.
    Received,
    /// Bytes are in the peer's memory.
    Put,
    /// Bytes of the peer's memory are here.
    Got,
    /// An operation on the peer's memory was done.
    Atomic,
    /// A peer put bytes into our memory, with a number.
    RemotePut,
}

/// How it went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// It succeeded.
    Ok,
    /// The message was longer than the buffer: so long. What fitted is there.
    Truncated(usize),
    /// It was cancelled.
    Canceled,
    /// The peer is gone, or cannot be reached; [`Endpoint::why`](super::Endpoint::why) has the reason.
    Gone,
    /// The peer has no such region, or does not allow that.
    Denied,
}

/// The end of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// As given when it was posted; 0 for [`Kind::RemotePut`].
    pub token: u64,
    /// What it was.
    pub kind: Kind,
    /// Whether it was a tagged message.
    pub tagged: bool,
    /// The last one of a receive of many messages: its buffer is free. True for all other operations.
    pub last: bool,
    /// How it went.
    pub status: Status,
    /// Bytes that moved.
    pub len: usize,
    /// Where the message begins, as an address; 0 unless it was received.
    pub at: u64,
    /// The tag that came.
    pub tag: u64,
    /// The peer's number that came.
    pub data: Option<u64>,
    /// The peer.
    pub from: Option<PeerId>,
}
