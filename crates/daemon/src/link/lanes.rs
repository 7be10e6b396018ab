//! Links that several connections carry: how the two ends agree on it, how further connections come and go, and what goes by them. The end
//! that dialled the link makes the connections; each authenticates as a link does, so that nobody can join who could not have made a link.

use std::os::fd::{AsFd as _, AsRawFd as _};

use madrigal_adapters::contract::Lane;
use madrigal_adapters::stripe::count::Congestion;
use madrigal_proto::mux::Class;
use madrigal_sys::tcp;

use crate::daemon::Daemon;
use crate::link::channel::Channel;
use crate::link::striped::Striped;
use crate::link::{Link, Stage, Up};
use crate::poll::Token;
use crate::wire::{Hello, Joins, StreamHeader, StripeOffer};

/// The version of the stripe's format.
const VERSION: u16 = 1;
/// The most connections of a link, if no rule says less.
const MOST: u8 = 16;
/// The shortest round trip for which several connections may be worth it, in microseconds: losses are made up for soon on a shorter way.
const FAR: u32 = 1000;
/// Less room than this is not worth a write.
const MIN_ROOM: usize = 4 << 10;

impl Daemon {
    /// What the greeting of a connection that we dialled offers.
    pub(crate) fn stripe_offer(&self, link: &Link) -> Option<StripeOffer> {
        let (peer, _) = link.dialled.filter(|_| link.joins.is_none())?;
        // A command's input and output are no TCP.
        let info = tcp::info(link.channel.as_fd().as_raw_fd()).ok()?;
        let round_trip = if info.min_rtt == u32::MAX { info.rtt } else { info.min_rtt };
        let offer =
            StripeOffer { version: VERSION, most: self.most_connections(peer), by_loss: by_loss(&link.channel) };
        (round_trip >= FAR && offer.most > 1).then_some(offer)
    }

    /// What this end answers to an offer. Where both kernels send by rate, whatever is lost, one connection is all that is needed.
    pub(crate) fn stripe_answer(&self, link: &Link, peer: usize, offer: StripeOffer) -> Option<StripeOffer> {
        let answer =
            StripeOffer { most: offer.most.min(self.most_connections(peer)), by_loss: by_loss(&link.channel), ..offer };
        (offer.version == VERSION && answer.most > 1 && (offer.by_loss || answer.by_loss)).then_some(answer)
    }

    /// The connections of a link that comes up, if there may be several. `agreed`: the answer that was sent, or that came.
    pub(crate) fn striped(&self, link: &Link, peer: usize, agreed: Option<StripeOffer>) -> Option<Box<Striped>> {
        let agreed = agreed.filter(|agreed| agreed.version == VERSION)?;
        let most = match link.dialled {
            // No more than we offered, whatever came.
            Some(_) => agreed.most.min(link.offered?.most),
            None => agreed.most,
        };
        let congestion = if by_loss(&link.channel) { Congestion::ByLoss } else { Congestion::ByRate };
        let known = self.known_file.known.way(self.name(peer), link.method()).map_or(0, |known| known.connections);
        Striped::new(self.now, [known, most], congestion).ok().map(Box::new)
    }

    fn most_connections(&self, peer: usize) -> u8 {
        self.grid.most_connections(peer).unwrap_or(MOST).min(MOST)
    }

    /// The greeting of a further connection of a link says which.
    pub(crate) fn joins(&self, link: &Link) -> Option<Joins> {
        let (of, lane) = link.joins?;
        let (_, number) = self.links.get(&of)?.dialled?;
        Some(Joins { link: number, lane: lane.0 })
    }

    /// A further connection of a link has authenticated. `rest` came behind its greeting.
    pub(crate) fn join_link(&mut self, token: Token, peer: usize, hello: &Hello, rest: &[u8]) -> Result<(), String> {
        const GONE: &str = "its link is gone";
        let ours = self.links.get(&token).and_then(|link| link.joins);
        let (of, lane) = match (ours, hello.joins) {
            (Some(ours), _) => ours,
            (None, Some(joins)) => (self.link_joined(peer, hello, joins).ok_or(GONE)?, Lane(joins.lane)),
            (None, None) => return Err("it joins no link".to_owned()),
        };
        let is_encrypted = |at| self.links.get(&at).map(|link: &Link| link.channel.is_encrypted());
        if is_encrypted(of) != is_encrypted(token) {
            return Err("its link is enciphered, and it is not, or the other way round".to_owned());
        }
        let now = self.now;
        let striped = self.striped_link(of).ok_or(GONE)?;
        striped.join(now, lane, token, ours.is_some()).map_err(|error| error.to_string())?;
        let answer = self.greeting(0, None, None);
        if let Some(link) = self.links.get_mut(&token) {
            (link.stage, link.joins) = (Stage::Joined, Some((of, lane)));
            if ours.is_none() {
                link.channel.out().extend(answer);
            }
        }
        self.log_connections(of, "one more");
        self.unflushed.insert(of);
        self.receive_joined((of, lane), rest);
        Ok(())
    }

    /// The link of several connections that a peer began with the greeting of that number.
    fn link_joined(&self, peer: usize, hello: &Hello, joins: Joins) -> Option<Token> {
        let is = |link: &Link, up: &Up| {
            let rank = (false, hello.host.clone(), joins.link);
            link.dialled.is_none() && up.peer == peer && up.instance == hello.instance && up.rank == rank
        };
        self.links.iter().find(|(_, link)| link.up().is_some_and(|up| is(link, up))).map(|(token, _)| *token)
    }

    fn striped_link(&mut self, token: Token) -> Option<&mut Striped> {
        match &mut self.links.get_mut(&token)?.stage {
            Stage::Up(up) => up.striped.as_deref_mut(),
            Stage::Greeting(_) | Stage::Joined => None,
        }
    }

    /// The link whose bytes a connection carries: its own, or the one that it joined.
    pub(crate) fn carried(&self, token: Token) -> Token {
        match self.links.get(&token) {
            Some(Link { stage: Stage::Joined, joins: Some((of, _)), .. }) => *of,
            _ => token,
        }
    }

    /// Takes bytes that came by a further connection. If they make no sense the whole link ends.
    pub(crate) fn receive_joined(&mut self, (of, lane): (Token, Lane), bytes: &[u8]) {
        if let Err(why) = self.receive_on(of, lane, bytes) {
            self.deliver_received(of);
            self.drop_link(of, &why);
        }
    }

    /// Sends what a link of several connections has to send, and handles the events that follow.
    pub(crate) fn flush_striped(&mut self, token: Token) {
        loop {
            let moved = self.send_by_all(token);
            self.handle_mux_events(token);
            match moved {
                Ok(true) => {}
                Ok(false) => return,
                Err((broken, why)) => self.drop_link(broken, &why),
            }
        }
    }

    /// Moves bytes of the multiplexer to the connections. Returns whether there may be more to move; or the connection that broke, and why.
    fn send_by_all(&mut self, token: Token) -> Result<bool, (Token, String)> {
        let Some(Link { stage: Stage::Up(up), .. }) = self.links.get_mut(&token) else { return Ok(false) };
        let Some(mut striped) = up.striped.take() else { return Ok(false) };
        let mut moved = striped.take_from(&mut up.mux);
        let mut broken = None;
        for (lane, connection) in striped.connections(token) {
            let Some(link) = self.links.get_mut(&connection) else { continue };
            match send_by(link, &mut striped, self.now, lane) {
                Ok(sent) => moved |= sent,
                Err(why) => broken = broken.or(Some((connection, why))),
            }
        }
        if let Some(Link { stage: Stage::Up(up), .. }) = self.links.get_mut(&token) {
            up.striped = Some(striped);
        }
        if moved {
            self.measure_soon();
        }
        broken.map_or(Ok(moved), Err)
    }

    /// The other end wants so many connections for what it sends.
    pub(crate) fn handle_lanes_wanted(&mut self, token: Token, count: u8) {
        if let Some(striped) = self.striped_link(token) {
            striped.handle_wanted(count);
            self.adjust_connections(token);
        }
    }

    /// Looks at the connections of all links that have several, and makes more or ends some.
    pub(crate) fn measure_connections(&mut self) {
        let striped = self.links.iter().filter(|(_, link)| link.up().is_some_and(|up| up.striped.is_some()));
        for token in striped.map(|(token, _)| *token).collect::<Vec<_>>() {
            let Some(all) = self.striped_link(token).map(|striped| striped.connections(token)) else { continue };
            let info = |at: Token| tcp::info(self.links.get(&at)?.channel.as_fd().as_raw_fd()).ok();
            let infos = all.into_iter().filter_map(|(lane, at)| Some((lane, info(at)?))).collect();
            let now = self.now;
            if let Some(striped) = self.striped_link(token) {
                striped.look(now, infos);
            }
            self.adjust_connections(token);
        }
    }

    /// Makes connections, or ends some, as both ends want it; the end that did not dial only says what it wants.
    fn adjust_connections(&mut self, token: Token) {
        let now = self.now;
        let Some(link) = self.links.get_mut(&token) else { return };
        let (dialled, address) = (link.dialled, link.address);
        let Stage::Up(up) = &mut link.stage else { return };
        let Some(striped) = &mut up.striped else { return };
        let (Some((peer, _)), Some(address)) = (dialled, address) else {
            if let Some(count) = striped.unreported()
                && up.mux.open(Class::Urgent, &StreamHeader::Lanes(count).bytes()).is_ok()
            {
                striped.reported(count);
                self.unflushed.insert(token);
            }
            return;
        };
        let over = striped.over();
        let more = striped.adjust(now);
        // Nobody needs them before there is something to carry.
        let more = if up.mux.is_empty() { 0 } else { more };
        let lanes: Vec<Lane> = (0..more).map(|_| striped.make()).collect();
        for lane in lanes {
            self.dial_at(peer, address, self.peers[peer].short_segments.contains(&address), Some((token, lane)));
        }
        for connection in over {
            self.drop_link(connection, "");
        }
        self.unflushed.insert(token);
    }

    /// A further connection of a link has ended, or could not be made; `there`: it carried something.
    pub(crate) fn connection_ended(&mut self, (of, lane): (Token, Lane), there: bool, why: &str) {
        let now = self.now;
        let Some(striped) = self.striped_link(of) else { return };
        let meant = if there { striped.leave(lane) } else { false };
        if !there {
            striped.not_made(now);
        }
        self.log_connections(of, if meant { "one less" } else { why });
        self.unflushed.insert(of);
    }

    /// Ends the further connections of a link that has ended, those that are being made, too.
    pub(crate) fn end_connections(&mut self, of: Token) {
        let joins = |joins: Option<(Token, Lane)>| joins.is_some_and(|(link, _)| link == of);
        let links = self.links.iter().filter(|(_, link)| joins(link.joins)).map(|(token, _)| *token);
        let dials = self.dials.iter().filter(|(_, dial)| joins(dial.joins)).map(|(token, _)| *token);
        for token in links.chain(dials).collect::<Vec<_>>() {
            self.descriptors.remove(&token);
            self.links.remove(&token);
            self.dials.remove(&token);
        }
    }

    fn log_connections(&mut self, of: Token, what: &str) {
        let Some(up) = self.links.get(&of).and_then(Link::up) else { return };
        let count = 1 + up.striped.as_ref().map_or(0, |striped| striped.further());
        let line = format!("link with {}: {count} connections: {what}", self.name(up.peer));
        self.log_line(&line);
    }
}

/// Sends by one connection what it takes. Returns whether that was anything.
fn send_by(link: &mut Link, striped: &mut Striped, now: u64, lane: Lane) -> Result<bool, String> {
    let mut moved = false;
    loop {
        let room = link.channel.room();
        let out = link.channel.out();
        let before = out.len();
        if room >= MIN_ROOM {
            striped.transmit(now, lane, room, out);
        }
        let grew = out.len() > before;
        moved |= grew;
        let all = link.channel.flush().map_err(|broken| broken.to_string())?;
        if !(all && grew) {
            return Ok(moved);
        }
    }
}

/// Whether the kernel slows a connection down where packets are lost, as all do but BBR.
fn by_loss(channel: &Channel) -> bool {
    let name = rustix::net::sockopt::tcp_congestion(channel);
    name.is_ok_and(|name| Congestion::of(&name) == Congestion::ByLoss)
}
