//! A socket of UDP for QUIC, by raw system calls: many datagrams by one call (UDP_SEGMENT, UDP_GRO: udp(7)), the address of this host at which
//! each arrived, so that the answer leaves from there (IP_PKTINFO: ip(7)), and what ICMP reports of a peer (IP_RECVERR).
//!
//! It never blocks. What is longer than the path takes is lost, and not fragmented: QUIC probes how long it may be (RFC 8899).

mod control;

use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::sync::atomic::{AtomicBool, Ordering};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::fd::Fd;
use crate::raw;
use control::{Control, Name, Note};

/// What the kernel keeps until the socket is read, where its limits let it.
const QUEUE: usize = 4 << 20;

/// A socket of UDP.
#[derive(Debug)]
pub struct UdpSocket {
    fd: Fd,
    at: SocketAddr,
    /// It has one peer only.
    connected: bool,
    /// The kernel cuts what is longer than a datagram.
    segments: AtomicBool,
}

/// Datagrams of one call, each but the last of which is `segment` bytes long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Received {
    /// Bytes of all of them.
    pub len: usize,
    /// Bytes of each; at least 1.
    pub segment: usize,
    /// Who sent them.
    pub from: SocketAddr,
    /// The address of this host, if the kernel tells.
    pub to: Option<IpAddr>,
}

impl UdpSocket {
    /// A socket at an address of this host; without IPv6, where it is to be at all of its addresses, at those of IPv4.
    pub fn bind(at: SocketAddr) -> Result<Self, Errno> {
        match Self::bind_at(at) {
            Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) if at.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) => {
                Self::bind_at(SocketAddr::new(std::net::Ipv4Addr::UNSPECIFIED.into(), at.port()))
            }
            other => other,
        }
    }

    fn bind_at(at: SocketAddr) -> Result<Self, Errno> {
        let fd = new(at)?;
        rustix::net::bind(&fd, &at)?;
        Ok(Self { at: own(&fd).unwrap_or(at), fd, connected: false, segments: AtomicBool::new(true) })
    }

    /// A socket that sends to one address, and takes what comes from there. [`UdpSocket::receive`] and [`UdpSocket::send`] fail with
    /// `ECONNREFUSED` once ICMP has reported that nobody is there.
    pub fn connect(to: SocketAddr) -> Result<Self, Errno> {
        let fd = new(to)?;
        rustix::net::connect(&fd, &to)?;
        Ok(Self { at: own(&fd).ok_or(Errno::INVAL)?, fd, connected: true, segments: AtomicBool::new(true) })
    }

    /// From now on ICMP's reports are kept for [`UdpSocket::unreachable`].
    pub fn watch_errors(&self) {
        let (fd, on) = (self.fd.as_raw_fd(), 1);
        let _ = raw::set_sockopt(fd, libc::IPPROTO_IP, libc::IP_RECVERR, &on);
        if self.at.is_ipv6() {
            let _ = raw::set_sockopt(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, &on);
        }
    }

    /// Where it is.
    pub fn at(&self) -> SocketAddr {
        self.at
    }

    /// Whether it can send there.
    pub fn reaches(&self, to: SocketAddr) -> bool {
        let own = self.at.ip();
        (own.is_ipv4() == to.is_ipv4() || own == IpAddr::V6(Ipv6Addr::UNSPECIFIED))
            && (own.is_unspecified() || own.is_loopback() == to.ip().is_loopback())
    }

    /// Reads what one call gives. `EAGAIN`: there is nothing. Any other error is a report about an earlier send: what came is read by the next
    /// call.
    pub fn receive(&self, buffer: &mut [u8]) -> Result<Received, Errno> {
        let (mut name, mut control) = (Name::room(), Control::default());
        let len = control::receive(self.fd.as_raw_fd(), buffer, (&mut name, &mut control), 0)?;
        let (mut segment, mut to) = (len.max(1), None);
        for note in control.notes() {
            match note {
                Note::Segment(length) => segment = length.max(1),
                Note::To(address) => to = Some(address),
                Note::Unreachable => {}
            }
        }
        let from = name.address().ok_or(Errno::INVAL)?;
        Ok(Received { len, segment, from, to })
    }

    /// The next address at which nobody is, by ICMP's word: what was sent there came to a port that no socket has. `None`: there is none. Who
    /// is on the way may forge such a word.
    pub fn unreachable(&self) -> Option<SocketAddr> {
        // What is reported beside it, such as datagrams that were too long, is taken out and means nothing here.
        loop {
            let (mut name, mut control) = (Name::room(), Control::default());
            control::receive(self.fd.as_raw_fd(), &mut [], (&mut name, &mut control), libc::MSG_ERRQUEUE).ok()?;
            if control.notes().any(|note| note == Note::Unreachable) {
                return name.address();
            }
        }
    }

    /// Sends datagrams of `segment` bytes each, the last one shorter; one where that is `None`; from that address of this host, or from any.
    /// `EAGAIN`: there is no room for them now. What has no room behind the first of them, or cannot go there, is lost, which QUIC notices.
    pub fn send(
        &self,
        to: SocketAddr,
        from: Option<IpAddr>,
        segment: Option<usize>,
        bytes: &[u8],
    ) -> Result<(), Errno> {
        let segment = segment.filter(|length| *length < bytes.len());
        if let Some(length) =
            segment.filter(|_| self.segments.load(Ordering::Relaxed)).and_then(|length| u16::try_from(length).ok())
        {
            match self.send_one(to, from, Some(length), bytes) {
                Err(Errno::INVAL | Errno::IO | Errno::NOPROTOOPT) => self.segments.store(false, Ordering::Relaxed),
                done => return done,
            }
        }
        let mut datagrams = bytes.chunks(segment.unwrap_or(bytes.len()).max(1));
        let first = datagrams.next().map_or(Ok(()), |first| self.send_one(to, from, None, first));
        if first != Err(Errno::AGAIN) {
            datagrams.for_each(|datagram| _ = self.send_one(to, from, None, datagram));
        }
        first
    }

    fn send_one(&self, to: SocketAddr, from: Option<IpAddr>, segment: Option<u16>, bytes: &[u8]) -> Result<(), Errno> {
        let name = if self.connected { Name::none() } else { Name::of(to, self.at.is_ipv6()) };
        let mut control = Control::default();
        if let Some(length) = segment {
            control.add_segment(length);
        }
        if let Some(from) = from.filter(|_| !self.connected) {
            control.add_source(from, self.at.is_ipv6());
        }
        control::send(self.fd.as_raw_fd(), bytes, (&name, &control))
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn new(at: SocketAddr) -> Result<Fd, Errno> {
    let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let fd = Fd::from(rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?);
    let (number, on) = (fd.as_raw_fd(), 1);
    if at.is_ipv6() {
        sockopt::set_ipv6_v6only(&fd, false)?;
        let _ = raw::set_sockopt(number, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, &on);
        let _ = raw::set_sockopt(number, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, &libc::IPV6_PMTUDISC_PROBE);
    } else {
        let _ = raw::set_sockopt(number, libc::IPPROTO_IP, libc::IP_PKTINFO, &on);
    }
    // For IPv4 on a socket of IPv6, too.
    let _ = raw::set_sockopt(number, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, &libc::IP_PMTUDISC_PROBE);
    let _ = raw::set_sockopt(number, libc::IPPROTO_UDP, libc::UDP_GRO, &on);
    let _ = sockopt::set_socket_recv_buffer_size(&fd, QUEUE);
    let _ = sockopt::set_socket_send_buffer_size(&fd, QUEUE);
    Ok(fd)
}

fn own(fd: &Fd) -> Option<SocketAddr> {
    rustix::net::getsockname(fd).ok()?.try_into().ok()
}

#[cfg(test)]
mod tests;
