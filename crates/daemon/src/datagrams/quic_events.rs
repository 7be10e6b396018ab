//! What happens to the daemon's connections of QUIC.

use std::net::SocketAddr;

use madrigal_adapters::vrp::Arrived;
use madrigal_quic::{Admission, Event, Key};
use madrigal_sys::udp::UdpSocket;
use rustls::pki_types::CertificateDer;

use crate::daemon::Daemon;
use crate::datagrams::frame::{self, Note};
use crate::datagrams::quic::{Connection, JOIN, MOST_DIALS, Purpose, Quic};
use crate::datagrams::tunnel::Tunnel;
use crate::descriptor::Descriptor;
use crate::link::handshakes::origin;
use crate::poll::Token;
use crate::start;

/// Calls for datagrams, and turns of sending, of one pass.
const MOST_READ: usize = 32;
const MOST_ROUNDS: usize = 64;

/// Why no connection of QUIC is begun.
enum NoQuic {
    /// There may be none, or cannot be.
    Impossible(String),
    /// There is no address to connect to.
    NoAddress(String),
}

impl Daemon {
    /// Opens the sockets of QUIC: where the daemon listens; at any port where it does not. Without a certificate there are none.
    pub(crate) fn open_quic(&mut self) {
        let Ok(credentials) = &self.credentials else { return };
        let made = Quic::new(credentials);
        let lack = self.credentials.as_ref().err();
        let mut places = start::places(&self.grid, self.own_index, lack).unwrap_or_default();
        if places.is_empty() {
            places.push(SocketAddr::new(std::net::Ipv6Addr::UNSPECIFIED.into(), 0));
        }
        let mut quic = match made {
            Ok(quic) => quic,
            Err(why) => return self.log_line(&why),
        };
        for at in places {
            let token = self.new_token();
            match UdpSocket::bind(at).and_then(|socket| self.poll.add(&socket, token).map(|()| socket)) {
                Ok(socket) => {
                    self.descriptors.insert(token, Descriptor::Quic);
                    quic.sockets.push((token, socket));
                }
                Err(errno) => self.log_line(&format!("no QUIC at {at}: {errno}")),
            }
        }
        self.datagrams.quic = Some(quic);
    }

    /// Closes the sockets of QUIC, and forgets its connections.
    pub(crate) fn close_quic_sockets(&mut self) {
        for (token, _) in self.datagrams.quic.take().into_iter().flat_map(|quic| quic.sockets) {
            self.descriptors.remove(&token);
        }
    }

    /// The port of QUIC, which is opened with the first tunnel; or why there is none.
    pub(crate) fn quic_port(&mut self) -> Result<u16, String> {
        if self.datagrams.quic.is_none() {
            self.open_quic();
        }
        let quic = match (&self.datagrams.quic, &self.credentials) {
            (Some(quic), _) => quic,
            (None, Err(why)) => return Err(format!("QUIC needs a certificate, and {why}")),
            (None, Ok(_)) => return Err("QUIC is not to be had: see the log".to_owned()),
        };
        let port = quic.sockets.first().map(|(_, socket)| socket.at().port());
        port.ok_or_else(|| "no socket of UDP could be bound: see the log".to_owned())
    }

    /// Connects by QUIC for a tunnel, at each possible address of the other end.
    pub(crate) fn dial_quic(&mut self, tunnel: Token) {
        match self.begin_quic(tunnel) {
            Ok(()) => {}
            Err(NoQuic::Impossible(why)) => self.report_no_quic(tunnel, &why),
            Err(NoQuic::NoAddress(why)) => {
                self.report_no_quic(tunnel, &why);
                self.begin_meeting(tunnel);
            }
        }
    }

    fn begin_quic(&mut self, tunnel: Token) -> Result<(), NoQuic> {
        self.quic_port().map_err(NoQuic::Impossible)?;
        let (Some(own), Some(quic)) = (self.datagrams.tunnels.get(&tunnel), &self.datagrams.quic) else {
            return Ok(());
        };
        let Some(port) = own.quic_port else { return Ok(()) };
        if quic.connections.values().any(|other| other.tunnel() == Some(tunnel)) {
            return Ok(());
        }
        if let Some(why) = self.forbids_direct(own) {
            return Err(NoQuic::Impossible(why));
        }
        let linked = self.links.values().filter(|link| link.leads_to(own.peer)).filter_map(|link| link.address);
        let named = self.grid.hosts.get(own.peer).into_iter().flat_map(|host| host.addresses.iter().copied());
        let mut places: Vec<SocketAddr> =
            linked.chain(named).map(|at| SocketAddr::new(at.ip().to_canonical(), port)).collect();
        places.dedup();
        places.truncate(MOST_DIALS);
        if places.is_empty() {
            return Err(NoQuic::NoAddress(format!("{} has no address", self.name(own.peer))));
        }
        let (now, peer, tolerance) = (self.now, own.peer, own.tolerance);
        let Some(quic) = &mut self.datagrams.quic else { return Ok(()) };
        for at in places {
            if let Ok(key) = quic.endpoint.connect(now, at) {
                quic.connections
                    .insert(key, Connection::dialled(Purpose::Join { tunnel }, peer, tolerance, now + JOIN));
            }
        }
        quic.stirred = true;
        Ok(())
    }

    /// The rule by which a tunnel must not go without a relay.
    pub(crate) fn forbids_direct(&self, tunnel: &Tunnel) -> Option<String> {
        let rules = self.grid.rules_for(tunnel.peer, Some(tunnel.port()));
        let rule = rules.into_iter().find(|rule| rule.forbid.iter().any(|way| way == "direct"));
        rule.map(|rule| format!("rule {} forbids direct", rule.name))
    }

    /// A socket of QUIC changed.
    pub(crate) fn read_quic(&mut self, token: Token) {
        let (now, mut buffer) = (self.now, std::mem::take(&mut self.link_buffer));
        if let Some(Quic { endpoint, sockets, handshakes, stirred, .. }) = &mut self.datagrams.quic {
            *stirred = true;
            let socket = sockets.iter().find(|(own, _)| *own == token).map(|(_, socket)| socket);
            for count in 0.. {
                let Some(got) = socket.and_then(|socket| socket.receive(&mut buffer).ok()) else { break };
                for datagram in buffer.get(..got.len).unwrap_or_default().chunks(got.segment) {
                    let admit = |from| match handshakes.begin(now, Some(origin(from))) {
                        Ok(_) => Admission::Take,
                        Err(_) => Admission::Drop,
                    };
                    endpoint.receive(now, (got.from, got.to), datagram, admit);
                }
                if count == MOST_READ {
                    self.runnable.push_back(token);
                    break;
                }
            }
        }
        self.link_buffer = buffer;
    }

    /// Passes on what came by QUIC and what goes, if there may be something.
    pub(crate) fn settle_quic(&mut self) {
        let now = self.now;
        let Some(mut quic) = self.datagrams.quic.take_if(|quic| quic.stirred || quic.deadline() <= now) else { return };
        quic.stirred = false;
        if quic.endpoint.deadline() <= now {
            quic.endpoint.handle_time(now);
        }
        for _ in 0..MOST_ROUNDS {
            while let Some(event) = quic.endpoint.event() {
                self.handle_quic_event(&mut quic, event);
            }
            for key in quic.forgotten() {
                self.quic_closed(&mut quic, key, "it ended");
            }
            for key in quic.connections.keys().copied().collect::<Vec<_>>() {
                self.pump_quic(&mut quic, key);
            }
            // Sending made room for more.
            if !quic.transmit(now) {
                break;
            }
        }
        let (asked, met) = (std::mem::take(&mut quic.asked), std::mem::take(&mut quic.met));
        self.datagrams.quic = Some(quic);
        if self.datagrams.tunnels.is_empty() && !self.own().relay {
            self.close_quic_sockets();
        }
        for tunnel in asked {
            self.offer_quic(tunnel);
            self.begin_meeting(tunnel);
        }
        met.into_iter().for_each(|tunnel| self.meet(tunnel));
    }

    fn handle_quic_event(&mut self, quic: &mut Quic, event: Event) {
        let now = self.now;
        match event {
            Event::Connected { key, dialled, chain } => {
                let judged = self.judge_chain(&chain);
                let wanted = quic.connections.get(&key).map(|own| own.host);
                match judged {
                    Ok(host) if dialled && wanted != Some(host) => {
                        let why = format!("this is {}", self.name(host));
                        self.close_quic(quic, key, &why);
                    }
                    Ok(_) if dialled => self.join_by_quic(quic, key),
                    Ok(host) => drop(quic.connections.insert(key, Connection::accepted(host, now + JOIN))),
                    Err(why) => {
                        self.log_unauthenticated(&format!("no QUIC: {why}"));
                        self.close_quic(quic, key, &why);
                    }
                }
            }
            Event::Seen { key, at } => {
                if let Some(Purpose::Ask { tunnel }) = quic.connections.get(&key).map(|own| own.purpose) {
                    self.seen_by_relay(quic, tunnel, at);
                }
            }
            Event::Closed { key, why } => self.quic_closed(quic, key, &why.to_string()),
        }
    }

    /// The host whose certificates these are, or why they are refused.
    fn judge_chain(&self, chain: &[CertificateDer<'static>]) -> Result<usize, String> {
        let credentials = self.credentials.as_ref().map_err(Clone::clone)?;
        let shown = credentials.judge(chain).map_err(|refusal| refusal.to_string())?;
        let Some((host, _)) = self.grid.host(&shown.name) else {
            return Err(format!("the grid has no host `{}`", shown.name));
        };
        shown.is(&shown.name, credentials.own().user.as_deref()).map_err(|refusal| refusal.to_string())?;
        Ok(host)
    }

    /// A connection that this end began is established: sends for which tunnel it is.
    fn join_by_quic(&self, quic: &mut Quic, key: Key) {
        let tunnel = quic.connections.get(&key).and_then(Connection::tunnel);
        if let Some(own) = tunnel.and_then(|tunnel| self.datagrams.tunnels.get(&tunnel)) {
            quic.send_note(key, &Note::Join { secret: own.secret.clone() });
        }
    }

    /// Takes what came by a connection, and sends what waits for it.
    fn pump_quic(&mut self, quic: &mut Quic, key: Key) {
        let now = self.now;
        let Quic { endpoint, connections, .. } = quic;
        let (Some(own), Some(carrier)) = (connections.get_mut(&key), endpoint.connection(key)) else { return };
        if let Err(broken) = own.pump(now, carrier) {
            return self.close_quic(quic, key, &broken.to_string());
        }
        if !own.joined && own.deadline <= now {
            return self.close_quic(quic, key, "no answer");
        }
        let (mut arrived, mut lost) = (Vec::new(), 0);
        while let Some(message) = own.messages.take_any() {
            arrived.push(message);
        }
        while let Some(settled) = own.messages.settled() {
            lost += u64::from(settled.lost.is_none_or(|lost| !lost.is_empty()));
        }
        if let Some(tunnel) = own.tunnel().and_then(|tunnel| self.datagrams.tunnels.get_mut(&tunnel)) {
            tunnel.counts.lost += lost;
        }
        for message in arrived {
            self.take_message(quic, key, &message);
        }
    }

    fn take_message(&mut self, quic: &mut Quic, key: Key, message: &Arrived) {
        // An incomplete message is discarded.
        let is_whole = message.lost.as_ref().is_some_and(Vec::is_empty);
        let Some((flow, bytes)) = frame::read_message(&message.bytes).filter(|_| is_whole) else { return };
        let Some(own) = quic.connections.get(&key) else { return };
        match (flow, own.tunnel()) {
            (frame::NOTES, _) => {
                if let Ok(note) = serde_json::from_slice(bytes) {
                    self.handle_quic_note(quic, key, note);
                }
            }
            (_, Some(tunnel)) => self.deliver_datagram(tunnel, flow, bytes),
            _ => {}
        }
    }

    fn handle_quic_note(&mut self, quic: &mut Quic, key: Key, note: Note) {
        let Some(own) = quic.connections.get_mut(&key) else { return };
        match note {
            Note::Join { secret } if own.purpose == Purpose::Unknown && !secret.is_empty() => {
                let is_it = |tunnel: &Tunnel| tunnel.peer == own.host && tunnel.secret == secret;
                let found = self.datagrams.tunnels.iter().find_map(|(token, tunnel)| is_it(tunnel).then_some(*token));
                let Some(token) = found else { return self.close_quic(quic, key, "no such tunnel") };
                (own.purpose, own.joined) = (Purpose::Join { tunnel: token }, true);
                quic.send_note(key, &Note::Joined);
                self.use_quic(token, key);
            }
            Note::Joined if !own.joined => {
                let Some(token) = own.tunnel() else { return };
                own.joined = true;
                // The other attempts are not needed.
                let others =
                    quic.connections.iter().filter(|(other, own)| **other != key && own.tunnel() == Some(token));
                for other in others.map(|(other, _)| *other).collect::<Vec<_>>() {
                    quic.connections.remove(&other);
                    quic.endpoint.close(self.now, other, "another one was faster");
                }
                self.use_quic(token, key);
            }
            _ => {}
        }
    }

    /// Datagrams of a tunnel go by QUIC from now on.
    fn use_quic(&mut self, tunnel: Token, key: Key) {
        let Some(own) = self.datagrams.tunnels.get_mut(&tunnel) else { return };
        own.quic = Some(key);
        if let Some(near) = own.near() {
            (near.reported, near.meeting_reported, near.meets) = (false, false, false);
            let (host, port) = (near.target.host.clone(), near.target.port);
            self.log_line(&format!("datagrams to {host}:{port} go by QUIC"));
        }
    }

    /// Closes a connection, and removes it here: the state machine reports no event for it.
    fn close_quic(&mut self, quic: &mut Quic, key: Key, why: &str) {
        quic.endpoint.close(self.now, key, why);
        self.quic_closed(quic, key, why);
    }

    /// A connection has ended: one end closed it, or it was silent for too long.
    fn quic_closed(&mut self, quic: &mut Quic, key: Key, why: &str) {
        let token = match quic.connections.remove(&key).map(|own| own.purpose) {
            Some(Purpose::Join { tunnel }) => tunnel,
            Some(Purpose::Ask { tunnel }) if !quic.meets(tunnel) => return self.not_seen(tunnel, why),
            _ => return,
        };
        let Some(own) = self.datagrams.tunnels.get_mut(&token) else { return };
        let others = quic.connections.values().any(|other| other.tunnel() == Some(token));
        let was_used = own.quic.take_if(|used| *used == key).is_some();
        let has_met = !was_used && own.near().is_some_and(|near| near.meets);
        if has_met && !others && own.quic.is_none() {
            self.report_no_meeting(token, why);
        } else if own.near().is_some() && !others && (was_used || own.quic.is_none()) {
            let what = if was_used { "QUIC ended" } else { "no QUIC" };
            let why = format!("{what}: {why}");
            // The other end may get through where this one does not. The request is sent when the state machine is back in its place.
            quic.asked.push(token);
            self.report_no_quic(token, &why);
        }
    }

    /// Closes the connections of a tunnel.
    pub(crate) fn close_quic_of(&mut self, tunnel: Token, why: &str) {
        let now = self.now;
        if let Some(own) = self.datagrams.tunnels.get_mut(&tunnel) {
            own.quic = None;
        }
        let Some(quic) = &mut self.datagrams.quic else { return };
        let keys = quic.connections.iter().filter(|(_, own)| own.tunnel() == Some(tunnel)).map(|(key, _)| *key);
        for key in keys.collect::<Vec<_>>() {
            quic.connections.remove(&key);
            quic.endpoint.close(now, key, why);
            quic.stirred = true;
        }
    }
}
