//! The far end of a tunnel: sockets of UDP, one for each flow, that send to a port of this host.

use std::collections::HashMap;

use madrigal_sys::process;
use rustix::io::Errno;

use crate::daemon::Daemon;
use crate::datagrams::flows::{IDLE, MOST};
use crate::datagrams::tunnel::{Counts, Far, FarFlow, Meeting, Side, Tunnel};
use crate::datagrams::udp;
use crate::descriptor::Descriptor;
use crate::poll::Token;
use crate::streams::origin::{Origin, Role};
use crate::streams::pipe::{self, End};
use crate::streams::stream::Stream;
use crate::units::MILLISECOND;
use crate::wire::ConnectReply;

/// Datagrams of one pass.
const MOST_READ: usize = 64;

impl Daemon {
    /// Another daemon begins a tunnel to a port of this host. The caller has checked that it may.
    pub(crate) fn begin_far_end(
        &mut self,
        from: Stream,
        (host, port, id): (&str, u16, Option<String>),
        (within_ms, tolerance): (u64, u32),
        whose: &str,
    ) {
        let Some((peer, _)) = self.grid.host(host) else {
            return self.send_reply(from, ConnectReply::Refused, &format!("the grid has no host `{host}`"));
        };
        let tunnel = self.new_token();
        let (own, other, token) = match self.pair_for(tunnel) {
            Ok(pair) => pair,
            Err(errno) => return self.send_reply(from, ConnectReply::Unavailable, &errno.to_string()),
        };
        let secret = format!("{:016x}{:016x}", process::random(), process::random());
        let line = format!("let in: datagrams of {whose} to port {port}");
        self.log_line(&line);
        let origin = id.map(|id| Origin { id, epoch: 0, role: Role::Target { from: host.to_owned() } });
        let far = Far { port, from: whose.to_owned(), sockets: HashMap::new(), flows: HashMap::new() };
        let within = within_ms.saturating_mul(MILLISECOND);
        let (side, stream, counts) = (Side::Far(far), Some(own), Counts::default());
        let (quic, quic_port, meeting, tolerance) = (None, None, Meeting::default(), tolerance.min(1000));
        self.datagrams
            .tunnels
            .insert(tunnel, Tunnel { side, peer, stream, quic, secret, quic_port, meeting, tolerance, within, counts });
        self.send_reply(from, ConnectReply::Connected, "");
        let near = pipe::Side::new(End::Stream(from), Vec::new());
        let far = pipe::Side::new(End::Socket { socket: other, token, is_tcp: false }, Vec::new());
        let pipe = self.join_as(near, far, origin);
        self.record(pipe, &line);
        self.offer_quic(tunnel);
    }

    /// Sends a datagram to the port, by the flow's socket.
    pub(crate) fn send_to_port(&mut self, tunnel: Token, flow: u32, bytes: &[u8]) -> bool {
        let now = self.now;
        let known = |daemon: &mut Self| daemon.far(tunnel).is_some_and(|far| far.sockets.contains_key(&flow));
        if !known(self) && self.open_flow(tunnel, flow).is_err() {
            return false;
        }
        let Some(one) = self.far(tunnel).and_then(|far| far.sockets.get_mut(&flow)) else { return false };
        one.used = now;
        match udp::send(&one.socket, bytes, None) {
            Ok(()) => true,
            // The error is that of an earlier datagram: no program takes them there. This one is sent to the next place, if there is one.
            Err(Errno::CONNREFUSED) => {
                self.try_elsewhere(tunnel, flow);
                let one = self.far(tunnel).and_then(|far| far.sockets.get(&flow));
                one.is_some_and(|one| udp::send(&one.socket, bytes, None).is_ok())
            }
            Err(_) => false,
        }
    }

    fn far(&mut self, tunnel: Token) -> Option<&mut Far> {
        self.datagrams.tunnels.get_mut(&tunnel).and_then(Tunnel::far)
    }

    /// A socket for a flow. The loopback addresses are tried first, then the host's own.
    fn open_flow(&mut self, tunnel: Token, flow: u32) -> Result<(), Errno> {
        self.close_idle_flows(tunnel);
        let (now, token) = (self.now, self.new_token());
        let port = self.far(tunnel).ok_or(Errno::BADF)?.port;
        let mut untried = self.places_of_port(port);
        let at = untried.pop().ok_or(Errno::ADDRNOTAVAIL)?;
        let socket = udp::connect(at)?;
        self.poll.add(&socket, token)?;
        self.descriptors.insert(token, Descriptor::FarSocket(tunnel));
        let far = self.far(tunnel).ok_or(Errno::BADF)?;
        far.flows.insert(token, flow);
        far.sockets.insert(flow, FarFlow { socket, token, at, untried, answered: false, used: now });
        Ok(())
    }

    /// No program takes datagrams at the address of a flow: another address is tried, unless an answer has come from this one.
    fn try_elsewhere(&mut self, tunnel: Token, flow: u32) {
        let places = self.far(tunnel).map(|far| far.port).map_or_else(Vec::new, |port| self.places_of_port(port));
        let Some(one) = self.far(tunnel).and_then(|far| far.sockets.get_mut(&flow)) else { return };
        if one.answered {
            return;
        }
        if one.untried.is_empty() {
            one.untried = places;
        }
        let (token, next) = (one.token, one.untried.pop());
        let Some(at) = next.filter(|at| *at != one.at) else { return };
        let Ok(socket) = udp::connect(at) else { return };
        // The old socket leaves the epoll when it is closed.
        if self.poll.add(&socket, token).is_ok()
            && let Some(one) = self.far(tunnel).and_then(|far| far.sockets.get_mut(&flow))
        {
            (one.socket, one.at) = (socket, at);
        }
    }

    /// A program of this host answered.
    pub(crate) fn read_far(&mut self, tunnel: Token, token: Token) {
        let mut buffer = std::mem::take(&mut self.link_buffer);
        for count in 0.. {
            let now = self.now;
            let Some(far) = self.far(tunnel) else { break };
            let Some(flow) = far.flows.get(&token).copied() else { break };
            let Some(one) = far.sockets.get_mut(&flow) else { break };
            if count == MOST_READ {
                self.runnable.push_back(token);
                break;
            }
            match udp::receive(&one.socket, &mut buffer) {
                Ok((len, _)) => {
                    (one.answered, one.used) = (true, now);
                    self.carry(tunnel, flow, buffer.get(..len).unwrap_or_default());
                }
                Err(Errno::CONNREFUSED) => self.try_elsewhere(tunnel, flow),
                Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
        self.link_buffer = buffer;
    }

    /// Closes the idle flows. If there are none and the limit is reached, closes the flow that was used least recently.
    fn close_idle_flows(&mut self, tunnel: Token) {
        let now = self.now;
        let Some(far) = self.far(tunnel) else { return };
        let idle = |(_, one): &(&u32, &FarFlow)| one.used + IDLE <= now;
        let mut gone: Vec<u32> = far.sockets.iter().filter(idle).map(|(flow, _)| *flow).collect();
        if gone.is_empty() && far.sockets.len() >= MOST {
            gone.extend(far.sockets.iter().min_by_key(|(_, one)| one.used).map(|(flow, _)| *flow));
        }
        let closed: Vec<Token> = gone.iter().filter_map(|flow| far.sockets.remove(flow)).map(|one| one.token).collect();
        for token in closed {
            self.descriptors.remove(&token);
            if let Some(far) = self.far(tunnel) {
                far.flows.remove(&token);
            }
        }
    }
}
