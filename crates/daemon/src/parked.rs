//! Parked connects: sockets of local programs wait until their other end is found, and are then connected to this daemon.
//!
//! A program's `connect(2)` to a host that this daemon is to reach goes to the *decoy listener* instead, a port of the loopback address
//! that drops whatever arrives: the socket is, and stays, connecting. A copy of its descriptor comes by the Unix socket, where only this
//! user's processes can speak. Once the far end is there, this daemon connects *from* the decoy's port *to* the program's socket. Both have
//! then opened the connection at once, which TCP allows (RFC 9293, 3.5), and the program sees its own connect end well, at this moment and
//! no earlier: its descriptor, its options and its event sets never changed. Where there is no far end its connect fails instead.
//!
//! Nobody else comes in: nothing is ever accepted at a decoy; who connects there without passing the descriptor waits for ever. While the
//! copy is held nobody else can get the program's port; and that it was the program's socket that answered is asked of the kernel.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd as _, OwnedFd};

use madrigal_proto::hosts::Ports;
use madrigal_sys::{raw, tcp};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketType, sockopt};

use crate::daemon::{Daemon, MILLISECOND, SECOND, Thing};
use crate::origin::Origin;
use crate::pipes::{End, Side};
use crate::poll::Token;
use crate::{local, socket};

/// How long a program may take from asking to connecting, and its socket to answer.
const PATIENCE: u64 = 2 * SECOND;

/// A port where connects wait: the listener answers nobody.
pub(crate) struct Decoy {
    listener: OwnedFd,
    at: SocketAddr,
    /// A port that is taken and where nobody listens: who connects there is refused by the kernel.
    _refusing: OwnedFd,
    refusing_at: SocketAddr,
}

/// The decoys: of IPv4, and of IPv6 where there is any.
pub(crate) struct Decoys(Vec<Decoy>);

/// A program's connect that waits.
pub(crate) struct Parked {
    theirs: OwnedFd,
    ours: Option<OwnedFd>,
    outcome: Outcome,
    since: u64,
    pub(crate) next: u64,
}

/// What is to become of it.
pub(crate) enum Outcome {
    /// It is joined with another end.
    Join {
        far: End,
        /// Came from there already.
        rest: Vec<u8>,
        /// The number of its route.
        route: u64,
        /// How its stream is called.
        origin: Option<Origin>,
        /// What the log said of it.
        line: String,
    },
    /// Its connect fails.
    Refuse,
}

impl Decoy {
    fn open(ip: IpAddr) -> Result<Self, Errno> {
        let any = SocketAddr::new(ip, 0);
        let (listener, refusing) = (local::bound(any)?, socket::bound(any)?);
        raw::drop_packets(listener.as_raw_fd())?;
        local::listen(&listener)?;
        let at = socket::own(&listener).ok_or(Errno::ADDRNOTAVAIL)?;
        let refusing_at = socket::own(&refusing).ok_or(Errno::ADDRNOTAVAIL)?;
        Ok(Self { listener, at, _refusing: refusing, refusing_at })
    }
}

impl Decoys {
    pub(crate) fn open() -> Self {
        let loopback: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        Self(loopback.into_iter().filter_map(|ip| Decoy::open(ip).ok()).collect())
    }

    fn of(&self, ip: IpAddr) -> Option<&Decoy> {
        self.0.iter().find(|decoy| decoy.at.is_ipv4() == ip.to_canonical().is_ipv4())
    }

    /// The ports, of IPv4 and IPv6, and those that refuse; 0 where there is none.
    pub(crate) fn ports(&self) -> Ports {
        let of = |ip: IpAddr| self.of(ip).map_or((0, 0), |decoy| (decoy.at.port(), decoy.refusing_at.port()));
        let (four, six) = (of(Ipv4Addr::LOCALHOST.into()), of(Ipv6Addr::LOCALHOST.into()));
        [four.0, six.0, four.1, six.1]
    }

    /// Whether a descriptor that came from a program is a TCP socket of this network namespace, not connected yet.
    pub(crate) fn judge(&self, theirs: &OwnedFd) -> Result<(), String> {
        let decoy = self.0.first().ok_or("this daemon has no loopback address")?;
        let family = sockopt::socket_domain(theirs);
        let is_stream = sockopt::socket_type(theirs) == Ok(SocketType::STREAM);
        if !(matches!(family, Ok(AddressFamily::INET | AddressFamily::INET6)) && is_stream) || state(theirs).is_none() {
            return Err("what was passed is no TCP socket".to_owned());
        }
        if tcp::netns_cookie(theirs.as_raw_fd()) != tcp::netns_cookie(decoy.listener.as_raw_fd()) {
            return Err("the program is in another network namespace than this daemon".to_owned());
        }
        Ok(())
    }
}

/// A program's socket for which nothing will be done fails to connect, if it waits already.
pub(crate) fn turn_off(theirs: &OwnedFd) {
    if state(theirs) == Some(tcp::SYN_SENT) {
        let _ = rustix::net::shutdown(theirs, Shutdown::Both);
    }
}

fn state(socket: &OwnedFd) -> Option<u8> {
    tcp::info(socket.as_raw_fd()).ok().map(|info| info.state)
}

/// Whether two sockets are the ends of one connection.
fn is_pair(one: &OwnedFd, other: &OwnedFd) -> bool {
    let bare = |at: Option<SocketAddr>| at.map(|at| SocketAddr::new(at.ip().to_canonical(), at.port()));
    let (one, other) =
        ([socket::own(one), socket::peer(one)].map(bare), [socket::peer(other), socket::own(other)].map(bare));
    one == other && one.iter().all(Option::is_some)
}

impl Daemon {
    /// A program's socket gets what became of its call.
    pub(crate) fn park(&mut self, theirs: OwnedFd, outcome: Outcome) {
        let (token, now) = (self.token(), self.now);
        self.things.insert(token, Thing::Parked);
        self.parked.insert(token, Parked { theirs, ours: None, outcome, since: now, next: now });
        self.poll_parked(token);
    }

    /// Looks whether the program's socket waits by now, or has answered.
    pub(crate) fn poll_parked(&mut self, token: Token) {
        let Some(mut parked) = self.parked.remove(&token) else { return };
        let late = parked.since + PATIENCE <= self.now;
        let waits = state(&parked.theirs) == Some(tcp::SYN_SENT);
        let done = match (&parked.ours, &parked.outcome) {
            (Some(ours), _) => match socket::is_connected(ours) {
                Ok(true) => return self.complete_connect(token, parked),
                Ok(false) => late,
                Err(_) => true,
            },
            (None, Outcome::Refuse) if waits => {
                // Its error is a reset; the library asks for the true one when the program does.
                let _ = rustix::net::shutdown(&parked.theirs, Shutdown::Both);
                true
            }
            (None, Outcome::Join { .. }) if waits => match self.meet(&parked.theirs, token) {
                Ok(ours) => {
                    parked.ours = Some(ours);
                    self.parked.insert(token, parked);
                    return self.poll_parked(token);
                }
                Err(_) => late,
            },
            // The program has not come there yet.
            _ => late,
        };
        if done {
            return self.end_parked(token, parked);
        }
        // Nobody tells when a socket of another process begins to connect.
        parked.next = if parked.ours.is_some() { parked.since + PATIENCE } else { self.now + MILLISECOND };
        self.parked.insert(token, parked);
    }

    /// Connects from the decoy's port to a program's socket.
    fn meet(&self, theirs: &OwnedFd, token: Token) -> Result<OwnedFd, Errno> {
        let there = socket::own(theirs).ok_or(Errno::NOTCONN)?;
        let there = SocketAddr::new(there.ip().to_canonical(), there.port());
        let decoy = self.decoys.of(there.ip()).ok_or(Errno::AFNOSUPPORT)?;
        let ours = local::bound(decoy.at)?;
        self.poll.add(&ours, token)?;
        local::connect(&ours, there).map(|()| ours)
    }

    /// It answered.
    fn complete_connect(&mut self, token: Token, mut parked: Parked) {
        let Some(socket) = parked.ours.take_if(|ours| is_pair(ours, &parked.theirs)) else {
            return self.end_parked(token, parked);
        };
        let Outcome::Join { far, rest, route, origin, line } = parked.outcome else { return };
        let local = socket::peer(&socket);
        let near = Side::new(End::Socket { socket, token, is_tcp: true }, Vec::new());
        let pipe = self.join_as(near, Side::new(far, rest), origin);
        self.record(pipe, &line);
        self.route_joined(route, local, pipe);
    }

    /// It went away, or nothing can be done for it.
    fn end_parked(&mut self, token: Token, parked: Parked) {
        self.things.remove(&token);
        if let Outcome::Join { far, route, .. } = parked.outcome {
            self.drop_end(far);
            self.route_failed(route, "the program went away", Errno::CONNABORTED);
        }
    }
}
