//! The `tcp` driver: streams of bytes between hosts, by the kernel's TCP; and messages over such streams ([`messages`]).
//!
//! Sockets are non-blocking, `TCP_NODELAY`, close-on-exec. Reads and writes are one system call each, writes gather.

mod ends;
mod messages;
mod socket;

use core::net::SocketAddr;
use madrigal_sys::fd::Fd;
use std::os::fd::AsFd;
use std::sync::Arc;

use madrigal_base::error::{AcceptError, ConnectError, ListenError};
use madrigal_base::ids::Reach;
use madrigal_base::locator::{Address, Locator};
use madrigal_progress::driver::{Connecting, Connection, Driver, Facts, Listener, Pending, Place, Signal};
use madrigal_sys::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use socket::{Socket, os};

/// The driver.
pub(crate) struct Tcp;

const NAME: &str = "tcp";
const TAKES: &str = "tcp://ADDRESS:PORT with a numeric address";
/// Connections the kernel keeps waiting for us (listen(2) lowers it to the system's limit).
const BACKLOG: i32 = 4096;

impl Driver for Tcp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn facts(&self) -> Facts {
        Facts { reach: Reach::Network, one_user: false, takes: TAKES }
    }

    fn usable(&self, _place: &Place) -> Result<(), String> {
        socket(AddressFamily::INET).map(drop).map_err(|errno| format!("no socket can be made: {}", os(errno)))
    }

    fn address_for(&self, _name: &str) -> Option<Locator> {
        Some(Locator::inet(NAME, SocketAddr::from(([127, 0, 0, 1], 0))))
    }

    fn listen(&self, at: &Locator, _place: &Place) -> Result<Box<dyn Listener>, ListenError> {
        let Address::Inet(address) = *at.address() else {
            return Err(ListenError::BadAddress { at: at.clone(), takes: TAKES });
        };
        let made = bound(address).map_err(|errno| match errno {
            Errno::ADDRINUSE => ListenError::InUse { at: at.clone() },
            errno => ListenError::System { at: at.clone(), os: os(errno) },
        });
        let (socket, real) = made?;
        Ok(Box::new(TcpListener { socket: Socket::new(socket), at: Locator::inet(NAME, real) }))
    }

    fn connect(&self, to: &Locator, _place: &Place) -> Result<Connecting, ConnectError> {
        let Address::Inet(address) = *to.address() else {
            return Err(ConnectError::BadAddress { to: to.clone(), takes: TAKES });
        };
        let failed = |errno| connect_error(to, errno);
        let socket = socket(family(address)).map_err(failed)?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => {}
            Err(errno) => return Err(failed(errno)),
        }
        Ok(Connecting::Pending(Box::new(Attempt { socket: Socket::new(socket), to: to.clone() })))
    }
}

struct TcpListener {
    socket: Arc<Socket>,
    at: Locator,
}

impl Listener for TcpListener {
    fn accept(&mut self) -> Result<Option<Connection>, AcceptError> {
        loop {
            match rustix::net::accept_with(&self.socket.fd, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC).map(Fd::from)
            {
                Ok(fd) => match peer_of(&fd) {
                    Some(peer) => return Ok(Some(endpoint(Socket::new(fd), Locator::inet(NAME, peer)))),
                    None => continue,
                },
                Err(Errno::AGAIN) => return Ok(None),
                // The attempt failed on the way; it is the connecting side's error (accept(2), "Error handling").
                Err(Errno::CONNABORTED | Errno::INTR | Errno::PROTO | Errno::PERM | Errno::NETDOWN) => {}
                Err(Errno::HOSTDOWN | Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::NOPROTOOPT | Errno::NONET) => {}
                Err(errno) => return Err(AcceptError::System { at: self.at.clone(), os: os(errno) }),
            }
        }
    }

    fn locator(&self) -> &Locator {
        &self.at
    }

    fn signal(&self) -> Arc<dyn Signal> {
        Arc::clone(&self.socket) as Arc<dyn Signal>
    }
}

/// A connection attempt under way.
struct Attempt {
    socket: Arc<Socket>,
    to: Locator,
}

impl Pending for Attempt {
    fn poll(&mut self) -> Result<Option<Connection>, ConnectError> {
        let failed = |errno| connect_error(&self.to, errno);
        sockopt::socket_error(&self.socket.fd).map_err(failed)?.map_err(failed)?;
        let Some(peer) = peer_of(&self.socket.fd) else { return Ok(None) };
        if own(&self.socket.fd) == Some(peer) {
            // Nobody listened, and the kernel let the socket connect to itself: the port was one of its own choice.
            return Err(ConnectError::Refused { to: self.to.clone() });
        }
        Ok(Some(endpoint(Arc::clone(&self.socket), self.to.clone())))
    }

    fn signal(&self) -> Arc<dyn Signal> {
        Arc::clone(&self.socket) as Arc<dyn Signal>
    }
}

fn endpoint(socket: Arc<Socket>, peer: Locator) -> Connection {
    // Without it everything works, only slower.
    let _ = sockopt::set_tcp_nodelay(&socket.fd, true);
    let local = own(&socket.fd).unwrap_or_else(|| SocketAddr::from(([0, 0, 0, 0], 0)));
    let ends = ends::ends(&socket, &peer);
    Connection { ends, signal: socket, local: Locator::inet(NAME, local), peer }
}

fn socket(family: AddressFamily) -> Result<Fd, Errno> {
    rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)
        .map(Fd::from)
}

fn bound(address: SocketAddr) -> Result<(Fd, SocketAddr), Errno> {
    let socket = socket(family(address))?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    let real = own(&socket).ok_or(Errno::INVAL)?;
    Ok((socket, real))
}

fn family(address: SocketAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

fn own(socket: impl AsFd) -> Option<SocketAddr> {
    rustix::net::getsockname(socket).ok()?.try_into().ok()
}

fn peer_of(socket: impl AsFd) -> Option<SocketAddr> {
    rustix::net::getpeername(socket).ok()??.try_into().ok()
}

fn connect_error(to: &Locator, errno: Errno) -> ConnectError {
    match errno {
        Errno::CONNREFUSED => ConnectError::Refused { to: to.clone() },
        errno => ConnectError::System { to: to.clone(), os: os(errno) },
    }
}
