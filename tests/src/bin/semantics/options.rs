//! Socket options before, during and after a connection's time in rings.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, OwnedFd};

use libc::{IPPROTO_TCP, SOL_SOCKET};
use madrigal_report::Path;
use madrigal_tests::net::{self, get, recv_exact, send_all, set};
use madrigal_tests::pair::{self, Pair};

crate::checks![
    read_only_options,
    tcp_info,
    buffers,
    keepalive_and_friends,
    options_stay_over_moves,
    receive_buffer_small,
    timestamps_by_kernel,
    options_of_the_listener,
    time_out_set_by_a_child,
    linger_set_by_a_child,
    options_of_a_listener_set_by_a_child,
    peek_offset_set_by_a_child,
    options_set_to_what_they_are,
    an_option_that_begins_with_zero,
    sockopt_errors,
];

fn read_only_options() {
    let p = Pair::warm();
    assert_eq!(get(&p.c, SOL_SOCKET, libc::SO_TYPE), Ok(libc::SOCK_STREAM));
    assert_eq!(get(&p.c, SOL_SOCKET, libc::SO_DOMAIN), Ok(libc::AF_INET));
    assert_eq!(get(&p.c, SOL_SOCKET, libc::SO_PROTOCOL), Ok(IPPROTO_TCP));
    assert_eq!(get(&p.c, SOL_SOCKET, libc::SO_ACCEPTCONN), Ok(0));
    assert_eq!(get(&p.c, SOL_SOCKET, libc::SO_ERROR), Ok(0));
}

fn tcp_state(fd: &OwnedFd) -> u8 {
    // SAFETY: an all-zero info is valid.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&info) as libc::socklen_t;
    // SAFETY: room of that length.
    let n =
        unsafe { libc::getsockopt(fd.as_raw_fd(), IPPROTO_TCP, libc::TCP_INFO, (&raw mut info).cast(), &raw mut len) };
    assert_eq!(n, 0);
    info.tcpi_state
}

fn tcp_info() {
    let p = Pair::warm();
    assert_eq!((tcp_state(&p.c), tcp_state(&p.s)), (1, 1), "established");
    net::shutdown(&p.c, libc::SHUT_WR).unwrap();
    net::await_events(&p.s, libc::POLLRDHUP);
    assert_eq!(tcp_state(&p.s), 8, "close wait");
}

fn buffers() {
    let p = Pair::warm();
    set(&p.c, SOL_SOCKET, libc::SO_SNDBUF, 200_000).unwrap();
    set(&p.s, SOL_SOCKET, libc::SO_RCVBUF, 200_000).unwrap();
    assert!(get(&p.c, SOL_SOCKET, libc::SO_SNDBUF).unwrap() >= 200_000);
    let bytes = vec![5; 2 << 20];
    crate::both(|| send_all(&p.c, &bytes), || assert!(recv_exact(&p.s, bytes.len()) == bytes));
}

fn keepalive_and_friends() {
    let p = Pair::warm();
    for (level, name, value) in [
        (SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        (IPPROTO_TCP, libc::TCP_KEEPIDLE, 77),
        (IPPROTO_TCP, libc::TCP_KEEPINTVL, 7),
        (IPPROTO_TCP, libc::TCP_KEEPCNT, 3),
        (IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 9000),
        (IPPROTO_TCP, libc::TCP_QUICKACK, 1),
        (SOL_SOCKET, libc::SO_PRIORITY, 4),
        (libc::IPPROTO_IP, libc::IP_TOS, 16),
    ] {
        set(&p.c, level, name, value).unwrap();
        assert_eq!(get(&p.c, level, name), Ok(value), "option {level}/{name}");
    }
    send_all(&p.c, b"x");
    assert_eq!(recv_exact(&p.s, 1), b"x");
    p.assert_in_rings();
}

fn options_stay_over_moves() {
    let p = Pair::fresh();
    set(&p.c, IPPROTO_TCP, libc::TCP_NODELAY, 0).unwrap();
    set(&p.s, IPPROTO_TCP, libc::TCP_NODELAY, 1).unwrap();
    p.warm_up();
    assert_eq!(get(&p.c, IPPROTO_TCP, libc::TCP_NODELAY), Ok(0));
    assert_eq!(get(&p.s, IPPROTO_TCP, libc::TCP_NODELAY), Ok(1));
    assert_eq!(get(&p.s, SOL_SOCKET, libc::SO_RCVLOWAT), Ok(1));
    // Out of the rings again.
    net::send(&p.c, b"!", libc::MSG_OOB).unwrap();
    send_all(&p.c, b"x");
    assert_eq!(recv_exact(&p.s, 1), b"x");
    assert_eq!(get(&p.c, IPPROTO_TCP, libc::TCP_NODELAY), Ok(0));
    assert_eq!(get(&p.s, IPPROTO_TCP, libc::TCP_NODELAY), Ok(1));
}

fn receive_buffer_small() {
    let p = Pair::fresh();
    set(&p.s, SOL_SOCKET, libc::SO_RCVBUF, 4096).unwrap();
    set(&p.c, SOL_SOCKET, libc::SO_SNDBUF, 4096).unwrap();
    p.warm_up();
    let bytes: Vec<u8> = (0..500_000u32).map(|i| (i / 7) as u8).collect();
    crate::both(|| send_all(&p.c, &bytes), || assert!(recv_exact(&p.s, bytes.len()) == bytes));
}

fn timestamps_by_kernel() {
    let p = Pair::warm();
    set(&p.s, SOL_SOCKET, libc::SO_TIMESTAMP, 1).unwrap();
    send_all(&p.c, b"stamped");
    net::await_events(&p.s, libc::POLLIN);
    let (mut buf, mut control) = ([0u8; 16], [0u64; 32]);
    let mut iov = net::pieces(&mut [&mut buf]);
    let mut msg = net::message(&mut iov);
    msg.msg_control = control.as_mut_ptr().cast();
    msg.msg_controllen = size_of_val(&control);
    // SAFETY: a complete header over our own buffers.
    let n = unsafe { libc::recvmsg(p.s.as_raw_fd(), &raw mut msg, 0) };
    assert_eq!((n, &buf[..7]), (7, &b"stamped"[..]));
}

/// A connection of which a child that has ended set an option before it moved.
fn changed_by_a_child(change: fn(&Pair)) -> Pair {
    let p = Pair::fresh();
    let pid = net::fork(|| {
        change(&p);
        0
    });
    assert_eq!(net::wait(pid), 0);
    p.warm_up();
    p
}

fn time_out_set_by_a_child() {
    let p = changed_by_a_child(|p| set(&p.s, SOL_SOCKET, libc::SO_RCVTIMEO, net::timeval(50)).unwrap());
    assert_eq!(net::recv(&p.s, &mut [0; 4], 0), Err(libc::EAGAIN));
    send_all(&p.c, b"x");
    assert_eq!(recv_exact(&p.s, 1), b"x");
}

fn linger_set_by_a_child() {
    let p = changed_by_a_child(|p| net::linger(&p.s, 0));
    drop(p.s);
    assert_eq!(net::recv(&p.c, &mut [0; 4], 0), Err(libc::ECONNRESET));
}

fn options_of_a_listener_set_by_a_child() {
    let (listener, addr) = net::listener(madrigal_tests::pair::loopback());
    let pid = net::fork(|| {
        set(&listener, SOL_SOCKET, libc::SO_RCVTIMEO, net::timeval(50)).unwrap();
        0
    });
    assert_eq!(net::wait(pid), 0);
    let p = Pair::over(&listener, addr);
    p.warm_up();
    assert_eq!(net::recv(&p.s, &mut [0; 4], 0), Err(libc::EAGAIN));
}

/// What only the kernel can do stays with it, whoever set it.
fn peek_offset_set_by_a_child() {
    let p = Pair::fresh();
    if set(&p.s, SOL_SOCKET, libc::SO_PEEK_OFF, -1).is_err() {
        return; // Linux 6.9 and later have it for TCP.
    }
    let pid = net::fork(|| {
        set(&p.s, SOL_SOCKET, libc::SO_PEEK_OFF, 0).unwrap();
        0
    });
    assert_eq!(net::wait(pid), 0);
    for _ in 0..100 {
        send_all(&p.c, b"w");
        assert_eq!(recv_exact(&p.s, 1), b"w");
    }
    send_all(&p.c, b"abcd");
    net::await_events(&p.s, libc::POLLIN);
    let peeked = |_| {
        let mut bytes = [0; 2];
        assert_eq!(net::recv(&p.s, &mut bytes, libc::MSG_PEEK), Ok(2));
        bytes
    };
    assert_eq!([0, 1].map(peeked), [*b"ab", *b"cd"]);
}

/// An option set to the value it has takes nothing from rings.
fn options_set_to_what_they_are() {
    let p = Pair::warm();
    for (name, unset) in [(libc::SO_TIMESTAMP, 0), (libc::SO_ZEROCOPY, 0), (libc::SO_MAX_PACING_RATE, -1)] {
        set(&p.s, SOL_SOCKET, name, unset).unwrap();
    }
    set(&p.s, IPPROTO_TCP, TCP_INQ, 0).unwrap();
    send_all(&p.c, b"x");
    assert_eq!(recv_exact(&p.s, 1), b"x");
    p.assert_in_rings();
}

/// `SO_TXTIME` begins with a clock; that of real time has number 0.
fn an_option_that_begins_with_zero() {
    let p = Pair::warm();
    if set(&p.s, SOL_SOCKET, libc::SO_TXTIME, 0u64).is_err() {
        return; // Only who may administer the network may choose that clock.
    }
    assert_ne!(pair::path(&p.s), Some(Path::Shm));
    send_all(&p.s, b"x");
    assert_eq!(recv_exact(&p.c, 1), b"x");
}

const TCP_INQ: i32 = 36;

fn options_of_the_listener() {
    let (listener, addr) = net::listener(madrigal_tests::pair::loopback());
    set(&listener, SOL_SOCKET, libc::SO_RCVTIMEO, net::timeval(100)).unwrap();
    let p = Pair::over(&listener, addr);
    p.warm_up();
    p.assert_in_rings();
    assert_eq!(net::read(&p.s, &mut [0; 4]), Err(libc::EAGAIN), "the time-out is the listener's");
    net::linger(&listener, 0);
    let p = Pair::over(&listener, addr);
    p.warm_up();
    drop(p.s);
    net::await_events(&p.c, libc::POLLERR);
    assert_eq!(net::read(&p.c, &mut [0; 4]), Err(libc::ECONNRESET), "so is a close that resets");
    set(&listener, SOL_SOCKET, libc::SO_RCVLOWAT, 4).unwrap();
    let p = Pair::over(&listener, addr);
    send_all(&p.c, b"12");
    assert_eq!(net::poll(&p.s, libc::POLLIN, 50), 0, "and the mark below which nothing is readable");
}

fn sockopt_errors() {
    let p = Pair::warm();
    assert_eq!(set(&p.c, SOL_SOCKET, 9999, 1), Err(libc::ENOPROTOOPT));
    assert_eq!(get(&p.c, IPPROTO_TCP, 9999), Err(libc::ENOPROTOOPT));
    assert_eq!(set(&p.c, IPPROTO_TCP, libc::TCP_NODELAY, 1u8), Err(libc::EINVAL));
    assert_eq!(net::ioctl(&p.c, 0x1234_5678, 0), Err(libc::ENOTTY));
    p.assert_in_rings();
}
