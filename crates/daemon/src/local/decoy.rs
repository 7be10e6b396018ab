//! Decoy listeners: ports of the loopback addresses where programs' connects wait.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd as _, OwnedFd};

use madrigal_proto::hosts::Ports;
use madrigal_sys::{raw, tcp};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketType, sockopt};

use crate::local::libc_socket;
use crate::socket;

/// A port where connects wait: all packets to it are dropped.
pub(crate) struct Decoy {
    pub(crate) listener: OwnedFd,
    pub(crate) at: SocketAddr,
    /// A port that is bound and has no listener: the kernel refuses connects to it.
    pub(crate) _refusing: OwnedFd,
    pub(crate) refusing_at: SocketAddr,
}

/// The decoys of IPv4 and, where there is IPv6, of that.
pub(crate) struct Decoys(Vec<Decoy>);

impl Decoy {
    fn open(ip: IpAddr) -> Result<Self, Errno> {
        let any = SocketAddr::new(ip, 0);
        let (listener, refusing) = (libc_socket::bind(any)?, socket::bind(any)?);
        raw::drop_packets(listener.as_raw_fd())?;
        libc_socket::listen(&listener)?;
        let at = socket::local_addr(&listener).ok_or(Errno::ADDRNOTAVAIL)?;
        let refusing_at = socket::local_addr(&refusing).ok_or(Errno::ADDRNOTAVAIL)?;
        Ok(Self { listener, at, _refusing: refusing, refusing_at })
    }
}

impl Decoys {
    /// Opens those that this host can have.
    pub(crate) fn open() -> Self {
        let loopback: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        Self(loopback.into_iter().filter_map(|ip| Decoy::open(ip).ok()).collect())
    }

    /// The decoy for sockets of an address.
    pub(crate) fn for_ip(&self, ip: IpAddr) -> Option<&Decoy> {
        self.0.iter().find(|decoy| decoy.at.is_ipv4() == ip.to_canonical().is_ipv4())
    }

    /// The ports of the decoys of IPv4 and IPv6, and those that refuse; 0 where there is none.
    pub(crate) fn ports(&self) -> Ports {
        let of = |ip: IpAddr| self.for_ip(ip).map_or((0, 0), |decoy| (decoy.at.port(), decoy.refusing_at.port()));
        let (four, six) = (of(Ipv4Addr::LOCALHOST.into()), of(Ipv6Addr::LOCALHOST.into()));
        [four.0, six.0, four.1, six.1]
    }

    /// Whether a descriptor of a program is a TCP socket of this network namespace.
    pub(crate) fn check(&self, socket: &OwnedFd) -> Result<(), String> {
        let decoy = self.0.first().ok_or("this daemon has no loopback address")?;
        let family = sockopt::socket_domain(socket);
        let is_stream = sockopt::socket_type(socket) == Ok(SocketType::STREAM);
        if !(matches!(family, Ok(AddressFamily::INET | AddressFamily::INET6)) && is_stream)
            || tcp_state(socket).is_none()
        {
            return Err("what was passed is no TCP socket".to_owned());
        }
        if tcp::netns_cookie(socket.as_raw_fd()) != tcp::netns_cookie(decoy.listener.as_raw_fd()) {
            return Err("the program is in another network namespace than this daemon".to_owned());
        }
        Ok(())
    }
}

/// Ends the connect of a program's socket, if it is in SYN_SENT.
pub(crate) fn abort_connect(socket: &OwnedFd) {
    if tcp_state(socket) == Some(tcp::SYN_SENT) {
        let _ = rustix::net::shutdown(socket, Shutdown::Both);
    }
}

/// The TCP state of a socket; `None`: it is no TCP.
pub(crate) fn tcp_state(socket: &OwnedFd) -> Option<u8> {
    tcp::info(socket.as_raw_fd()).ok().map(|info| info.state)
}
