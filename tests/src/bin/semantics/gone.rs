//! The results of calls once the peer has closed, reset the connection, or was killed (P2): errors, signals, readiness, each as with TCP.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, OwnedFd};

use libc::{
    EAGAIN, ECONNRESET, EFAULT, ENOTCONN, EPIPE, EPOLLERR, EPOLLHUP, EPOLLIN, MSG_DONTWAIT, MSG_MORE, MSG_WAITALL,
    POLLERR, POLLHUP, POLLIN, POLLOUT, POLLPRI, POLLRDHUP, SHUT_RD, SHUT_RDWR, SHUT_WR, SIGKILL,
};
use madrigal_tests::net::{self, await_events, poll, read, recv, recv_exact, send, send_all, shutdown};
use madrigal_tests::pair::{self, Pair};

use crate::set::Set;

crate::checks![
    killed_then_two_sends,
    killed_behind_a_pause,
    killed_with_bytes_unread,
    killed_with_kernel_bytes_unread,
    killed_behind_doorbells,
    killed_then_held_back,
    killed_then_shut,
    killed_in_a_long_send_then_shut,
    killed_then_closed_beside_a_child,
    killed_then_named,
    killed_then_forked,
    killed_then_files,
    killed_while_it_moves,
    bad_memory_is_not_taken,
    part_of_a_receive_takes_no_error,
    part_that_waits_takes_no_error,
    part_of_a_send_takes_no_error,
    error_stays_for_poll,
    error_stays_for_the_c_library,
    error_behind_the_end_stays_for_the_c_library,
    bytes_for_who_has_shut_both_ways,
    closed_with_kernel_bytes_unread,
    recvmmsg_tells_errors_first,
];

const ALL: i16 = POLLIN | POLLOUT | POLLRDHUP | POLLPRI;
const END: i16 = POLLIN | POLLOUT | POLLRDHUP;

/// A connection to a child that will be killed, once it has done `work`.
pub(crate) fn victim(work: impl FnOnce(&OwnedFd)) -> (OwnedFd, i32) {
    let (port, tell) = net::pipe();
    let (out, done) = net::pipe();
    let pid = net::fork(|| {
        let fd = pair::client_of_port(&port);
        pair::warm_client(&fd);
        work(&fd);
        net::write(&done, b"d").unwrap();
        net::sleep_ms(60_000);
        0
    });
    let (listener, addr) = net::listener(pair::loopback());
    pair::send_port(&tell, addr);
    let fd = net::accept(&listener, 0).unwrap();
    pair::warm_server(&fd);
    assert_eq!(net::read(&out, &mut [0; 1]), Ok(1));
    (fd, pid)
}

pub(crate) fn end(pid: i32) {
    net::kill(pid, SIGKILL).unwrap();
    net::wait(pid);
    // More than a tick of the kernel's clock, for which a peer is believed to live (docs/limits.md).
    net::sleep_ms(20);
}

/// More than a receiver takes: the end waits behind it, and until then the connection can be shut again and again.
fn killed_in_a_long_send_then_shut() {
    let (fd, pid) = victim(|_| {});
    end(pid);
    assert_eq!([(); 2].map(|()| shutdown(&fd, SHUT_WR)), [Ok(()), Err(ENOTCONN)], "nothing is unread");
    for unread in [&b""[..], b"never read"] {
        let (port, tell) = net::pipe();
        let pid = net::fork(|| {
            let fd = pair::client_of_port(&port);
            pair::warm_client(&fd);
            recv_exact(&fd, 1);
            send_all(&fd, &vec![7; 5 << 20]);
            0
        });
        let (listener, addr) = net::listener(pair::loopback());
        pair::send_port(&tell, addr);
        let fd = net::accept(&listener, 0).unwrap();
        pair::warm_server(&fd);
        net::sleep_ms(50);
        send_all(&fd, b"?");
        // Until it is stuck.
        net::sleep_ms(300);
        send_all(&fd, unread);
        end(pid);
        let told = [(); 3].map(|()| shutdown(&fd, SHUT_WR));
        assert_eq!(told, [if unread.is_empty() { Ok(()) } else { Err(ENOTCONN) }; 3]);
        while matches!(read(&fd, &mut [0; 65_536]), Ok(1..)) {}
        net::sleep_ms(20);
        assert_eq!(shutdown(&fd, SHUT_WR), Err(ENOTCONN));
    }
}

/// Closed here, and open in a child: the registration is reported as with TCP, as long as the child has it.
fn killed_then_closed_beside_a_child() {
    let (fd, pid) = rung();
    net::wait(pid);
    assert_eq!(poll(&fd, ALL, 1000), END);
    let set = Set::new();
    set.add(&fd, libc::EPOLLIN, 1);
    let (wait, go) = net::pipe();
    let child = net::fork(|| {
        let _ = net::read(&wait, &mut [0; 1]);
        0
    });
    drop(fd);
    assert_eq!(set.wait(4, 0), [(1, libc::EPOLLIN)]);
    assert_eq!(set.wait(4, -1), [(1, libc::EPOLLIN)]);
    net::write(&go, b"g").unwrap();
    net::wait(child);
    assert_eq!(set.wait(4, 20), []);
}

/// One more send is taken, and only the next one breaks: nothing of it is a byte that the peer left unread.
fn killed_then_two_sends() {
    let (fd, pid) = victim(|_| {});
    end(pid);
    assert_eq!(send(&fd, b"taken", 0), Ok(5));
    assert_eq!(send(&fd, b"not taken", 0), Err(EPIPE));
    assert_eq!(read(&fd, &mut [0; 1]), Ok(0));
    assert_eq!(poll(&fd, ALL, 0), END | POLLHUP, "the error has been told");
}

fn killed_behind_a_pause() {
    let (fd, pid) = victim(|_| {});
    end(pid);
    net::sleep_ms(20);
    assert_eq!(recv(&fd, &mut [0; 1], MSG_DONTWAIT), Ok(0));
    assert_eq!(send(&fd, b"", 0), Ok(0));
    assert_eq!(poll(&fd, ALL, 0), END);
    assert_eq!(send(&fd, b"taken", 0), Ok(5));
    assert_eq!(poll(&fd, ALL, 0), END | POLLHUP | POLLERR);
    assert_eq!(net::take_error(&fd), EPIPE);
    assert_eq!(poll(&fd, ALL, 0), END | POLLHUP);
}

fn killed_with_bytes_unread() {
    let (fd, pid) = victim(|fd| send_all(fd, b"last"));
    send_all(&fd, b"never read");
    end(pid);
    assert_eq!(poll(&fd, ALL, 0), END | POLLHUP | POLLERR);
    assert_eq!(recv_exact(&fd, 4), b"last");
    assert_eq!(read(&fd, &mut [0; 1]), Err(ECONNRESET));
    assert_eq!(read(&fd, &mut [0; 1]), Ok(0));
    assert_eq!(send(&fd, b"x", 0), Err(EPIPE));
    assert_eq!(shutdown(&fd, SHUT_WR), Err(ENOTCONN));
}

/// The same of bytes that went by the kernel, behind the ring.
fn killed_with_kernel_bytes_unread() {
    let (fd, pid) = victim(|_| {});
    net::set(&fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1).unwrap();
    let (out, input) = net::pipe();
    net::write(&input, b"spliced").unwrap();
    assert_eq!(net::splice(&out, &fd, 7), Ok(7));
    end(pid);
    assert_eq!(send(&fd, b"x", 0), Err(ECONNRESET));
    assert_eq!(send(&fd, b"x", 0), Err(EPIPE));
}

/// A peer that was asleep leaves the doorbell that woke it, and nothing else: to the program it ended as any other.
fn killed_behind_doorbells() {
    let (fd, pid) = rung();
    assert_eq!(poll(&fd, POLLPRI, 0), 0, "nothing that was asked for");
    assert_eq!(poll(&fd, POLLPRI, 30), 0);
    assert_eq!(poll(&fd, ALL, 0), END);
    assert_eq!(net::write(&fd, b""), Ok(0));
    assert_eq!(send(&fd, b"taken", 0), Ok(5));
    assert_eq!(poll(&fd, ALL, 0), END | POLLHUP | POLLERR);
    assert_eq!(send(&fd, b"not taken", 0), Err(EPIPE));
    net::wait(pid);
}

/// A connection to a process that was asleep, was woken, and has read, but for the doorbell; then it does this.
fn rung_then(then: fn()) -> (OwnedFd, i32) {
    let (port, tell) = net::pipe();
    let pid = net::fork(|| {
        let fd = pair::client_of_port(&port);
        pair::warm_client(&fd);
        recv_exact(&fd, 1);
        then();
        0
    });
    let (listener, addr) = net::listener(pair::loopback());
    pair::send_port(&tell, addr);
    let fd = net::accept(&listener, 0).unwrap();
    pair::warm_server(&fd);
    net::sleep_ms(50);
    send_all(&fd, b"?");
    (fd, pid)
}

/// The same to one that is killed at once.
pub(crate) fn rung() -> (OwnedFd, i32) {
    let (fd, pid) = rung_then(|| net::kill(std::process::id() as i32, SIGKILL).unwrap());
    await_events(&fd, POLLRDHUP);
    (fd, pid)
}

/// The same to one that lives on.
pub(crate) fn rung_and_alive() -> (OwnedFd, i32) {
    let (fd, pid) = rung_then(|| net::sleep_ms(60_000));
    net::sleep_ms(50);
    (fd, pid)
}

/// Bytes that are held back are not sent, so there is no answer before more bytes come, or TCP's 200 ms are over.
fn killed_then_held_back() {
    let go_on: [fn(&OwnedFd); 4] = [
        |fd| assert_eq!(send(fd, b"not held", 0), Ok(8)),
        |fd| net::set(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1).unwrap(),
        |_| net::sleep_ms(300),
        |fd| assert_eq!(poll(fd, POLLPRI, 2_000), POLLHUP | POLLERR),
    ];
    for go_on in go_on {
        let (fd, pid) = rung();
        assert_eq!(send(&fd, b"held", MSG_MORE), Ok(4));
        assert_eq!(send(&fd, b"held", MSG_MORE), Ok(4));
        assert_eq!(poll(&fd, ALL, 0), END);
        go_on(&fd);
        assert_eq!(poll(&fd, ALL, 2_000) & (POLLHUP | POLLERR), POLLHUP | POLLERR);
        assert_eq!(send(&fd, b"not taken", MSG_MORE), Err(EPIPE));
        net::wait(pid);
    }
}

fn killed_then_shut() {
    let (fd, pid) = rung();
    assert_eq!(shutdown(&fd, SHUT_RD), Ok(()));
    assert_eq!(shutdown(&fd, SHUT_WR), Ok(()));
    assert_eq!(shutdown(&fd, SHUT_WR), Err(ENOTCONN));
    assert_eq!(poll(&fd, ALL, 0), END | POLLHUP);
    assert_eq!(send(&fd, b"x", 0), Err(EPIPE));
    net::wait(pid);
}

/// A connection that has only ended has a peer.
fn killed_then_named() {
    let (fd, pid) = rung();
    let name = |ask: unsafe extern "C" fn(i32, *mut libc::sockaddr, *mut u32) -> i32| {
        // SAFETY: all-zero is a valid address.
        let mut addr: libc::sockaddr_in = unsafe { std::mem::zeroed() };
        let mut len = size_of_val(&addr) as u32;
        // SAFETY: an address of our own, and its length.
        let result = unsafe { ask(fd.as_raw_fd(), (&raw mut addr).cast(), &raw mut len) };
        (result, len, addr.sin_family, addr.sin_addr.s_addr.to_ne_bytes())
    };
    let local = (0, 16, libc::AF_INET as u16, [127, 0, 0, 1]);
    assert_eq!((name(libc::getsockname), name(libc::getpeername)), (local, local));
    assert_eq!(send(&fd, b"taken", 0), Ok(5));
    await_events(&fd, POLLHUP);
    assert_eq!(name(libc::getpeername).0, -1);
    net::wait(pid);
}

/// Parent and child have one socket, and get the error once.
fn killed_then_forked() {
    let (fd, pid) = rung();
    let child = net::fork(|| i32::from(poll(&fd, ALL, 0) != END || send(&fd, b"taken", 0) != Ok(5)));
    assert_eq!(net::wait(child), 0);
    assert_eq!(poll(&fd, ALL, 0), END | POLLHUP | POLLERR);
    assert_eq!(send(&fd, b"not taken", 0), Err(EPIPE));
    net::wait(pid);
}

fn killed_then_files() {
    let (fd, pid) = rung();
    let (out, input) = net::pipe();
    net::write(&input, b"spliced").unwrap();
    assert_eq!(net::splice(&out, &fd, 7), Ok(7), "taken");
    net::write(&input, b"spliced").unwrap();
    net::on_signal(libc::SIGPIPE, net::count_signal, true);
    assert_eq!(net::splice(&out, &fd, 7), Err(EPIPE));
    assert_eq!(net::signals(), 1);
    assert_eq!(net::read(&out, &mut [0; 9]), Ok(7), "the pipe keeps what was not taken");
    net::wait(pid);
}

/// At any point of a connection's way into a ring: the first look shows the end.
fn killed_while_it_moves() {
    for rounds in 1..=12 {
        for peeks in [false, true] {
            let (port, tell) = net::pipe();
            let (out, done) = net::pipe();
            let pid = net::fork(|| {
                let fd = pair::client_of_port(&port);
                for _ in 0..rounds {
                    send_all(&fd, b"?");
                    recv_exact(&fd, 1);
                }
                if peeks {
                    assert_eq!(recv(&fd, &mut [0; 1], MSG_DONTWAIT), Err(libc::EAGAIN));
                }
                net::write(&done, b"d").unwrap();
                net::sleep_ms(60_000);
                0
            });
            let (listener, addr) = net::listener(pair::loopback());
            pair::send_port(&tell, addr);
            let fd = net::accept(&listener, 0).unwrap();
            for _ in 0..rounds {
                recv_exact(&fd, 1);
                send_all(&fd, b"!");
            }
            assert_eq!(net::read(&out, &mut [0; 1]), Ok(1));
            end(pid);
            assert_eq!(poll(&fd, POLLIN | POLLOUT, 0), POLLIN | POLLOUT, "after {rounds} rounds");
            assert_eq!(read(&fd, &mut [0; 1]), Ok(0));
        }
    }
}

fn bad_memory_is_not_taken() {
    let (fd, pid) = rung();
    // SAFETY: no memory is there; the call says so.
    let sent =
        net::count(unsafe { libc::send(fd.as_raw_fd(), std::ptr::without_provenance(16), 9, libc::MSG_NOSIGNAL) });
    assert_eq!(sent, Err(EFAULT));
    assert_eq!(send(&fd, b"taken", 0), Ok(5));
    assert_eq!(send(&fd, b"not taken", 0), Err(EPIPE));
    net::wait(pid);
}

fn part_of_a_receive_takes_no_error() {
    let (fd, pid) = victim(|fd| send_all(fd, b"1"));
    send_all(&fd, b"never read");
    end(pid);
    assert_eq!(recv(&fd, &mut [0; 2], MSG_WAITALL), Ok(1));
    assert_eq!(send(&fd, b"x", 0), Err(ECONNRESET));
    assert_eq!(send(&fd, b"x", 0), Err(EPIPE));
}

/// Nor does one that waits for the rest of it.
fn part_that_waits_takes_no_error() {
    let Pair { c, s } = Pair::warm();
    // SAFETY: no pointers.
    let tid = unsafe { libc::gettid() };
    std::thread::scope(|scope| {
        let c = &c;
        scope.spawn(move || {
            crate::await_asleep(tid);
            send_all(&s, b"x");
            crate::await_asleep(tid);
            send_all(c, b"never read");
            drop(s);
        });
        assert_eq!(recv(c, &mut [0; 2], MSG_WAITALL), Ok(1));
    });
    assert_eq!(send(&c, b"x", 0), Err(ECONNRESET));
    assert_eq!(send(&c, b"x", 0), Err(EPIPE));
}

/// A reset behind the part that is sent is reported by the next call, of any process.
fn part_of_a_send_takes_no_error() {
    const MORE_THAN_FITS: usize = 32 << 20;
    let Pair { c, s } = Pair::warm();
    // Unread, so that the ring is not done with.
    send_all(&s, b"x");
    let child = net::fork(|| {
        net::close_in_child(&c);
        let sent = net::write(&s, &vec![b'x'; MORE_THAN_FITS]);
        i32::from(!sent.is_ok_and(|n| (1..MORE_THAN_FITS).contains(&n)))
    });
    let full = || {
        let before = net::readable(&c);
        net::sleep_ms(50);
        before > 1 && net::readable(&c) == before
    };
    while !full() {}
    drop(c);
    assert_eq!(net::wait(child), 0, "a part was sent");
    assert_eq!(poll(&s, ALL, 0), END | POLLHUP | POLLERR);
    assert_eq!(net::take_error(&s), ECONNRESET);
}

fn error_stays_for_poll() {
    let p = Pair::warm();
    send_all(&p.c, b"never read");
    await_events(&p.s, POLLIN);
    drop(p.s);
    await_events(&p.c, POLLERR);
    for _ in 0..3 {
        assert_eq!(poll(&p.c, ALL, 0), END | POLLHUP | POLLERR);
    }
    assert_eq!(net::take_error(&p.c), ECONNRESET);
    assert_eq!(poll(&p.c, ALL, 0), END | POLLHUP);
}

/// A write that bypasses the hooks gets the same error as any other call.
fn error_stays_for_the_c_library() {
    let p = Pair::warm();
    send_all(&p.c, b"never read");
    await_events(&p.s, POLLIN);
    drop(p.s);
    await_events(&p.c, POLLERR);
    assert_eq!(poll(&p.c, ALL, 0), END | POLLHUP | POLLERR);
    assert_eq!(net::print(&p.c, c"lost"), Err(ECONNRESET));
    assert_eq!(send(&p.c, b"x", 0), Err(EPIPE));
}

/// A receive at the end of the stream takes no error: the error is for a write, and reported once. In a ring, and on the way into one.
fn error_behind_the_end_stays_for_the_c_library() {
    error_behind_the_end(Pair::warm());
    for rounds in 0..24 {
        let p = Pair::fresh();
        for _ in 0..rounds {
            send_all(&p.s, b"1");
            assert_eq!(recv_exact(&p.c, 1), b"1");
        }
        assert_eq!(recv(&p.s, &mut [0; 1], MSG_DONTWAIT), Err(EAGAIN));
        error_behind_the_end(Pair { c: p.s, s: p.c });
    }
}

fn error_behind_the_end(p: Pair) {
    drop(p.s);
    assert_eq!(send(&p.c, b"lost", 0), Ok(4));
    await_events(&p.c, POLLERR);
    for _ in 0..2 {
        assert_eq!(read(&p.c, &mut [0; 1]), Ok(0));
        assert_eq!(poll(&p.c, ALL, 0), END | POLLHUP | POLLERR);
    }
    let set = Set::new();
    set.add(&p.c, EPOLLIN, 1);
    assert_eq!(set.wait(4, 0), [(1, EPOLLIN | EPOLLHUP | EPOLLERR)]);
    assert_eq!(net::print(&p.c, c"lost"), Err(EPIPE));
    assert_eq!(poll(&p.c, ALL, 0), END | POLLHUP, "the error has been told");
    assert_eq!(set.wait(4, 0), [(1, EPOLLIN | EPOLLHUP)]);
    assert_eq!(net::take_error(&p.c), 0);
    assert_eq!(send(&p.c, b"x", 0), Err(EPIPE));
}

fn bytes_for_who_has_shut_both_ways() {
    let p = Pair::warm();
    shutdown(&p.c, SHUT_RDWR).unwrap();
    await_events(&p.s, POLLRDHUP);
    assert_eq!(send(&p.s, b"x", 0), Ok(1));
    await_events(&p.c, POLLERR);
    assert_eq!(poll(&p.c, ALL, 0), END | POLLHUP | POLLERR);
    assert_eq!(read(&p.c, &mut [0; 1]), Err(ECONNRESET));
    assert_eq!(read(&p.c, &mut [0; 1]), Ok(0));
}

fn closed_with_kernel_bytes_unread() {
    let p = Pair::warm();
    net::set(&p.c, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1).unwrap();
    send_all(&p.c, b"1");
    let (out, input) = net::pipe();
    net::write(&input, b"2").unwrap();
    assert_eq!(net::splice(&out, &p.c, 1), Ok(1));
    assert_eq!(recv_exact(&p.s, 1), b"1");
    drop(p.s);
    await_events(&p.c, POLLERR);
    assert_eq!(read(&p.c, &mut [0; 1]), Err(ECONNRESET));
}

fn recvmmsg_tells_errors_first() {
    let (fd, pid) = rung();
    assert_eq!(send(&fd, b"taken", 0), Ok(5));
    let mut byte = [0u8; 1];
    let mut piece = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // SAFETY: all-zero is a valid header.
    let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
    header.msg_hdr.msg_iov = &raw mut piece;
    header.msg_hdr.msg_iovlen = 1;
    // SAFETY: one header, one piece, one byte.
    let mut once = || unsafe { libc::recvmmsg(fd.as_raw_fd(), &raw mut header, 1, MSG_DONTWAIT, std::ptr::null_mut()) };
    let got = once();
    assert_eq!((got, std::io::Error::last_os_error().raw_os_error()), (-1, Some(EPIPE)));
    assert_eq!(once(), 1, "the end of the stream");
    net::wait(pid);
}
