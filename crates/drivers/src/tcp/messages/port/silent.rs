//! Connections whose other end answers no more: its host is gone, or the network between. The kernel gives them up (`listener`, after 20
//! s). They are reported before, and ended here where the kernel does not do it.

use madrigal_sys::fd::Fd;

use super::super::super::silence::{self, ASK_S, IDLE_S};

/// After so many seconds without an answer the peer is gone, if the kernel has not reported it before; later where the user lets connecting
/// take longer.
const LIMIT_S: u64 = 30;
/// After so long the user gets a report.
pub(super) const REPORTED_S: u64 = 8;
/// How often links are checked for it.
pub(super) const CHECK_NS: u64 = 2_000_000_000;

/// When links are checked next.
pub(super) struct Silent {
    pub(super) at: u64,
    pub(super) limit_s: u64,
}

impl Silent {
    /// `patience_s`: how long connecting may take.
    pub(super) fn new(patience_s: u64) -> Self {
        Self { at: u64::MAX, limit_s: patience_s.max(LIMIT_S) }
    }

    /// There is one more connection.
    pub(super) fn watch(&mut self, socket: &Fd, now: u64) {
        self.at = self.at.min(now + CHECK_NS);
        let times = (self.limit_s - IDLE_S).div_ceil(ASK_S).min(100);
        silence::ask(socket, times as u32);
    }
}
