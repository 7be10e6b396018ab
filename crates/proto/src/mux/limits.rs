//! What bounds a connection and each of its streams.

/// Bounds; the same at both ends of a connection where stated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Streams the peer may have open at once.
    pub streams: usize,
    /// Bytes a new stream may have unread; the same at both ends.
    pub window: u32,
    /// The most a window grows to.
    pub widest: u32,
    /// By how many bytes all windows together may grow.
    pub budget: u64,
    /// Bytes that wait to be sent, a stream.
    pub backlog: usize,
    /// Nanoseconds without a word from the peer before it gets a ping.
    pub idle: u64,
    /// Nanoseconds it has to answer.
    pub patience: u64,
}

impl Default for Limits {
    fn default() -> Self {
        let second = 1_000_000_000;
        Self {
            streams: 4096,
            window: 16 << 10,
            widest: 16 << 20,
            budget: 64 << 20,
            backlog: 64 << 10,
            idle: 10 * second,
            patience: 5 * second,
        }
    }
}
