//! How the kernel decides how fast a connection of a link sends: on a long way by the rate at which bytes arrive (BBR), where the kernel has
//! that and lets this process use it, for by losses one connection carries a fraction of the line (docs/daemon.md). A rule names another.

use std::os::fd::{AsFd as _, AsRawFd as _};

use madrigal_adapters::stripe::count::Congestion;
use madrigal_sys::tcp;
use rustix::net::sockopt::{set_tcp_congestion, tcp_congestion};

use crate::daemon::Daemon;
use crate::link::channel::Channel;
use crate::poll::Token;

/// The shortest round trip of a long way, in microseconds: on a shorter one losses are made up for soon.
const FAR: u32 = 1000;
/// What a long way has if no rule says it.
const BY_RATE: &str = "bbr";

impl Daemon {
    /// Has the kernel send by a connection to a host as a rule says, or else by rate where the way is long. A route that locks its own, and a
    /// kernel that has no other, keep what they have.
    pub(crate) fn choose_congestion(&mut self, token: Token, peer: usize) {
        let Some(channel) = self.links.get(&token).map(|link| &link.channel) else { return };
        let Some(used) = congestion(channel) else { return };
        let rule = self.grid.congestion(peer);
        let by_rate = (is_far(channel) && Congestion::of(&used) == Congestion::ByLoss).then_some(BY_RATE);
        let Some(wanted) = rule.or(by_rate).filter(|wanted| *wanted != used) else { return };
        if let (Err(errno), Some(_)) = (set_tcp_congestion(channel, wanted), rule) {
            let line = format!("link with {}: {wanted} is refused ({errno}), {used} stays", self.name(peer));
            self.log_line(&line);
        }
    }
}

/// Its name, where the connection is TCP.
pub(crate) fn congestion(channel: &Channel) -> Option<String> {
    tcp_congestion(channel).ok()
}

/// Whether the kernel slows a connection down where packets are lost, as all do but BBR.
pub(crate) fn is_by_loss(channel: &Channel) -> bool {
    congestion(channel).is_some_and(|name| Congestion::of(&name) == Congestion::ByLoss)
}

/// Whether the way is so long that adapters, and another congestion control, may be worth it.
pub(crate) fn is_far(channel: &Channel) -> bool {
    let info = tcp::info(channel.as_fd().as_raw_fd()).ok();
    info.is_some_and(|info| FAR <= if info.min_rtt == u32::MAX { info.rtt } else { info.min_rtt })
}
