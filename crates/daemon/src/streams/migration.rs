//! The state of a stream that migrates.

use crate::streams::failover::Failover;
use crate::streams::stream::Stream;

/// A migration: the decisions, and the attempt that is under way.
pub(crate) struct Migration {
    pub(crate) failover: Failover,
    pub(crate) attempt: Option<ResumeAttempt>,
}

/// An attempt to resume the stream on a way.
pub(crate) struct ResumeAttempt {
    pub(crate) stream: Stream,
    pub(crate) way: String,
    /// Our position in the request.
    pub(crate) position: u64,
    /// What came of the reply.
    pub(crate) received: Vec<u8>,
}

impl Migration {
    pub(crate) fn new() -> Self {
        Self { failover: Failover::new(), attempt: None }
    }

    /// Its next deadline.
    pub(crate) fn deadline(&self) -> u64 {
        self.failover.deadline()
    }
}
