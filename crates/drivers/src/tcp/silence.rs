//! Whether the system at the other end of a connection is still there.

use core::time::Duration;
use std::os::fd::AsRawFd as _;

use madrigal_sys::fd::Fd;
use madrigal_sys::tcp;
use rustix::net::sockopt;

/// An idle connection is probed after so long, and then so often, in seconds.
pub(super) const IDLE_S: u64 = 5;
pub(super) const ASK_S: u64 = 3;
/// What was sent is sent again so often, at least, before it counts as unanswered.
const TIMES: u8 = 3;

/// Has the kernel probe a connection while it is idle, and end it after so many probes without an answer.
pub(super) fn ask(socket: &Fd, times: u32) {
    // What the kernel does not grant is not watched while nothing is sent.
    let _ = sockopt::set_tcp_keepidle(socket, Duration::from_secs(IDLE_S))
        .and_then(|()| sockopt::set_tcp_keepintvl(socket, Duration::from_secs(ASK_S)))
        .and_then(|()| sockopt::set_tcp_keepcnt(socket, times))
        .and_then(|()| sockopt::set_socket_keepalive(socket, true));
}

/// For how many seconds nothing has come from the other end's system, though it was probed again and again.
pub(super) fn unanswered_s(socket: &Fd) -> u64 {
    let asked = tcp::info(socket.as_raw_fd()).map(|info| info.unanswered());
    asked.ok().filter(|(times, _)| *times >= TIMES).map_or(0, |(_, since_ms)| u64::from(since_ms) / 1000)
}
