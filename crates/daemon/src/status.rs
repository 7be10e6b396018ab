//! How a daemon is, as it tells its clients.

use serde::{Deserialize, Serialize};

use crate::daemon::{Daemon, SECOND};
use crate::grid::Grid;

/// How a daemon is.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Status {
    /// Its host.
    pub host: String,
    /// That one's site.
    pub site: String,
    /// Its process.
    pub pid: u32,
    /// Seconds it has been up.
    pub up: u64,
    /// It carries streams of others.
    pub relay: bool,
    /// Pairs of ends that it carries bytes between.
    pub streams: usize,
    /// Calls of this host that wait for an answer.
    pub calls: usize,
    /// Connections that have not said who they are.
    pub strangers: usize,
    /// All other hosts.
    pub peers: Vec<PeerStatus>,
}

/// How another host is, as a daemon sees it.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct PeerStatus {
    /// Its name.
    pub host: String,
    /// Its site.
    pub site: String,
    /// The links with it; the first one is used.
    pub links: Vec<LinkStatus>,
    /// Without one: what was tried.
    pub why: Option<String>,
}

/// How a link is.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct LinkStatus {
    /// This daemon dialled it; else the other one.
    pub dialled: bool,
    /// The address at the other end.
    pub address: Option<String>,
    /// What goes over it is enciphered.
    pub tls: bool,
    /// Streams on it.
    pub streams: usize,
    /// Bytes held for them here.
    pub held: u64,
    /// The last round trip, in microseconds, with what waited in between.
    pub round_trip_us: Option<u64>,
    /// Seconds it has been up.
    pub up: u64,
}

/// The names of all hosts.
pub(crate) fn names(grid: &Grid) -> String {
    grid.hosts.iter().map(|host| host.name.as_str()).collect::<Vec<_>>().join(", ")
}

impl Daemon {
    /// As JSON.
    pub(crate) fn status(&self) -> Vec<u8> {
        let site = |site: usize| self.grid.sites.get(site).map(|site| site.name.clone()).unwrap_or_default();
        let others = self.grid.hosts.iter().enumerate().filter(|(at, _)| *at != self.me);
        let peers = others.map(|(at, host)| {
            let links = self.links_with(at);
            let why = links.is_empty().then(|| self.why_no_link(at));
            PeerStatus { host: host.name.clone(), site: site(host.site), links, why }
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
            strangers: self.links.values().filter(|link| link.up().is_none()).count(),
            peers: peers.collect(),
        };
        serde_json::to_vec(&status).unwrap_or_default()
    }

    fn links_with(&self, peer: usize) -> Vec<LinkStatus> {
        let with = self.links.values().filter_map(|link| Some((link, link.up()?)));
        let mut with: Vec<_> = with.filter(|(_, up)| up.peer == peer).collect();
        with.sort_by_key(|(_, up)| &up.rank);
        let told = with.into_iter().map(|(link, up)| LinkStatus {
            dialled: link.dialled.is_some(),
            address: link.address.map(|at| at.to_string()),
            tls: link.channel.is_enciphered(),
            streams: up.mux.len(),
            held: up.mux.held(),
            round_trip_us: up.mux.round_trip().map(|ns| ns / 1000),
            up: self.now.saturating_sub(link.since) / SECOND,
        });
        told.collect()
    }
}
