//! The ends of links: timers, errors, refusals.

use madrigal_proto::mux::Class;
use rustix::io::Errno;

use crate::daemon::Daemon;
use crate::link::{GRACE, Link, Stage};
use crate::poll::Token;
use crate::wire::{self, About, Gone};

/// Why a connection ends on which nothing was said.
const NO_GREETING: &str = "no greeting in time";
/// Why a link ends whose peer ended it, or is no more.
pub(crate) const CLOSED: &str = "the other end closed it";
pub(crate) const RESTARTED: &str = "its daemon was started again";
/// Why a link is given up early.
pub(crate) const VANISHED: &str = "long packets seem to vanish";
/// Bytes of a link that is ending: what goes first on it.
const LAST_WORDS: usize = 4 << 10;

impl Daemon {
    /// A link is due.
    pub(crate) fn link_time(&mut self, token: Token) {
        let now = self.now;
        if let Err(why) = self.judge_again(token) {
            return self.part(token, &why);
        }
        let Some(link) = self.links.get_mut(&token) else { return };
        if let (Stage::Greeting(_), Some((peer, address))) = (&link.stage, link.doubtful()) {
            link.doubted = true;
            return self.dial_shortly(peer, address);
        }
        let why = match &mut link.stage {
            Stage::Greeting(_) => Some(NO_GREETING.to_owned()),
            Stage::Up(up) => {
                if let Some(since) = up.spare.filter(|_| !up.mux.is_empty()) {
                    up.spare = Some(since.max(now));
                }
                let spare = up.spare.is_some_and(|since| since + GRACE <= now);
                let broken = up.mux.handle_time(now).err().map(|broken| broken.to_string());
                broken.or(spare.then(|| "another one is used".to_owned()))
            }
        };
        match why {
            Some(why) => self.drop_link(token, &why),
            None => drop(self.dirty.insert(token)),
        }
    }

    /// Ends a link; streams on it may go on by other ways.
    pub(crate) fn drop_link(&mut self, token: Token, why: &str) {
        let ends = [Errno::CONNRESET, Errno::PIPE].map(|errno| errno.to_string());
        let closed = [CLOSED, RESTARTED].contains(&why) || ends.iter().any(|end| end == why);
        self.end_link(token, why, if closed { Gone::Lost } else { Gone::Silent });
    }

    /// Ends a link, and all streams on it: one of the two does not let the other in.
    pub(crate) fn shut_out(&mut self, token: Token, why: &str) {
        self.end_link(token, why, Gone::Ended);
    }

    fn end_link(&mut self, token: Token, why: &str, fate: Gone) {
        let Some(mut link) = self.links.remove(&token) else { return };
        self.things.remove(&token);
        if let (Some((peer, _)), Some(address)) = (link.dialled, link.address)
            && !address.ip().is_loopback()
            && ([VANISHED, NO_GREETING].contains(&why) || link.is_stuck())
        {
            self.shorten(peer, address);
        }
        let told = self.command_over(&mut link, why);
        let why = told.as_deref().unwrap_or(why);
        let address = link.spoken_address();
        let host = link.up().map(|up| up.peer).or(link.dialled.map(|(host, _)| host));
        let name = host.map_or_else(|| "an unauthenticated peer".to_owned(), |host| self.name(host).to_owned());
        let line = format!("no link with {name}, {address}: {why}");
        if host.is_some() {
            self.note(&line)
        } else if !link.address.is_some_and(|at| self.own_calls.remove(&(at.ip().to_canonical(), at.port()))) {
            self.note_unauthenticated(&line)
        }
        if let Some(host) = host {
            if told.is_some() {
                self.peers[host].command = Some(why.to_owned());
            }
            self.peer_lost(host, link.dialled.and(link.address), why, link.up().is_some());
            self.forget_routes(host);
        }
        let gone: Vec<_> = self.streams.keys().filter(|(link, _)| *link == token).copied().collect();
        for stream in gone {
            self.stream_gone(stream, fate);
        }
    }

    /// Ends a link that is up, and tells the other end why.
    pub(crate) fn part(&mut self, token: Token, why: &str) {
        if let Some(Link { channel, stage: Stage::Up(up), .. }) = self.links.get_mut(&token) {
            let about = About::Bye(wire::cut(why).to_owned()).bytes();
            let _ = up.mux.open(Class::Urgent, &about);
            up.mux.transmit(channel.out(), LAST_WORDS);
            let _ = channel.flush();
        }
        self.shut_out(token, why);
    }
}
