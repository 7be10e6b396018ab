//! Connects streams to ports of this host: at the loopback addresses first, then at the host's own.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::daemon::Daemon;
use crate::descriptor::Descriptor;
use crate::local::libc_socket;
use crate::poll::Token;
use crate::socket;
use crate::streams::egress::{Egress, Requester};
use crate::streams::origin::Origin;
use crate::streams::pipe::{End, Side};
use crate::streams::stream::StreamOwner;
use crate::units::SECOND;
use crate::wire::ConnectReply;

/// The time that one address has to answer.
const CONNECT_TIMEOUT: u64 = 3 * SECOND;

impl Daemon {
    /// Begins to connect to a port of this host.
    pub(crate) fn begin_egress(
        &mut self,
        port: u16,
        requester: Requester,
        from: &str,
        origin: Option<Origin>,
        hops: Vec<String>,
    ) {
        let mut untried = self.places_of_port(port);
        let Some(at) = untried.pop() else { return };
        let (socket, failures, from, deadline) = (None, Vec::new(), from.to_owned(), self.now + CONNECT_TIMEOUT);
        let token = self.new_token();
        self.descriptors.insert(token, Descriptor::Egress);
        self.egresses.insert(token, Egress { socket, at, untried, failures, requester, from, origin, hops, deadline });
        if let Requester::Stream(stream) = requester {
            self.streams.insert(stream, StreamOwner::Egress(token));
        }
        self.start_egress(token);
    }

    /// Where a port of this host may be, the first choice last.
    pub(crate) fn places_of_port(&self, port: u16) -> Vec<SocketAddr> {
        let own = self.own().addresses.iter().map(SocketAddr::ip).filter(|ip| !ip.is_loopback());
        let loopback: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        let mut places: Vec<SocketAddr> = loopback.into_iter().chain(own).map(|ip| SocketAddr::new(ip, port)).collect();
        places.reverse();
        places
    }

    fn start_egress(&mut self, token: Token) {
        let now = self.now;
        let Some(egress) = self.egresses.get_mut(&token) else { return };
        match libc_socket::dial(egress.at).and_then(|socket| self.poll.add(&socket, token).map(|()| socket)) {
            Ok(socket) => {
                egress.socket = Some(socket);
                egress.deadline = now + CONNECT_TIMEOUT;
                self.poll_egress(token);
            }
            Err(errno) => self.egress_failed(token, &errno.to_string()),
        }
    }

    /// The socket changed.
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
        let Egress { socket: Some(socket), at, requester, from, origin, hops, .. } = egress else { return };
        let near = socket::local_addr(&socket);
        libc_socket::reset_at_close(&socket, true);
        let end = End::Socket { socket, token, is_tcp: true };
        match requester {
            Requester::Call(call) => self.call_connected(call, end, Vec::new()),
            Requester::Stream(stream) => {
                let line = format!("let in: {from} to {at}");
                self.log_line(&line);
                self.send_reply(stream, ConnectReply::Connected, "");
                let tls = self.is_encrypted(&End::Stream(stream));
                let pipe = self.join_as(Side::new(End::Stream(stream), Vec::new()), Side::new(end, Vec::new()), origin);
                self.record(pipe, &line);
                self.connection_let_in(pipe, near, at, (hops, tls));
            }
        }
    }

    /// An address failed: the next one is tried, or the requester gets the reasons.
    pub(crate) fn egress_failed(&mut self, token: Token, why: &str) {
        let Some(egress) = self.egresses.get_mut(&token) else { return };
        egress.failures.push(format!("{}: {why}", egress.at));
        egress.socket = None;
        if let Some(next) = egress.untried.pop() {
            egress.at = next;
            return self.start_egress(token);
        }
        let (requester, why) = (egress.requester, egress.failures.join(", "));
        self.drop_egress(token);
        match requester {
            Requester::Stream(stream) => self.send_reply(stream, ConnectReply::Refused, &why),
            Requester::Call(call) => self.call_failed(call, &why),
        }
    }

    /// Removes it; its requester is gone, or has its answer.
    pub(crate) fn drop_egress(&mut self, token: Token) {
        self.descriptors.remove(&token);
        self.egresses.remove(&token);
    }
}
