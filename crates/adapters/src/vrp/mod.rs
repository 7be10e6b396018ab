//! Loss-tolerant messages (VRP): a network that loses packets carries them at its own rate, for not every loss is sent again.
//!
//! ```text
//!   send    --> [ Sender ] --- datagrams: pieces of messages --------------> [ Receiver ] --> take
//!               [        ] --- control: what will not come, how far it is -> [          ]
//!   settled <-- [        ] <-- control: what is wanted, settled, read ------ [          ]
//! ```
//! Below there is what QUIC gives (RFC 9221): datagrams, which come or do not, in any order, and a reliable stream of bytes each way, the
//! control stream. Its congestion control decides how much may be sent, and when.
//!
//! * A message arrives whole but for pieces, each of which is lost whole; both ends get the same list. Its front may be what must come
//!   ([`Class::must`]).
//! * A [`Class`] states how much may be lost ([`Class::tolerance`]): of any [`Class::window`] bytes that follow each other, and of all that
//!   was sent, never more. The receiver decides: it sees first what is missing, and does not wait for what it gives up. What is lost beyond
//!   that it requests.
//! * A message may have a deadline. What would come too late is not sent again. If too much of it is lost then, the whole message fails,
//!   and both ends are notified.
//! * The messages of a class arrive in order; those of two classes do not wait for each other.
//! * Nothing here blocks, reads a clock, or holds more than it was made with, whatever a peer sends.

mod both;
mod budget;
mod gaps;
mod incoming;
mod receiver;
mod sender;
#[cfg(test)]
mod simulation;
mod skips;
mod wire;

pub use both::receive_control;
pub use receiver::{Arrived, Receiver};
pub use sender::{Message, Refused, Sender, Settled};
pub use wire::HEAD;

/// What is lost of a message: from the first byte up to the second, in order, apart from each other.
pub type Lost = Vec<(u32, u32)>;

/// The longest message.
pub const LONGEST: usize = (16 << 20) - 1;
/// The most classes of a connection.
pub const MOST_CLASSES: usize = 16;
/// The largest [`Class::granularity`]: a piece has to fit into a datagram of any path.
pub const MOST_GRANULARITY: u32 = 1000;
/// The most bytes that go three times.
pub const MOST_REPEATED: u32 = 256;
/// Bytes of memory that a receiver lends a sender, both being made with the same number; two of the longest messages at least.
pub const LEAST_WINDOW: u64 = 2 * (LONGEST as u64 + OVERHEAD);
/// And the most: where a message begins is said by its low end.
pub const MOST_UNREAD: u64 = 1 << 30;
/// The longest [`Class::window`].
pub const MOST_WINDOW: u64 = 16 << 20;
/// What a message counts besides its bytes.
const OVERHEAD: u64 = 128;
/// A peer that reads its control stream leaves no more of it.
const MOST_CONTROL: usize = 1 << 20;

/// How much of a kind of messages may be lost. Both ends have the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Class {
    /// Of a thousand bytes; 0: nothing may be lost, 1000: nothing is sent again.
    pub tolerance: u32,
    /// Of how many bytes that follow each other that holds, up to [`MOST_WINDOW`]. Of a few, losses are far apart.
    pub window: u64,
    /// Pieces begin at a multiple of it behind the bytes that must come: the length of a record, so that records are lost whole. Up to
    /// [`MOST_GRANULARITY`].
    pub granularity: u32,
    /// So many bytes at the front of each message are never lost. Few of them ([`MOST_REPEATED`]) go three times while something is lost,
    /// so that they hardly ever delay a reader either.
    pub must: u32,
}

impl Default for Class {
    fn default() -> Self {
        Self { tolerance: 0, window: 1 << 20, granularity: 1, must: 0 }
    }
}

impl Class {
    /// The same within its bounds.
    fn bounded(self) -> Self {
        Self {
            tolerance: self.tolerance.min(1000),
            window: self.window.clamp(1, MOST_WINDOW),
            granularity: self.granularity.clamp(1, MOST_GRANULARITY),
            must: self.must,
        }
    }
}

/// Why a connection cannot go on: what its peer sent.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Broken {
    /// A frame that is never allowed.
    #[error("vrp: the peer sent a frame of kind {0} that is none")]
    Frame(u8),
    /// A class that the connection does not have.
    #[error("vrp: the peer speaks of class {0}, which this connection does not have")]
    Class(u8),
    /// Of a message what cannot be.
    #[error("vrp: the peer sent of message {message} of class {class} what cannot be: {why}")]
    Message {
        /// Its class.
        class: u8,
        /// Its number.
        message: u32,
        /// What is wrong.
        why: &'static str,
    },
    /// More than there is room for.
    #[error("vrp: the peer sent messages of {held} bytes, and may send {window} that are not read")]
    Credit {
        /// With what it sent.
        held: u64,
        /// The most.
        window: u64,
    },
    /// It does not read what it is sent.
    #[error("vrp: the peer does not read its control stream: {0} bytes wait")]
    Deaf(usize),
    /// A report of more bytes read than were sent.
    #[error("vrp: the peer has read {got} of {sent} bytes, it says")]
    Unsent {
        /// What it claims.
        got: u64,
        /// What it may claim.
        sent: u64,
    },
}
