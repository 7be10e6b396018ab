//! Links whose other end's system answers no more: its host is gone, or the network between. They are reported, and ended after a while.

use madrigal_progress::message::{LinkError, LinkIndex, Sink};

use super::port::{CHECK_NS, StackedPort};

/// After so many seconds without an answer the peer is gone; later where the user lets connecting take longer.
const LIMIT_S: u64 = 30;
/// After so long the user gets a report.
const REPORTED_S: u64 = 8;

impl StackedPort {
    /// Ends links that are silent, if the check is due.
    pub(super) fn end_silent(&mut self, now: u64, sink: &mut dyn Sink) {
        if now < self.check_at {
            return;
        }
        self.check_at = u64::MAX;
        let limit = u64::from(self.place.network.connect_timeout).max(LIMIT_S);
        for link in 0..self.links.len() as u32 {
            let Some(lane) = self.lane(link) else { continue };
            let (node, seconds) = (lane.node, lane.unanswered_s());
            let silent = seconds >= REPORTED_S;
            let is_new = !core::mem::replace(&mut lane.silent, silent) && silent;
            self.check_at = now + CHECK_NS;
            if seconds >= limit {
                let tried = format!("no answer from its host for {seconds} s");
                self.end(link, LinkError::Unreachable { node, tried, absent: false }, sink);
            } else if is_new {
                sink.silent(LinkIndex(link), seconds);
            }
        }
    }
}
