//! What bounds a stripe, and one end of it.

/// The most streams that a stripe is meant to have. Where one packet of a hundred is lost, each of CUBIC's carries 1.4 Mbit/s in 100 ms, so
/// that this is a number that one may need.
pub const MOST_STREAMS: u8 = 32;

/// Bounds of one end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Bytes that may have come and not been read. A link needs twice its rate times its round trip, and its rate times what the slowest
    /// stream's trip is longer than the fastest one's; at least 256 KiB.
    pub window: usize,
    /// Bytes that may have been written and not been acknowledged; as many.
    pub backlog: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { window: 32 << 20, backlog: 32 << 20 }
    }
}
