//! Processes that are killed, and what the other end sees.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::ptr;

use madrigal_tests::net::{self, read, recv_exact, recv_up_to, send_all};
use madrigal_tests::pair::{self, Pair};

use crate::set::Set;

use crate::polling;

crate::checks![
    child_killed,
    child_killed_at_once,
    asynchronously,
    peer_killed_behind_a_doorbell,
    peer_killed_then_info,
    peer_killed_then_named,
    peer_killed_beside_a_message,
    peer_killed_beside_a_child_that_closed,
    peer_killed_that_resets,
    peer_killed_behind_a_seal,
    peer_gone_behind_a_seal,
    peeked_behind_a_seal,
    known_by_another_connection,
    wakes_who_polls_for_nothing,
    keeps_its_names,
];

extern "C" fn die() {
    // SAFETY: no pointers.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}

/// The child ends in the first thing it does. Nothing stays in the shared directory when its parent ends, too.
fn child_killed_at_once() {
    // SAFETY: a function that lives as long as the program; it runs before what is registered behind it.
    assert_eq!(unsafe { libc::pthread_atfork(None, None, Some(die)) }, 0);
    let _pair = Pair::warm();
    let pid = net::fork(|| 0);
    assert_ne!(net::wait(pid), 0);
    // And one that is not waited for.
    let pid = net::fork(|| 0);
    // SAFETY: all-zero is a valid siginfo_t.
    let mut info = unsafe { std::mem::zeroed() };
    // SAFETY: a place of our own.
    let ended = unsafe { libc::waitid(libc::P_PID, pid as u32, &raw mut info, libc::WEXITED | libc::WNOWAIT) };
    assert_eq!(ended, 0);
}

fn child_killed() {
    let (out, input) = net::pipe();
    let Pair { c, s } = Pair::warm();
    let pid = net::fork(|| {
        net::close_in_child(&c);
        send_all(&s, b"last words");
        net::write(&input, b"r").unwrap();
        net::sleep_ms(60_000);
        0
    });
    drop(s);
    assert_eq!(net::read(&out, &mut [0; 1]), Ok(1));
    net::kill(pid, libc::SIGKILL).unwrap();
    net::wait(pid);
    assert_eq!(recv_up_to(&c, 100), b"last words");
}

/// aio_read(3) of the bytes that a killed process left: in parts, with the program's way of notification, and then the end.
fn asynchronously() {
    let fd = pair::left_by_a_killed_peer(|fd| send_all(fd, &[7; 300]));
    net::await_events(&fd, libc::POLLRDHUP);
    assert_eq!(aio_read(&fd, 100, libc::SIGEV_NONE), Ok(100));
    net::on_signal(libc::SIGUSR1, net::count_signal, true);
    assert_eq!(aio_read(&fd, 100, libc::SIGEV_SIGNAL), Ok(100));
    while net::signals() == 0 {
        net::sleep_ms(1);
    }
    assert_eq!(listed_read(&fd, 100), Ok(100));
    assert_eq!(aio_read(&fd, 100, libc::SIGEV_NONE), Ok(0));
    assert_eq!(net::send(&fd, b"x", libc::MSG_NOSIGNAL), Ok(1));
}

fn request(fd: &OwnedFd, buf: &mut [u8], notify: i32) -> libc::aiocb {
    // SAFETY: an all-zero request is valid.
    let mut request: libc::aiocb = unsafe { std::mem::zeroed() };
    request.aio_fildes = std::os::fd::AsRawFd::as_raw_fd(fd);
    request.aio_buf = buf.as_mut_ptr().cast();
    request.aio_nbytes = buf.len();
    request.aio_sigevent.sigev_notify = notify;
    request.aio_sigevent.sigev_signo = libc::SIGUSR1;
    request.aio_lio_opcode = libc::LIO_READ;
    request
}

/// The result of a request, once it is done.
fn result(at: *mut libc::aiocb) -> Result<usize, i32> {
    loop {
        // SAFETY: the caller's request, which lives until it is done.
        match unsafe { libc::aio_error(at) } {
            libc::EINPROGRESS => net::sleep_ms(1),
            // SAFETY: as above.
            0 => return Ok(unsafe { libc::aio_return(at) } as usize),
            e => return Err(e),
        }
    }
}

fn aio_read(fd: &OwnedFd, n: usize, notify: i32) -> Result<usize, i32> {
    let mut buf = vec![0; n];
    let mut request = request(fd, &mut buf, notify);
    let at = &raw mut request;
    // SAFETY: memory that lives until the request is done.
    assert_eq!(unsafe { libc::aio_read(at) }, 0);
    let got = result(at)?;
    assert!(buf[..got].iter().all(|&byte| byte == 7));
    Ok(got)
}

/// The same by lio_listio(3), waited for.
fn listed_read(fd: &OwnedFd, n: usize) -> Result<usize, i32> {
    let mut buf = vec![0; n];
    let mut request = request(fd, &mut buf, libc::SIGEV_NONE);
    let list = [std::ptr::null_mut(), &raw mut request];
    // SAFETY: as in `aio_read`.
    assert_eq!(unsafe { libc::lio_listio(libc::LIO_WAIT, list.as_ptr(), 2, std::ptr::null_mut()) }, 0);
    result(list[1])
}

/// A connection whose peer read everything, and was killed behind a doorbell.
pub(crate) fn left_behind_a_doorbell() -> OwnedFd {
    accepted_behind_a_doorbell().0
}

/// The same, and its listener.
pub(crate) fn accepted_behind_a_doorbell() -> (OwnedFd, OwnedFd) {
    let (out, input) = net::pipe();
    let child = net::fork(|| {
        let fd = pair::client_of_port(&out);
        pair::warm_client(&fd);
        recv_exact(&fd, 1);
        send_all(&fd, b"last");
        net::kill(std::process::id() as i32, libc::SIGKILL).unwrap();
        0
    });
    let (listener, addr) = net::listener(pair::loopback());
    pair::send_port(&input, addr);
    let fd = net::accept(&listener, 0).unwrap();
    pair::warm_server(&fd);
    // By now it sleeps, and has to be woken.
    net::sleep_ms(50);
    send_all(&fd, b"?");
    net::wait(child);
    assert_eq!(recv_exact(&fd, 4), b"last");
    net::await_events(&fd, libc::POLLRDHUP);
    (fd, listener)
}

/// The state of a connection, from `TCP_INFO` (linux/tcp_states.h).
fn state(fd: &OwnedFd) -> i32 {
    net::get(fd, libc::IPPROTO_TCP, libc::TCP_INFO).unwrap() & 0xff
}

/// Programs check like this whether their peer is gone.
fn peer_killed_then_info() {
    const CLOSE: i32 = 7;
    const CLOSE_WAIT: i32 = 8;
    let fd = left_behind_a_doorbell();
    assert_eq!(state(&fd), CLOSE_WAIT);
    assert_eq!(net::send(&fd, b"taken", 0), Ok(5));
    net::await_events(&fd, libc::POLLHUP);
    assert_eq!(state(&fd), CLOSE);
    let fd = left_behind_a_doorbell();
    net::shutdown(&fd, libc::SHUT_WR).unwrap();
    net::await_events(&fd, libc::POLLHUP);
    assert_eq!(state(&fd), CLOSE);
    // With a byte unread: a reset.
    let last = |fd: &OwnedFd| net::await_events(fd, libc::POLLIN);
    let fd = pair::left_beside(last, |fd| send_all(fd, b"never read"));
    net::await_events(&fd, libc::POLLRDHUP);
    assert_eq!(state(&fd), CLOSE);
}

/// Its names stay the same, whether or not another process listens there.
fn peer_killed_then_named() {
    let names = |fd: &OwnedFd| (net::own_port(fd), net::peer_port(fd));
    let (fd, listener) = accepted_behind_a_doorbell();
    let before = names(&fd);
    let (_out, input) = net::pipe();
    let none = std::ptr::null_mut();
    // SAFETY: no offsets.
    assert_eq!(unsafe { libc::splice(fd.as_raw_fd(), none, input.as_raw_fd(), none, 9, 0) }, 0);
    assert_eq!(names(&fd), before, "spliced");
    let (mine, _theirs) = net::unix_pair();
    crate::passing::pass(&mine, &fd);
    assert_eq!(names(&fd), before, "passed");
    assert_eq!(read(&fd, &mut [0; 1]), Ok(0));
    drop(listener);
}

/// A set reports a socket also to a child that has closed its own copy, with the program's data.
fn peer_killed_beside_a_child_that_closed() {
    let fd = left_behind_a_doorbell();
    let set = Set::new();
    set.add(&fd, libc::EPOLLIN, 7);
    assert_eq!(set.wait(1, -1), [(7, libc::EPOLLIN)]);
    let ((out, input), (closed, tell)) = (net::pipe(), net::pipe());
    let child = net::fork(|| {
        net::close_in_child(&fd);
        net::write(&tell, b"c").unwrap();
        assert_eq!(net::read(&out, &mut [0; 1]), Ok(1));
        assert_eq!(set.wait(1, -1).first().map(|told| told.0), Some(7));
        0
    });
    assert_eq!(net::read(&closed, &mut [0; 1]), Ok(1));
    assert_eq!(net::send(&fd, b"taken", 0), Ok(5));
    assert_eq!(net::send(&fd, b"not taken", 0), Err(libc::EPIPE));
    net::write(&input, b"g").unwrap();
    assert_eq!(net::wait(child), 0);
    assert_eq!(set.wait(1, -1), [(7, libc::EPOLLIN | libc::EPOLLHUP)]);
}

/// The header of a message at the end has no name, also if the kernel woke the sleeping call by a reset because of a doorbell.
fn peer_killed_beside_a_message() {
    let (out, input) = net::pipe();
    let child = net::fork(|| {
        let fd = pair::client_of_port(&out);
        pair::warm_client(&fd);
        net::sleep_ms(60_000);
        0
    });
    let (listener, addr) = net::listener(pair::loopback());
    pair::send_port(&input, addr);
    let fd = net::accept(&listener, 0).unwrap();
    pair::warm_server(&fd);
    // It leaves its ring, and rings a last time.
    let fioasync = 0x5452;
    net::ioctl(&fd, fioasync, 0).unwrap();
    let killer = std::thread::spawn(move || {
        net::sleep_ms(100);
        net::kill(child, libc::SIGKILL).unwrap();
    });
    let (mut name, mut control, mut byte) = ([0u64; 16], [0u64; 16], [0u8; 1]);
    let mut iov = net::pieces(&mut [&mut byte]);
    let mut message = net::message(&mut iov);
    message.msg_name = name.as_mut_ptr().cast();
    message.msg_namelen = size_of_val(&name) as u32;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    // SAFETY: a complete header.
    assert_eq!(unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, 0) }, 0);
    assert_eq!((message.msg_flags, message.msg_namelen, message.msg_controllen), (0, 0, 0));
    killer.join().unwrap();
    net::wait(child);
}

/// A process killed after it read everything ends its connections as with a close, whatever doorbells it left: the first send after
/// that is taken.
fn peer_killed_behind_a_doorbell() {
    let fd = left_behind_a_doorbell();
    assert_eq!(net::send(&fd, b"taken", 0), Ok(5));
    assert_eq!(read(&fd, &mut [0; 1]), Ok(0));
    assert_eq!(net::send(&fd, b"not taken", 0), Err(libc::EPIPE));
}

/// Bytes that a process has sent by the kernel, after the end of a session of which it has read nothing, arrive though it was killed.
fn peer_killed_behind_a_seal() {
    const LEFT: usize = 150_000;
    let (out, input) = net::pipe();
    let child = net::fork(|| {
        let fd = pair::client_of_port(&out);
        pair::warm_client(&fd);
        assert_eq!(read(&out, &mut [0; 1]), Ok(1));
        send_all(&fd, &[7; LEFT]);
        net::kill(std::process::id() as i32, libc::SIGKILL).unwrap();
        0
    });
    let (listener, addr) = net::listener(pair::loopback());
    pair::send_port(&input, addr);
    let fd = net::accept(&listener, 0).unwrap();
    pair::warm_server(&fd);
    // A fork ends it.
    assert_eq!(net::wait(net::fork(|| 0)), 0);
    net::write(&input, b"g").unwrap();
    net::wait(child);
    assert!(recv_exact(&fd, LEFT).iter().all(|&byte| byte == 7));
    assert_eq!(read(&fd, &mut [0; 1]), Ok(0));
}

/// A peek at a sealed ring, by a call for more bytes, gets from the kernel a reset that comes only from a doorbell. The program sees the
/// end of the peer, as without doorbells.
fn peeked_behind_a_seal() {
    // The other end decides whether the kernel's queue is empty then.
    (0..8).for_each(|_| peek_behind_a_seal());
}

fn peek_behind_a_seal() {
    let ((out, input), (ready, tells)) = (net::pipe(), net::pipe());
    let child = net::fork(|| {
        let fd = pair::client_of_port(&out);
        pair::warm_client(&fd);
        assert_eq!(read(&out, &mut [0; 1]), Ok(1));
        send_all(&fd, b"H");
        net::write(&tells, b"r").unwrap();
        net::sleep_ms(60_000);
        0
    });
    let (listener, addr) = net::listener(pair::loopback());
    pair::send_port(&input, addr);
    let fd = net::accept(&listener, 0).unwrap();
    pair::warm_server(&fd);
    // No doorbell is left in the kernel's queue, and none comes: this end does not sleep.
    assert_eq!(net::recv(&fd, &mut [0; 1], libc::MSG_DONTWAIT), Err(libc::EAGAIN));
    net::write(&input, b"g").unwrap();
    assert_eq!(read(&ready, &mut [0; 1]), Ok(1));
    // A FILE of a descriptor ends the session, and rings.
    // SAFETY: a descriptor of its own, and a string.
    let file = unsafe { libc::fdopen(net::dup(&fd).into_raw_fd(), c"w".as_ptr()) };
    assert!(!file.is_null());
    net::kill(child, libc::SIGKILL).unwrap();
    net::wait(child);
    assert_eq!(net::recv(&fd, &mut [0; 2], libc::MSG_PEEK), Ok(1));
    assert_eq!(net::poll(&fd, libc::POLLIN | libc::POLLOUT, 0), libc::POLLIN | libc::POLLOUT);
    assert_eq!(net::recv(&fd, &mut [0; 2], libc::MSG_PEEK), Ok(1));
    assert_eq!(recv_exact(&fd, 1), b"H");
    assert_eq!(read(&fd, &mut [0; 1]), Ok(0));
    assert_eq!(net::send(&fd, b"taken", 0), Ok(5));
    assert_eq!(net::send(&fd, b"not taken", 0), Err(libc::EPIPE));
}

/// A process killed with bytes unread resets the connection, also behind the end of a session.
fn peer_gone_behind_a_seal() {
    let ((out, input), (ready, tells)) = (net::pipe(), net::pipe());
    let child = net::fork(|| {
        let fd = pair::client_of_port(&out);
        pair::warm_client(&fd);
        // It does not sleep on the connection: no doorbell is rung, which would make a reset by itself.
        assert_eq!(net::recv(&fd, &mut [0; 1], libc::MSG_DONTWAIT), Err(libc::EAGAIN));
        net::write(&tells, b"r").unwrap();
        assert_eq!(read(&out, &mut [0; 1]), Ok(1));
        while net::poll(&fd, libc::POLLIN, 0) == 0 {
            std::thread::yield_now();
        }
        // A fork ends the session.
        net::wait(net::fork(|| 0));
        net::kill(std::process::id() as i32, libc::SIGKILL).unwrap();
        0
    });
    let (listener, addr) = net::listener(pair::loopback());
    pair::send_port(&input, addr);
    let fd = net::accept(&listener, 0).unwrap();
    pair::warm_server(&fd);
    assert_eq!(read(&ready, &mut [0; 1]), Ok(1));
    send_all(&fd, b"unread");
    net::write(&input, b"g").unwrap();
    net::wait(child);
    let (mut reads, mut writes, mut at_once) = (polling::fd_set(&[&fd]), polling::fd_set(&[&fd]), net::timeval(0));
    // SAFETY: sets and a time of our own.
    let told = unsafe { libc::select(1024, &raw mut reads, &raw mut writes, ptr::null_mut(), &raw mut at_once) };
    assert_eq!(told, 2);
    assert_eq!(read(&fd, &mut [0; 1]), Err(libc::ECONNRESET));
}

/// If a process has set its connections to be reset by a close, a kill shows as a reset, with or without doorbells left.
fn peer_killed_that_resets() {
    for (early, asleep) in [(true, false), (false, false), (true, true), (false, true)] {
        let (out, input) = net::pipe();
        let child = net::fork(|| {
            let fd = pair::client_of_port(&out);
            if early {
                net::linger(&fd, 0);
            }
            pair::warm_client(&fd);
            if !early {
                net::linger(&fd, 0);
            }
            send_all(&fd, b"last");
            recv_exact(&fd, 1);
            net::kill(std::process::id() as i32, libc::SIGKILL).unwrap();
            0
        });
        let (listener, addr) = net::listener(pair::loopback());
        pair::send_port(&input, addr);
        let fd = net::accept(&listener, 0).unwrap();
        pair::warm_server(&fd);
        assert_eq!(recv_exact(&fd, 4), b"last");
        if asleep {
            net::sleep_ms(50);
        }
        send_all(&fd, b"?");
        net::wait(child);
        assert_eq!(read(&fd, &mut [0; 1]), Err(libc::ECONNRESET));
    }
}

/// A kill ends all connections of a process: a peer that has noticed it by one may query another at once.
fn known_by_another_connection() {
    let ((out, input), (warm, tells)) = (net::pipe(), net::pipe());
    let child = net::fork(|| {
        let first = pair::client_of_port(&out);
        pair::warm_client(&first);
        let second = pair::client_of_port(&out);
        pair::warm_client(&second);
        net::write(&tells, b"w").unwrap();
        net::sleep_ms(60_000);
        0
    });
    let (listener, addr) = net::listener(pair::loopback());
    let accepted = || {
        pair::send_port(&input, addr);
        let fd = net::accept(&listener, 0).unwrap();
        pair::warm_server(&fd);
        fd
    };
    let (first, second) = (accepted(), accepted());
    let all = libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP;
    assert_eq!(read(&warm, &mut [0; 1]), Ok(1));
    assert_eq!(net::poll(&second, all, 0), libc::POLLOUT);
    net::kill(child, libc::SIGKILL).unwrap();
    net::wait(child);
    assert_eq!(net::poll(&first, all, 0), all);
    assert_eq!(net::poll(&second, all, 0), all);
}

/// A poll reports the error, also a poll for no events.
fn wakes_who_polls_for_nothing() {
    for events in [0, libc::POLLPRI] {
        let ((out, input), (polled, polls)) = (net::pipe(), net::pipe());
        let child = net::fork(|| {
            let fd = pair::client_of_port(&out);
            pair::warm_client(&fd);
            assert_eq!(net::recv(&fd, &mut [0], libc::MSG_DONTWAIT), Err(libc::EAGAIN));
            net::write(&polls, b"l").unwrap();
            net::sleep_ms(60_000);
            0
        });
        let (listener, addr) = net::listener(pair::loopback());
        pair::send_port(&input, addr);
        let fd = net::accept(&listener, 0).unwrap();
        pair::warm_server(&fd);
        assert_eq!(read(&polled, &mut [0]), Ok(1));
        net::send_all(&fd, b"never read");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                net::sleep_ms(300);
                net::kill(child, libc::SIGKILL).unwrap();
            });
            assert_eq!(net::poll(&fd, events, -1), libc::POLLERR | libc::POLLHUP);
        });
        net::wait(child);
    }
}

/// A socket keeps its names, while the program itself goes on with it.
fn keeps_its_names() {
    let (out, input) = net::pipe();
    let child = net::fork(|| {
        let fd = pair::client_of_port(&out);
        pair::warm_client(&fd);
        send_all(&fd, b"left");
        net::kill(std::process::id() as i32, libc::SIGKILL).unwrap();
        0
    });
    let (listener, addr) = net::listener(pair::loopback());
    pair::send_port(&input, addr);
    let fd = net::accept(&listener, 0).unwrap();
    pair::warm_server(&fd);
    net::wait(child);
    let (set, copy) = (Set::new(), net::dup(&fd));
    set.add(&fd, libc::EPOLLIN, 7);
    assert_eq!(set.wait(1, -1), [(7, libc::EPOLLIN)]);
    drop(fd);
    assert_eq!(recv_up_to(&copy, 100), b"left");
    let copy = std::net::TcpStream::from(copy);
    assert_eq!(copy.local_addr().unwrap(), addr);
}
