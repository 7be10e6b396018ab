//! Links: connections to other daemons, with the streams on them. Two daemons need one link. Where both dialled at once, the one with the
//! least [`Rank`] is used; the other one ends with its last stream.
//!
//! ```text
//!  channel    bytes on the wire, TLS          peer, dial     other hosts, when and where they are dialled
//!  accept     connections from others         backoff        the pauses between attempts
//!  establish  a link comes up                 reachability   what the attempts say of a host
//!  serve      reads, events, writes           command(s)     links over the input and output of a command
//!  close      a link ends                     measure(d)     round trip, rate, losses
//!  authenticate      who is at the other end  handshakes     how many each origin may begin
//!  unauthenticated   who has not proved it
//! ```
//! This file owns the state of one link.

mod accept;
mod authenticate;
pub(crate) mod backoff;
pub(crate) mod channel;
mod close;
pub(crate) mod command;
mod commands;
mod dial;
mod establish;
pub(crate) mod handshakes;
mod measure;
pub(crate) mod measured;
pub(crate) mod peer;
mod reachability;
mod serve;
mod unauthenticated;

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, AsRawFd as _};

use madrigal_proto::mux::{Mux, StreamId};
use madrigal_sys::tcp;
use rustls::pki_types::CertificateDer;

use crate::link::channel::Channel;
use crate::link::command::LinkCommand;
use crate::link::measured::Measured;
use crate::units::{MILLISECOND, SECOND};

/// How long a new connection has to say who it is, and to prove it.
const GREETING: u64 = 5 * SECOND;
/// Of ours, which began and was not answered: this long until another one is tried.
const DOUBTED: u64 = 500 * MILLISECOND;
/// And one by a command, which may have to log in first.
const LOGGING_IN: u64 = 20 * SECOND;
/// How long a link that is not needed may be without a stream.
pub(crate) const GRACE: u64 = 5 * SECOND;
/// What is written at once needs room for a whole quantum of a stream.
const LEAST_ROOM: usize = 16 << 10;

/// So many times in a row the kernel sent the same bytes.
const STUCK: u8 = 2;
/// A link that is no older, and has brought no more across, may be dialled anew.
pub(crate) const YOUNG: (u64, u64) = (10 * SECOND, 4096);

/// Which of several links between the same two is used: whether it is by a command, who dialled it, and that one's count. The same at
/// both ends.
pub(crate) type Rank = (bool, String, u64);

/// A connection to a daemon.
pub(crate) struct Link {
    pub(crate) channel: Channel,
    /// For a connection of ours: whom we dialled, and its number.
    pub(crate) dialled: Option<(usize, u64)>,
    /// The address at the other end.
    pub(crate) address: Option<SocketAddr>,
    pub(crate) since: u64,
    /// The command whose input and output it is; or it came by a command, to this host's socket for clients.
    pub(crate) command: Option<LinkCommand>,
    pub(crate) by_command: bool,
    /// The serial number of what we had to show when it began, or proved since.
    pub(crate) shown: Option<String>,
    /// Another connection was tried beside it.
    pub(crate) doubted: bool,
    pub(crate) stage: Stage,
}

/// How far it is.
pub(crate) enum Stage {
    /// The peer has not said who it is.
    Greeting(Vec<u8>),
    /// It has.
    Up(Box<Up>),
}

/// A link that carries streams.
pub(crate) struct Up {
    /// The host at the other end.
    pub(crate) peer: usize,
    pub(crate) instance: u64,
    pub(crate) rank: Rank,
    pub(crate) mux: Mux,
    /// Another one is used; since when this one has no streams.
    pub(crate) spare: Option<u64>,
    /// What was measured of it.
    pub(crate) measured: Measured,
    /// The stream on which the other end tells where it leads, and what came of that.
    pub(crate) update: Option<(StreamId, Vec<u8>)>,
    /// When the peer's certificate is judged again; never on a plain link.
    pub(crate) judge: u64,
    /// The peer has sent nothing since it greeted.
    pub(crate) fresh: bool,
    /// What it has sent of a proof that it has another certificate.
    pub(crate) proof: Vec<u8>,
    /// The certificates that it proved to have since the handshake.
    pub(crate) renewed: Option<Vec<CertificateDer<'static>>>,
}

impl Link {
    /// When it is due.
    pub(crate) fn deadline(&self) -> u64 {
        match &self.stage {
            Stage::Greeting(_) if self.doubtful().is_some() => self.since + DOUBTED,
            Stage::Greeting(_) => self.since + if self.command.is_some() { LOGGING_IN } else { GREETING },
            Stage::Up(up) => up.mux.deadline().min(up.judge).min(up.spare.map_or(u64::MAX, |since| since + GRACE)),
        }
    }

    /// Whom we dialled, and where, if another connection is to be tried beside this one.
    pub(crate) fn doubtful(&self) -> Option<(usize, SocketAddr)> {
        let address = self.address.filter(|at| !at.ip().is_loopback() && !self.doubted)?;
        Some((self.dialled?.0, address))
    }

    pub(crate) fn up(&self) -> Option<&Up> {
        if let Stage::Up(up) = &self.stage { Some(up) } else { None }
    }

    /// Writes to a stream where nothing else waits to be sent, as long as the wire takes it; how much.
    pub(crate) fn write_at_once(&mut self, stream: StreamId, pieces: [&[u8]; 2]) -> usize {
        let Stage::Up(up) = &mut self.stage else { return 0 };
        let [mut first, mut second] = pieces;
        let mut taken = 0;
        while !(first.is_empty() && second.is_empty()) {
            if self.channel.room() < LEAST_ROOM && !self.channel.make_room() {
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

    pub(crate) fn mux(&mut self) -> Option<&mut Mux> {
        if let Stage::Up(up) = &mut self.stage { Some(&mut up.mux) } else { None }
    }

    /// How it was made, as rules call it.
    pub(crate) fn method(&self) -> &'static str {
        match (self.command.is_some() || self.by_command, self.dialled) {
            (true, _) => "command",
            (_, Some(_)) => "direct",
            _ => "reverse",
        }
    }

    /// The address at the other end, for people.
    pub(crate) fn spoken_address(&self) -> String {
        match self.address {
            Some(at) => at.to_string(),
            None if self.method() == "command" => "by a command".to_owned(),
            None => "?".to_owned(),
        }
    }

    /// Whether that host is at the other end, or is to be.
    pub(crate) fn leads_to(&self, host: usize) -> bool {
        self.up().map(|up| up.peer).or(self.dialled.map(|(host, _)| host)) == Some(host)
    }

    /// Whether the kernel sends the same bytes again and again.
    pub(crate) fn is_stuck(&self) -> bool {
        tcp::info(self.channel.as_fd().as_raw_fd()).is_ok_and(|counts| counts.retransmits >= STUCK)
    }

    /// Looks at the kernel's counts. Whether long packets seem to vanish: short ones came across, and then nothing.
    pub(crate) fn measure(&mut self, now: u64) -> bool {
        let counts = tcp::info(self.channel.as_fd().as_raw_fd()).ok();
        let stuck = counts.is_some_and(|counts| counts.retransmits >= STUCK && counts.bytes_acked < YOUNG.1);
        if let Stage::Up(up) = &mut self.stage {
            up.measured.update(counts, up.mux.shortest_round_trip());
        }
        stuck && self.dialled.is_some() && now.saturating_sub(self.since) < YOUNG.0
    }

    /// Whether somebody called and has not said and proved who it is.
    pub(crate) fn is_unauthenticated(&self) -> bool {
        self.dialled.is_none() && self.up().is_none()
    }

    /// Where it comes from.
    pub(crate) fn origin(&self) -> Option<IpAddr> {
        self.address.map(|at| match at.ip().to_canonical() {
            IpAddr::V6(ip) => IpAddr::V6((u128::from(ip) >> 64 << 64).into()),
            four => four,
        })
    }
}
