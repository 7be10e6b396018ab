//! Sockets by system calls: never blocking, closed on exec, TCP without delay. Sockets to programs of this host are in
//! [`crate::local::libc_socket`].

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::Timeout;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown,
    SocketAddrUnix, SocketFlags, SocketType, sockopt,
};

/// The result of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Recv {
    /// The number of bytes read.
    Bytes(usize),
    /// There is nothing to read yet.
    WouldBlock,
    /// The end of the stream.
    End,
}

const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);
const BACKLOG: i32 = 1024;
/// The time that the daemon may take until its accept queue has room.
const DIAL: Duration = Duration::from_secs(5);
/// A segment that fits 1280 bytes with the headers of IPv6 and TCP.
const SHORT: i32 = 1280 - 40 - 20;

/// Listens at an address.
pub(crate) fn listen(at: SocketAddr) -> Result<OwnedFd, Errno> {
    let socket = rustix::net::socket_with(family(at), SocketType::STREAM, FLAGS, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if at.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    rustix::net::bind(&socket, &at)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// A socket bound to an address.
pub(crate) fn bind(at: SocketAddr) -> Result<OwnedFd, Errno> {
    let socket = rustix::net::socket_with(family(at), SocketType::STREAM, FLAGS, None)?;
    rustix::net::bind(&socket, &at)?;
    Ok(socket)
}

/// Begins to connect.
pub(crate) fn dial(to: SocketAddr) -> Result<OwnedFd, Errno> {
    dial_with(to, false)
}

/// Begins to connect; with `short`, in packets that every network must carry (RFC 8200, section 5).
pub(crate) fn dial_with(to: SocketAddr, short: bool) -> Result<OwnedFd, Errno> {
    let socket = rustix::net::socket_with(family(to), SocketType::STREAM, FLAGS, None)?;
    if short {
        madrigal_sys::tcp::set_longest_segment(socket.as_raw_fd(), SHORT)?;
    }
    // Two connections may leave from the same port: one to a relay, and one to the host behind the relay.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    begin_to_connect(socket, to)
}

/// Begins to connect from an address of this host that a connection of [`dial_with`] has already.
pub(crate) fn dial_from(from: SocketAddr, to: SocketAddr) -> Result<OwnedFd, Errno> {
    let socket = rustix::net::socket_with(family(to), SocketType::STREAM, FLAGS, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &from)?;
    begin_to_connect(socket, to)
}

fn begin_to_connect(socket: OwnedFd, to: SocketAddr) -> Result<OwnedFd, Errno> {
    match rustix::net::connect(&socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(socket),
        Err(errno) => Err(errno),
    }
}

/// The address of this host from which packets go there. Nothing is sent.
pub(crate) fn source_of(to: SocketAddr) -> Option<IpAddr> {
    let socket = rustix::net::socket_with(family(to), SocketType::DGRAM, FLAGS, None).ok()?;
    rustix::net::connect(&socket, &to).ok()?;
    local_addr(&socket).map(|at| at.ip().to_canonical())
}

/// Whether a socket of [`dial`] is connected.
pub(crate) fn is_connected(socket: &OwnedFd) -> Result<bool, Errno> {
    sockopt::socket_error(socket)??;
    let Some(peer) = peer_addr(socket) else { return Ok(false) };
    if local_addr(socket) == Some(peer) {
        // Nothing listens there, and the kernel connected the socket to itself: the port is from the ephemeral range.
        return Err(Errno::CONNREFUSED);
    }
    let _ = sockopt::set_tcp_nodelay(socket, true);
    Ok(true)
}

/// Whether both ends of a connection have the same address, so that it does not leave this host.
pub(crate) fn is_within_host(socket: &OwnedFd) -> bool {
    let ip = |at: Option<SocketAddr>| at.map(|at| at.ip().to_canonical());
    ip(local_addr(socket)).is_some() && ip(local_addr(socket)) == ip(peer_addr(socket))
}

/// The next connection of the accept queue, if there is one.
pub(crate) fn accept(listener: &OwnedFd) -> Result<Option<OwnedFd>, Errno> {
    loop {
        return match rustix::net::accept_with(listener, FLAGS) {
            Ok(socket) => {
                let _ = sockopt::set_tcp_nodelay(&socket, true);
                Ok(Some(socket))
            }
            Err(Errno::AGAIN) => Ok(None),
            Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => Err(errno),
            // The attempt failed in the network: an error of the connecting end (accept(2), "Error handling").
            Err(errno) if errno != Errno::BADF && errno != Errno::INVAL && errno != Errno::NOTSOCK => continue,
            Err(errno) => Err(errno),
        };
    }
}

/// Reads what is there.
pub(crate) fn recv(socket: impl AsFd, buffer: &mut [u8]) -> Result<Recv, Errno> {
    loop {
        return match rustix::net::recv(socket.as_fd(), &mut *buffer, RecvFlags::DONTWAIT) {
            Ok((0, _)) => Ok(Recv::End),
            Ok((count, _)) => Ok(Recv::Bytes(count)),
            Err(Errno::AGAIN) => Ok(Recv::WouldBlock),
            Err(Errno::INTR) => continue,
            Err(errno) => Err(errno),
        };
    }
}

/// Reads what is there on a Unix socket. A descriptor that came with it replaces `passed`.
pub(crate) fn recv_passing(socket: &OwnedFd, buffer: &mut [u8], passed: &mut Option<OwnedFd>) -> Result<Recv, Errno> {
    // Room for one descriptor: the kernel closes the others.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = loop {
        match rustix::net::recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags) {
            Err(Errno::INTR) => {}
            other => break other,
        }
    };
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(all) = message {
            *passed = all.last().or(passed.take());
        }
    }
    match got {
        Ok(got) if got.bytes == 0 => Ok(Recv::End),
        Ok(got) => Ok(Recv::Bytes(got.bytes)),
        Err(Errno::AGAIN) => Ok(Recv::WouldBlock),
        Err(errno) => Err(errno),
    }
}

/// The first unread byte, which stays unread.
pub(crate) fn peek(socket: impl AsFd) -> Result<(Recv, u8), Errno> {
    let mut byte = [0];
    loop {
        return match rustix::net::recv(socket.as_fd(), &mut byte, RecvFlags::DONTWAIT | RecvFlags::PEEK) {
            Ok((0, _)) => Ok((Recv::End, 0)),
            Ok(_) => Ok((Recv::Bytes(1), byte[0])),
            Err(Errno::AGAIN) => Ok((Recv::WouldBlock, 0)),
            Err(Errno::INTR) => continue,
            Err(errno) => Err(errno),
        };
    }
}

/// Writes several buffers, as much as there is room for; `more` as in [`send_more`].
pub(crate) fn send_all(socket: impl AsFd, bytes: &[IoSlice<'_>], more: bool) -> Result<usize, Errno> {
    loop {
        let flags = flags(more);
        return match rustix::net::sendmsg(socket.as_fd(), bytes, &mut SendAncillaryBuffer::default(), flags) {
            Ok(count) => Ok(count),
            Err(Errno::AGAIN) => Ok(0),
            Err(Errno::INTR) => continue,
            Err(errno) => Err(errno),
        };
    }
}

/// Writes as much as there is room for.
pub(crate) fn send(socket: impl AsFd, bytes: &[u8]) -> Result<usize, Errno> {
    send_more(socket, bytes, false)
}

/// Writes as much as there is room for. With `more` the kernel may hold the last packet back, until [`push`] or a write without it.
pub(crate) fn send_more(socket: impl AsFd, bytes: &[u8], more: bool) -> Result<usize, Errno> {
    loop {
        return match rustix::net::send(socket.as_fd(), bytes, flags(more)) {
            Ok(count) => Ok(count),
            Err(Errno::AGAIN) => Ok(0),
            Err(Errno::INTR) => continue,
            Err(errno) => Err(errno),
        };
    }
}

fn flags(more: bool) -> SendFlags {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    if more { flags | SendFlags::MORE } else { flags }
}

/// Sends what the kernel holds back (tcp(7), `TCP_NODELAY`).
pub(crate) fn push(socket: impl AsFd) {
    let _ = sockopt::set_tcp_nodelay(socket, true);
}

/// Shuts the sending direction.
pub(crate) fn shutdown_write(socket: impl AsFd) {
    let _ = rustix::net::shutdown(socket, Shutdown::Write);
}

/// Listens at a path that only this user can open.
pub(crate) fn listen_unix(path: &Path) -> Result<OwnedFd, Errno> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
    let before = rustix::process::umask(Mode::from_raw_mode(0o177));
    let bound = SocketAddrUnix::new(path).and_then(|at| rustix::net::bind(&socket, &at));
    rustix::process::umask(before);
    bound?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Connects to a path; this socket blocks. `EAGAIN`: the accept queue there stayed full.
pub(crate) fn dial_unix(path: &Path) -> Result<OwnedFd, Errno> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // The queue of a hung daemon may be full.
    sockopt::set_socket_timeout(&socket, Timeout::Send, Some(DIAL))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    sockopt::set_socket_timeout(&socket, Timeout::Send, None)?;
    Ok(socket)
}

/// Whether the process at the other end of a Unix socket is this user's, or root's.
pub(crate) fn is_same_user(socket: &OwnedFd) -> bool {
    let own = rustix::process::geteuid().as_raw();
    // It may be of another pid namespace, as on a host of a lab.
    madrigal_sys::raw::peer_credentials(socket.as_raw_fd()).is_ok_and(|(_, user)| user == own || user == 0)
}

/// The process at the other end of a Unix socket; 0 where it is unknown.
pub(crate) fn peer_pid(socket: &OwnedFd) -> u32 {
    sockopt::socket_peercred(socket).map_or(0, |peer| peer.pid.as_raw_nonzero().get().unsigned_abs())
}

/// A socket at which the kernel reports changes of this host's addresses and routes (rtnetlink(7)).
pub(crate) fn changes_of_addresses() -> Result<OwnedFd, Errno> {
    // RTMGRP_IPV4_IFADDR, RTMGRP_IPV4_ROUTE, RTMGRP_IPV6_IFADDR, RTMGRP_IPV6_ROUTE.
    const GROUPS: u32 = 0x10 | 0x40 | 0x100 | 0x400;
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, FLAGS, None)?;
    rustix::net::bind(&socket, &SocketAddrNetlink::new(0, GROUPS))?;
    Ok(socket)
}

/// Whether an address is one of this host's.
pub(crate) fn is_own_address(mut at: SocketAddr) -> bool {
    at.set_port(0);
    let bound = rustix::net::socket_with(family(at), SocketType::DGRAM, FLAGS, None)
        .and_then(|socket| rustix::net::bind(&socket, &at));
    bound != Err(Errno::ADDRNOTAVAIL)
}

/// The address at this end.
pub(crate) fn local_addr(socket: impl AsFd) -> Option<SocketAddr> {
    rustix::net::getsockname(socket).ok()?.try_into().ok()
}

/// The address at the other end.
pub(crate) fn peer_addr(socket: impl AsFd) -> Option<SocketAddr> {
    rustix::net::getpeername(socket).ok()??.try_into().ok()
}

fn family(address: SocketAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

/// Whether both directions of a connection are shut.
pub(crate) fn is_hung_up(socket: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut asked = [PollFd::new(socket, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut asked, Some(&at_once)).is_ok() && asked.iter().any(|fd| fd.revents().contains(PollFlags::HUP))
}
