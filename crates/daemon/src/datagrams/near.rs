//! The near end of a tunnel: a local port, for a client, whose datagrams go to a port of another host.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::daemon::Daemon;
use crate::datagrams::flows::Flows;
use crate::datagrams::frame::{self, Note};
use crate::datagrams::tunnel::{Counts, Meeting, Near, Side, Tunnel, TunnelStream};
use crate::datagrams::udp;
use crate::descriptor::Descriptor;
use crate::poll::Token;
use crate::socket;
use crate::streams::call::{Caller, CallerKind};
use crate::units::{MILLISECOND, SECOND};
use crate::wire::{self, Question, Target, TunnelOptions};

/// The pauses before a stream is begun again (the first and the longest), and before QUIC is tried again.
const STREAM_PAUSES: (u64, u64) = (SECOND, 30 * SECOND);
const QUIC_PAUSE: u64 = 60 * SECOND;
/// A longer secret is none.
const LONGEST_SECRET: usize = 64;
/// Datagrams of one pass.
const MOST_READ: usize = 64;

impl Daemon {
    /// Takes datagrams at a local port for a client. Returns the port.
    pub(crate) fn begin_datagrams(
        &mut self,
        client: Token,
        target: Target,
        wanted: TunnelOptions,
    ) -> Result<Vec<u8>, String> {
        let Some((peer, _)) = self.grid.host(&target.host) else {
            return Err(format!("the grid has no host `{}`; there are {}", target.host, self.grid.names()));
        };
        if peer == self.own_index {
            return Err(format!("port {} is one of this host: send there", target.port));
        }
        let at = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), target.from);
        let token = self.new_token();
        let made = udp::listen(at).and_then(|socket| self.poll.add(&socket, token).map(|()| socket));
        let socket = made.map_err(|errno| format!("cannot take datagrams at {at}: {errno}"))?;
        let port = socket::local_addr(&socket).map_or(0, |at| at.port());
        let Some(client) = self.clients.get_mut(&client) else { return Err("the client left".to_owned()) };
        (client.forward, client.deadline) = (Some(token), u64::MAX);
        self.descriptors.insert(token, Descriptor::NearSocket);
        let near = Near {
            target,
            socket,
            flows: Flows::default(),
            stream_at: u64::MAX,
            stream_pause: STREAM_PAUSES.0,
            quic_at: u64::MAX,
            reported: false,
            meeting_reported: false,
            meets: false,
        };
        let within = wanted.within_ms.saturating_mul(MILLISECOND);
        let (side, counts) = (Side::Near(near), Counts::default());
        let (secret, meeting, tolerance) = (String::new(), Meeting::default(), wanted.tolerance.min(1000));
        let (stream, quic, quic_port) = (None, None, None);
        let tunnel = Tunnel { side, peer, stream, quic, secret, quic_port, meeting, tolerance, within, counts };
        self.datagrams.tunnels.insert(token, tunnel);
        self.begin_stream(token);
        Ok(port.to_string().into_bytes())
    }

    /// Begins the stream of a tunnel.
    fn begin_stream(&mut self, tunnel: Token) {
        let now = self.now;
        let pair = self.pair_for(tunnel);
        let Some(Tunnel { side: Side::Near(near), stream, within, tolerance, .. }) =
            self.datagrams.tunnels.get_mut(&tunnel)
        else {
            return;
        };
        near.stream_at = u64::MAX;
        let (own, caller, token) = match pair {
            Ok(pair) => pair,
            Err(errno) => {
                near.stream_at = now + STREAM_PAUSES.1;
                return self.log_line(&format!("no stream for datagrams: {errno}"));
            }
        };
        *stream = Some(own);
        let question = Question::Datagrams { within_ms: *within / MILLISECOND, tolerance: *tolerance };
        let target = Target { question: Some(question), datagrams: None, ..near.target.clone() };
        self.call(Caller { socket: caller, token, kind: CallerKind::Forward, staged: Vec::new() }, target);
    }

    /// Both ends of a pair of sockets: that of a tunnel, and that of a pipe, with its token.
    pub(crate) fn pair_for(&mut self, tunnel: Token) -> Result<(TunnelStream, OwnedFd, Token), Errno> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (own, other) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let (token, other_token) = (self.new_token(), self.new_token());
        self.poll.add(&own, token)?;
        self.poll.add(&other, other_token)?;
        self.descriptors.insert(token, Descriptor::TunnelStream(tunnel));
        Ok((TunnelStream::new(own, token), other, other_token))
    }

    /// Reads datagrams of local programs.
    pub(crate) fn read_near(&mut self, tunnel: Token) {
        let mut buffer = std::mem::take(&mut self.link_buffer);
        for count in 0.. {
            let Some(near) = self.datagrams.tunnels.get_mut(&tunnel).and_then(Tunnel::near) else { break };
            if count == MOST_READ {
                self.runnable.push_back(tunnel);
                break;
            }
            match udp::receive(&near.socket, &mut buffer) {
                Ok((len, Some(from))) => {
                    let flow = near.flows.number(self.now, from);
                    self.carry(tunnel, flow, buffer.get(..len).unwrap_or_default());
                }
                Ok((_, None)) | Err(Errno::CONNREFUSED | Errno::INTR) => {}
                Err(_) => break,
            }
        }
        self.link_buffer = buffer;
    }

    /// Handles a note that came on the stream.
    pub(crate) fn handle_stream_note(&mut self, tunnel: Token, note: Note) {
        match note {
            Note::Offer { port, secret, lack } => self.handle_offer(tunnel, port, secret, &lack),
            Note::Seen { at, lack } => self.handle_seen(tunnel, &at, &lack),
            Note::Join { .. } | Note::Joined => {}
        }
    }

    /// The other end has this port of QUIC, or lacks it.
    fn handle_offer(&mut self, tunnel: Token, port: Option<u16>, secret: String, lack: &str) {
        let now = self.now;
        let Some(own) = self.datagrams.tunnels.get_mut(&tunnel) else { return };
        match &mut own.side {
            // Only the first offer counts: each further one would begin four more connections.
            Side::Near(_) if !own.secret.is_empty() || secret.is_empty() || secret.len() > LONGEST_SECRET => {}
            Side::Near(near) => {
                near.stream_pause = STREAM_PAUSES.0;
                near.quic_at = if port.is_some() { now } else { u64::MAX };
                (own.secret, own.quic_port) = (secret, port);
                if port.is_none() {
                    self.report_no_quic(tunnel, wire::cut(lack));
                }
            }
            Side::Far(_) => {
                own.quic_port = port;
                self.dial_quic(tunnel);
            }
        }
    }

    /// Sends the other end this end's port of QUIC, or why there is none.
    pub(crate) fn offer_quic(&mut self, tunnel: Token) {
        if !self.datagrams.tunnels.contains_key(&tunnel) {
            return;
        }
        let (port, lack) = match self.quic_port() {
            Ok(port) => (Some(port), String::new()),
            Err(lack) => (None, format!("{}: {lack}", self.own().name)),
        };
        let Some(own) = self.datagrams.tunnels.get_mut(&tunnel) else { return };
        own.tell(&Note::Offer { port, secret: own.secret.clone(), lack });
    }

    /// The stream of a near end ended: another one is begun later.
    pub(crate) fn near_stream_ended(&mut self, tunnel: Token) {
        let now = self.now;
        let Some(own) = self.datagrams.tunnels.get_mut(&tunnel) else { return };
        (own.secret, own.quic_port) = (String::new(), None);
        let Some(near) = own.near() else { return };
        near.stream_at = now + near.stream_pause;
        near.stream_pause = (near.stream_pause * 2).min(STREAM_PAUSES.1);
        near.quic_at = u64::MAX;
    }

    /// A deadline of a tunnel.
    pub(crate) fn tunnel_timer(&mut self, tunnel: Token) {
        let now = self.now;
        let Some(near) = self.datagrams.tunnels.get_mut(&tunnel).and_then(Tunnel::near) else { return };
        let (stream, quic) = (near.stream_at <= now, near.quic_at <= now);
        if quic {
            (near.quic_at, near.meets) = (u64::MAX, false);
            self.dial_quic(tunnel);
        }
        if stream {
            self.begin_stream(tunnel);
        }
    }

    /// Datagrams go by the stream, for this reason. It is logged once until QUIC works.
    pub(crate) fn report_no_quic(&mut self, tunnel: Token, why: &str) {
        let now = self.now;
        let Some(own) = self.datagrams.tunnels.get_mut(&tunnel) else { return };
        let again = if own.quic_port.is_some() { now + QUIC_PAUSE } else { u64::MAX };
        let Some(near) = own.near() else { return };
        near.quic_at = again;
        if !std::mem::replace(&mut near.reported, true) {
            let line = format!("datagrams to {}:{} go by a stream: {why}", near.target.host, near.target.port);
            self.log_line(&line);
        }
    }

    /// Gives a datagram to the other end of a tunnel.
    pub(crate) fn carry(&mut self, tunnel: Token, flow: u32, bytes: &[u8]) {
        let Some(own) = self.datagrams.tunnels.get_mut(&tunnel) else { return };
        let carried = match (own.quic, &mut own.stream) {
            (Some(key), _) => {
                let deadline = self.now.saturating_add(own.within);
                self.datagrams.quic.as_mut().is_some_and(|quic| quic.send(key, frame::message(flow, bytes), deadline))
            }
            (None, Some(stream)) => stream.send(flow, bytes),
            (None, None) => false,
        };
        *(if carried { &mut own.counts.sent } else { &mut own.counts.dropped }) += 1;
    }

    /// The client left.
    pub(crate) fn end_datagrams(&mut self, tunnel: Token) {
        if self.datagrams.tunnels.contains_key(&tunnel) {
            self.drop_tunnel(tunnel);
        }
    }
}
