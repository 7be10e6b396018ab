//! The C library's socket calls with Rust types: results are counts or error numbers. Nothing is hidden, nothing retried.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_short};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

mod processes;
mod signals;

pub use processes::{close_in_child, forgo_copies, fork, kill, limit_files, refuse_copies, wait};
pub use signals::{count_signal, mask, on_signal, signal_set, signal_thread, signals, this_thread};

/// A count, or the error number.
pub type Count = Result<usize, c_int>;

/// This thread's error number.
pub fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// What a C function returned, as a count or error.
pub fn count(n: isize) -> Count {
    usize::try_from(n).map_err(|_| errno())
}

/// A descriptor: a number, an owner of one, or a reference to either.
pub trait Fd {
    /// Its number.
    fn raw(&self) -> c_int;
}

impl Fd for c_int {
    fn raw(&self) -> c_int {
        *self
    }
}

impl Fd for OwnedFd {
    fn raw(&self) -> c_int {
        self.as_raw_fd()
    }
}

impl<T: Fd> Fd for &T {
    fn raw(&self) -> c_int {
        (*self).raw()
    }
}

fn done(n: c_int) -> Result<c_int, c_int> {
    if n < 0 { Err(errno()) } else { Ok(n) }
}

fn owned(n: c_int) -> Result<OwnedFd, c_int> {
    // SAFETY: a descriptor the kernel has just made for us.
    done(n).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A socket name in the kernel's form.
pub struct Name {
    storage: libc::sockaddr_storage,
    len: libc::socklen_t,
}

impl From<SocketAddr> for Name {
    fn from(addr: SocketAddr) -> Self {
        // SAFETY: an all-zero address is valid.
        let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        let len = match addr {
            SocketAddr::V4(v4) => {
                let name = libc::sockaddr_in {
                    sin_family: libc::AF_INET as u16,
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                    sin_zero: [0; 8],
                };
                // SAFETY: the storage is large and aligned enough for any address.
                unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(name) };
                size_of_val(&name)
            }
            SocketAddr::V6(v6) => {
                let name = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as u16,
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                    sin6_scope_id: v6.scope_id(),
                };
                // SAFETY: as above.
                unsafe { (&raw mut storage).cast::<libc::sockaddr_in6>().write(name) };
                size_of_val(&name)
            }
        };
        Self { storage, len: len as libc::socklen_t }
    }
}

/// socket(2) for TCP; `kind` may hold `SOCK_NONBLOCK` and `SOCK_CLOEXEC`.
pub fn socket(v6: bool, kind: c_int) -> OwnedFd {
    let domain = if v6 { libc::AF_INET6 } else { libc::AF_INET };
    // SAFETY: no pointers.
    owned(unsafe { libc::socket(domain, libc::SOCK_STREAM | kind, 0) }).expect("socket")
}

/// A listener on a free port of `addr`.
pub fn listener(addr: SocketAddr) -> (OwnedFd, SocketAddr) {
    listener_with(addr, 0, |_| {}).expect("listen")
}

/// A listener; `prepare` may set options before it is bound.
pub fn listener_with(
    addr: SocketAddr,
    kind: c_int,
    prepare: impl FnOnce(&OwnedFd),
) -> Result<(OwnedFd, SocketAddr), c_int> {
    let fd = socket(addr.is_ipv6(), kind | libc::SOCK_CLOEXEC);
    prepare(&fd);
    bind(&fd, addr)?;
    // SAFETY: no pointers.
    done(unsafe { libc::listen(fd.as_raw_fd(), 1024) })?;
    let port = own_port(&fd);
    Ok((fd, SocketAddr::new(addr.ip(), port)))
}

/// The local port of a socket.
pub fn own_port(fd: &OwnedFd) -> u16 {
    // SAFETY: an all-zero address is valid.
    let mut name: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&name) as libc::socklen_t;
    // SAFETY: room for any IP address, of the length given.
    done(unsafe { libc::getsockname(fd.as_raw_fd(), (&raw mut name).cast(), &raw mut len) }).expect("getsockname");
    // The port lies at the same place in both families.
    u16::from_be(name.sin6_port)
}

/// The peer's port.
pub fn peer_port(fd: &OwnedFd) -> Result<u16, c_int> {
    // SAFETY: an all-zero address is valid.
    let mut name: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&name) as libc::socklen_t;
    // SAFETY: room for any IP address, of the length given.
    done(unsafe { libc::getpeername(fd.as_raw_fd(), (&raw mut name).cast(), &raw mut len) })?;
    Ok(u16::from_be(name.sin6_port))
}

/// bind(2)
pub fn bind(fd: &OwnedFd, addr: SocketAddr) -> Result<(), c_int> {
    let name = Name::from(addr);
    // SAFETY: a name of that length.
    done(unsafe { libc::bind(fd.as_raw_fd(), (&raw const name.storage).cast(), name.len) }).map(drop)
}

/// connect(2)
pub fn connect(fd: &OwnedFd, addr: SocketAddr) -> Result<(), c_int> {
    let name = Name::from(addr);
    // SAFETY: a name of that length.
    done(unsafe { libc::connect(fd.as_raw_fd(), (&raw const name.storage).cast(), name.len) }).map(drop)
}

/// A connected socket.
pub fn client(addr: SocketAddr) -> OwnedFd {
    let fd = socket(addr.is_ipv6(), libc::SOCK_CLOEXEC);
    connect(&fd, addr).expect("connect");
    fd
}

/// accept4(2)
pub fn accept(listener: &OwnedFd, flags: c_int) -> Result<OwnedFd, c_int> {
    // SAFETY: no address wanted.
    owned(unsafe { libc::accept4(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), flags) })
}

/// read(2)
pub fn read(fd: impl Fd, buf: &mut [u8]) -> Count {
    // SAFETY: our own buffer; so in every call below.
    count(unsafe { libc::read(fd.raw(), buf.as_mut_ptr().cast(), buf.len()) })
}

/// dprintf(3), of a text with no `%`: the C library writes it where no hook sees it.
pub fn print(fd: impl Fd, text: &std::ffi::CStr) -> Count {
    unsafe extern "C" {
        fn dprintf(fd: c_int, format: *const std::ffi::c_char, ...) -> c_int;
    }
    // SAFETY: a format without arguments.
    count(unsafe { dprintf(fd.raw(), text.as_ptr()) } as isize)
}

/// write(2)
pub fn write(fd: impl Fd, buf: &[u8]) -> Count {
    // SAFETY: see `read`.
    count(unsafe { libc::write(fd.raw(), buf.as_ptr().cast(), buf.len()) })
}

/// recv(2)
pub fn recv(fd: impl Fd, buf: &mut [u8], flags: c_int) -> Count {
    // SAFETY: see `read`.
    count(unsafe { libc::recv(fd.raw(), buf.as_mut_ptr().cast(), buf.len(), flags) })
}

/// send(2) without SIGPIPE.
pub fn send(fd: impl Fd, buf: &[u8], flags: c_int) -> Count {
    send_raw(fd, buf, flags | libc::MSG_NOSIGNAL)
}

/// send(2) with just these flags.
pub fn send_raw(fd: impl Fd, buf: &[u8], flags: c_int) -> Count {
    // SAFETY: see `read`.
    count(unsafe { libc::send(fd.raw(), buf.as_ptr().cast(), buf.len(), flags) })
}

/// send(2) by its number, past a library that hooks the function.
pub fn send_by_kernel(fd: impl Fd, buf: &[u8]) -> Count {
    // SAFETY: the slice is readable for its length.
    count(unsafe { libc::syscall(libc::SYS_sendto, fd.raw(), buf.as_ptr(), buf.len(), 0, 0usize, 0usize) } as isize)
}

/// Writes all of it on a blocking socket.
pub fn send_all(fd: impl Fd, mut buf: &[u8]) {
    let fd = fd.raw();
    while !buf.is_empty() {
        let n = send(fd, buf, 0).expect("send");
        buf = &buf[n..];
    }
}

/// The same in many sends: of one byte first, then of the sizes that `next` gives after each.
pub fn send_in_pieces(fd: impl Fd, bytes: &[u8], next: impl Fn(usize) -> usize) {
    let fd = fd.raw();
    let (mut at, mut size) = (0, 1);
    while at < bytes.len() {
        let end = (at + size).min(bytes.len());
        send_all(fd, &bytes[at..end]);
        (at, size) = (end, next(size));
    }
}

/// Sends `piece` on a non-blocking socket until there is no room for more; how many bytes went.
pub fn fill(fd: impl Fd, piece: &[u8]) -> usize {
    let fd = fd.raw();
    let mut sent = 0;
    while let Ok(n) = send(fd, piece, 0) {
        sent += n;
    }
    sent
}

/// Reads exactly `n` bytes from a blocking socket.
pub fn recv_exact(fd: impl Fd, n: usize) -> Vec<u8> {
    let got = recv_up_to(fd, n);
    assert_eq!(got.len(), n, "the stream ended early");
    got
}

/// Reads until `n` bytes or the end.
pub fn recv_up_to(fd: impl Fd, n: usize) -> Vec<u8> {
    let fd = fd.raw();
    let mut buf = vec![0; n];
    let mut done = 0;
    while done < n {
        match recv(fd, &mut buf[done..], 0).expect("recv") {
            0 => break,
            got => done += got,
        }
    }
    buf.truncate(done);
    buf
}

/// Piece list of some buffers.
pub fn pieces(bufs: &mut [&mut [u8]]) -> Vec<libc::iovec> {
    bufs.iter_mut().map(|b| libc::iovec { iov_base: b.as_mut_ptr().cast(), iov_len: b.len() }).collect()
}

/// Piece list of some read-only buffers.
pub fn const_pieces(bufs: &[&[u8]]) -> Vec<libc::iovec> {
    bufs.iter().map(|b| libc::iovec { iov_base: b.as_ptr().cast_mut().cast(), iov_len: b.len() }).collect()
}

/// writev(2)
pub fn writev(fd: impl Fd, bufs: &[&[u8]]) -> Count {
    let iov = const_pieces(bufs);
    // SAFETY: see `read`.
    count(unsafe { libc::writev(fd.raw(), iov.as_ptr(), iov.len() as c_int) })
}

/// readv(2)
pub fn readv(fd: impl Fd, bufs: &mut [&mut [u8]]) -> Count {
    let iov = pieces(bufs);
    // SAFETY: see `read`.
    count(unsafe { libc::readv(fd.raw(), iov.as_ptr(), iov.len() as c_int) })
}

/// A message header over these pieces.
pub fn message(iov: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: an all-zero header is valid.
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    msg.msg_iov = iov.as_mut_ptr();
    msg.msg_iovlen = iov.len();
    msg
}

/// sendmsg(2)
pub fn sendmsg(fd: impl Fd, bufs: &[&[u8]], flags: c_int) -> Count {
    let mut iov = const_pieces(bufs);
    let msg = message(&mut iov);
    // SAFETY: see `read`.
    count(unsafe { libc::sendmsg(fd.raw(), &raw const msg, flags | libc::MSG_NOSIGNAL) })
}

/// recvmsg(2): the count and `msg_flags`.
pub fn recvmsg(fd: impl Fd, bufs: &mut [&mut [u8]], flags: c_int) -> Result<(usize, c_int), c_int> {
    let mut iov = pieces(bufs);
    let mut msg = message(&mut iov);
    msg.msg_flags = 0x55;
    // SAFETY: see `read`.
    let n = count(unsafe { libc::recvmsg(fd.raw(), &raw mut msg, flags) })?;
    Ok((n, msg.msg_flags))
}

/// shutdown(2)
pub fn shutdown(fd: impl Fd, how: c_int) -> Result<(), c_int> {
    // SAFETY: no pointers.
    done(unsafe { libc::shutdown(fd.raw(), how) }).map(drop)
}

/// setsockopt(2) with any plain value.
pub fn set<T: Copy>(fd: impl Fd, level: c_int, name: c_int, value: T) -> Result<(), c_int> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: a value of that length.
    done(unsafe { libc::setsockopt(fd.raw(), level, name, (&raw const value).cast(), len) }).map(drop)
}

/// getsockopt(2) of a number.
pub fn get(fd: impl Fd, level: c_int, name: c_int) -> Result<c_int, c_int> {
    let mut value = 0;
    let mut len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: room for a number of that length.
    done(unsafe { libc::getsockopt(fd.raw(), level, name, (&raw mut value).cast(), &raw mut len) })?;
    Ok(value)
}

/// `SO_ERROR`, which it clears.
pub fn take_error(fd: impl Fd) -> c_int {
    get(fd, libc::SOL_SOCKET, libc::SO_ERROR).expect("SO_ERROR")
}

/// ioctl(2) that reads or writes one number.
pub fn ioctl(fd: impl Fd, request: libc::c_ulong, mut value: c_int) -> Result<c_int, c_int> {
    // SAFETY: these requests take a pointer to a number.
    done(unsafe { libc::ioctl(fd.raw(), request, &raw mut value) })?;
    Ok(value)
}

/// Bytes a receive would find.
pub fn readable(fd: impl Fd) -> usize {
    ioctl(fd, libc::FIONREAD, 0).expect("FIONREAD") as usize
}

/// fcntl(2) with a number.
pub fn fcntl(fd: impl Fd, cmd: c_int, arg: c_int) -> Result<c_int, c_int> {
    // SAFETY: commands without pointers only.
    done(unsafe { libc::fcntl(fd.raw(), cmd, arg) })
}

/// Switches `O_NONBLOCK` by fcntl(2).
pub fn set_nonblocking(fd: impl Fd, on: bool) {
    let fd = fd.raw();
    let flags = fcntl(fd, libc::F_GETFL, 0).expect("F_GETFL");
    let wanted = if on { flags | libc::O_NONBLOCK } else { flags & !libc::O_NONBLOCK };
    fcntl(fd, libc::F_SETFL, wanted).expect("F_SETFL");
}

/// A new descriptor from fcntl(2) or dup(2) kind of calls.
pub fn new_fd(n: c_int) -> OwnedFd {
    owned(n).expect("a descriptor")
}

/// dup(2)
pub fn dup(fd: impl Fd) -> OwnedFd {
    // SAFETY: no pointers.
    new_fd(unsafe { libc::dup(fd.raw()) })
}

/// poll(2) of one descriptor: its events, 0 after `ms` milliseconds.
pub fn poll(fd: impl Fd, events: c_short, ms: c_int) -> c_short {
    let mut entry = [libc::pollfd { fd: fd.raw(), events, revents: 0 }];
    poll_many(&mut entry, ms).expect("poll");
    entry[0].revents
}

/// poll(2)
pub fn poll_many(fds: &mut [libc::pollfd], ms: c_int) -> Count {
    // SAFETY: our own entries.
    count(unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, ms) } as isize)
}

/// Waits, as long as it takes, until `fd` shows all of `events`; other readiness does not end the wait.
pub fn await_events(fd: impl Fd, events: c_short) {
    let fd = fd.raw();
    while poll(fd, events, 1000) & events != events {
        sleep_ms(1);
    }
}

/// splice(2), at no offsets.
pub fn splice(from: impl Fd, to: impl Fd, n: usize) -> Count {
    splice_with(from, to, n, 0)
}

/// The same with flags.
pub fn splice_with(from: impl Fd, to: impl Fd, n: usize, flags: u32) -> Count {
    let none = std::ptr::null_mut();
    // SAFETY: no offsets.
    count(unsafe { libc::splice(from.raw(), none, to.raw(), none, n, flags) })
}

/// Takes so many bytes out of a pipe, which are there or will be.
pub fn read_exact(pipe: impl Fd + Copy, n: usize) -> Vec<u8> {
    let (mut bytes, mut done) = (vec![0; n], 0);
    while done < n {
        done += read(pipe, &mut bytes[done..]).unwrap();
    }
    bytes
}

/// A pipe: read end, write end.
pub fn pipe() -> (OwnedFd, OwnedFd) {
    let mut fds = [0; 2];
    // SAFETY: room for two descriptors.
    done(unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) }).expect("pipe");
    (new_fd(fds[0]), new_fd(fds[1]))
}

/// A pair of AF_UNIX stream sockets.
pub fn unix_pair() -> (OwnedFd, OwnedFd) {
    let mut fds = [0; 2];
    // SAFETY: room for two descriptors.
    done(unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, fds.as_mut_ptr()) }).expect("socketpair");
    (new_fd(fds[0]), new_fd(fds[1]))
}

/// Lets the other side get somewhere. Never part of an assertion.
pub fn sleep_ms(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// Nanoseconds for which this thread has had a processor.
pub fn thread_ns() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: our own memory.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut t) }, 0);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// A socket time-out.
pub fn timeval(ms: i64) -> libc::timeval {
    libc::timeval { tv_sec: ms / 1000, tv_usec: ms % 1000 * 1000 }
}

/// Makes close(2) reset the connection.
pub fn linger(fd: impl Fd, seconds: c_int) {
    set(fd, libc::SOL_SOCKET, libc::SO_LINGER, libc::linger { l_onoff: 1, l_linger: seconds }).expect("SO_LINGER");
}
