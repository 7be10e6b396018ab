//! Connects a socket whose peer is gone to an end of ours instead. What that end sends is read as the peer's, and when it ends the peer has
//! ended.

use std::net::{SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use rustix::net::{self, AddressFamily, Shutdown, SocketAddrAny, SocketFlags, SocketType};

use crate::fd::Fd;
use crate::{Errno, process, raw, tcp, time};

/// How long it may take.
const MOST_NS: u64 = 1_000_000_000;
/// Between two checks of what is on its way.
const PAUSE_NS: u64 = 20_000;
/// Returns what getpeername(2) does, also for a closed connection. As long as the address, or shorter.
const SO_PEERNAME: i32 = 28;
/// From which ports connect(2) takes one (ip(7); Linux 6.3): the lowest in the low half, the highest in the high one.
const IP_LOCAL_PORT_RANGE: i32 = 51;
/// At most so many sockets of the program share one port; further ones are not made to share it.
const SHARERS: usize = 64;

/// Where the peer was: an end of ours that waits for the socket.
#[derive(Debug)]
pub struct Place {
    own: SocketAddr,
    peer: SocketAddr,
    listener: Fd,
}

impl Place {
    /// The place of the peer of `fd`: its address, with another port if that one is taken.
    pub fn of(fd: RawFd) -> Result<Self, Errno> {
        let (own, peer) = (address(&raw::socket_name(fd, false)?)?, peer_of(fd)?);
        let listener = listen(&[peer, any_port(peer)])?;
        let place = Self { own, peer, listener };
        place.try_out(family(peer))?;
        Ok(place)
    }

    /// Whether it can be connected to. A filter may forbid it, and after the disconnect that would be too late.
    fn try_out(&self, family: AddressFamily) -> Result<(), Errno> {
        let socket = Fd::from(net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?);
        within(socket.as_raw_fd(), || net::connect(&socket, &net::getsockname(&self.listener)?))?;
        let end = accept(&self.listener, &net::getsockname(&socket)?)?;
        reset_at_close(socket.as_raw_fd());
        drop(socket);
        drop(end);
        Ok(())
    }

    /// Resets the connection of `fd`, empties its queues, and connects it to this place; returns our end. The descriptors, registrations
    /// and options remain, and the port, unless another process listens there. An error: it stays reset.
    pub fn connect(&self, fd: RawFd) -> Result<Fd, Errno> {
        raw::disconnect(fd);
        // What was left of the peer's end is gone with the connection, and its port may be free now.
        let peers = listen(&[self.peer]).and_then(|listener| self.connect_to(fd, &listener));
        peers.or_else(|_| {
            raw::disconnect(fd);
            self.connect_to(fd, &self.listener)
        })
    }

    fn connect_to(&self, fd: RawFd, listener: &Fd) -> Result<Fd, Errno> {
        // SAFETY: open, as the caller has just named it.
        let socket = unsafe { BorrowedFd::borrow_raw(fd) };
        // The reset is our own: drops its error.
        let _ = net::sockopt::socket_error(socket);
        let place = net::getsockname(listener)?;
        let bind = |address: &SocketAddr| net::bind(socket, address);
        match bind(&self.own).or_else(|_| while_shared(fd, self.own.port(), || bind(&self.own))) {
            Ok(()) => within(fd, || connect(socket, &place))?,
            Err(_) => self.connect_from_range(socket, &place)?,
        }
        let end = accept(listener, &net::getsockname(socket)?)?;
        // Lets the kernel notice that it is connected.
        let _ = net::connect(socket, &place);
        Ok(end)
    }

    /// Connects from a port that other connections have, too, to other places: connect(2) can take it where bind(2) cannot. From another
    /// port, if it is not available.
    fn connect_from_range(&self, socket: BorrowedFd<'_>, place: &SocketAddrAny) -> Result<(), Errno> {
        let fd = socket.as_raw_fd();
        let set = |option, value: i32| raw::set_sockopt(fd, libc::IPPROTO_IP, option, &value);
        let late = raw::sockopt_int(fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT).is_ok_and(|on| on != 0);
        let _ = set(libc::IP_BIND_ADDRESS_NO_PORT, 1);
        let _ = net::bind(socket, &any_port(self.own));
        let ranged =
            set(IP_LOCAL_PORT_RANGE, only(self.own.port())).and_then(|()| within(fd, || connect(socket, place)));
        let _ = set(IP_LOCAL_PORT_RANGE, 0);
        let connected = ranged.or_else(|_| within(fd, || connect(socket, place)));
        let _ = set(libc::IP_BIND_ADDRESS_NO_PORT, i32::from(late));
        connected
    }
}

/// The range of one port.
fn only(port: u16) -> i32 {
    (u32::from(port) << 16 | u32::from(port)).cast_signed()
}

/// Listens at the first of the addresses that is available.
fn listen(at: &[SocketAddr]) -> Result<Fd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let mut bound = Err(Errno::ADDRNOTAVAIL);
    for address in at {
        let listener = Fd::from(net::socket_with(family(*address), SocketType::STREAM, flags, None)?);
        net::sockopt::set_socket_reuseaddr(&listener, true)?;
        bound = net::bind(&listener, address);
        if bound.is_ok() {
            net::listen(&listener, 1)?;
            return Ok(listener);
        }
    }
    Err(bound.err().unwrap_or(Errno::ADDRNOTAVAIL))
}

/// The end of the connection from that address.
fn accept(listener: &Fd, from: &SocketAddrAny) -> Result<Fd, Errno> {
    let end = time::now_ns() + MOST_NS;
    loop {
        match net::accept_with(listener, SocketFlags::CLOEXEC) {
            Ok(accepted) => {
                let accepted = Fd::from(accepted);
                if net::getpeername(&accepted)?.is_some_and(|peer| peer == *from) {
                    return Ok(accepted);
                }
            }
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {
                raw::wait_readable(&[listener.as_raw_fd()], MOST_NS / 100);
            }
            Err(e) => return Err(e),
        }
        if time::now_ns() > end {
            return Err(Errno::TIMEDOUT);
        }
    }
}

/// Runs a bind(2) of `fd` while the process's sockets at a port share it (`SO_REUSEPORT`, socket(7)): its listener has the port, and the
/// connections that it accepted.
fn while_shared(fd: RawFd, port: u16, bind: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
    let mut sharers = [-1; SHARERS];
    let mut free = sharers.iter_mut();
    let at_port = |other| {
        let is_tcp = raw::sockopt_int(other, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Ok(libc::IPPROTO_TCP);
        is_tcp && raw::socket_name(other, false).and_then(|name| address(&name)).is_ok_and(|at| at.port() == port)
    };
    let _ = process::each_number(c"/proc/self/fd", |other| {
        let other = other.cast_signed();
        let alone = raw::sockopt_int(other, libc::SOL_SOCKET, libc::SO_REUSEPORT) == Ok(0);
        if !alone || other != fd && !at_port(other) {
            return true;
        }
        let place = free.next();
        let has_room = place.is_some();
        place.into_iter().for_each(|sharer| *sharer = other);
        has_room
    });
    let share = |on: i32| {
        for &sharer in sharers.iter().filter(|&&sharer| sharer >= 0) {
            let _ = raw::set_sockopt(sharer, libc::SOL_SOCKET, libc::SO_REUSEPORT, &on);
        }
    };
    share(1);
    let result = bind();
    share(0);
    result
}

fn family(of: SocketAddr) -> AddressFamily {
    if of.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

/// How an end of ours ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// The end of the stream.
    Fin,
    /// A reset.
    Reset,
    /// A reset in answer to a send behind the end of the stream.
    Pipe,
    /// An ending already reported: the end of the stream, and no send is taken.
    Over,
}

/// Ends a connection that `fd` was reconnected to, so that the kernel reports this ending. A reset is not sent while bytes have not
/// arrived.
pub fn end(fd: RawFd, end: Fd, how: Ending) {
    if how == Ending::Reset && raw::ioctl_int(end.as_raw_fd(), libc::TIOCOUTQ) == Ok(0) {
        reset_at_close(end.as_raw_fd());
    }
    drop(end);
    match how {
        Ending::Pipe => {
            // An answer that comes before the end of the stream is another error, and packets may be handled later.
            await_that(|| tcp::has_fin(fd));
            if raw::send_bytes(fd, &[0]).is_ok() {
                await_that(|| tcp::is_closed(fd));
            }
        }
        Ending::Over => shut(fd, false, true),
        Ending::Fin | Ending::Reset => {}
    }
}

/// Waits for packets on their way, no longer than that time.
fn await_that(come: impl Fn() -> bool) {
    let most = time::now_ns() + MOST_NS;
    while !come() && time::now_ns() < most {
        raw::wait_readable(&[], PAUSE_NS);
    }
}

/// Marks the end of a socket's connection as reported: no error is left, and nothing goes out.
pub fn mark_end_reported(fd: RawFd) {
    let _ = raw::sockopt_int(fd, libc::SOL_SOCKET, libc::SO_ERROR);
    shut(fd, false, true);
}

fn reset_at_close(fd: RawFd) {
    let hard = libc::linger { l_onoff: 1, l_linger: 0 };
    let _ = raw::set_sockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &hard);
}

/// Shuts directions that the program had shut.
pub fn shut(fd: RawFd, receiving: bool, sending: bool) {
    let how = match (receiving, sending) {
        (false, false) => return,
        (true, false) => Shutdown::Read,
        (false, true) => Shutdown::Write,
        (true, true) => Shutdown::Both,
    };
    // SAFETY: as in `Place::connect`.
    let _ = net::shutdown(unsafe { BorrowedFd::borrow_raw(fd) }, how);
}

/// Begins to connect.
fn connect(socket: BorrowedFd<'_>, place: &SocketAddrAny) -> Result<(), Errno> {
    match net::connect(socket, place) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR | Errno::AGAIN) => Ok(()),
        Err(e) => Err(e),
    }
}

/// Runs a call on a socket that may block, which lasts no longer than that.
fn within<T>(fd: RawFd, call: impl FnOnce() -> T) -> T {
    let mut own = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let known = raw::sockopt(fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO, &mut own).is_ok();
    let most = libc::timeval { tv_sec: (MOST_NS / 1_000_000_000) as i64, tv_usec: 0 };
    let set = |time: &libc::timeval| raw::set_sockopt(fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO, time);
    let _ = set(&most);
    let result = call();
    if known {
        let _ = set(&own);
    }
    result
}

fn any_port(mut addr: SocketAddr) -> SocketAddr {
    addr.set_port(0);
    addr
}

/// The peer's address, also of a closed connection.
fn peer_of(fd: RawFd) -> Result<SocketAddr, Errno> {
    // SAFETY: all-zero is a valid sockaddr_in6.
    let mut v6: libc::sockaddr_in6 = unsafe { core::mem::zeroed() };
    // SAFETY: and a valid sockaddr_in.
    let mut v4: libc::sockaddr_in = unsafe { core::mem::zeroed() };
    match raw::sockopt(fd, libc::SOL_SOCKET, SO_PEERNAME, &mut v6) {
        Ok(_) => Ok(of_v6(&v6)),
        Err(_) => raw::sockopt(fd, libc::SOL_SOCKET, SO_PEERNAME, &mut v4).map(|_| of_v4(&v4)),
    }
}

/// An address as the kernel wrote it.
fn address(of: &libc::sockaddr_storage) -> Result<SocketAddr, Errno> {
    let at = core::ptr::from_ref(of);
    match i32::from(of.ss_family) {
        // SAFETY: storage is large enough for any address, and of an alignment for all.
        libc::AF_INET => Ok(of_v4(unsafe { &*at.cast() })),
        // SAFETY: as above.
        libc::AF_INET6 => Ok(of_v6(unsafe { &*at.cast() })),
        _ => Err(Errno::AFNOSUPPORT),
    }
}

// SAFETY: a C struct of integers.
unsafe impl raw::Plain for libc::sockaddr_in {}
// SAFETY: as above.
unsafe impl raw::Plain for libc::sockaddr_in6 {}

fn of_v4(of: &libc::sockaddr_in) -> SocketAddr {
    (of.sin_addr.s_addr.to_ne_bytes(), u16::from_be(of.sin_port)).into()
}

fn of_v6(of: &libc::sockaddr_in6) -> SocketAddr {
    let (ip, port) = (of.sin6_addr.s6_addr.into(), u16::from_be(of.sin6_port));
    SocketAddrV6::new(ip, port, of.sin6_flowinfo, of.sin6_scope_id).into()
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::Mutex;

    use super::*;

    /// A socket whose peer has gone; there is no listener.
    fn left() -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _ = listener.accept().unwrap();
        socket
    }

    /// A port that one test gives up for a moment another one would get.
    static PORTS: Mutex<()> = Mutex::new(());

    /// Reconnects one. `None`: its port, which it gives up for a moment, was taken by another socket.
    fn connected_anew() -> Option<(TcpStream, Fd)> {
        let socket = left();
        let names = |socket: &TcpStream| (socket.local_addr().unwrap(), socket.peer_addr().unwrap());
        let (before, fd) = (names(&socket), socket.as_raw_fd());
        let other = Place::of(fd).unwrap().connect(fd).unwrap();
        (names(&socket) == before).then_some((socket, other))
    }

    fn anew(how: Ending) -> TcpStream {
        let _ports = PORTS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (socket, other) = (0..10).find_map(|_| connected_anew()).expect("it keeps its names");
        let fd = socket.as_raw_fd();
        assert_eq!(raw::send_bytes(other.as_raw_fd(), b"left"), Ok(4));
        while raw::ioctl_int(fd, libc::FIONREAD) != Ok(4) {
            std::thread::yield_now();
        }
        end(fd, other, how);
        let mut left = [0; 4];
        (&socket).read_exact(&mut left).unwrap();
        assert_eq!(&left, b"left");
        socket
    }

    #[test]
    fn the_end_of_the_stream_and_one_more_send() {
        let mut socket = anew(Ending::Fin);
        assert_eq!(socket.read(&mut [0]).unwrap(), 0);
        socket.write_all(b"x").unwrap();
    }

    /// A connection that was accepted, of a listener that has another one, connected anew. `None`: as for [`connected_anew`].
    fn accepted_anew(listener: &TcpListener) -> Option<(TcpStream, Fd)> {
        // From ports that nobody shares: what another test left of a connection (`TIME_WAIT`) would keep the listener away.
        let connect = || {
            let socket = net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
            net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
            net::connect(&socket, &listener.local_addr().unwrap()).unwrap();
            socket
        };
        let (peer, other) = (connect(), connect());
        let (socket, _) = listener.accept().unwrap();
        let _other = (other, listener.accept().unwrap());
        let names = |socket: &TcpStream| (socket.local_addr().unwrap(), socket.peer_addr().unwrap());
        let (before, fd) = (names(&socket), socket.as_raw_fd());
        drop(peer);
        let place = Place::of(fd).unwrap();
        // The peer's end waits for ours, and has the port.
        let waits = address(&raw::socket_name(place.listener.as_raw_fd(), false).unwrap()).unwrap();
        assert_ne!(waits, before.1);
        let end = place.connect(fd).unwrap();
        assert_eq!(names(&socket).0, before.0);
        (names(&socket) == before).then_some((socket, end))
    }

    #[test]
    fn one_that_was_accepted_keeps_its_names_while_its_listener_listens() {
        let _ports = PORTS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (socket, end) = (0..10).find_map(|_| accepted_anew(&listener)).expect("it keeps its names");
        assert_eq!(raw::send_bytes(end.as_raw_fd(), b"x"), Ok(1));
        let mut byte = [0];
        (&socket).read_exact(&mut byte).unwrap();
        // Nobody else may listen there.
        for fd in [socket.as_raw_fd(), listener.as_raw_fd()] {
            assert_eq!(raw::sockopt_int(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT), Ok(0));
        }
        let next = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (_, from) = listener.accept().unwrap();
        assert_eq!(next.local_addr().unwrap(), from);
    }

    #[test]
    fn a_client_keeps_its_port_though_others_have_it_for_other_places() {
        let _ports = PORTS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [socket, other] = &listeners;
        let socket = TcpStream::connect(socket.local_addr().unwrap()).unwrap();
        let port = socket.local_addr().unwrap().port();
        let sharer = net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let ranged = raw::set_sockopt(sharer.as_raw_fd(), libc::IPPROTO_IP, IP_LOCAL_PORT_RANGE, &only(port)).is_ok();
        net::connect(&sharer, &other.local_addr().unwrap()).unwrap();
        // It is the listener's own process that ends the connection, which keeps the listener: the peer has another port.
        let (before, fd) = (socket.local_addr().unwrap(), socket.as_raw_fd());
        drop(listeners.into_iter().map(|listener| listener.accept().unwrap()));
        let end = Place::of(fd).unwrap().connect(fd).unwrap();
        // An older kernel has no ranges.
        assert_eq!(socket.local_addr().unwrap() == before, ranged);
        assert_eq!(raw::send_bytes(end.as_raw_fd(), b"x"), Ok(1));
        let mut byte = [0];
        (&socket).read_exact(&mut byte).unwrap();
    }

    #[test]
    fn a_reset() {
        let mut socket = anew(Ending::Reset);
        assert_eq!(socket.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert_eq!(socket.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn a_broken_pipe_that_was_told_or_not() {
        for reported in [false, true] {
            let mut socket = anew(Ending::Pipe);
            if reported {
                mark_end_reported(socket.as_raw_fd());
            }
            let error = socket.take_error().unwrap().map(|e| e.kind());
            assert_eq!(error, (!reported).then_some(ErrorKind::BrokenPipe));
            assert_eq!(socket.read(&mut [0]).unwrap(), 0);
            assert_eq!(socket.write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
        }
    }
}
