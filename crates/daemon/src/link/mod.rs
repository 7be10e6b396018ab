//! Links: connections to other daemons, with the streams on them. Two daemons need one link. Where both dialled at once, the one with the
//! least [`Rank`] is used; the other one ends with its last stream. On a long way urgent streams have a link of their own.
//!
//! ```text
//!  channel    bytes on the wire (session: TLS)   peer, dial   other hosts, when and where they are dialled
//!  accept     connections from others         backoff        the pauses between attempts
//!  establish  a link comes up                 reachability   failed attempts, and whether the direct way works
//!  serve      reads, events, writes           command(s)     links over the input and output of a command
//!  close      a link ends                     measure(d)     round trip, rate, losses
//!  each        what is told of a connection    counted        what holds one back, when its rate is found anew
//!  punch(es)   both ends connect at once      own_addresses, address_changes   of this host
//!  authenticate     the peer's identity       handshakes     a limit for each origin
//!  unauthenticated  a limit on connections whose peer has none yet
//!  stack       what a link is made of: offered, agreed on
//!  urgent      the link for urgent streams
//!  adapters    what lies between the multiplexer and the connections: compressed; enciphered, join; striped, lanes, numbers (several)
//!  successor   a link's own connection ends, and another one takes its place
//! ```
//! This file owns the state of one link.

mod accept;
pub(crate) mod adapters;
mod address_changes;
mod authenticate;
pub(crate) mod backoff;
pub(crate) mod channel;
mod close;
pub(crate) mod command;
mod commands;
pub(crate) mod compressed;
pub(crate) mod congestion;
pub(crate) mod counted;
mod dial;
mod each;
pub(crate) mod enciphered;
mod establish;
pub(crate) mod handshakes;
mod join;
mod lanes;
mod measure;
pub(crate) mod measured;
pub(crate) mod numbers;
pub(crate) mod own_addresses;
pub(crate) mod peer;
pub(crate) mod punch;
mod punches;
mod reachability;
mod serve;
mod session;
mod stack;
pub(crate) mod striped;
mod successor;
pub(crate) mod trial;
mod trials;
mod unauthenticated;
mod urgent;

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, AsRawFd as _};

use madrigal_adapters::contract::{Lane, ONLY};
use madrigal_adapters::stack::Agreed;
use madrigal_proto::mux::{Mux, StreamId, Taker};
use madrigal_sys::tcp;
use rustls::pki_types::CertificateDer;

use crate::link::adapters::Adapters;
use crate::link::channel::{Channel, UNSENT};
use crate::link::command::LinkCommand;
use crate::link::compressed::Compressed;
use crate::link::counted::Counted;
use crate::link::enciphered::Enciphered;
use crate::link::measured::{Measured, alone, carried_in};
use crate::link::striped::Striped;
use crate::poll::Token;
use crate::units::{MILLISECOND, SECOND};
use crate::wire::StackOffer;

/// The time that a new connection has to authenticate.
const GREETING_TIMEOUT: u64 = 5 * SECOND;
/// The time after which a connection of ours that is not answered is tried again beside it, with short segments.
const SHORT_RETRY_AFTER: u64 = 500 * MILLISECOND;
/// The time that a connection by a command has, which may have to log in first.
const LOGIN_TIMEOUT: u64 = 20 * SECOND;
/// The time after which a spare link without streams ends.
pub(crate) const SPARE_LINGER: u64 = 5 * SECOND;
/// The room that a direct write needs: a whole quantum of a stream.
const MIN_ROOM: usize = 16 << 10;

/// Retransmissions in a row after which a connection counts as stuck.
const STUCK_RETRANSMITS: u8 = 2;
/// A link younger than this, on which no more bytes than this were acknowledged, may be in a PMTU black hole.
pub(crate) const YOUNG: (u64, u64) = (10 * SECOND, 4096);

/// What a link is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// All streams.
    Streams,
    /// Urgent streams; all of them where there is no other link (`urgent.rs`).
    Urgent,
    /// A trial of a stack.
    Trial,
}

/// The order of links between the same two hosts, the same at both ends: whether it is by a command or for one purpose only, who dialled it,
/// and the count of that host's dials.
pub(crate) type Rank = (bool, String, u64);

/// A connection to another daemon, and the link that it carries, alone or with further ones.
pub(crate) struct Link {
    /// The link's own connection. Where there are further ones, one of them takes its place when it ends.
    pub(crate) channel: Channel,
    /// What the kernel counted of that connection; nothing where it is no TCP.
    pub(crate) counted: Option<Counted>,
    /// If we dialled it: the host, and the count of the dial.
    pub(crate) dialled: Option<(usize, u64)>,
    /// The address at the other end.
    pub(crate) address: Option<SocketAddr>,
    pub(crate) since: u64,
    /// The command whose input and output it is.
    pub(crate) command: Option<LinkCommand>,
    /// It came by a command of the other host, to the control socket.
    pub(crate) by_command: bool,
    /// The serial number of our certificate that the peer knows.
    pub(crate) proved_serial: Option<String>,
    /// A connection with short segments was tried beside it.
    pub(crate) short_tried: bool,
    /// The address at which the other end sees this one, as it reports.
    pub(crate) seen: Option<SocketAddr>,
    /// Both ends connected at once (`punch.rs`).
    pub(crate) punched: bool,
    /// What we offered in our greeting.
    pub(crate) offered: Option<StackOffer>,
    /// It is one more connection of that link, by this number; or will be once it has authenticated.
    pub(crate) joins: Option<(Token, Lane)>,
    pub(crate) stage: Stage,
}

/// The stage of a link.
pub(crate) enum Stage {
    /// The peer has not authenticated; what came of its greeting.
    Greeting(Vec<u8>),
    /// The link carries streams.
    Up(Box<Up>),
    /// The connection carries what another link sends by several.
    Joined,
}

/// A link that carries streams.
pub(crate) struct Up {
    /// The host at the other end.
    pub(crate) peer: usize,
    pub(crate) purpose: Purpose,
    /// The random number of its daemon.
    pub(crate) instance: u64,
    pub(crate) rank: Rank,
    pub(crate) mux: Mux,
    /// Its stack, as the two ends agreed on it.
    pub(crate) agreed: Agreed,
    /// What lies between the multiplexer and its connections, if anything does.
    pub(crate) adapters: Option<Box<Adapters>>,
    /// Another link is used; since when this one has no streams.
    pub(crate) spare: Option<u64>,
    pub(crate) measured: Measured,
    /// The stream of a route update, and what came of the update.
    pub(crate) update: Option<(StreamId, Vec<u8>)>,
    /// When the peer's certificate is checked again; never on a plain link.
    pub(crate) recheck_at: u64,
    /// We greeted last, and the peer has sent nothing since.
    pub(crate) just_greeted: bool,
    /// What came of a proof that the peer has a new certificate.
    pub(crate) proof: Vec<u8>,
    /// What the peer has proved; nothing on a plain link.
    pub(crate) proved: Option<Proved>,
}

/// What the peer of an enciphered link has proved. It is of the link, and outlives the connection with which that began.
pub(crate) struct Proved {
    /// Its certificates: those of the handshake, or newer ones that it has proved to have since.
    pub(crate) chain: Vec<CertificateDer<'static>>,
    /// The secrets of that handshake for proofs of newer ones: of this end, and of the other.
    pub(crate) secrets: [[u8; 32]; 2],
}

impl Link {
    /// Its next deadline.
    pub(crate) fn deadline(&self) -> u64 {
        match &self.stage {
            Stage::Greeting(_) if self.retry_target().is_some() => self.since + SHORT_RETRY_AFTER,
            Stage::Greeting(_) => self.since + if self.command.is_some() { LOGIN_TIMEOUT } else { GREETING_TIMEOUT },
            Stage::Up(up) => {
                let spare = up.spare.map_or(u64::MAX, |since| since + SPARE_LINGER);
                let adapters = up.adapters.as_ref().map_or(u64::MAX, |adapters| adapters.deadline());
                up.mux.deadline().min(up.recheck_at).min(spare).min(adapters)
            }
            Stage::Joined => u64::MAX,
        }
    }

    /// The host and address that we dialled, if a connection with short segments should be tried beside this one.
    pub(crate) fn retry_target(&self) -> Option<(usize, SocketAddr)> {
        let once = !self.short_tried && self.joins.is_none();
        let address = self.address.filter(|at| !at.ip().is_loopback() && once)?;
        Some((self.dialled?.0, address))
    }

    /// The state of a link that is up.
    pub(crate) fn up(&self) -> Option<&Up> {
        if let Stage::Up(up) = &self.stage { Some(up) } else { None }
    }

    /// Writes to a stream directly, where nothing else waits to be sent, until the wire takes no more. Returns how many bytes it took.
    pub(crate) fn write_at_once(&mut self, stream: StreamId, pieces: [&[u8]; 2]) -> usize {
        let Stage::Up(up) = &mut self.stage else { return 0 };
        if up.adapters.is_some() {
            return 0;
        }
        let [mut first, mut second] = pieces;
        let mut taken = 0;
        while !(first.is_empty() && second.is_empty()) {
            if self.channel.room() < MIN_ROOM && !self.channel.flush_for_more() {
                break;
            }
            let room = self.channel.room();
            let count = up.mux.write_at_once(stream, [first, second], self.channel.out(), room);
            if count == 0 {
                break;
            }
            let whole = count.min(first.len());
            first = first.get(whole..).unwrap_or_default();
            second = second.get(count - whole..).unwrap_or_default();
            taken += count;
        }
        taken
    }

    /// The multiplexer of a link that is up.
    pub(crate) fn mux(&mut self) -> Option<&mut Mux> {
        if let Stage::Up(up) = &mut self.stage { Some(&mut up.mux) } else { None }
    }

    /// Whether it is enciphered: by its connection, or above all that it has.
    pub(crate) fn is_enciphered(&self) -> bool {
        self.channel.is_encrypted() || self.session().is_some()
    }

    /// The encryption above all of its connections, where it has that.
    pub(crate) fn session(&self) -> Option<&Enciphered> {
        self.up()?.adapters.as_ref()?.enciphered.as_ref()
    }

    /// How it was made, in the words of rules.
    pub(crate) fn method(&self) -> &'static str {
        match (self.command.is_some() || self.by_command, self.dialled) {
            (true, _) => "command",
            (_, Some(_)) => "direct",
            _ => "reverse",
        }
    }

    /// The address at the other end, in words.
    pub(crate) fn address_text(&self) -> String {
        match self.address {
            Some(at) => at.to_string(),
            None if self.method() == "command" => "by a command".to_owned(),
            None => "?".to_owned(),
        }
    }

    /// Whether a host is at the other end, or was dialled.
    pub(crate) fn leads_to(&self, host: usize) -> bool {
        self.up().map(|up| up.peer).or(self.dialled.map(|(host, _)| host)) == Some(host)
    }

    /// Whether the kernel retransmits in vain.
    pub(crate) fn is_stuck(&self) -> bool {
        tcp::info(self.channel.as_fd().as_raw_fd()).is_ok_and(|counts| counts.retransmits >= STUCK_RETRANSMITS)
    }

    /// Updates its figures. Returns whether it seems to be in a PMTU black hole: short packets were acknowledged, and then nothing.
    pub(crate) fn measure(&mut self, now: u64) -> bool {
        let counts = tcp::info(self.channel.as_fd().as_raw_fd()).ok();
        let stuck =
            counts.is_some_and(|counts| counts.retransmits >= STUCK_RETRANSMITS && counts.bytes_acked < YOUNG.1);
        if let Some(counts) = counts {
            self.count(now, counts);
        }
        if let Stage::Up(up) = &mut self.stage {
            up.measured.update(counts, up.mux.shortest_round_trip());
            let all = up.adapters.as_ref().and_then(|adapters| adapters.rate());
            up.measured.figures.rate = all.or(up.measured.figures.rate);
            if let Some(rate) = up.measured.figures.rate {
                if let Some(adapters) = &mut up.adapters {
                    adapters.set_rate(rate);
                }
                // Each connection of a stripe has a limit of its own.
                if up.striped().is_none() {
                    let time = alone(up.measured.figures.round_trip_us.unwrap_or(0));
                    self.channel.limit_unsent(carried_in(time, rate).max(UNSENT));
                }
            }
        }
        stuck && self.dialled.is_some() && now.saturating_sub(self.since) < YOUNG.0
    }

    /// Takes what the kernel counts of the connection. If it paces by an estimate that is stale, it finds the rate anew.
    fn count(&mut self, now: u64, counts: tcp::Info) {
        // What several carry together, or an earlier link did, says nothing of one of several.
        let alone = self.up().filter(|up| up.connections() == 1).and_then(|up| up.measured.figures.rate);
        let counted = self.counted.get_or_insert_with(|| Counted::new(counts, now));
        if counted.is_stale(now, &counts, alone.or(counted.rate)) && self.channel.begin_rate_anew() {
            counted.renew(now);
        }
        counted.update(now, counts);
    }

    /// Whether it was accepted, and its peer has not authenticated.
    pub(crate) fn is_unauthenticated(&self) -> bool {
        self.dialled.is_none() && matches!(self.stage, Stage::Greeting(_))
    }

    /// The origin of its handshake: an IPv4 address, or a network of IPv6.
    pub(crate) fn origin(&self) -> Option<IpAddr> {
        self.address.map(|at| handshakes::origin(at.ip()))
    }
}

impl Up {
    /// How many connections the link has.
    pub(crate) fn connections(&self) -> usize {
        1 + self.striped().map_or(0, Striped::further)
    }

    /// How many it should have, where it may have several.
    pub(crate) fn connections_wanted(&self) -> Option<u8> {
        self.striped().map(|striped| u8::try_from(striped.wanted()).unwrap_or(u8::MAX))
    }

    /// The number of its own connection.
    pub(crate) fn own_lane(&self) -> Lane {
        self.adapters.as_ref().map_or(ONLY, |adapters| adapters.own())
    }

    /// Its compression, where it may be compressed.
    pub(crate) fn compressed(&self) -> Option<&Compressed> {
        self.adapters.as_ref()?.compressed.as_ref()
    }

    /// Its connections, where it may have several.
    pub(crate) fn striped(&self) -> Option<&Striped> {
        self.adapters.as_ref()?.striped.as_ref()
    }

    /// Takes bytes that came on a connection of the link.
    pub(crate) fn receive(&mut self, now: u64, lane: Lane, bytes: &[u8], taker: Taker<'_>) -> Result<(), String> {
        let Self { mux, adapters, .. } = self;
        match adapters {
            Some(adapters) => adapters.receive(now, lane, bytes, mux, taker),
            None => mux.receive_with(now, bytes, taker).map_err(|broken| broken.to_string()),
        }
    }
}
