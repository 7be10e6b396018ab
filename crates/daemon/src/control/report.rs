//! The status of this daemon, as JSON.

use crate::control::status::{LinkStatus, PeerStatus, Status};
use crate::daemon::Daemon;
use crate::link::compressed::Compressed;
use crate::link::congestion::congestion;
use crate::link::{Purpose, Stage};
use crate::units::SECOND;

impl Daemon {
    /// The daemon's status, as JSON.
    pub(crate) fn status(&self) -> Vec<u8> {
        let site = |site: usize| self.grid.sites.get(site).map(|site| site.name.clone()).unwrap_or_default();
        let others = self.grid.hosts.iter().enumerate().filter(|(at, host)| *at != self.own_index && !host.is_gone());
        let peers = others.map(|(at, host)| {
            let links = self.links_with(at);
            let why = links.is_empty().then(|| self.why_no_link(at));
            let through = if links.is_empty() { self.explain(at, None).chosen } else { None };
            let (host, site) = (host.name.clone(), site(host.site));
            PeerStatus { host, site, links, why, through, settled: self.is_settled(at) }
        });
        let own = self.own();
        let status = Status {
            host: own.name.clone(),
            site: site(own.site),
            pid: madrigal_sys::process::own_pid(),
            up: self.now.saturating_sub(self.started) / SECOND,
            relay: own.relay,
            streams: self.pipes.len(),
            calls: self.calls.len(),
            unauthenticated: self.links.values().filter(|link| matches!(link.stage, Stage::Greeting(_))).count(),
            running: madrigal_sys::cpu::runnable().map(|all| all.saturating_sub(1)),
            processors: madrigal_sys::cpu::usable(),
            peers: peers.collect(),
            datagrams: self.datagram_status(),
            pools: self.pools.status(),
        };
        serde_json::to_vec(&status).unwrap_or_default()
    }

    fn links_with(&self, peer: usize) -> Vec<LinkStatus> {
        let with = self.links.iter().filter_map(|(token, link)| Some((*token, link, link.up()?)));
        let mut with: Vec<_> = with.filter(|(.., up)| up.peer == peer).collect();
        with.sort_by_key(|(.., up)| &up.rank);
        let all = with.into_iter().map(|(token, link, up)| LinkStatus {
            dialled: link.dialled.is_some(),
            address: link.address.map(|at| at.to_string()),
            tls: link.is_enciphered(),
            urgent: up.purpose == Purpose::Urgent,
            streams: up.mux.len(),
            held: up.mux.held(),
            round_trip_us: up.mux.round_trip().map(|ns| ns / 1000),
            up: self.now.saturating_sub(link.since) / SECOND,
            method: link.method().to_owned(),
            punched: link.punched,
            figures: up.measured.figures,
            connections: up.connections(),
            each: self.connections_of(token),
            congestion: congestion(&link.channel),
            stack: up.agreed.stack.to_string(),
            left_out: up.agreed.left_out.iter().map(ToString::to_string).collect(),
            compressed: up.compressed().map(Compressed::report),
        });
        all.collect()
    }
}
