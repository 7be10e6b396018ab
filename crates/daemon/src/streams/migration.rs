//! The state of a stream that migrates.

use crate::streams::failover::Failover;
use crate::streams::stream::Stream;

/// A stream that is to go on by another way.
pub(crate) struct FailingOver {
    pub(crate) failover: Failover,
    pub(crate) ask: Option<Ask>,
}

/// A way that was asked for.
pub(crate) struct Ask {
    pub(crate) stream: Stream,
    pub(crate) way: String,
    /// How far we said that we are.
    pub(crate) got: u64,
    pub(crate) received: Vec<u8>,
}

impl FailingOver {
    pub(crate) fn new() -> Self {
        Self { failover: Failover::new(), ask: None }
    }

    /// When it is due.
    pub(crate) fn deadline(&self) -> u64 {
        self.failover.deadline()
    }
}
