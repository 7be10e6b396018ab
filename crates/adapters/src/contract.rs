//! The interface of an adapter to its driver: bytes of the link above, bytes of the streams below, and the time.
//!
//! There may be no call of [`Adapter::receive`] without bytes. So an end that takes the last byte of a block while something is unread must
//! show the block by [`Adapter::front`] once that is consumed; or it leaves that byte untaken until then. A call without bytes is always
//! allowed: it reports what [`Adapter::consume`] may have found wrong.

/// A stream below an adapter. Both ends call it by the same number, and no number is used twice on one link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Lane(pub u32);

/// The stream below an adapter that has only one.
pub const ONLY: Lane = Lane(0);

/// One end of a link. Nothing here blocks, reads a clock, or grows beyond what it was made with, whatever a peer sends.
///
/// The driver calls [`Adapter::transmit`] for each stream that takes bytes after every other call: any of them may have made something to
/// send. Times are nanoseconds of any one clock, and never go back.
pub trait Adapter: Send {
    /// A stream more. Both ends give it the same number. One that carries a link over one stream has [`ONLY`] from the start.
    fn add(&mut self, _now: u64, lane: Lane) -> Result<(), AddError> {
        if lane == ONLY { Err(AddError::Twice(lane)) } else { Err(AddError::Many) }
    }

    /// A stream has ended.
    fn remove(&mut self, _lane: Lane) {}

    /// Whether the other end is known, where the link is to be had with it alone. Until then nothing of it can be read.
    fn is_ready(&self) -> bool {
        true
    }

    /// How many bytes [`Adapter::write`] would take now. The fewer wait here, the sooner what is urgent goes.
    fn room(&self) -> usize;

    /// Takes bytes of the link; how many.
    fn write(&mut self, bytes: &[u8]) -> usize;

    /// Nothing more will be written: behind the last byte the other end finds the end.
    fn finish(&mut self);

    /// Whether all that was written has gone, the end too: streams that take it have it, or, where lost streams are made good, the other end.
    fn is_flushed(&self) -> bool;

    /// The streams have been seen to take so many bytes a second, while there was enough for them.
    fn set_rate(&mut self, _rate: u64) {}

    /// The call of [`Adapter::transmit`] or [`Adapter::receive`] that has just returned took so many nanoseconds of a processor.
    fn took(&mut self, _time: u64) {}

    /// Adds up to `room` bytes for a stream to `out`. They count as sent: only those of a stream that is lost are sent again.
    fn transmit(&mut self, now: u64, lane: Lane, room: usize, out: &mut Vec<u8>);

    /// Takes bytes that came by a stream; how many. Where these are not all, the rest is for when more was read. An error ends the link.
    fn receive(&mut self, now: u64, lane: Lane, bytes: &[u8]) -> Result<usize, Broken>;

    /// The front of what can be read of the link, in one piece; nothing where nothing can.
    fn front(&self) -> &[u8];

    /// So many bytes of [`Adapter::front`] were read.
    fn consume(&mut self, count: usize);

    /// Whether everything was read, and nothing more will come.
    fn is_at_end(&self) -> bool;

    /// When [`Adapter::handle_time`] is due; never: `u64::MAX`.
    fn deadline(&self) -> u64;

    /// The time has come; or any other.
    fn handle_time(&mut self, now: u64);

    /// Bytes of memory for what is unsent, unacknowledged or unread.
    fn held(&self) -> usize;
}

/// Why a stream was not added.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AddError {
    /// There is one of that number.
    #[error("the link has a stream {} already", .0.0)]
    Twice(Lane),
    /// There are too many.
    #[error("the link has as many streams as it may have")]
    Many,
    /// Its number is too large.
    #[error("{} is no number of a stream", .0.0)]
    Number(Lane),
}

impl Broken {
    /// The name of the adapter whose peer that is.
    pub fn adapter(&self) -> &'static str {
        match self {
            Self::Header { adapter, .. } => adapter,
            Self::Block { .. } => "adoc",
            Self::Tls { .. } | Self::Early => "tls",
            Self::Credit { .. }
            | Self::End { .. }
            | Self::Unsent { .. }
            | Self::Holes(_)
            | Self::Lane(_)
            | Self::Retired(_) => "stripe",
        }
    }
}

/// Why a link cannot go on: what its peer sent.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Broken {
    /// A header that is never allowed.
    #[error("{adapter}: the peer sent a header of kind {kind} with the numbers {first} and {second}")]
    Header {
        /// Which adapter reports it.
        adapter: &'static str,
        /// Its kind.
        kind: u8,
        /// Its first number.
        first: u64,
        /// Its second number.
        second: u64,
    },
    /// More than the peer has credit for.
    #[error("stripe: the peer sent up to byte {to} of the link, and may send {credit}")]
    Credit {
        /// Behind the last byte.
        to: u64,
        /// How far it may send.
        credit: u64,
    },
    /// An end that is not where the link ends, or bytes behind it.
    #[error("stripe: the peer ended the link at byte {end}, and sent of byte {at}")]
    End {
        /// Where it ended the link.
        end: u64,
        /// What lies behind, or an earlier end.
        at: u64,
    },
    /// An acknowledgement of what was not sent.
    #[error("stripe: the peer has {got} bytes of {sent}, it says")]
    Unsent {
        /// What it claims to have.
        got: u64,
        /// What it may have.
        sent: u64,
    },
    /// More holes between the bytes that came than a sender makes.
    #[error("stripe: the peer left more than {0} holes in the link")]
    Holes(usize),
    /// Bytes by a stream that the link does not have.
    #[error("stripe: bytes by stream {}, which the link does not have", .0.0)]
    Lane(Lane),
    /// Pieces on a stream that the peer had retired.
    #[error("stripe: the peer retired stream {}, and sends by it", .0.0)]
    Retired(Lane),
    /// Much that nobody may read, from an end that is not known.
    #[error("tls: the peer sends much before it is known")]
    Early,
    /// The other end is not let in, does not let this one in, or sent what is no TLS.
    #[error("tls: {why}")]
    Tls {
        /// Why.
        why: String,
    },
    /// A block that cannot be decompressed to the length in its header.
    #[error("adoc: the peer sent a block of kind {kind} that is not {raw} bytes: {why}")]
    Block {
        /// Its kind.
        kind: u8,
        /// The length in its header.
        raw: usize,
        /// The codec's error.
        why: String,
    },
}
