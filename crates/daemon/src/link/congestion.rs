//! The congestion control of a link's connections. On a long way it is BBR, by the rate at which bytes arrive, if the kernel has it and
//! lets this process use it: by losses one connection carries a fraction of the line (docs/daemon.md). A rule may name another one.

use madrigal_adapters::stripe::count::Congestion;
use rustix::net::sockopt::{set_tcp_congestion, tcp_congestion};

use crate::daemon::Daemon;
use crate::link::channel::{BY_RATE, Channel};
use crate::poll::Token;

impl Daemon {
    /// Sets the congestion control of a connection to a host: that of a rule, or else by rate if the way is long. It stays as it is if the
    /// route locks its own, or if the kernel lacks the other one.
    pub(crate) fn choose_congestion(&mut self, token: Token, peer: usize) {
        let Some(channel) = self.links.get(&token).map(|link| &link.channel) else { return };
        let Some(used) = congestion(channel) else { return };
        let rule = self.grid.congestion(peer);
        let by_rate = (channel.is_far() && Congestion::of(&used) == Congestion::ByLoss).then_some(BY_RATE);
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
