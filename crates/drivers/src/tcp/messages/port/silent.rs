//! Connections whose other end answers no more: its host is gone, or the network between. The kernel gives them up (`listener`, after 20
//! s). They are reported before, and ended here where the kernel does not do it.

use std::os::fd::AsRawFd as _;

use madrigal_sys::fd::Fd;
use madrigal_sys::tcp;
use rustix::net::sockopt;

/// After so many seconds without an answer the peer is gone, if the kernel has not reported it before; later where the user lets connecting
/// take longer.
const LIMIT_S: u64 = 30;
/// After so long the user gets a report.
pub(super) const REPORTED_S: u64 = 8;
/// An idle connection is probed after so long, and then so often, in seconds: early enough for the report.
const IDLE_S: u64 = 5;
const ASK_S: u64 = 3;
/// How often links are checked for it.
pub(super) const CHECK_NS: u64 = 2_000_000_000;
/// What was sent is sent again so often, at least, before it counts as unanswered.
const TIMES: u8 = 3;

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
        // What the kernel does not grant is not watched while nothing is sent.
        let _ = sockopt::set_tcp_keepidle(socket, core::time::Duration::from_secs(IDLE_S))
            .and_then(|()| sockopt::set_tcp_keepintvl(socket, core::time::Duration::from_secs(ASK_S)))
            .and_then(|()| sockopt::set_tcp_keepcnt(socket, times as u32))
            .and_then(|()| sockopt::set_socket_keepalive(socket, true));
    }
}

/// For how many seconds nothing has come from the other end's system, though it was probed again and again.
pub(super) fn unanswered_s(socket: &Fd) -> u64 {
    let asked = tcp::info(socket.as_raw_fd()).map(|info| info.unanswered());
    asked.ok().filter(|(times, _)| *times >= TIMES).map_or(0, |(_, since_ms)| u64::from(since_ms) / 1000)
}
