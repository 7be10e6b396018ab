//! Sockets of UDP to programs of this host, by system calls. That of QUIC is `madrigal_sys::udp`.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);
/// What the kernel keeps until this thread comes by.
const QUEUE: usize = 4 << 20;

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
