//! What a daemon reports to its clients. The field names are those of the JSON of `madrigal status`, `why` and `doctor`.

use std::collections::BTreeMap;

use madrigal_selector::route::Figures;
use serde::{Deserialize, Serialize};

/// The status of a daemon.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Status {
    /// Its host.
    pub host: String,
    /// The host's site.
    pub site: String,
    /// Its process.
    pub pid: u32,
    /// Seconds it has been up.
    pub up: u64,
    /// Its host is a relay.
    pub relay: bool,
    /// Pipes: pairs of ends that are joined.
    pub streams: usize,
    /// Calls of this host that are not connected yet.
    pub calls: usize,
    /// Connections that have not authenticated.
    pub unauthenticated: usize,
    /// Other runnable tasks of its host, where their number is known.
    pub running: Option<u32>,
    /// Processors of its host.
    pub processors: u32,
    /// All other hosts.
    pub peers: Vec<PeerStatus>,
    /// The tunnels of datagrams: `madrigal forward --udp`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub datagrams: Vec<DatagramStatus>,
    /// The pools that it keeps, or that programs of its host are in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<PoolStatus>,
}

/// A pool.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct PoolStatus {
    /// Its name.
    pub pool: String,
    /// Where it is kept.
    pub kept_by: String,
    /// How many members it is to have; none of an open one.
    pub size: Option<u32>,
    /// It has had as many.
    pub closed: bool,
    /// It was terminated.
    pub terminated: bool,
    /// Its members.
    pub members: Vec<PoolMember>,
    /// The winners of its elections, by name; none where the winner is gone.
    pub elections: BTreeMap<String, Option<u64>>,
}

/// A member of a pool.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct PoolMember {
    /// Its number.
    pub id: u64,
    /// Its host and site.
    pub location: String,
    /// Its rank in a closed pool.
    pub rank: Option<u32>,
}

impl PoolStatus {
    pub(crate) fn new(name: &str, pool: &madrigal_pools::pool::Pool, kept_by: String) -> Self {
        let view = pool.view();
        let member = |(id, member): (&u64, &madrigal_pools::Member)| PoolMember {
            id: *id,
            location: member.location.clone(),
            rank: member.rank,
        };
        Self {
            pool: name.to_owned(),
            kept_by,
            size: view.size,
            closed: view.closed,
            terminated: view.terminated,
            members: view.members.iter().map(member).collect(),
            elections: view.elections.iter().map(|(name, one)| (name.clone(), one.winner)).collect(),
        }
    }
}

/// One end of a tunnel of datagrams.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct DatagramStatus {
    /// The host at the other end.
    pub host: String,
    /// The port at the far end to which they go.
    pub port: u16,
    /// The local port of the near end; none at the far end.
    pub from: Option<u16>,
    /// By `quic`, by a `stream`, or by nothing yet.
    pub by: String,
    /// Datagrams from programs of this host.
    pub sent: u64,
    /// Datagrams to them.
    pub received: u64,
    /// Dropped here: there was no room, or no program takes them.
    pub dropped: u64,
    /// Datagrams sent by QUIC that did not arrive, or not in time.
    pub lost: u64,
}

/// Another host, as a daemon sees it.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct PeerStatus {
    /// Its name.
    pub host: String,
    /// Its site.
    pub site: String,
    /// The links with it; the first one is used.
    pub links: Vec<LinkStatus>,
    /// Without a link: why there is none.
    pub why: Option<String>,
    /// Without a link: the way that new connections take all the same, such as `through r`.
    #[serde(default)]
    pub through: Option<String>,
    /// There is a link, or every address was tried since the last one.
    pub settled: bool,
}

/// The status of a link.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct LinkStatus {
    /// This daemon dialled it.
    pub dialled: bool,
    /// The address at the other end.
    pub address: Option<String>,
    /// It is encrypted.
    pub tls: bool,
    /// It is for urgent streams.
    #[serde(default)]
    pub urgent: bool,
    /// Streams on it.
    pub streams: usize,
    /// Bytes that wait for them here.
    pub held: u64,
    /// The last round trip of a ping in microseconds, with the queues on its way.
    pub round_trip_us: Option<u64>,
    /// Seconds it has been up.
    pub up: u64,
    /// `direct`, `reverse` or `command`.
    pub method: String,
    /// Both ends connected at once, for neither can be called.
    #[serde(default)]
    pub punched: bool,
    /// What was measured.
    pub figures: Figures,
    /// TCP connections that carry it together.
    #[serde(default = "one")]
    pub connections: usize,
    /// Each of them, its own first.
    #[serde(default)]
    pub each: Vec<LinkConnection>,
    /// The congestion control of this end's kernel, by its name; none where the link is not TCP.
    #[serde(default)]
    pub congestion: Option<String>,
    /// Its stack, in the notation of docs/adapters.md.
    #[serde(default)]
    pub stack: String,
    /// The elements of the stack that one end wanted and the link lacks, each with the reason.
    #[serde(default)]
    pub left_out: Vec<String>,
    /// What went out, where it may be compressed.
    #[serde(default)]
    pub compressed: Option<Compression>,
}

/// One TCP connection of a link, by the counters of this end's kernel (TCP_INFO).
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct LinkConnection {
    /// Its number in the link: that of the first one is 0, and none comes again.
    pub number: u32,
    /// This end's address.
    pub local: Option<String>,
    /// The other end's address.
    pub address: Option<String>,
    /// Its congestion control.
    pub congestion: Option<String>,
    /// Its round trip in microseconds, with the queues on its way.
    pub round_trip_us: Option<u32>,
    /// Bits a second that it carries, while there is enough for it.
    pub rate: Option<u64>,
    /// Millionths of the bytes that were sent again.
    pub again_ppm: u32,
    /// Bytes that wait for it in the kernel.
    pub unsent: u32,
    /// What held it back when it was last measured: `congestion` (the way, or losses on it), `receiver` (the other end's window), `buffer`
    /// (this end's), or `application` (there was not more to send).
    pub held_back_by: Option<String>,
    /// Thousandths of the time in which something was on its way.
    pub busy: u32,
    /// Thousandths of that in which the other end's window held it back.
    pub receiver: u32,
    /// The same of this end's buffer.
    pub buffer: u32,
    /// How often the kernel was told to find its rate anew, since its estimate was of a time with little to send.
    pub renewed: u32,
}

/// What became of bytes that were compressed.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct Compression {
    /// Bytes before.
    pub raw: u64,
    /// And as they were sent.
    pub encoded: u64,
}

fn one() -> usize {
    1
}

/// The ways to a host, and which is used.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Explanation {
    /// The host where they begin.
    pub from: String,
    /// The host where they end.
    pub to: String,
    /// The port of the question.
    pub port: Option<u16>,
    /// The way that is used.
    pub chosen: Option<String>,
    /// All of them, the chosen one first.
    pub ways: Vec<WayStatus>,
    /// The way of the last connection.
    pub last: Option<String>,
    /// The names of the rules that apply.
    pub rules: Vec<String>,
    /// The priority of its streams: `urgent`, `data` or `bulk`; without a port, that of ports to which no rule applies.
    #[serde(default)]
    pub class: String,
    /// The most bits a second, each way, of all streams under the rule that applies to the port.
    #[serde(default)]
    pub cap: Option<u64>,
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
    /// The age of the figures in seconds, where they are of an earlier time.
    pub measured_ago_s: Option<u64>,
    /// The other end of its first link.
    pub address: Option<String>,
    /// Its first link is encrypted.
    pub tls: Option<bool>,
    /// What its first link is made of.
    #[serde(default)]
    pub stack: Option<String>,
    /// The number of connections that carry it; 0 where there is no link.
    #[serde(default)]
    pub connections: usize,
    /// Each of them, its own first.
    #[serde(default)]
    pub each: Vec<LinkConnection>,
    /// The congestion control of this end's kernel, by its name.
    #[serde(default)]
    pub congestion: Option<String>,
    /// The elements of the stack that one end wanted and its first link lacks, each with the reason.
    #[serde(default)]
    pub left_out: Vec<String>,
    /// Why it is not used.
    pub why: Option<String>,
}

/// What a link of some stack carried.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct TrialReport {
    /// The stack.
    pub stack: String,
    /// Text was sent; else incompressible bytes.
    pub text: bool,
    /// Bits a second of what was sent, in the second half of the time.
    pub rate: u64,
    /// Connections, at the end.
    pub connections: usize,
    /// The congestion control of the sender's kernel, by its name.
    pub congestion: Option<String>,
    /// The result of the compression, where there was one.
    pub compressed: Option<Compression>,
    /// Why there is no result.
    pub error: Option<String>,
}

impl TrialReport {
    pub(crate) fn failed(stack: String, text: bool, why: String) -> Self {
        let (rate, connections, congestion, compressed) = Default::default();
        Self { stack, text, rate, connections, congestion, compressed, error: Some(why) }
    }
}

/// The state of a host, and of its ways to another one.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Examination {
    /// The host.
    pub health: Health,
    /// The ways to the other host, if one was named.
    pub why: Option<Explanation>,
    /// The results of its addresses.
    pub tried: Vec<Tried>,
    /// The relays of the grid, and for those without a link the reason.
    pub relays: Vec<(String, Option<String>)>,
}

/// The state of a host.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Health {
    /// Its name.
    pub host: String,
    /// The version of its daemon.
    pub version: String,
    /// The version of the links' wire format.
    pub links: u32,
    /// Its clock: microseconds since 1970.
    pub time_us: i64,
    /// The addresses of its daemon in the grid.
    pub addresses: Vec<String>,
    /// Whether memory can be shared.
    pub shared_memory: State,
    /// Whether long messages are copied once.
    pub single_copy: State,
    /// Its certificates.
    pub certificates: Vec<Certificate>,
    /// The grid declares all networks trusted.
    pub trusted: bool,
}

/// The result of one check.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct State {
    /// It passed.
    pub ok: bool,
    /// What was found.
    pub text: String,
    /// The command that repairs it.
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
    /// When it expires.
    pub until: Option<String>,
    /// What is wrong with it, and what to type.
    pub problem: Option<String>,
}

/// The result of dialling an address.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Tried {
    /// The address.
    pub address: String,
    /// Microseconds until there was a connection.
    pub us: Option<u64>,
    /// Why there was none.
    pub error: Option<String>,
}
