//! Sockets as the daemon uses them: never blocking, closed on exec, TCP without delay.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::sockopt::Timeout;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown,
    SocketAddrUnix, SocketFlags, SocketType, sockopt,
};

/// What a read or an accept gave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Got {
    /// So many bytes.
    Bytes(usize),
    /// Nothing yet.
    Nothing,
    /// Nothing more will come.
    End,
}

const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);
const BACKLOG: i32 = 1024;
/// How long a daemon on this host may take to have room in its queue.
const DIAL: Duration = Duration::from_secs(5);
/// 1280 bytes without the heads of IPv6 and TCP.
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

/// Takes an address for a socket.
pub(crate) fn bound(at: SocketAddr) -> Result<OwnedFd, Errno> {
    let socket = rustix::net::socket_with(family(at), SocketType::STREAM, FLAGS, None)?;
    rustix::net::bind(&socket, &at)?;
    Ok(socket)
}

/// Begins to connect.
pub(crate) fn dial(to: SocketAddr) -> Result<OwnedFd, Errno> {
    dial_with(to, false)
}

/// Begins to connect; with `short` packets that every network has to carry (RFC 8200, section 5).
pub(crate) fn dial_with(to: SocketAddr, short: bool) -> Result<OwnedFd, Errno> {
    let socket = rustix::net::socket_with(family(to), SocketType::STREAM, FLAGS, None)?;
    if short {
        madrigal_sys::tcp::set_longest_segment(socket.as_raw_fd(), SHORT)?;
    }
    match rustix::net::connect(&socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => {}
        Err(errno) => return Err(errno),
    }
    Ok(socket)
}

/// Whether a socket of [`dial`] is connected by now.
pub(crate) fn is_connected(socket: &OwnedFd) -> Result<bool, Errno> {
    sockopt::socket_error(socket)??;
    let Some(peer) = peer(socket) else { return Ok(false) };
    if own(socket) == Some(peer) {
        // Nobody listened, and the kernel let the socket connect to itself: the port was one of its own choice.
        return Err(Errno::CONNREFUSED);
    }
    let _ = sockopt::set_tcp_nodelay(socket, true);
    Ok(true)
}

/// Whether both ends of a connection have one address: it does not leave this host.
pub(crate) fn is_within_host(socket: &OwnedFd) -> bool {
    let ip = |at: Option<SocketAddr>| at.map(|at| at.ip().to_canonical());
    ip(own(socket)).is_some() && ip(own(socket)) == ip(peer(socket))
}

/// The next connection that waits; `None`: there is none now.
pub(crate) fn accept(listener: &OwnedFd) -> Result<Option<OwnedFd>, Errno> {
    loop {
        return match rustix::net::accept_with(listener, FLAGS) {
            Ok(socket) => {
                let _ = sockopt::set_tcp_nodelay(&socket, true);
                Ok(Some(socket))
            }
            Err(Errno::AGAIN) => Ok(None),
            Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => Err(errno),
            // The attempt failed on the way; it is the connecting side's error (accept(2), "Error handling").
            Err(errno) if errno != Errno::BADF && errno != Errno::INVAL && errno != Errno::NOTSOCK => continue,
            Err(errno) => Err(errno),
        };
    }
}

/// Reads what is there.
pub(crate) fn recv(socket: impl AsFd, buffer: &mut [u8]) -> Result<Got, Errno> {
    loop {
        return match rustix::net::recv(socket.as_fd(), &mut *buffer, RecvFlags::DONTWAIT) {
            Ok((0, _)) => Ok(Got::End),
            Ok((count, _)) => Ok(Got::Bytes(count)),
            Err(Errno::AGAIN) => Ok(Got::Nothing),
            Err(Errno::INTR) => continue,
            Err(errno) => Err(errno),
        };
    }
}

/// Reads what is there on a Unix socket; a descriptor that came along takes the place of `passed`.
pub(crate) fn recv_passing(socket: &OwnedFd, buffer: &mut [u8], passed: &mut Option<OwnedFd>) -> Result<Got, Errno> {
    // Room for one: of more the kernel closes the rest.
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
        Ok(got) if got.bytes == 0 => Ok(Got::End),
        Ok(got) => Ok(Got::Bytes(got.bytes)),
        Err(Errno::AGAIN) => Ok(Got::Nothing),
        Err(errno) => Err(errno),
    }
}

/// Looks at the first byte that came, and leaves it there.
pub(crate) fn peek(socket: impl AsFd) -> Result<(Got, u8), Errno> {
    let mut byte = [0];
    loop {
        return match rustix::net::recv(socket.as_fd(), &mut byte, RecvFlags::DONTWAIT | RecvFlags::PEEK) {
            Ok((0, _)) => Ok((Got::End, 0)),
            Ok(_) => Ok((Got::Bytes(1), byte[0])),
            Err(Errno::AGAIN) => Ok((Got::Nothing, 0)),
            Err(Errno::INTR) => continue,
            Err(errno) => Err(errno),
        };
    }
}

/// Writes as much as there is room for, out of several places; `more` follows, as in [`send_more`].
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

/// Writes as much as there is room for; with `more` the last packet may wait for more, until [`push`] or a write without.
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

/// What waits in the kernel for more waits no longer (tcp(7), `TCP_NODELAY`).
pub(crate) fn push(socket: impl AsFd) {
    let _ = sockopt::set_tcp_nodelay(socket, true);
}

/// Ends the sending direction.
pub(crate) fn finish(socket: impl AsFd) {
    let _ = rustix::net::shutdown(socket, Shutdown::Write);
}

/// Listens at a path, for its user only.
pub(crate) fn listen_unix(path: &Path) -> Result<OwnedFd, Errno> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
    let before = rustix::process::umask(Mode::from_raw_mode(0o177));
    let bound = SocketAddrUnix::new(path).and_then(|at| rustix::net::bind(&socket, &at));
    rustix::process::umask(before);
    bound?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Connects to a path; this socket blocks. `EAGAIN`: the queue there stayed full.
pub(crate) fn dial_unix(path: &Path) -> Result<OwnedFd, Errno> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // Where a daemon hangs, its queue may be full.
    sockopt::set_socket_timeout(&socket, Timeout::Send, Some(DIAL))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    sockopt::set_socket_timeout(&socket, Timeout::Send, None)?;
    Ok(socket)
}

/// Whether the process at the other end of a Unix socket is this user's (or root's, who may do anything anyway).
pub(crate) fn is_ours(socket: &OwnedFd) -> bool {
    let own = rustix::process::geteuid().as_raw();
    // It may be of another pid namespace, as where the host is one of a lab: that is no matter.
    madrigal_sys::raw::peer_credentials(socket.as_raw_fd()).is_ok_and(|(_, user)| user == own || user == 0)
}

/// The process at the other end of a Unix socket; 0 where that cannot be told.
pub(crate) fn process(socket: &OwnedFd) -> u32 {
    sockopt::socket_peercred(socket).map_or(0, |peer| peer.pid.as_raw_nonzero().get().unsigned_abs())
}

/// The address at this end.
pub(crate) fn own(socket: impl AsFd) -> Option<SocketAddr> {
    rustix::net::getsockname(socket).ok()?.try_into().ok()
}

/// The address at the other end.
pub(crate) fn peer(socket: impl AsFd) -> Option<SocketAddr> {
    rustix::net::getpeername(socket).ok()??.try_into().ok()
}

fn family(address: SocketAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

/// Whether both directions of a connection are over.
pub(crate) fn is_hung_up(socket: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut asked = [PollFd::new(socket, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut asked, Some(&at_once)).is_ok() && asked.iter().any(|fd| fd.revents().contains(PollFlags::HUP))
}
