//! Connections between two hosts that both accept none from outside: both begin to connect at the same time, so that each firewall or NAT
//! takes what comes in as the answer to what went out (TCP simultaneous open, RFC 9293 section 3.5; NAT as in RFC 5382).
//!
//! ```text
//!   a: a call was connected through a relay: asks b, by the relay: "I am seen at x"  --->  b: answers "I am seen at y"; connects y -> x
//!   a: connects x -> y  <---
//! ```
//! * The relay sees the address from which a host's link comes, and reports it in its greeting. The new connection leaves from the same
//!   port: a NAT with one mapping for each port shows the same address to the relay and to the other host.
//! * A symmetric NAT does not: then no packet reaches the other end, and streams through the relay stay there.
//! * The connection is a link as any other one: TLS with the certificates of both; the end that asked is the dialling one. Streams through
//!   the relay move to it.

use std::net::SocketAddr;

use madrigal_proto::mux::Class;

use crate::daemon::Daemon;
use crate::descriptor::Descriptor;
use crate::link::Link;
use crate::link::peer::Dialled;
use crate::link::punch::{Answer, Punch, Stage, may_be_dialled};
use crate::poll::Token;
use crate::socket::{self, Recv};
use crate::streams::pipe::{End, Side};
use crate::streams::stream::{Stream, StreamOwner};
use crate::units::{MILLISECOND, SECOND};
use crate::wire::{ConnectReply, ConnectRequest, Question, StreamHeader};

/// How long both try.
const TIME: u64 = 6 * SECOND;
/// The pause after a refusal: the other end's packets may not have gone out yet.
const RETRY_AFTER: u64 = 100 * MILLISECOND;
/// Attempts at one time.
const MOST: usize = 16;
/// The longest answer.
const LONGEST: usize = 4096;

impl Daemon {
    /// A call to a host was connected through a relay, by this link: seeks a way without the relay.
    pub(crate) fn seek_direct_way(&mut self, peer: usize, relay: Token) {
        let is_forbidden =
            self.grid.rules_for(peer, None).iter().any(|rule| rule.forbid.iter().any(|way| way == "direct"));
        let is_due = self.peers.get(peer).is_some_and(|known| known.punch_at <= self.now);
        if !is_due || is_forbidden || self.link_to(peer).is_some() || self.punch_with(peer).is_some() {
            return;
        }
        let Some((from, seen)) = self.seen_by(relay).filter(|_| self.punches.len() < MOST) else { return };
        let question = Some(Question::Punch { at: seen.to_string(), round_trip_us: self.round_trip_us(relay) });
        let (host, own) = (self.name(peer).to_owned(), self.own().name.clone());
        let request = ConnectRequest { host, hops: 1, from: own, question, ..ConnectRequest::default() };
        let header = StreamHeader::Connect(request).bytes();
        let opened = self.links.get_mut(&relay).and_then(Link::mux).map(|mux| mux.open(Class::Data, &header));
        let Some(Ok(stream)) = opened else { return };
        let (token, end) = (self.new_token(), self.now + TIME);
        self.streams.insert((relay, stream), StreamOwner::Punch(token));
        let stage = Stage::Asked { stream: (relay, stream), received: Vec::new(), from };
        self.punches.insert(token, Punch { peer, stage, end });
        self.unflushed.insert(relay);
    }

    /// The local address of a link that we dialled, and this address as its other end sees it.
    fn seen_by(&self, link: Token) -> Option<(SocketAddr, SocketAddr)> {
        let link = self.links.get(&link).filter(|link| link.dialled.is_some())?;
        let (from, seen) = (socket::local_addr(&link.channel)?, link.seen?);
        (from.is_ipv4() == seen.is_ipv4()).then_some((from, seen))
    }

    fn round_trip_us(&self, link: Token) -> u64 {
        self.figures(link).round_trip_us.unwrap_or(0).min(TIME / 1000)
    }

    fn punch_with(&self, peer: usize) -> Option<Token> {
        self.punches.iter().find(|(_, punch)| punch.peer == peer).map(|(token, _)| *token)
    }

    /// A host requests, by a stream through a relay, that both connect at once. The relay sees it at `at`.
    pub(crate) fn handle_punch_request(&mut self, stream: Stream, asker: &str, at: &str, round_trip_us: u64) {
        match self.accept_punch(stream, asker, at) {
            Ok((peer, between, seen)) => {
                let answer = serde_json::to_vec(&Answer { at: seen.to_string() }).unwrap_or_default();
                self.send_reply(stream, ConnectReply::Connected, "");
                let _ = self.join(Side::new(End::Stream(stream), Vec::new()), Side::new(End::Null, answer));
                // Both have to leave at the same time, so that neither arrives before the other's router is open. So this end waits for the
                // time of the answer: half of the two round trips to the relay.
                let trips = round_trip_us.min(TIME / 1000).saturating_add(self.round_trip_us(stream.0));
                let (token, now) = (self.new_token(), self.now);
                let stage = Stage::Connects { between, socket: None, next: now + trips * 500, asked: true };
                self.punches.insert(token, Punch { peer, stage, end: now + TIME });
            }
            Err(why) => self.send_reply(stream, ConnectReply::Refused, &why),
        }
    }

    /// The host that asks, the two addresses of the connection (ours, its), and our address as the relay sees it.
    fn accept_punch(
        &mut self,
        stream: Stream,
        asker: &str,
        at: &str,
    ) -> Result<(usize, [SocketAddr; 2], SocketAddr), String> {
        let unknown = || format!("the grid of {} has no host `{asker}`", self.own().name);
        let (peer, _) = self.grid.host(asker).filter(|(peer, _)| *peer != self.own_index).ok_or_else(unknown)?;
        let to: SocketAddr = at.parse().map_err(|_| format!("`{at}` is no address"))?;
        let (from, seen) = self.seen_by(stream.0).ok_or("it did not call the relay itself")?;
        if !may_be_dialled(to) || to.is_ipv4() != from.is_ipv4() {
            return Err(format!("{to} is nowhere to connect to"));
        }
        if self.link_to(peer).is_some() {
            return Err("there is a link".to_owned());
        }
        if let Some(ours) = self.punch_with(peer) {
            // If two hosts ask each other, the one with the lesser name dials.
            if self.own().name.as_str() < asker || !self.punches.get(&ours).is_some_and(|punch| punch.is_asking()) {
                return Err("it is being tried already".to_owned());
            }
            self.drop_punch(ours);
        }
        if self.punches.len() >= MOST {
            return Err("too many ask at once".to_owned());
        }
        Ok((peer, [from, to], seen))
    }

    /// The answer comes, or a part of it.
    pub(crate) fn handle_punch_reply(&mut self, token: Token, stream: Stream) {
        let mut buffer = [0; 1024];
        loop {
            let read = self.read_stream(stream, &mut buffer);
            let Some(punch) = self.punches.get_mut(&token) else { return };
            let Stage::Asked { received, from, .. } = &mut punch.stage else { return };
            match read {
                Ok(Recv::Bytes(count)) if received.len() + count <= LONGEST => {
                    received.extend_from_slice(buffer.get(..count).unwrap_or_default());
                }
                Ok(Recv::WouldBlock) => return,
                Ok(Recv::End) => {
                    let (answer, from) = (read_answer(received), *from);
                    self.reset_stream(stream);
                    return match answer {
                        Ok(to) if to.is_ipv4() == from.is_ipv4() => self.begin_punch(token, [from, to]),
                        Ok(to) => self.punch_failed(token, &format!("it is seen at {to}, and we leave from {from}")),
                        Err(why) => self.punch_failed(token, &why),
                    };
                }
                _ => {
                    self.reset_stream(stream);
                    return self.punch_failed(token, "its answer makes no sense");
                }
            }
        }
    }

    fn begin_punch(&mut self, token: Token, between: [SocketAddr; 2]) {
        if let Some(punch) = self.punches.get_mut(&token) {
            punch.stage = Stage::Connects { between, socket: None, next: self.now, asked: false };
            self.connect_punch(token);
        }
    }

    /// Begins to connect, once more.
    fn connect_punch(&mut self, token: Token) {
        let now = self.now;
        let Some(Punch { stage: Stage::Connects { between: [from, to], socket, next, .. }, .. }) =
            self.punches.get_mut(&token)
        else {
            return;
        };
        let made = socket::dial_from(*from, *to).and_then(|made| self.poll.add(&made, token).map(|()| made));
        *next = now + RETRY_AFTER;
        *socket = made.ok();
        self.descriptors.insert(token, Descriptor::Punch);
    }

    /// The socket of an attempt changed.
    pub(crate) fn poll_punch(&mut self, token: Token) {
        let now = self.now;
        let Some(Punch { stage: Stage::Connects { socket, next, .. }, .. }) = self.punches.get_mut(&token) else {
            return;
        };
        match socket.as_ref().map(socket::is_connected) {
            Some(Ok(true)) => self.punched(token),
            Some(Err(_)) => (*socket, *next) = (None, now + RETRY_AFTER),
            Some(Ok(false)) | None => {}
        }
    }

    /// Both ends have a connection: it becomes a link.
    fn punched(&mut self, token: Token) {
        let Some(Punch { peer, stage, .. }) = self.punches.remove(&token) else { return };
        let Stage::Connects { between: [_, to], socket: Some(socket), asked, .. } = stage else { return };
        self.descriptors.remove(&token);
        if let Some(known) = self.peers.get_mut(peer) {
            known.punched();
        }
        self.log_line(&format!("both ends connected at once: with {}, at {to}", self.name(peer)));
        let link = if asked {
            self.poll.remove(&socket);
            let channel = self.channel_from(socket);
            self.add_link(channel, None, Some(to))
        } else {
            let number = self.next_number(peer);
            match self.channel_to(peer, socket) {
                Ok(channel) => self.add_link(channel, Some(Dialled { peer, number, token, joins: None }), Some(to)),
                Err(why) => return self.log_line(&format!("no link with {}: {why}", self.name(peer))),
            }
        };
        if let Some(link) = link.and_then(|link| self.links.get_mut(&link)) {
            link.punched = true;
        }
    }

    /// A deadline of an attempt.
    pub(crate) fn punch_timer(&mut self, token: Token) {
        match self.punches.get(&token) {
            Some(punch) if punch.end <= self.now => {
                self.punch_failed(token, "no answer: one of the two has a symmetric NAT, or lets nothing out")
            }
            Some(_) => self.connect_punch(token),
            None => {}
        }
    }

    /// The relay's stream with the question was reset.
    pub(crate) fn punch_lost(&mut self, token: Token) {
        if self.punches.get(&token).is_some_and(Punch::is_asking) {
            self.punch_failed(token, "the link with the relay broke");
        }
    }

    fn punch_failed(&mut self, token: Token, why: &str) {
        let Some(peer) = self.punches.get(&token).map(|punch| punch.peer) else { return };
        self.drop_punch(token);
        let now = self.now;
        if let Some(known) = self.peers.get_mut(peer) {
            known.not_punched(now);
        }
        self.log_line(&format!("no direct connection with {}, though both ends tried at once: {why}", self.name(peer)));
    }

    fn drop_punch(&mut self, token: Token) {
        self.descriptors.remove(&token);
        if let Some(Punch { stage: Stage::Asked { stream, .. }, .. }) = self.punches.remove(&token) {
            self.reset_stream(stream);
        }
    }
}

/// The address at which the other end is seen, from its answer.
fn read_answer(received: &[u8]) -> Result<SocketAddr, String> {
    const NONSENSE: &str = "its answer makes no sense";
    let (reply, why, length) = ConnectReply::read(received).ok().flatten().ok_or(NONSENSE)?;
    if reply != ConnectReply::Connected {
        return Err(why);
    }
    let answer: Answer = serde_json::from_slice(received.get(length..).unwrap_or_default()).map_err(|_| NONSENSE)?;
    answer.at.parse().map_err(|_| NONSENSE.to_owned())
}
