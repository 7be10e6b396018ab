//! QUIC between two hosts that both take nothing in from outside: both send at the same time, so that each NAT or firewall takes what comes in
//! as the answer to what went out.
//!
//! ```text
//!   near                                 relay                                 far
//!     |--- connects by QUIC ------------->|                                     |
//!     |<-- "I see you at x" --------------|     (draft-ietf-quic-address-discovery)
//!     |=== Seen x, by the tunnel's stream =====================================>|
//!     |                                   |<------------ connects by QUIC ------|
//!     |                                   |------------- "I see you at y" ----->|
//!     |<======================================================== Seen y =========|
//!     |--- connects, to y --->X                            <--- connects, to x -|
//!     |--- tries again, and the way is open ------------------------------------>|
//! ```
//! * Both send from the one socket of QUIC: a NAT with one mapping for each port shows the same address to the relay and to the other end.
//!   A symmetric NAT does not, and datagrams stay with the stream.
//! * Only what the near end begins becomes the tunnel's: what the far end sends is to open its own NAT.
//! * A relay's port of UDP is open for this as long as the relay runs. It accepts hosts of the grid, by their certificates.

use std::net::SocketAddr;

use crate::daemon::Daemon;
use crate::datagrams::frame::Note;
use crate::datagrams::quic::{Connection, JOIN, MOST_DIALS, Purpose, Quic};
use crate::datagrams::tunnel::{Meeting, Side, Tunnel};
use crate::link::punch::may_be_dialled;
use crate::poll::Token;
use crate::wire;

impl Daemon {
    /// Opens the port of QUIC on a relay, where other hosts learn at which address they are seen; anew where the grid has changed and no
    /// tunnel needs it, for the port may be another one.
    pub(crate) fn open_relay_quic(&mut self) {
        if self.datagrams.tunnels.is_empty() {
            self.close_quic_sockets();
        }
        if self.own().relay && self.credentials.is_ok() && self.datagrams.quic.is_none() {
            self.open_quic();
        }
    }

    /// The near end could not connect by QUIC, nor be connected to: both ends try at once, if a relay says where they are seen.
    pub(crate) fn begin_meeting(&mut self, tunnel: Token) {
        let Some(own) = self.datagrams.tunnels.get_mut(&tunnel) else { return };
        let Some(near) = own.near().filter(|near| !near.meets) else { return };
        near.meets = true;
        own.meeting = Meeting::default();
        self.ask_relay(tunnel);
    }

    /// The other end is seen at an address, or lacks one.
    pub(crate) fn handle_seen(&mut self, tunnel: Token, at: &str, lack: &str) {
        if !lack.is_empty() {
            return self.report_no_meeting(tunnel, wire::cut(lack));
        }
        let Some(own) = self.datagrams.tunnels.get_mut(&tunnel) else { return };
        let Some(at) = at.parse().ok().filter(|at| may_be_dialled(*at)) else { return };
        // One attempt at a time.
        let is_under_way = self.datagrams.quic.as_ref().is_some_and(|quic| quic.meets(tunnel));
        if own.quic.is_some() || is_under_way || own.near().is_some_and(|near| !near.meets) {
            return;
        }
        let is_near = own.near().is_some();
        own.meeting.theirs = Some(at);
        if is_near {
            return self.meet(tunnel);
        }
        own.meeting.own = None;
        self.ask_relay(tunnel);
    }

    /// Asks a relay at which address it sees this host.
    fn ask_relay(&mut self, tunnel: Token) {
        if let Err(why) = self.connect_to_relay(tunnel) {
            self.not_seen(tunnel, &why);
        }
    }

    /// Connects to a relay by QUIC.
    fn connect_to_relay(&mut self, tunnel: Token) -> Result<(), String> {
        self.quic_port()?;
        if let Some(why) = self.datagrams.tunnels.get(&tunnel).and_then(|own| self.forbids_direct(own)) {
            return Err(why);
        }
        let of_relay = |(host, at): (usize, SocketAddr)| {
            let relay = self.grid.hosts.get(host).filter(|relay| relay.relay)?;
            Some((host, [&[at][..], &relay.addresses].concat()))
        };
        let mut dialled = self.links.values().filter_map(|link| Some((link.dialled?.0, link.address?)));
        let (relay, mut places) = dialled.find_map(of_relay).ok_or("it has a link with none")?;
        places.iter_mut().for_each(|at| at.set_ip(at.ip().to_canonical()));
        places.dedup();
        places.truncate(MOST_DIALS);
        let now = self.now;
        let Some(quic) = &mut self.datagrams.quic else { return Ok(()) };
        for at in places {
            if let Ok(key) = quic.endpoint.connect(now, at) {
                let purpose = Purpose::Ask { tunnel };
                quic.connections.insert(key, Connection::dialled(purpose, relay, 0, now + JOIN));
            }
        }
        quic.stirred = true;
        Ok(())
    }

    /// A relay sees this host at an address.
    pub(crate) fn seen_by_relay(&mut self, quic: &mut Quic, tunnel: Token, at: SocketAddr) {
        quic.end_questions(self.now, tunnel);
        let Some(own) = self.datagrams.tunnels.get_mut(&tunnel) else { return };
        own.meeting.own = Some(at);
        own.tell(&Note::Seen { at: at.to_string(), lack: String::new() });
        if own.far().is_some() {
            quic.met.push(tunnel);
        }
    }

    /// No relay says where this host is seen: it is logged at the near end.
    pub(crate) fn not_seen(&mut self, tunnel: Token, why: &str) {
        let why = format!("no relay says where {} is seen by QUIC: {why}", self.own().name);
        match self.datagrams.tunnels.get_mut(&tunnel).filter(|own| own.meeting.own.is_none()) {
            Some(own) if matches!(own.side, Side::Far(_)) => own.tell(&Note::Seen { at: String::new(), lack: why }),
            Some(_) => self.report_no_meeting(tunnel, &why),
            None => {}
        }
    }

    /// Both ends are known to each other: connects, or opens the way for the other end.
    pub(crate) fn meet(&mut self, tunnel: Token) {
        let now = self.now;
        let Some(own) = self.datagrams.tunnels.get_mut(&tunnel).filter(|own| own.quic.is_none()) else { return };
        let (Meeting { theirs: Some(at), .. }, peer, tolerance) = (own.meeting, own.peer, own.tolerance) else {
            return;
        };
        let purpose = if own.near().is_some() { Purpose::Join { tunnel } } else { Purpose::Open { tunnel } };
        let Some(quic) = &mut self.datagrams.quic else { return };
        if let Ok(key) = quic.endpoint.connect(now, at) {
            quic.connections.insert(key, Connection::dialled(purpose, peer, tolerance, now + JOIN));
        }
        quic.stirred = true;
    }

    /// Both ends tried at once, or could not, and datagrams go by the stream. It is logged once until QUIC works.
    pub(crate) fn report_no_meeting(&mut self, tunnel: Token, why: &str) {
        let Some(near) = self.datagrams.tunnels.get_mut(&tunnel).and_then(Tunnel::near) else { return };
        if !std::mem::replace(&mut near.meeting_reported, true) {
            let host = near.target.host.clone();
            self.log_line(&format!("no QUIC with {host} by both ends at once: {why}"));
        }
    }
}
