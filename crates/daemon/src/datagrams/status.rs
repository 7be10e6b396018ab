//! The status of tunnels.

use crate::control::status::DatagramStatus;
use crate::daemon::Daemon;
use crate::datagrams::tunnel::{Side, Tunnel};
use crate::socket;

impl Daemon {
    /// All tunnels that end here.
    pub(crate) fn datagram_status(&self) -> Vec<DatagramStatus> {
        let mut all: Vec<_> = self.datagrams.tunnels.iter().collect();
        all.sort_by_key(|(token, _)| **token);
        all.into_iter().map(|(_, tunnel)| self.describe_tunnel(tunnel)).collect()
    }

    fn describe_tunnel(&self, tunnel: &Tunnel) -> DatagramStatus {
        let (port, from) = match &tunnel.side {
            Side::Near(near) => (near.target.port, socket::local_addr(&near.socket).map(|at| at.port())),
            Side::Far(far) => (far.port, None),
        };
        let by = match (&tunnel.quic, &tunnel.stream) {
            (Some(_), _) => "quic",
            (None, Some(_)) => "stream",
            (None, None) => "nothing",
        };
        let (host, by, counts) = (self.name(tunnel.peer).to_owned(), by.to_owned(), tunnel.counts);
        let (sent, received, dropped, lost) = (counts.sent, counts.received, counts.dropped, counts.lost);
        DatagramStatus { host, port, from, by, sent, received, dropped, lost }
    }
}
