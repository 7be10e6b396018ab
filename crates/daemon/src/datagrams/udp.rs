//! Sockets of UDP, by system calls. That of QUIC sends and receives many datagrams by one call (UDP_SEGMENT, UDP_GRO: udp(7)). It reports
//! at which address of this host each arrived, so that the answer leaves from there.

use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use madrigal_quic::Outgoing;
use madrigal_sys::raw;
use nix::libc;
use nix::sys::socket::{
    self as sock, ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, sockopt as option,
};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

use crate::local::libc_socket::to_errno;
use crate::socket;

const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);
/// What the kernel keeps until this thread comes by.
const QUEUE: usize = 4 << 20;

/// A socket that speaks QUIC.
pub(crate) struct QuicSocket {
    socket: OwnedFd,
    at: SocketAddr,
    /// The kernel cuts what is longer than a datagram.
    segments: bool,
}

/// Datagrams of one call, each but the last of which is so long.
pub(crate) struct Received {
    pub(crate) len: usize,
    pub(crate) segment: usize,
    pub(crate) from: SocketAddr,
    /// The address of this host.
    pub(crate) to: Option<IpAddr>,
}

impl QuicSocket {
    /// A socket at an address of this host; without IPv6 at those of IPv4.
    pub(crate) fn bind(at: SocketAddr) -> Result<Self, Errno> {
        match Self::bind_at(at) {
            Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) if at.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) => {
                Self::bind_at(SocketAddr::new(std::net::Ipv4Addr::UNSPECIFIED.into(), at.port()))
            }
            other => other,
        }
    }

    fn bind_at(at: SocketAddr) -> Result<Self, Errno> {
        let socket = new(at)?;
        if at.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, false)?;
            let _ = sock::setsockopt(&socket, option::Ipv6RecvPacketInfo, &true);
            let _ = raw::set_sockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_IPV6,
                libc::IPV6_MTU_DISCOVER,
                &libc::IPV6_PMTUDISC_PROBE,
            );
        } else {
            let _ = sock::setsockopt(&socket, option::Ipv4PacketInfo, &true);
        }
        // No datagram may be fragmented while the longest one is probed (RFC 8899). For IPv4 on a socket of IPv6, too.
        let _ = raw::set_sockopt(socket.as_raw_fd(), libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, &libc::IP_PMTUDISC_PROBE);
        let _ = sock::setsockopt(&socket, option::UdpGroSegment, &true);
        let _ = sockopt::set_socket_recv_buffer_size(&socket, QUEUE);
        let _ = sockopt::set_socket_send_buffer_size(&socket, QUEUE);
        rustix::net::bind(&socket, &at)?;
        let at = socket::local_addr(&socket).unwrap_or(at);
        Ok(Self { socket, at, segments: true })
    }

    /// Where it is.
    pub(crate) fn at(&self) -> SocketAddr {
        self.at
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether it can send there.
    pub(crate) fn reaches(&self, to: SocketAddr) -> bool {
        let own = self.at.ip();
        (own.is_ipv4() == to.is_ipv4() || own == IpAddr::V6(Ipv6Addr::UNSPECIFIED))
            && (own.is_unspecified() || own.is_loopback() == to.ip().is_loopback())
    }

    /// Reads what one call gives. `None`: there is nothing.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> Option<Received> {
        let mut control = nix::cmsg_space!(libc::in6_pktinfo, libc::in_pktinfo, i32);
        let mut pieces = [IoSliceMut::new(buffer)];
        let got = sock::recvmsg::<SockaddrStorage>(
            self.socket.as_raw_fd(),
            &mut pieces,
            Some(&mut control),
            MsgFlags::empty(),
        )
        .ok()?;
        let (mut segment, mut to) = (got.bytes.max(1), None);
        for one in got.cmsgs().ok()? {
            match one {
                ControlMessageOwned::UdpGroSegments(len) => segment = usize::try_from(len).unwrap_or(0).max(1),
                ControlMessageOwned::Ipv6PacketInfo(info) => {
                    to = Some(IpAddr::from(info.ipi6_addr.s6_addr).to_canonical());
                }
                ControlMessageOwned::Ipv4PacketInfo(info) => {
                    to = Some(IpAddr::from(info.ipi_addr.s_addr.to_ne_bytes()));
                }
                _ => {}
            }
        }
        let from = address(got.address.as_ref()?)?;
        Some(Received { len: got.bytes, segment, from, to })
    }

    /// Sends datagrams. False: there is no room for them now. What cannot go there is lost, which QUIC notices.
    pub(crate) fn send(&mut self, outgoing: &Outgoing, bytes: &[u8]) -> bool {
        let segment = outgoing.segment.filter(|len| *len < bytes.len());
        if let Some(len) = segment.filter(|_| self.segments) {
            match self.send_one(outgoing, bytes, u16::try_from(len).ok()) {
                Err(Errno::INVAL | Errno::IO | Errno::NOPROTOOPT) => self.segments = false,
                done => return done != Err(Errno::AGAIN),
            }
        }
        // One by one; what has no room behind the first is lost.
        let mut datagrams = bytes.chunks(segment.unwrap_or(bytes.len()).max(1));
        let first = datagrams.next().map(|first| self.send_one(outgoing, first, None));
        if first == Some(Err(Errno::AGAIN)) {
            return false;
        }
        for datagram in datagrams {
            let _ = self.send_one(outgoing, datagram, None);
        }
        true
    }

    fn send_one(&self, outgoing: &Outgoing, bytes: &[u8], segment: Option<u16>) -> Result<(), Errno> {
        let mapped = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let is_v6 = self.at.is_ipv6();
        let to = if is_v6 { SocketAddr::new(mapped(outgoing.to.ip()).into(), outgoing.to.port()) } else { outgoing.to };
        let source4 = match outgoing.from.filter(|_| !is_v6) {
            Some(IpAddr::V4(ip)) => Some(libc::in_pktinfo {
                ipi_ifindex: 0,
                ipi_spec_dst: libc::in_addr { s_addr: u32::from_ne_bytes(ip.octets()) },
                ipi_addr: libc::in_addr { s_addr: 0 },
            }),
            _ => None,
        };
        let source6 = outgoing.from.filter(|_| is_v6).map(|ip| libc::in6_pktinfo {
            ipi6_addr: libc::in6_addr { s6_addr: mapped(ip).octets() },
            ipi6_ifindex: 0,
        });
        let messages = [
            segment.as_ref().map(ControlMessage::UdpGsoSegments),
            source4.as_ref().map(ControlMessage::Ipv4PacketInfo),
            source6.as_ref().map(ControlMessage::Ipv6PacketInfo),
        ];
        let messages: Vec<ControlMessage<'_>> = messages.into_iter().flatten().collect();
        let (to, pieces) = (SockaddrStorage::from(to), [IoSlice::new(bytes)]);
        sock::sendmsg(self.socket.as_raw_fd(), &pieces, &messages, MsgFlags::empty(), Some(&to))
            .map(drop)
            .map_err(to_errno)
    }
}

/// A socket to which programs of this host send.
pub(crate) fn listen(at: SocketAddr) -> Result<OwnedFd, Errno> {
    let socket = new(at)?;
    let _ = sockopt::set_socket_recv_buffer_size(&socket, QUEUE);
    rustix::net::bind(&socket, &at)?;
    Ok(socket)
}

/// A socket that sends to one address, and takes what comes from there.
pub(crate) fn connect(to: SocketAddr) -> Result<OwnedFd, Errno> {
    let socket = new(to)?;
    let _ = sockopt::set_socket_recv_buffer_size(&socket, QUEUE);
    rustix::net::connect(&socket, &to)?;
    Ok(socket)
}

/// Reads a datagram, and from where it came.
pub(crate) fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> Result<(usize, Option<SocketAddr>), Errno> {
    let (_, count, from) = rustix::net::recvfrom(socket, buffer, RecvFlags::empty())?;
    Ok((count, from.and_then(|from| SocketAddr::try_from(from).ok())))
}

/// Sends a datagram; on a socket that is connected there is no address.
pub(crate) fn send(socket: &OwnedFd, bytes: &[u8], to: Option<SocketAddr>) -> Result<(), Errno> {
    match to {
        Some(to) => rustix::net::sendto(socket, bytes, SendFlags::NOSIGNAL, &to).map(drop),
        None => rustix::net::send(socket, bytes, SendFlags::NOSIGNAL).map(drop),
    }
}

fn new(at: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    rustix::net::socket_with(family, SocketType::DGRAM, FLAGS, None)
}

fn address(from: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = from.as_sockaddr_in().map(|at| SocketAddr::new(at.ip().into(), at.port()));
    let v6 = || from.as_sockaddr_in6().map(|at| SocketAddr::new(IpAddr::V6(at.ip()).to_canonical(), at.port()));
    v4.or_else(v6)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    /// Several datagrams by one call, between a socket at all addresses and one at one, there and back.
    #[test]
    fn datagrams_come_as_they_were_cut_and_the_answer_leaves_where_they_came() {
        let everywhere = QuicSocket::bind(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0)).unwrap();
        let mut here = QuicSocket::bind(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0)).unwrap();
        let at = IpAddr::from([127, 0, 0, 7]);
        let outgoing = Outgoing { to: SocketAddr::new(at, everywhere.at().port()), from: None, segment: Some(1000) };
        let bytes: Vec<u8> = (0..2500u32).map(|at| at as u8).collect();
        assert!(here.send(&outgoing, &bytes));
        let (mut all, mut buffer, mut everywhere) = (Vec::new(), vec![0; 65536], everywhere);
        while all.len() < bytes.len() {
            let Some(got) = everywhere.receive(&mut buffer) else { continue };
            assert!(got.segment == 1000 || got.len == 500 || got.len == 1000, "{} of {}", got.segment, got.len);
            assert_eq!((got.from, got.to), (here.at(), Some(at)));
            all.extend_from_slice(&buffer[..got.len]);
        }
        assert_eq!(all, bytes);
        assert!(everywhere.send(&Outgoing { to: here.at(), from: Some(at), segment: None }, b"answer"));
        let answer = loop {
            if let Some(got) = here.receive(&mut buffer) {
                break got;
            }
        };
        assert_eq!((answer.len, answer.from.ip()), (6, at));
    }
}
