//! Connects streams to ports of this host: at the loopback addresses first, then at the host's own.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::daemon::Daemon;
use crate::descriptor::Thing;
use crate::local::libc_socket;
use crate::poll::Token;
use crate::socket;
use crate::streams::egress::{Answer, Egress};
use crate::streams::origin::Origin;
use crate::streams::pipe::{End, Side};
use crate::streams::stream::Holder;
use crate::units::SECOND;
use crate::wire::Verdict;

/// How long one address has to answer.
const PATIENCE: u64 = 3 * SECOND;

impl Daemon {
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
        match libc_socket::dial(egress.at).and_then(|socket| self.poll.add(&socket, token).map(|()| socket)) {
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
        libc_socket::reset_at_close(&socket, true);
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
