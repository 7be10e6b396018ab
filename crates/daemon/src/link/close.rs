//! The ends of links: timers, errors, refusals.

use std::net::SocketAddr;

use madrigal_proto::mux::Class;
use rustix::io::Errno;

use crate::daemon::Daemon;
use crate::link::{Link, Purpose, SPARE_LINGER, Stage};
use crate::poll::Token;
use crate::wire::{self, ResetCause, StreamHeader};

/// Why a link ends: its peer has not greeted.
const NO_GREETING: &str = "no greeting in time";
/// Why a link ends: its peer closed it.
pub(crate) const CLOSED: &str = "the other end closed it";
/// Why a link ends: it is of an earlier instance of the peer.
pub(crate) const RESTARTED: &str = "its daemon was started again";
/// Why a link ends: it seems to be in a PMTU black hole.
pub(crate) const BLACK_HOLE: &str = "long packets seem to vanish";
/// Bytes that are sent on a link that is closed: the urgent ones.
const CLOSE_ROOM: usize = 4 << 10;

impl Daemon {
    /// A deadline of a link.
    pub(crate) fn link_timer(&mut self, token: Token) {
        let now = self.now;
        if let Err(why) = self.recheck_certificate(token) {
            return self.close_link_with(token, &why);
        }
        let Some(link) = self.links.get_mut(&token) else { return };
        if let (Stage::Greeting(_), Some((peer, address))) = (&link.stage, link.retry_target()) {
            link.short_tried = true;
            return self.dial_short_segments(peer, address);
        }
        let why = match &mut link.stage {
            Stage::Greeting(_) => Some(NO_GREETING.to_owned()),
            Stage::Joined => None,
            Stage::Up(up) => {
                if let Some(since) = up.spare.filter(|_| !up.mux.is_empty()) {
                    up.spare = Some(since.max(now));
                }
                let spare = up.spare.is_some_and(|since| since + SPARE_LINGER <= now);
                if let Some(adapters) = &mut up.adapters {
                    adapters.handle_time(now);
                }
                let broken = up.mux.handle_time(now).err().map(|broken| broken.to_string());
                broken.or(spare.then(|| "another one is used".to_owned()))
            }
        };
        match why {
            Some(why) => self.drop_link(token, &why),
            None => drop(self.unflushed.insert(token)),
        }
    }

    /// Ends a link, whatever connections it has, or a further connection of one. Streams of a link may migrate.
    pub(crate) fn drop_link(&mut self, token: Token, why: &str) {
        let ends = [Errno::CONNRESET, Errno::PIPE].map(|errno| errno.to_string());
        let closed = [CLOSED, RESTARTED].contains(&why) || ends.iter().any(|end| end == why);
        self.end_link(token, why, if closed { ResetCause::LinkLost } else { ResetCause::LinkSilent });
    }

    /// Ends a link, and all streams on it, because one end refuses the other.
    pub(crate) fn reject_link(&mut self, token: Token, why: &str) {
        self.end_link(token, why, ResetCause::Ended);
    }

    fn end_link(&mut self, token: Token, why: &str, cause: ResetCause) {
        let Some(mut link) = self.links.remove(&token) else { return };
        self.descriptors.remove(&token);
        if let Some(joins) = link.joins {
            return self.connection_ended(joins, matches!(link.stage, Stage::Joined), why);
        }
        self.end_connections(token);
        // Beside it there is the link that programs use.
        let beside = link.up().is_some_and(|up| up.purpose != Purpose::Streams && self.link_to(up.peer).is_some());
        if let Some(up) = link.up().filter(|up| beside && up.purpose == Purpose::Urgent) {
            self.log_line(&format!("no link for urgent streams with {}: {why}", self.name(up.peer)));
        }
        if beside || self.trial_by(token).is_some() || self.is_urgent_dial(token) && link.up().is_none() {
            self.reset_streams_of(token, cause);
            return self.trial_lost(token, why);
        }
        if let Some((peer, address)) = in_black_hole(&link, why) {
            self.toggle_short_segments(peer, address);
        }
        let with_command = self.end_link_command(&mut link, why);
        let why = with_command.as_deref().unwrap_or(why);
        let address = link.address_text();
        let host = link.up().map(|up| up.peer).or(link.dialled.map(|(host, _)| host));
        let name = host.map_or_else(|| "an unauthenticated peer".to_owned(), |host| self.name(host).to_owned());
        let line = format!("no link with {name}, {address}: {why}");
        if host.is_some() {
            self.log_line(&line)
        } else if !link.address.is_some_and(|at| self.self_connections.remove(&(at.ip().to_canonical(), at.port()))) {
            self.log_unauthenticated(&line)
        }
        if let Some(host) = host {
            if with_command.is_some() {
                self.peers[host].command_failure = Some(why.to_owned());
            }
            self.peer_lost(host, link.dialled.and(link.address), why, link.up().is_some());
            self.forget_advertised(host);
        }
        self.reset_streams_of(token, cause);
    }

    /// A link has ended: its streams are no more.
    fn reset_streams_of(&mut self, token: Token, cause: ResetCause) {
        let streams: Vec<_> = self.streams.keys().filter(|(link, _)| *link == token).copied().collect();
        for stream in streams {
            self.handle_reset(stream, cause);
        }
    }

    /// Ends a link, with a reason for the other end.
    pub(crate) fn close_link_with(&mut self, token: Token, why: &str) {
        if let Some(Link { channel, stage: Stage::Up(up), .. }) = self.links.get_mut(&token) {
            let header = StreamHeader::Close(wire::cut(why).to_owned()).bytes();
            let _ = up.mux.open(Class::Urgent, &header);
            match &mut up.adapters {
                Some(adapters) => {
                    adapters.take_from(self.now, &mut up.mux);
                    adapters.transmit(self.now, adapters.own(), &mut up.mux, CLOSE_ROOM, channel.out());
                }
                None => up.mux.transmit(channel.out(), CLOSE_ROOM),
            }
            let _ = channel.flush();
        }
        self.reject_link(token, why);
    }
}

/// The host and address that we dialled, if long packets of that connection seem to vanish.
pub(crate) fn in_black_hole(link: &Link, why: &str) -> Option<(usize, SocketAddr)> {
    let ((peer, _), address) = link.dialled.zip(link.address.filter(|at| !at.ip().is_loopback()))?;
    let seems = [BLACK_HOLE, NO_GREETING].contains(&why) || link.is_stuck();
    seems.then_some((peer, address))
}
