//! What bounds one end of a stripe.

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
