//! Sockets that lead to programs of this host. All that is done with them goes through the C library, where SysWrap stands if this daemon
//! runs under it, as `madrigal up` sees to: the daemon is one of the programs whose connections move to shared memory then, and of this
//! nothing is known here. Its other sockets are the system's alone ([`crate::socket`]).

use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};

use nix::sys::socket::{
    self as sock, AddressFamily, Backlog, MsgFlags, Shutdown, SockFlag, SockType, SockaddrStorage, sockopt,
};
use rustix::io::Errno;

use crate::socket::Got;

/// Takes an address for a socket, together with others of this user's that do the same.
pub(crate) fn bound(at: SocketAddr) -> Result<OwnedFd, Errno> {
    let socket = made(at)?;
    sock::setsockopt(&socket, sockopt::ReusePort, &true).map_err(of)?;
    sock::bind(socket.as_raw_fd(), &SockaddrStorage::from(at)).map_err(of)?;
    Ok(socket)
}

/// Listens; nobody is accepted where nothing arrives.
pub(crate) fn listen(socket: &OwnedFd) -> Result<(), Errno> {
    sock::listen(socket, Backlog::new(1).map_err(of)?).map_err(of)
}

/// Listens at an address for programs of this host.
pub(crate) fn listen_at(at: SocketAddr) -> Result<TcpListener, Errno> {
    let listener = TcpListener::bind(at).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let _ = listener.set_nonblocking(true);
    Ok(listener)
}

/// The next connection that waits, if there is one.
pub(crate) fn accept(listener: &TcpListener) -> Option<OwnedFd> {
    let (socket, _) = listener.accept().ok()?;
    socket.set_nonblocking(true).ok()?;
    let _ = socket.set_nodelay(true);
    Some(socket.into())
}

/// Begins to connect.
pub(crate) fn dial(to: SocketAddr) -> Result<OwnedFd, Errno> {
    let socket = made(to)?;
    connect(&socket, to).map(|()| socket)
}

/// Begins to connect a socket.
pub(crate) fn connect(socket: &OwnedFd, to: SocketAddr) -> Result<(), Errno> {
    match sock::connect(socket.as_raw_fd(), &SockaddrStorage::from(to)) {
        Ok(()) | Err(nix::Error::EINPROGRESS | nix::Error::EINTR) => Ok(()),
        Err(errno) => Err(of(errno)),
    }
}

/// Reads what is there.
pub(crate) fn recv(socket: &OwnedFd, buffer: &mut [u8]) -> Result<Got, Errno> {
    loop {
        return match sock::recv(socket.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT) {
            Ok(0) => Ok(Got::End),
            Ok(count) => Ok(Got::Bytes(count)),
            Err(nix::Error::EAGAIN) => Ok(Got::Nothing),
            Err(nix::Error::EINTR) => continue,
            Err(errno) => Err(of(errno)),
        };
    }
}

/// Writes as much as there is room for.
pub(crate) fn send(socket: &OwnedFd, bytes: &[u8]) -> Result<usize, Errno> {
    loop {
        return match sock::send(socket.as_raw_fd(), bytes, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL) {
            Ok(count) => Ok(count),
            Err(nix::Error::EAGAIN) => Ok(0),
            Err(nix::Error::EINTR) => continue,
            Err(errno) => Err(of(errno)),
        };
    }
}

/// Ends the sending direction.
pub(crate) fn finish(socket: &OwnedFd) {
    let _ = sock::shutdown(socket.as_raw_fd(), Shutdown::Write);
}

/// From now on, whenever the socket is closed, by whomever (`kill -9` too), its peer sees a reset; or no longer so.
pub(crate) fn reset_at_close(socket: &impl AsFd, reset: bool) {
    let _ = sock::setsockopt(socket, sockopt::Linger, &nix::libc::linger { l_onoff: reset.into(), l_linger: 0 });
}

fn made(at: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if at.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    sock::socket(family, SockType::Stream, flags, None).map_err(of)
}

/// What the C library calls an error, as the rest of the daemon calls it.
pub(crate) fn of(errno: nix::Error) -> Errno {
    Errno::from_raw_os_error(errno as i32)
}
