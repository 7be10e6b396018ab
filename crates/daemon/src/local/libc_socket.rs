//! Sockets to programs of this host. All calls on them go through the C library, so that SysWrap sees them: `madrigal up` runs the daemon
//! under it, and these connections move to shared memory like those of any program. Nothing here knows of that. The daemon's other sockets
//! are used by system calls ([`crate::socket`]).

use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};

use nix::sys::socket::{
    self as sock, AddressFamily, Backlog, MsgFlags, Shutdown, SockFlag, SockType, SockaddrStorage, sockopt,
};
use rustix::io::Errno;

use crate::socket::Recv;

/// A socket bound to an address that other sockets of this user share (`SO_REUSEPORT`).
pub(crate) fn bind(at: SocketAddr) -> Result<OwnedFd, Errno> {
    let socket = new_socket(at)?;
    sock::setsockopt(&socket, sockopt::ReusePort, &true).map_err(to_errno)?;
    sock::bind(socket.as_raw_fd(), &SockaddrStorage::from(at)).map_err(to_errno)?;
    Ok(socket)
}

/// Listens with the shortest queue.
pub(crate) fn listen(socket: &OwnedFd) -> Result<(), Errno> {
    sock::listen(socket, Backlog::new(1).map_err(to_errno)?).map_err(to_errno)
}

/// Listens at an address for programs of this host.
pub(crate) fn listen_at(at: SocketAddr) -> Result<TcpListener, Errno> {
    let listener = TcpListener::bind(at).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let _ = listener.set_nonblocking(true);
    Ok(listener)
}

/// The next connection of the accept queue, if there is one.
pub(crate) fn accept(listener: &TcpListener) -> Option<OwnedFd> {
    let (socket, _) = listener.accept().ok()?;
    socket.set_nonblocking(true).ok()?;
    let _ = socket.set_nodelay(true);
    Some(socket.into())
}

/// Begins to connect.
pub(crate) fn dial(to: SocketAddr) -> Result<OwnedFd, Errno> {
    let socket = new_socket(to)?;
    connect(&socket, to).map(|()| socket)
}

/// Begins to connect a socket.
pub(crate) fn connect(socket: &OwnedFd, to: SocketAddr) -> Result<(), Errno> {
    match sock::connect(socket.as_raw_fd(), &SockaddrStorage::from(to)) {
        Ok(()) | Err(nix::Error::EINPROGRESS | nix::Error::EINTR) => Ok(()),
        Err(errno) => Err(to_errno(errno)),
    }
}

/// Reads what is there.
pub(crate) fn recv(socket: &OwnedFd, buffer: &mut [u8]) -> Result<Recv, Errno> {
    loop {
        return match sock::recv(socket.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT) {
            Ok(0) => Ok(Recv::End),
            Ok(count) => Ok(Recv::Bytes(count)),
            Err(nix::Error::EAGAIN) => Ok(Recv::WouldBlock),
            Err(nix::Error::EINTR) => continue,
            Err(errno) => Err(to_errno(errno)),
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
            Err(errno) => Err(to_errno(errno)),
        };
    }
}

/// Shuts the sending direction.
pub(crate) fn shutdown_write(socket: &OwnedFd) {
    let _ = sock::shutdown(socket.as_raw_fd(), Shutdown::Write);
}

/// Sets whether the peer sees a reset when the socket is closed, also by `kill -9`.
pub(crate) fn reset_at_close(socket: &impl AsFd, reset: bool) {
    let _ = sock::setsockopt(socket, sockopt::Linger, &nix::libc::linger { l_onoff: reset.into(), l_linger: 0 });
}

fn new_socket(at: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if at.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    sock::socket(family, SockType::Stream, flags, None).map_err(to_errno)
}

/// An error of the C library as a kernel error number.
pub(crate) fn to_errno(errno: nix::Error) -> Errno {
    Errno::from_raw_os_error(errno as i32)
}
