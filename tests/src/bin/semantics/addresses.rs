//! Addresses and how a connection begins: IPv4, IPv6, mapped, non-blocking connect, shared ports.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use libc::{POLLIN, POLLOUT, SOCK_NONBLOCK};
use madrigal_tests::net::{self, recv_exact, send_all};
use madrigal_tests::pair::{self, Pair};

crate::checks![
    by_ipv6,
    by_ipv4_to_dual_stack,
    by_mapped_address,
    by_other_loopback,
    to_any_address,
    nonblocking_connect,
    refused,
    reuseport_spreads,
    connect_again,
    bound_source,
    send_in_connecting,
    accept_flags,
    half_open_backlog,
    names_stay,
    connect_to_itself,
];

fn exchange(c: OwnedFd, s: OwnedFd) {
    let p = Pair { c, s };
    p.warm_up();
    send_all(&p.c, b"there");
    assert_eq!(recv_exact(&p.s, 5), b"there");
    send_all(&p.s, b"and back");
    assert_eq!(recv_exact(&p.c, 8), b"and back");
    p.assert_in_rings();
}

fn by_ipv6() {
    let (listener, addr) = net::listener(SocketAddr::from((Ipv6Addr::LOCALHOST, 0)));
    let c = net::client(addr);
    exchange(c, net::accept(&listener, 0).unwrap());
}

fn by_ipv4_to_dual_stack() {
    let (listener, addr) = net::listener(SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)));
    let c = net::client(SocketAddr::from((Ipv4Addr::LOCALHOST, addr.port())));
    exchange(c, net::accept(&listener, 0).unwrap());
}

fn by_mapped_address() {
    let (listener, addr) = net::listener(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)));
    let c = net::client(SocketAddr::from((Ipv4Addr::LOCALHOST.to_ipv6_mapped(), addr.port())));
    exchange(c, net::accept(&listener, 0).unwrap());
}

fn by_other_loopback() {
    let (listener, addr) = net::listener(SocketAddr::from((Ipv4Addr::new(127, 3, 2, 1), 0)));
    let c = net::client(addr);
    exchange(c, net::accept(&listener, 0).unwrap());
}

fn to_any_address() {
    let (listener, addr) = net::listener(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)));
    let c = net::client(addr);
    exchange(c, net::accept(&listener, 0).unwrap());
}

fn nonblocking_connect() {
    let (listener, addr) = net::listener(pair::loopback());
    let c = net::socket(false, SOCK_NONBLOCK);
    assert!(matches!(net::connect(&c, addr), Ok(()) | Err(libc::EINPROGRESS)));
    assert_eq!(net::poll(&c, POLLOUT, -1), POLLOUT);
    assert_eq!(net::take_error(&c), 0);
    let s = net::accept(&listener, 0).unwrap();
    net::set_nonblocking(&c, false);
    exchange(c, s);
}

fn refused() {
    let (listener, addr) = net::listener(pair::loopback());
    drop(listener);
    let c = net::socket(false, 0);
    assert_eq!(net::connect(&c, addr), Err(libc::ECONNREFUSED));
    let c = net::socket(false, SOCK_NONBLOCK);
    let first = net::connect(&c, addr);
    assert!(matches!(first, Err(libc::EINPROGRESS | libc::ECONNREFUSED)));
    if first == Err(libc::EINPROGRESS) {
        net::await_events(&c, libc::POLLERR);
        assert_eq!(net::take_error(&c), libc::ECONNREFUSED);
    }
    assert_eq!(net::send(net::socket(false, 0), b"x", 0), Err(libc::EPIPE));
    assert_eq!(net::read(net::socket(false, 0), &mut [0; 1]), Err(libc::ENOTCONN));
}

fn reuseport_spreads() {
    let share = |fd: &OwnedFd| net::set(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1).unwrap();
    let (one, addr) = net::listener_with(pair::loopback(), SOCK_NONBLOCK, share).unwrap();
    let (two, _) = net::listener_with(addr, SOCK_NONBLOCK, share).unwrap();
    assert_eq!(net::listener_with(addr, 0, |_| {}).err(), Some(libc::EADDRINUSE));
    let mut seen = [0; 2];
    for _ in 0..40 {
        let c = net::client(addr);
        let mut both = [
            libc::pollfd { fd: std::os::fd::AsRawFd::as_raw_fd(&one), events: POLLIN, revents: 0 },
            libc::pollfd { fd: std::os::fd::AsRawFd::as_raw_fd(&two), events: POLLIN, revents: 0 },
        ];
        assert_eq!(net::poll_many(&mut both, -1), Ok(1));
        let which = usize::from(both[0].revents == 0);
        seen[which] += 1;
        exchange(c, net::accept([&one, &two][which], 0).unwrap());
    }
    assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
}

fn connect_again() {
    let (listener, addr) = net::listener(pair::loopback());
    let c = net::client(addr);
    assert_eq!(net::connect(&c, addr), Err(libc::EISCONN));
    let p = Pair { c, s: net::accept(&listener, 0).unwrap() };
    p.warm_up();
    assert_eq!(net::connect(&p.c, addr), Err(libc::EISCONN));
    send_all(&p.c, b"x");
    assert_eq!(recv_exact(&p.s, 1), b"x");
}

fn bound_source() {
    let (listener, addr) = net::listener(pair::loopback());
    // A listener's socket call sequence without listen: bind, then connect.
    let (probe, free) = net::listener(pair::loopback());
    drop(probe);
    let c = net::socket(false, 0);
    net::set(&c, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1).unwrap();
    net::bind(&c, free).unwrap();
    net::connect(&c, addr).unwrap();
    assert_eq!(net::own_port(&c), free.port());
    exchange(c, net::accept(&listener, 0).unwrap());
}

fn send_in_connecting() {
    let (listener, addr) = net::listener(pair::loopback());
    let c = net::socket(false, SOCK_NONBLOCK);
    let _ = net::connect(&c, addr);
    // Data before the accepting side has even accepted.
    net::await_events(&c, POLLOUT);
    for part in [b"1", b"2", b"3", b"4", b"5", b"6"] {
        assert_eq!(net::send(&c, part, 0), Ok(1));
    }
    let s = net::accept(&listener, 0).unwrap();
    assert_eq!(recv_exact(&s, 6), b"123456");
    net::set_nonblocking(&c, false);
    exchange(c, s);
}

fn accept_flags() {
    let (listener, addr) = net::listener(pair::loopback());
    let c = net::client(addr);
    let s = net::accept(&listener, SOCK_NONBLOCK | libc::SOCK_CLOEXEC).unwrap();
    assert_eq!(net::fcntl(&s, libc::F_GETFL, 0).unwrap() & libc::O_NONBLOCK, libc::O_NONBLOCK);
    assert_eq!(net::fcntl(&s, libc::F_GETFD, 0), Ok(libc::FD_CLOEXEC));
    assert_eq!(net::read(&s, &mut [0; 1]), Err(libc::EAGAIN));
    net::set_nonblocking(&s, false);
    exchange(c, s);
    net::set_nonblocking(&listener, true);
    assert_eq!(net::accept(&listener, 0).err(), Some(libc::EAGAIN));
}

fn half_open_backlog() {
    // Much is sent and the connection closed before it is accepted.
    let (listener, addr) = net::listener(pair::loopback());
    let c = net::client(addr);
    for i in 0..100u8 {
        send_all(&c, &[i; 100]);
    }
    drop(c);
    let s = net::accept(&listener, 0).unwrap();
    let got = net::recv_up_to(&s, 20_000);
    assert!(got.len() == 10_000 && got.chunks(100).enumerate().all(|(i, part)| part == [i as u8; 100]));
}

fn names_stay() {
    let (listener, addr) = net::listener(pair::loopback());
    let c = net::client(addr);
    let port = net::own_port(&c);
    let p = Pair { c, s: net::accept(&listener, 0).unwrap() };
    p.warm_up();
    assert_eq!((net::own_port(&p.c), net::own_port(&p.s)), (port, addr.port()));
    assert_eq!((net::peer_port(&p.c), net::peer_port(&p.s)), (Ok(addr.port()), Ok(port)));
}

fn connect_to_itself() {
    // TCP's simultaneous open: a socket connected to its own port talks to itself.
    let c = net::socket(false, 0);
    net::bind(&c, pair::loopback()).unwrap();
    let mut own = pair::loopback();
    own.set_port(net::own_port(&c));
    net::connect(&c, own).unwrap();
    for i in 0..500u32 {
        send_all(&c, &i.to_ne_bytes());
        assert_eq!(recv_exact(&c, 4), i.to_ne_bytes());
    }
}
