//! The `tcp` driver: streams of bytes between hosts, by the kernel's TCP; and messages over such streams ([`messages`]).
//!
//! Sockets are non-blocking, `TCP_NODELAY`, close-on-exec. Reads and writes are one system call each, writes gather. Connections to hosts
//! of the grid go by this host's daemon where it says so in its file of them ([`sites`]), by the same rules as those of unmodified programs.

mod by_daemon;
mod ends;
mod messages;
mod silence;
mod sites;
mod socket;

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use madrigal_sys::fd::Fd;
use std::sync::Arc;

use madrigal_base::error::{AcceptError, ConnectError, ListenError};
use madrigal_base::ids::Reach;
use madrigal_base::locator::{Address, Locator};
use madrigal_base::node::NodeAddress;
use madrigal_progress::driver::{Connecting, Connection, Detour, Driver, Facts, Listener, Pending, Place, Signal};
use madrigal_proto::hosts;
use madrigal_proto::race::{Way, Wish};
use madrigal_sys::{Errno, time};
use rustix::net::{AddressFamily, SocketFlags, sockopt};

use by_daemon::ByDaemon;
use ends::connection;
use messages::interfaces;
use sites::{Goes, Sites};
use socket::{NAME, Socket, os, own, peer_of, socket};

/// The driver.
pub(crate) struct Tcp;

const TAKES: &str = "tcp://ADDRESS:PORT with a numeric address";
const TAKES_TO: &str = "tcp://ADDRESS:PORT with a numeric address, or tcp://HOST:PORT with a host of the grid";
/// A name that every host has for itself (RFC 6761, 6.3).
const LOCALHOST: &str = "localhost";
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

    fn addresses(&self, place: &Place) -> Vec<IpAddr> {
        interfaces::addresses(&place.network.nets)
    }

    fn publish(&self, address: &mut NodeAddress, place: &Place) {
        Sites::find(&place.daemons, time::now_ns()).publish(address);
    }

    fn detour(&self, to: &NodeAddress, place: &Place) -> Option<Detour> {
        let now = time::now_ns();
        let (way, wish) = Sites::find(&place.daemons, now).way(to, now)?;
        let Way::Daemon { host, port } = way else { return None };
        let to = Locator::host(NAME, &host, port)?;
        Some(Detour { to, is_guarded: matches!(wish, Wish::Left | Wish::Barred) })
    }

    fn listen(&self, at: &Locator, _place: &Place) -> Result<Box<dyn Listener>, ListenError> {
        let address = match at.address() {
            Address::Inet(address) => *address,
            Address::Host(name, port) if name == LOCALHOST => here(*port),
            _ => return Err(ListenError::BadAddress { at: at.clone(), takes: TAKES }),
        };
        let made = bound(address).map_err(|errno| match errno {
            Errno::ADDRINUSE => ListenError::InUse { at: at.clone() },
            errno => ListenError::System { at: at.clone(), os: os(errno) },
        });
        let (socket, real) = made?;
        Ok(Box::new(TcpListener { socket: Socket::new(socket), at: Locator::inet(NAME, real) }))
    }

    fn connect(&self, to: &Locator, place: &Place) -> Result<Connecting, ConnectError> {
        match to.address() {
            Address::Inet(at) if place.daemons.is_empty() || leads_here(at.ip()) => connect_to(*at, to),
            Address::Inet(at) => {
                let sites = Sites::find(&place.daemons, time::now_ns());
                go(&sites, sites.of_address(*at), at.port(), to)
            }
            Address::Host(name, port) if name == LOCALHOST => connect_to(here(*port), to),
            Address::Host(name, port) => {
                let sites = Sites::find(&place.daemons, time::now_ns());
                let goes = sites.of_name(name, *port).ok_or_else(|| no_host(&sites, name, to))?;
                go(&sites, goes, *port, to)
            }
            _ => Err(ConnectError::BadAddress { to: to.clone(), takes: TAKES_TO }),
        }
    }
}

/// Connects by the kernel, to a host of the grid by this host's daemon.
fn go(sites: &Sites, goes: Goes<'_>, port: u16, to: &Locator) -> Result<Connecting, ConnectError> {
    let (host, without) = match goes {
        Goes::There(at) => return connect_to(at, to),
        Goes::Daemon { host, without } => (host, without),
    };
    match (ByDaemon::begin(sites, (host, port), to)?, without) {
        (Some(attempt), _) => Ok(Connecting::Pending(Box::new(attempt))),
        (None, Some(at)) => connect_to(at, to),
        (None, None) => {
            let why =
                format!("connections to {host} go by the daemon of this host, and none of yours is up: `madrigal up`");
            Err(ConnectError::NoPath { to: to.to_string(), why })
        }
    }
}

fn connect_to(at: SocketAddr, to: &Locator) -> Result<Connecting, ConnectError> {
    let failed = |errno| connect_error(to, errno);
    let socket = socket(family(at)).map_err(failed)?;
    match rustix::net::connect(&socket, &at) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => {}
        Err(errno) => return Err(failed(errno)),
    }
    Ok(Connecting::Pending(Box::new(Attempt { socket: Socket::new(socket), to: to.clone() })))
}

fn here(port: u16) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)
}

/// Whether an address is this host's own, and the alias of none.
fn leads_here(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback() && !hosts::is_alias(ip.to_canonical())
}

fn no_host(sites: &Sites, name: &str, to: &Locator) -> ConnectError {
    let why = match sites.is_on() {
        true => format!("the grid has no host `{name}`; there are {}", sites.names()),
        false => format!(
            "`{name}` is no numeric address, and the hosts of a grid are known where its daemon is up: `madrigal up`"
        ),
    };
    ConnectError::NoPath { to: to.to_string(), why }
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
                    Some(peer) => return Ok(Some(connection(Socket::new(fd), Locator::inet(NAME, peer)))),
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
        Ok(Some(connection(Arc::clone(&self.socket), self.to.clone())))
    }

    fn signal(&self) -> Arc<dyn Signal> {
        Arc::clone(&self.socket) as Arc<dyn Signal>
    }
}

fn bound(address: SocketAddr) -> Result<(Fd, SocketAddr), Errno> {
    let socket = socket(family(address))?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        // At every address: those of IPv4, too, whatever net.ipv6.bindv6only says.
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    let real = own(&socket).ok_or(Errno::INVAL)?;
    Ok((socket, real))
}

fn family(address: SocketAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

fn connect_error(to: &Locator, errno: Errno) -> ConnectError {
    match errno {
        Errno::CONNREFUSED => ConnectError::Refused { to: to.clone() },
        errno => ConnectError::System { to: to.clone(), os: os(errno) },
    }
}
