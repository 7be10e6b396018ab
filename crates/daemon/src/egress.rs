//! The last step of a stream: a connection to a port of this host, where the grid lets others do so. It is made to the host itself, first
//! by the loopback addresses, then by the host's own.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use madrigal_proto::mux::{Class, StreamId};

use crate::daemon::{Daemon, Holder, SECOND, Thing};
use crate::links::Link;
use crate::origin::{Origin, Role};
use crate::pipes::{End, Side};
use crate::poll::Token;
use crate::wire::{About, Order, Verdict};
use crate::{local, socket};

/// How long one address has to answer.
const PATIENCE: u64 = 3 * SECOND;

/// Who wants it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// Another daemon, on this stream.
    Stream((Token, StreamId)),
    /// A call of this host.
    Call(Token),
}

/// A connection that is being made.
pub(crate) struct Egress {
    socket: Option<OwnedFd>,
    /// Where it goes, and what is tried after that, last first.
    at: SocketAddr,
    rest: Vec<SocketAddr>,
    told: Vec<String>,
    answer: Answer,
    from: String,
    /// What its stream is called, if it can be moved.
    origin: Option<Origin>,
    /// The hosts that carry it to this one.
    hops: Vec<String>,
    pub(crate) deadline: u64,
}

/// What is said of a relay that carries nothing of a host.
pub(crate) fn carries_not(relay: &str, host: &str) -> String {
    format!("{relay} carries nothing of {host}: see `carries` and `deny` in its grid.toml")
}

impl Daemon {
    /// A peer opened a stream, and says what for.
    pub(crate) fn take_order(&mut self, link: Token, stream: StreamId, about: &[u8]) {
        let from = (link, stream);
        let peer = self.links.get(&link).and_then(Link::up).map(|up| up.peer);
        let sender = peer.map_or("?", |peer| self.name(peer)).to_owned();
        let order = match serde_json::from_slice(about) {
            Ok(About::Order(order)) => order,
            Ok(About::RouteUpdate) => return self.accept_update(link, stream),
            Ok(About::Discard) => {
                self.streams.insert(from, Holder::Probe);
                return;
            }
            Ok(About::Bye(why)) => return self.shut_out(link, &format!("refused by {sender}: {why}")),
            Ok(About::Renewed) => {
                self.streams.insert(from, Holder::Renewal);
                return;
            }
            Err(_) => return self.tell(from, Verdict::Never, "the order makes no sense"),
        };
        let own = self.own();
        // Only relays speak for others.
        if order.from != sender && !self.grid.host(&sender).is_some_and(|(_, host)| host.relay) {
            self.note(&format!("refused: {sender}, which says that it is {}", order.from));
            return self.tell(from, Verdict::Never, &format!("{sender} is no relay, and not {}", order.from));
        }
        if order.host != own.name {
            return self.carry_on(from, peer, order);
        }
        if let Some(resume) = order.resume {
            return self.take_move(from, &sender, &order, resume);
        }
        if let Some(question) = order.question {
            return self.take_question(question, Answer::Stream(from));
        }
        if !own.allow.as_ref().is_some_and(|allow| allow.contains(order.port)) {
            let why = format!("{} lets nobody connect to port {}: see `allow` in its grid.toml", own.name, order.port);
            self.note(&format!("refused: {} by {sender} to port {}", order.from, order.port));
            return self.tell(from, Verdict::Never, &why);
        }
        if !self.grid.lets_in(own.site, &order.from) {
            let why = format!("{} lets nothing of {} in: see `from` and `deny` in its grid.toml", own.name, order.from);
            self.note(&format!("refused: {} by {sender} to port {}, as the grid says", order.from, order.port));
            return self.tell(from, Verdict::Never, &why);
        }
        let via = if order.from == sender { String::new() } else { format!(" by {sender}") };
        let whose = format!("{}{via}", order.from);
        let hops = [std::slice::from_ref(&order.from), order.through.as_slice()].concat();
        let origin = order.id.map(|id| Origin { id, epoch: 0, role: Role::Target { from: order.from } });
        self.land(order.port, Answer::Stream(from), &whose, origin, hops);
    }

    /// A stream that is for another host: a relay carries it on.
    fn carry_on(&mut self, from: (Token, StreamId), peer: Option<usize>, order: Order) {
        let own = self.own();
        if !own.relay {
            let why = format!("{} is no relay", own.name);
            return self.tell(from, Verdict::NotNow, &why);
        }
        if !self.grid.carries(own.site, &order.from) {
            let why = carries_not(&own.name, &order.from);
            self.note(&format!("refused: to carry from {} to {}:{}", order.from, order.host, order.port));
            return self.tell(from, Verdict::NotNow, &why);
        }
        let Some(hops) = order.hops.checked_sub(1) else {
            return self.tell(from, Verdict::NotNow, "no relay may carry it further");
        };
        let Some((host, _)) = self.grid.host(&order.host).filter(|(host, _)| Some(*host) != peer) else {
            let why = format!("the grid of {} has no way to `{}`", own.name, order.host);
            return self.tell(from, Verdict::Never, &why);
        };
        if order.through.contains(&own.name) {
            return self.tell(from, Verdict::NotNow, "it has been here before");
        }
        let passed: Vec<String> = order.through.iter().chain([&order.from]).cloned().collect();
        let Some(link) = self.next_hop(host, &passed) else {
            self.hurry(host);
            let why = format!("{} has no link with {}: {}", self.own().name, order.host, self.why_no_link(host));
            return self.tell(from, Verdict::NotNow, &why);
        };
        let line = format!("relayed: from {} to {}:{}", order.from, order.host, order.port);
        let through = [order.through.as_slice(), &[self.own().name.clone()]].concat();
        let about = About::Order(Order { hops, through, ..order }).bytes();
        let opened = self.links.get_mut(&link).and_then(Link::mux).map(|mux| mux.open(Class::Data, &about));
        match opened {
            Some(Ok(stream)) => {
                self.note(&line);
                self.dirty.insert(link);
                // The verdict comes by itself: it is the first thing on the other stream.
                let ends = [End::Stream(from), End::Stream((link, stream))];
                let [near, far] = ends.map(|end| Side::new(end, Vec::new()));
                let pipe = self.join(near, far);
                self.record(pipe, &line);
            }
            Some(Err(error)) => self.tell(from, Verdict::NotNow, &error.to_string()),
            None => self.tell(from, Verdict::NotNow, "the link broke"),
        }
    }

    /// Begins to connect to a port of this host.
    pub(crate) fn land(&mut self, port: u16, answer: Answer, from: &str, origin: Option<Origin>, hops: Vec<String>) {
        let own = self.own().addresses.iter().map(SocketAddr::ip).filter(|ip| !ip.is_loopback());
        let loopback: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        let mut rest: Vec<SocketAddr> = loopback.into_iter().chain(own).map(|ip| SocketAddr::new(ip, port)).collect();
        rest.reverse();
        let Some(at) = rest.pop() else { return };
        let (socket, told, from, deadline) = (None, Vec::new(), from.to_owned(), self.now + PATIENCE);
        let token = self.token();
        self.things.insert(token, Thing::Egress);
        self.egresses.insert(token, Egress { socket, at, rest, told, answer, from, origin, hops, deadline });
        if let Answer::Stream(stream) = answer {
            self.streams.insert(stream, Holder::Egress(token));
        }
        self.start_egress(token);
    }

    fn start_egress(&mut self, token: Token) {
        let now = self.now;
        let Some(egress) = self.egresses.get_mut(&token) else { return };
        match local::dial(egress.at).and_then(|socket| self.poll.add(&socket, token).map(|()| socket)) {
            Ok(socket) => {
                egress.socket = Some(socket);
                egress.deadline = now + PATIENCE;
                self.poll_egress(token);
            }
            Err(errno) => self.egress_failed(token, &errno.to_string()),
        }
    }

    /// Something happened to it.
    pub(crate) fn poll_egress(&mut self, token: Token) {
        let Some(egress) = self.egresses.get(&token) else { return };
        let Some(socket) = &egress.socket else { return };
        match socket::is_connected(socket) {
            Ok(false) => {}
            Ok(true) => self.egress_connected(token),
            Err(errno) => self.egress_failed(token, &errno.to_string()),
        }
    }

    fn egress_connected(&mut self, token: Token) {
        let Some(egress) = self.egresses.remove(&token) else { return };
        let Egress { socket: Some(socket), at, answer, from, origin, hops, .. } = egress else { return };
        let near = socket::own(&socket);
        local::reset_at_close(&socket, true);
        let end = End::Socket { socket, token, is_tcp: true };
        match answer {
            Answer::Call(call) => self.connected(call, end, Vec::new()),
            Answer::Stream(stream) => {
                let line = format!("let in: {from} to {at}");
                self.note(&line);
                self.tell(stream, Verdict::Connected, "");
                let tls = self.is_enciphered(&End::Stream(stream));
                let pipe = self.join_as(Side::new(End::Stream(stream), Vec::new()), Side::new(end, Vec::new()), origin);
                self.record(pipe, &line);
                self.route_let_in(pipe, near, at, (hops, tls));
            }
        }
    }

    /// An address did not work: the next one, or the end.
    pub(crate) fn egress_failed(&mut self, token: Token, why: &str) {
        let Some(egress) = self.egresses.get_mut(&token) else { return };
        egress.told.push(format!("{}: {why}", egress.at));
        egress.socket = None;
        if let Some(next) = egress.rest.pop() {
            egress.at = next;
            return self.start_egress(token);
        }
        let (answer, told) = (egress.answer, egress.told.join(", "));
        self.drop_egress(token);
        match answer {
            Answer::Stream(stream) => self.tell(stream, Verdict::Never, &told),
            Answer::Call(call) => self.call_failed(call, &told),
        }
    }

    /// Nobody wants it any more.
    pub(crate) fn drop_egress(&mut self, token: Token) {
        self.things.remove(&token);
        self.egresses.remove(&token);
    }
}
