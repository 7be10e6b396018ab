//! How a daemon is, as it tells its clients.

use madrigal_selector::route::Figures;
use serde::{Deserialize, Serialize};

use crate::daemon::{Daemon, SECOND};
use crate::grid::Grid;
use crate::reload::is_gone;

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
    pub unauthenticated: usize,
    /// Other tasks of its host that want a processor now, where that is known.
    pub running: Option<u32>,
    /// Processors of its host.
    pub processors: u32,
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
    /// Without one: the way that new connections take all the same, such as `through r`.
    #[serde(default)]
    pub through: Option<String>,
    /// There is a link, or every address was tried since the last one.
    pub settled: bool,
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
    /// `direct`, `reverse` or `command`.
    pub method: String,
    /// What was measured.
    pub figures: Figures,
}

/// The ways to a host, and which is used.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Explanation {
    /// Where they begin.
    pub from: String,
    /// Where they lead.
    pub to: String,
    /// The port that was asked about.
    pub port: Option<u16>,
    /// The way that is used.
    pub chosen: Option<String>,
    /// All of them, the chosen one first.
    pub ways: Vec<WayStatus>,
    /// The way of the last connection.
    pub last: Option<String>,
    /// Rules of the grid that hold for them.
    pub rules: Vec<String>,
    /// Streams that stay on another way than the chosen one, and why.
    #[serde(default)]
    pub staying: Vec<String>,
}

/// A way to a host.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct WayStatus {
    /// `direct`, `reverse`, `command` or `through` relays.
    pub way: String,
    /// It is used.
    pub chosen: bool,
    /// It could be used.
    pub usable: bool,
    /// What was measured.
    pub figures: Figures,
    /// The figures are so many seconds old, of a time when the way was open.
    pub measured_ago_s: Option<u64>,
    /// The other end of its first link.
    pub address: Option<String>,
    /// Its first link is enciphered.
    pub tls: Option<bool>,
    /// Why it is not used.
    pub why: Option<String>,
}

/// What a daemon finds out about itself and about the way to another host.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Examination {
    /// Itself.
    pub health: Health,
    /// The ways to the other host, if one was named.
    pub why: Option<Explanation>,
    /// What its addresses answered.
    pub tried: Vec<Tried>,
    /// The relays of the grid; of those that there is no link with, why.
    pub relays: Vec<(String, Option<String>)>,
}

/// How a host is.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Health {
    /// Its name.
    pub host: String,
    /// The version of its daemon, and of what that says on links.
    pub version: String,
    /// See `version`.
    pub links: u32,
    /// Its clock: microseconds since 1970.
    pub time_us: i64,
    /// Where the grid says that its daemon is reached.
    pub addresses: Vec<String>,
    /// Whether memory can be shared.
    pub shared_memory: State,
    /// Whether long messages are copied once.
    pub single_copy: State,
    /// What it shows to others.
    pub certificates: Vec<Certificate>,
    /// The grid declares all networks trusted.
    pub trusted: bool,
}

/// Whether something is as it should be.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct State {
    /// It is.
    pub ok: bool,
    /// What there is.
    pub text: String,
    /// What to type, where it is not.
    pub fix: Option<String>,
}

impl State {
    pub(crate) fn good(text: String) -> Self {
        Self { ok: true, text, fix: None }
    }

    pub(crate) fn bad(text: String, fix: &str) -> Self {
        Self { ok: false, text, fix: Some(fix.to_owned()) }
    }
}

/// A certificate.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Certificate {
    /// `host` or `user`.
    pub kind: String,
    /// Whose it is.
    pub whose: Option<String>,
    /// Its end.
    pub until: Option<String>,
    /// What is wrong with it, and what to type.
    pub problem: Option<String>,
}

/// What an address answered.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Tried {
    /// The address.
    pub address: String,
    /// Microseconds until there was a connection.
    pub us: Option<u64>,
    /// Why there was none.
    pub error: Option<String>,
}

/// The names of all hosts.
pub(crate) fn names(grid: &Grid) -> String {
    grid.hosts.iter().filter(|host| !is_gone(host)).map(|host| host.name.as_str()).collect::<Vec<_>>().join(", ")
}

impl Daemon {
    /// As JSON.
    pub(crate) fn status(&self) -> Vec<u8> {
        let site = |site: usize| self.grid.sites.get(site).map(|site| site.name.clone()).unwrap_or_default();
        let others = self.grid.hosts.iter().enumerate().filter(|(at, host)| *at != self.me && !is_gone(host));
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
            unauthenticated: self.links.values().filter(|link| link.up().is_none()).count(),
            running: madrigal_sys::cpu::runnable().map(|all| all.saturating_sub(1)),
            processors: madrigal_sys::cpu::usable(),
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
            method: link.method().to_owned(),
            figures: up.measured.figures,
        });
        told.collect()
    }
}
