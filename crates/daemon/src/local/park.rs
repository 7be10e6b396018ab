//! Completes parked connects.
//!
//! A program's `connect(2)` to a host that this daemon reaches goes to a decoy listener, a loopback port that drops every packet: the socket
//! stays in SYN_SENT. A copy of its descriptor comes by the control socket, which only this user's processes can open. Once the far end is
//! connected, this daemon connects *from* the decoy's port *to* the program's socket: a simultaneous open (RFC 9293, 3.5). The program's own
//! connect then succeeds, no earlier. Its descriptor, options and event sets never change. Without a far end its connect fails.
//!
//! No other process can take the place of the program. A decoy never accepts. While the copy is held the program's port stays taken, and the
//! kernel is asked whether the socket that answered is the program's.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use madrigal_sys::tcp;
use rustix::io::Errno;
use rustix::net::Shutdown;

use crate::daemon::Daemon;
use crate::descriptor::Descriptor;
use crate::local::decoy::{abort_connect, tcp_state};
use crate::local::libc_socket;
use crate::local::parked::{Outcome, Parked};
use crate::poll::Token;
use crate::socket;
use crate::streams::pipe::{End, Side};
use crate::units::{MILLISECOND, SECOND};

/// The time limit from a program's request to its connect, and from there to a connection.
const PARK_TIMEOUT: u64 = 2 * SECOND;

impl Daemon {
    /// Gives a program's parked socket the outcome of its call.
    pub(crate) fn park(&mut self, theirs: OwnedFd, outcome: Outcome) {
        let (token, now) = (self.new_token(), self.now);
        self.descriptors.insert(token, Descriptor::Parked);
        self.parked.insert(token, Parked { theirs, ours: None, outcome, since: now, next: now });
        self.poll_parked(token);
    }

    /// Goes on with a parked socket: is it in SYN_SENT, or connected?
    pub(crate) fn poll_parked(&mut self, token: Token) {
        let Some(mut parked) = self.parked.remove(&token) else { return };
        let late = parked.since + PARK_TIMEOUT <= self.now;
        let waits = tcp_state(&parked.theirs) == Some(tcp::SYN_SENT);
        let done = match (&parked.ours, &parked.outcome) {
            (Some(ours), _) => match socket::is_connected(ours) {
                Ok(true) => return self.complete_connect(token, parked),
                Ok(false) => late,
                Err(_) => true,
            },
            (None, Outcome::Refuse) if waits => {
                // The kernel's error is ECONNRESET. The preloaded library requests the true one.
                let _ = rustix::net::shutdown(&parked.theirs, Shutdown::Both);
                true
            }
            (None, Outcome::Join { .. }) if waits => match self.connect_to_parked(&parked.theirs, token) {
                Ok(ours) => {
                    parked.ours = Some(ours);
                    self.parked.insert(token, parked);
                    return self.poll_parked(token);
                }
                Err(_) => late,
            },
            // The program has not called connect(2) yet.
            _ => late,
        };
        if done {
            return self.end_parked(token, parked);
        }
        // There is no event when a socket of another process begins to connect.
        parked.next = if parked.ours.is_some() { parked.since + PARK_TIMEOUT } else { self.now + MILLISECOND };
        self.parked.insert(token, parked);
    }

    /// Connects from the decoy's port to a program's socket.
    fn connect_to_parked(&self, theirs: &OwnedFd, token: Token) -> Result<OwnedFd, Errno> {
        let there = socket::local_addr(theirs).ok_or(Errno::NOTCONN)?;
        let there = SocketAddr::new(there.ip().to_canonical(), there.port());
        let decoy = self.decoys.for_ip(there.ip()).ok_or(Errno::AFNOSUPPORT)?;
        let ours = libc_socket::bind(decoy.at)?;
        self.poll.add(&ours, token)?;
        libc_socket::connect(&ours, there).map(|()| ours)
    }

    /// The program's socket is connected: it is joined with the far end.
    fn complete_connect(&mut self, token: Token, mut parked: Parked) {
        let Some(socket) = parked.ours.take_if(|ours| is_pair(ours, &parked.theirs)) else {
            return self.end_parked(token, parked);
        };
        let Outcome::Join { far, rest, connection, origin, line } = parked.outcome else { return };
        let local = socket::peer_addr(&socket);
        let near = Side::new(End::Socket { socket, token, is_tcp: true }, Vec::new());
        let pipe = self.join_as(near, Side::new(far, rest), origin);
        self.record(pipe, &line);
        self.connection_joined(connection, local, pipe);
    }

    /// Gives up a parked socket.
    fn end_parked(&mut self, token: Token, parked: Parked) {
        self.descriptors.remove(&token);
        // It may have begun to connect just now.
        abort_connect(&parked.theirs);
        if let Outcome::Join { far, connection, .. } = parked.outcome {
            self.discard_end(far);
            self.connection_failed(connection, "the program went away", Errno::CONNABORTED);
        }
    }
}

/// Whether two sockets are the ends of one connection.
fn is_pair(one: &OwnedFd, other: &OwnedFd) -> bool {
    let bare = |at: Option<SocketAddr>| at.map(|at| SocketAddr::new(at.ip().to_canonical(), at.port()));
    let (one, other) = (
        [socket::local_addr(one), socket::peer_addr(one)].map(bare),
        [socket::peer_addr(other), socket::local_addr(other)].map(bare),
    );
    one == other && one.iter().all(Option::is_some)
}
