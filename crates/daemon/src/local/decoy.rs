//! Decoy listeners: ports of the loopback addresses where programs' connects wait.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd as _, OwnedFd};

use madrigal_proto::hosts::Ports;
use madrigal_sys::{raw, tcp};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketType, sockopt};

use crate::local::libc_socket;
use crate::socket;

/// A port where connects wait: the listener answers nobody.
pub(crate) struct Decoy {
    pub(crate) listener: OwnedFd,
    pub(crate) at: SocketAddr,
    /// A port that is taken and where nobody listens: who connects there is refused by the kernel.
    pub(crate) _refusing: OwnedFd,
    pub(crate) refusing_at: SocketAddr,
}

/// The decoys: of IPv4, and of IPv6 where there is any.
pub(crate) struct Decoys(Vec<Decoy>);

impl Decoy {
    pub(crate) fn open(ip: IpAddr) -> Result<Self, Errno> {
        let any = SocketAddr::new(ip, 0);
        let (listener, refusing) = (libc_socket::bound(any)?, socket::bound(any)?);
        raw::drop_packets(listener.as_raw_fd())?;
        libc_socket::listen(&listener)?;
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

    pub(crate) fn of(&self, ip: IpAddr) -> Option<&Decoy> {
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

pub(crate) fn state(socket: &OwnedFd) -> Option<u8> {
    tcp::info(socket.as_raw_fd()).ok().map(|info| info.state)
}
