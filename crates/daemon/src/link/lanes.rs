//! Links that several connections carry: how further connections come and go, and what goes by them. The end that dialled the link makes
//! the connections. Each authenticates as a link does, so that only a peer that could make a link can join one; or, where one session is
//! above all of them, by a secret of that (`join.rs`).

use std::net::SocketAddr;

use madrigal_adapters::contract::Lane;
use madrigal_proto::mux::Class;

use crate::daemon::Daemon;
use crate::link::channel::Channel;
use crate::link::striped::{Carries, Striped};
use crate::link::{Link, Stage, Up};
use crate::poll::Token;
use crate::socket;
use crate::wire::{Hello, Joins, StreamHeader};

/// Why a connection is refused: its link is gone.
pub(crate) const GONE: &str = "its link is gone";
/// Less room than this is not worth a write.
const MIN_ROOM: usize = 4 << 10;

impl Daemon {
    /// The greeting of a further connection of a link: it has the numbers of the link and of the connection.
    pub(crate) fn joins(&self, link: &Link) -> Option<Joins> {
        let (of, lane) = link.joins?;
        let (_, number) = self.links.get(&of)?.dialled?;
        Some(Joins { link: number, lane: lane.0 })
    }

    /// A further connection of a link has authenticated. `rest` came behind its greeting.
    pub(crate) fn join_link(&mut self, token: Token, peer: usize, hello: &Hello, rest: &[u8]) -> Result<(), String> {
        let ours = self.links.get(&token).and_then(|link| link.joins);
        let (of, lane) = match (ours, hello.joins) {
            (Some(ours), _) => ours,
            (None, Some(joins)) => (self.link_joined(peer, hello, joins).ok_or(GONE)?, Lane(joins.lane)),
            (None, None) => return Err("it joins no link".to_owned()),
        };
        let is_encrypted = |at| self.links.get(&at).map(|link: &Link| link.channel.is_encrypted());
        let is_enciphered = self.links.get(&of).is_some_and(Link::is_enciphered);
        // Where one session is above all connections, neither is: this is not the way to join such a link.
        if is_encrypted(of) != is_encrypted(token) || is_encrypted(of) != Some(is_enciphered) {
            return Err("its link is enciphered, and it is not, or the other way round".to_owned());
        }
        if let Some(link) = self.links.get_mut(&token) {
            link.seen = hello.seen_here();
        }
        let answer = self.links.get(&token).map(|link| self.answer(link));
        self.add_to_link(token, (of, lane), answer.unwrap_or_default(), rest)
    }

    /// A connection has proved that it is a further one of a link. `answer` is this end's, if it accepted the connection.
    pub(crate) fn add_to_link(
        &mut self,
        token: Token,
        (of, lane): (Token, Lane),
        answer: Vec<u8>,
        rest: &[u8],
    ) -> Result<(), String> {
        let now = self.now;
        let striped = self.striped_link(of).ok_or(GONE)?;
        striped.join(now, lane, token).map_err(|error| error.to_string())?;
        let limit = striped.most_unsent(lane);
        if let Some(link) = self.links.get_mut(&token) {
            (link.stage, link.joins) = (Stage::Joined, Some((of, lane)));
            link.channel.greeted();
            link.channel.limit_unsent(limit);
            if link.dialled.is_none() {
                link.channel.out().extend(answer);
            }
        }
        self.log_connections(of, "one more");
        self.unflushed.insert(of);
        self.receive_joined((of, lane), rest);
        Ok(())
    }

    /// The link of several connections that a peer began; its greeting had that number.
    fn link_joined(&self, peer: usize, hello: &Hello, joins: Joins) -> Option<Token> {
        let is = |link: &Link, up: &Up| {
            let (_, host, number) = &up.rank;
            let began = (host, *number) == (&hello.host, joins.link);
            link.dialled.is_none() && up.peer == peer && up.instance == hello.instance && began
        };
        self.links.iter().find(|(_, link)| link.up().is_some_and(|up| is(link, up))).map(|(token, _)| *token)
    }

    pub(crate) fn striped_link(&mut self, token: Token) -> Option<&mut Striped> {
        match &mut self.links.get_mut(&token)?.stage {
            Stage::Up(up) => up.adapters.as_mut()?.striped.as_mut(),
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
                Err((broken, why)) => self.connection_lost(broken, &why),
            }
        }
    }

    /// Moves bytes of the multiplexer to the connections. Returns whether there may be more to move; or the connection that broke, and why.
    fn send_by_all(&mut self, token: Token) -> Result<bool, (Token, String)> {
        let Some(link) = self.links.get_mut(&token).filter(|link| link.up().is_some()) else { return Ok(false) };
        // Taken out of the table, since its bytes go by the channels of other entries, too.
        let Stage::Up(mut up) = std::mem::replace(&mut link.stage, Stage::Greeting(Vec::new())) else {
            return Ok(false);
        };
        let (mut moved, mut broken) = (false, None);
        if let Some(adapters) = &mut up.adapters {
            moved = adapters.take_from(self.now, &mut up.mux);
            for (lane, connection) in adapters.connections(token) {
                let Some(link) = self.links.get_mut(&connection) else { continue };
                match send_by(&mut link.channel, |room, out| adapters.transmit(self.now, lane, &mut up.mux, room, out))
                {
                    Ok(sent) => moved |= sent,
                    Err(why) => broken = broken.or(Some((connection, why))),
                }
            }
        }
        if let Some(link) = self.links.get_mut(&token) {
            link.stage = Stage::Up(up);
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

    /// Judges the connections of all links that may have several, which were measured just now, and makes more or ends some.
    pub(crate) fn measure_connections(&mut self) {
        let striped = self.links.iter().filter(|(_, link)| link.up().and_then(Up::striped).is_some());
        for token in striped.map(|(token, _)| *token).collect::<Vec<_>>() {
            let Some(all) = self.striped_link(token).map(|striped| striped.connections(token)) else { continue };
            let counted = |at: Token| {
                let counted = self.links.get(&at)?.counted.as_ref()?;
                Some((Carries { rate: counted.rate, round_trip: counted.info.min_rtt }, counted.sample))
            };
            let samples = all.iter().filter_map(|(lane, at)| counted(*at).map(|(carries, one)| (*lane, carries, one)));
            let samples = samples.collect();
            let now = self.now;
            let waits = self.links.get_mut(&token).and_then(Link::mux).is_some_and(|mux| mux.has_output());
            let Some(striped) = self.striped_link(token) else { continue };
            striped.sample(now, waits, samples);
            let limits: Vec<_> = all.into_iter().map(|(lane, at)| (at, striped.most_unsent(lane))).collect();
            for (at, limit) in limits {
                if let Some(link) = self.links.get_mut(&at) {
                    link.channel.limit_unsent(limit);
                }
            }
            self.adjust_connections(token);
        }
    }

    /// Makes connections, or ends some, up to the larger number that either end wants. The end that did not dial only reports its number.
    fn adjust_connections(&mut self, token: Token) {
        let now = self.now;
        let Some(link) = self.links.get_mut(&token) else { return };
        let Stage::Up(up) = &mut link.stage else { return };
        let Some(striped) = up.adapters.as_mut().and_then(|adapters| adapters.striped.as_mut()) else { return };
        let Some((peer, _)) = link.dialled else {
            if let Some(count) = striped.unreported()
                && up.mux.open(Class::Urgent, &StreamHeader::Lanes(count).bytes()).is_ok()
            {
                striped.reported(count);
                self.unflushed.insert(token);
            }
            return;
        };
        let over = striped.over();
        // They are not needed before there is something to carry.
        let made = if up.mux.is_empty() { Vec::new() } else { striped.adjust(now) };
        for (lane, address) in made {
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
            striped.not_made(now, lane);
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

    /// The addresses of a host by different networks, that of the link first. Two networks differ if packets leave from different addresses
    /// of this host.
    pub(crate) fn networks(&self, link: &Link, peer: usize) -> Vec<SocketAddr> {
        let Some((own, from)) = link.address.zip(socket::local_addr(&link.channel)) else { return Vec::new() };
        let (mut found, mut sources) = (vec![own], vec![from.ip().to_canonical()]);
        for address in self.grid.hosts.get(peer).map(|host| host.addresses.as_slice()).unwrap_or_default() {
            // One family only: a network card has addresses of both.
            let is_like = address.is_ipv4() == own.ip().to_canonical().is_ipv4();
            if let Some(source) = socket::source_of(*address).filter(|source| is_like && !sources.contains(source)) {
                sources.push(source);
                found.push(*address);
            }
        }
        found
    }

    pub(crate) fn log_connections(&mut self, of: Token, what: &str) {
        let Some(up) = self.links.get(&of).and_then(Link::up) else { return };
        let line = format!("link with {}: {} connections: {what}", self.name(up.peer), up.connections());
        self.log_line(&line);
    }
}

/// Sends by one connection what it takes. Returns whether that was anything.
fn send_by(channel: &mut Channel, mut source: impl FnMut(usize, &mut Vec<u8>)) -> Result<bool, String> {
    let mut moved = false;
    loop {
        let room = channel.room();
        let (offered, out) = (room >= MIN_ROOM, channel.out());
        let before = out.len();
        if offered {
            source(room, out);
        }
        let grew = out.len() > before;
        moved |= grew;
        let all = channel.flush().map_err(|broken| broken.to_string())?;
        // The flush may have made room that was missing. No event would report that, since the kernel has refused nothing.
        if !all || offered && !grew {
            return Ok(moved);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    /// A queue that was full, and goes in one piece, is filled again at once.
    #[test]
    fn room_that_sending_makes_is_used() {
        let (ours, _theirs) = UnixStream::pair().expect("two sockets");
        ours.set_nonblocking(true).expect("a socket");
        let mut channel = Channel::plain(ours.into());
        let full = channel.room();
        channel.out().resize(full, 0);
        assert_eq!(channel.room(), 0);
        let mut left = 1000;
        let sent = send_by(&mut channel, |_, out| out.resize(out.len() + std::mem::take(&mut left), 0));
        assert_eq!((sent, left, channel.room()), (Ok(true), 0, full));
    }
}
