//! Functions of the C library by their other names, and some that make the calls of others inside it.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::ptr;

use libc::{POLLIN, fd_set, nfds_t, pid_t, pollfd, sockaddr, socklen_t, ssize_t, timeval};
use madrigal_tests::net::{self, recv_exact, recv_up_to, send_all};
use madrigal_tests::pair::{self, Pair};

crate::checks![
    read_and_write,
    polled,
    duplicated_and_closed,
    connected,
    child_of_vfork,
    as_a_file,
    eight_bytes,
    symbols_to_socket,
    copied_by_a_pidfd,
    copy_of_a_childs,
];

unsafe extern "C" {
    fn __read(fd: c_int, buf: *mut c_void, n: usize) -> ssize_t;
    fn __write(fd: c_int, buf: *const c_void, n: usize) -> ssize_t;
    fn __send(fd: c_int, buf: *const c_void, n: usize, flags: c_int) -> ssize_t;
    fn __poll(set: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int;
    fn __select(n: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, time: *mut timeval) -> c_int;
    fn __fcntl(fd: c_int, cmd: c_int, ...) -> c_int;
    fn __dup2(old: c_int, new: c_int) -> c_int;
    fn __close(fd: c_int) -> c_int;
    fn __connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    fn __vfork() -> pid_t;
    fn _IO_fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE;
    fn _IO_fclose(file: *mut libc::FILE) -> c_int;
    fn _IO_popen(command: *const c_char, mode: *const c_char) -> *mut libc::FILE;
    fn __backtrace_symbols_fd(addresses: *const *mut c_void, count: c_int, fd: c_int);
    fn backtrace_symbols_fd(addresses: *const *mut c_void, count: c_int, fd: c_int);
    fn eventfd_read(fd: c_int, value: *mut u64) -> c_int;
    fn eventfd_write(fd: c_int, value: u64) -> c_int;
}

fn read_and_write() {
    let p = Pair::warm();
    send_all(&p.c, b"before ");
    // SAFETY: so many bytes; so below.
    assert_eq!(unsafe { __write(p.c.as_raw_fd(), b"between".as_ptr().cast(), 7) }, 7);
    // SAFETY: see above.
    assert_eq!(unsafe { __send(p.c.as_raw_fd(), b" and".as_ptr().cast(), 4, 0) }, 4);
    send_all(&p.c, b" after");
    let mut bytes = [0; 4];
    // SAFETY: room for so many.
    assert_eq!(unsafe { __read(p.s.as_raw_fd(), bytes.as_mut_ptr().cast(), 4) }, 4);
    assert_eq!(&bytes, b"befo");
    assert_eq!(recv_exact(&p.s, 20), b"re between and after");
    p.assert_in_rings();
}

fn polled() {
    let p = Pair::warm();
    let mut one = pollfd { fd: p.s.as_raw_fd(), events: POLLIN, revents: 0 };
    // SAFETY: one entry; so below.
    assert_eq!(unsafe { __poll(&raw mut one, 1, 0) }, 0);
    send_all(&p.c, b"x");
    // SAFETY: see above.
    assert_eq!((unsafe { __poll(&raw mut one, 1, -1) }, one.revents), (1, POLLIN));
    // SAFETY: an all-zero set is the empty set.
    let mut set: fd_set = unsafe { std::mem::zeroed() };
    // SAFETY: a small descriptor.
    unsafe { libc::FD_SET(one.fd, &raw mut set) };
    // SAFETY: our own set, and no time.
    let found = unsafe { __select(one.fd + 1, &raw mut set, ptr::null_mut(), ptr::null_mut(), ptr::null_mut()) };
    assert_eq!(found, 1);
    assert_eq!(recv_exact(&p.s, 1), b"x");
}

fn duplicated_and_closed() {
    let Pair { c, s } = Pair::warm();
    // SAFETY: no pointers.
    let copy = net::new_fd(unsafe { __fcntl(s.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 300) });
    // SAFETY: a number of this check's.
    assert_eq!(unsafe { __dup2(copy.as_raw_fd(), 400) }, 400);
    // SAFETY: nobody else closes it.
    assert_eq!(unsafe { __close(s.into_raw_fd()) }, 0);
    send_all(&c, b"xy");
    assert_eq!(recv_exact(&copy, 1), b"x");
    assert_eq!(recv_exact(400, 1), b"y");
    drop(copy);
    // SAFETY: see above.
    assert_eq!(unsafe { __close(400) }, 0);
    assert_eq!(net::read(&c, &mut [0; 4]), Ok(0));
}

fn connected() {
    let (listener, _) = net::listener(pair::loopback());
    let mut name =
        libc::sockaddr_in { sin_family: libc::AF_INET as u16, sin_port: net::own_port(&listener).to_be(), ..zero() };
    name.sin_addr.s_addr = u32::from(std::net::Ipv4Addr::LOCALHOST).to_be();
    let c = net::socket(false, 0);
    // SAFETY: an address of that length.
    let done = unsafe { __connect(c.as_raw_fd(), (&raw const name).cast(), size_of_val(&name) as socklen_t) };
    assert_eq!(done, 0);
    let p = Pair { s: net::accept(&listener, 0).unwrap(), c };
    p.warm_up();
}

fn zero() -> libc::sockaddr_in {
    // SAFETY: all-zero is a valid address.
    unsafe { std::mem::zeroed() }
}

/// Its child may do what a child of fork(2) may.
fn child_of_vfork() {
    let p = Pair::warm();
    // SAFETY: it is a fork(2) where SysWrap is; plain, the child only ends.
    let pid = unsafe { __vfork() };
    if pid == 0 {
        // SAFETY: no pointers.
        unsafe { libc::_exit(7) };
    }
    assert_eq!(net::wait(pid), 7);
    send_all(&p.c, b"x");
    assert_eq!(recv_exact(&p.s, 1), b"x");
}

fn as_a_file() {
    let Pair { c, s } = Pair::warm();
    send_all(&s, b"before ");
    // SAFETY: a mode.
    let file = unsafe { _IO_fdopen(s.into_raw_fd(), c"w".as_ptr()) };
    // SAFETY: an open stream.
    assert!(unsafe { libc::fputs(c"after".as_ptr(), file) } >= 0);
    // SAFETY: a command and a mode.
    let child = unsafe { _IO_popen(c"exit 3".as_ptr(), c"r".as_ptr()) };
    // SAFETY: what was just opened.
    assert_eq!(libc::WEXITSTATUS(unsafe { libc::pclose(child) }), 3);
    // SAFETY: an open stream.
    assert_eq!(unsafe { _IO_fclose(file) }, 0);
    assert_eq!(recv_up_to(&c, 100), b"before after");
}

/// eventfd_write(3) and eventfd_read(3) write and read any descriptor.
fn eight_bytes() {
    let p = Pair::warm();
    send_all(&p.c, b"before");
    // SAFETY: no pointers.
    assert_eq!(unsafe { eventfd_write(p.c.as_raw_fd(), u64::from_ne_bytes(*b"between ")) }, 0);
    send_all(&p.c, b"and behind");
    assert_eq!(recv_exact(&p.s, 14), b"beforebetween ");
    let mut value = 0;
    // SAFETY: room for eight bytes.
    assert_eq!(unsafe { eventfd_read(p.s.as_raw_fd(), &raw mut value) }, 0);
    assert_eq!(value.to_ne_bytes(), *b"and behi");
    assert_eq!(recv_exact(&p.s, 2), b"nd");
    p.assert_in_rings();
}

/// backtrace_symbols_fd(3), which writes the names of a crash report.
fn symbols_to_socket() {
    let at = [symbols_to_socket as *mut c_void; 2];
    for by in [backtrace_symbols_fd, __backtrace_symbols_fd] {
        let Pair { c, s } = Pair::warm();
        let (out, input) = net::pipe();
        // SAFETY: two addresses of code.
        unsafe { by(at.as_ptr(), 2, input.as_raw_fd()) };
        let mut names = vec![0; 4096];
        let count = net::read(&out, &mut names).unwrap();
        send_all(&s, b"before ");
        // SAFETY: as above.
        unsafe { by(at.as_ptr(), 2, s.as_raw_fd()) };
        send_all(&s, b" after");
        drop(s);
        let expected = [b"before ", &names[..count], b" after"].concat();
        assert_eq!(String::from_utf8_lossy(&recv_up_to(&c, 8192)), String::from_utf8_lossy(&expected));
    }
}

/// pidfd_getfd(2)
fn copied(pid: pid_t, fd: c_int) -> OwnedFd {
    // SAFETY: no pointers; so below.
    let of = net::new_fd(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as c_int);
    // SAFETY: see above.
    let copy = unsafe { libc::syscall(libc::SYS_pidfd_getfd, of.as_raw_fd(), fd, 0) } as c_int;
    assert!(copy >= 0, "pidfd_getfd: {}", net::errno());
    // SAFETY: made for this process just now.
    unsafe { OwnedFd::from_raw_fd(copy) }
}

fn copied_by_a_pidfd() {
    let Pair { c, s } = Pair::warm();
    // SAFETY: no pointers.
    let copy = copied(unsafe { libc::getpid() }, s.as_raw_fd());
    send_all(&c, b"xy");
    assert_eq!(recv_exact(&copy, 1), b"x");
    assert_eq!(recv_exact(&s, 1), b"y");
    drop(s);
    send_all(&copy, b"back");
    assert_eq!(recv_exact(&c, 4), b"back");
    drop(copy);
    assert_eq!(net::read(&c, &mut [0; 4]), Ok(0));
}

/// A child has another number for what this process has, too.
fn copy_of_a_childs() {
    let Pair { c, s } = Pair::warm();
    let (out, input) = net::pipe();
    let pid = net::fork(|| {
        let high = net::fcntl(&s, libc::F_DUPFD, 500).unwrap();
        net::write(&input, &high.to_ne_bytes()).unwrap();
        net::sleep_ms(60_000);
        0
    });
    let number = c_int::from_ne_bytes(net::read_exact(&out, 4).try_into().unwrap());
    let copy = copied(pid, number);
    net::kill(pid, libc::SIGKILL).unwrap();
    net::wait(pid);
    send_all(&c, b"xy");
    assert_eq!(recv_exact(&copy, 1), b"x");
    assert_eq!(recv_exact(&s, 1), b"y");
}
