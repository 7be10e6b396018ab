//! A connected pair of TCP sockets, warmed up until, in a wrapped process, both directions are in a ring.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use madrigal_report::{Path, Reason, Record, Report};

use crate::net::{self, Fd};

/// Both ends of one connection, in this process.
pub struct Pair {
    /// The connecting end.
    pub c: OwnedFd,
    /// The accepting end.
    pub s: OwnedFd,
}

/// Whether connections are expected in rings.
pub fn expect_ring() -> bool {
    std::env::var_os("EXPECT_RING").is_some()
}

/// A loopback address with no port yet.
pub fn loopback() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
}

impl Pair {
    /// A fresh connection.
    pub fn fresh() -> Self {
        let (listener, addr) = net::listener(loopback());
        Self::over(&listener, addr)
    }

    /// A fresh connection to a listener of this process.
    pub fn over(listener: &OwnedFd, addr: SocketAddr) -> Self {
        let c = net::client(addr);
        let s = net::accept(listener, libc::SOCK_CLOEXEC).expect("accept");
        Self { c, s }
    }

    /// A connection in rings (plain: just a used one).
    pub fn warm() -> Self {
        let pair = Self::fresh();
        pair.warm_up();
        pair
    }

    /// Plays ping-pong until both directions are in a ring.
    pub fn warm_up(&self) {
        for round in 0..ROUNDS {
            for (from, to) in [(&self.c, &self.s), (&self.s, &self.c)] {
                assert_eq!(net::write(from, b"w"), Ok(1));
                assert_eq!(net::recv_exact(to, 1), b"w");
            }
            if enough(round) && in_ring(&self.c) && in_ring(&self.s) {
                return;
            }
        }
        panic!("no ring: client {:?}, server {:?}", why(&self.c), why(&self.s));
    }

    /// A connection of which what the accepting end has sent is unread, while the other one's bytes go through a ring.
    pub fn one_way() -> Self {
        let pair = Self::fresh();
        assert_eq!(net::write(&pair.s, b"left"), Ok(4));
        for round in 0..ROUNDS {
            net::send_all(&pair.c, &[round as u8; 512]);
            net::recv_exact(&pair.s, 512);
            if enough(round) && sends_by_ring(&pair.c) {
                return pair;
            }
        }
        panic!("no ring: client {:?}, server {:?}", why(&pair.c), why(&pair.s));
    }

    /// Panics unless both ends still travel by rings (when wrapped).
    pub fn assert_in_rings(&self) {
        for fd in [&self.c, &self.s] {
            assert!(!expect_ring() || path(fd) == Some(Path::Shm), "left the ring: {:?}", why(fd));
        }
    }
}

/// The accepting end of a connection in rings whose peer, another process, did this and was killed at once.
pub fn left_by_a_killed_peer(last: impl FnOnce(&OwnedFd)) -> OwnedFd {
    left_beside(last, |_| ())
}

/// The same, where this end does something meanwhile.
pub fn left_beside(last: impl FnOnce(&OwnedFd), here: impl FnOnce(&OwnedFd)) -> OwnedFd {
    let (out, input) = net::pipe();
    let peer = net::fork(|| {
        let fd = client_of_port(&out);
        warm_client(&fd);
        last(&fd);
        net::kill(std::process::id() as i32, libc::SIGKILL).unwrap();
        0
    });
    let (listener, addr) = net::listener(loopback());
    send_port(&input, addr);
    let fd = net::accept(&listener, 0).unwrap();
    warm_server(&fd);
    here(&fd);
    net::wait(peer);
    fd
}

/// Tells another process, through a pipe, where to connect.
pub fn send_port(pipe: &OwnedFd, addr: SocketAddr) {
    assert_eq!(net::write(pipe, &addr.port().to_ne_bytes()), Ok(2));
}

/// Connects to the port that the pipe has; see [`send_port`].
pub fn client_of_port(pipe: &OwnedFd) -> OwnedFd {
    let mut port = [0; 2];
    assert_eq!(net::read(pipe, &mut port), Ok(2));
    let mut addr = loopback();
    addr.set_port(u16::from_ne_bytes(port));
    net::client(addr)
}

/// Ping-pong rounds after which a connection must have moved.
const ROUNDS: usize = 4000;

fn enough(round: usize) -> bool {
    if expect_ring() { round % 16 == 15 } else { round == 8 }
}

/// The connecting side of [`Pair::warm_up`] where the other end is in another process: ends with a byte `W` both ways.
pub fn warm_client(fd: &OwnedFd) {
    for round in 0..ROUNDS {
        let last = enough(round) && (in_ring(fd) || !expect_ring());
        assert_eq!(net::write(fd, if last { b"W" } else { b"w" }), Ok(1));
        let answer = net::recv_exact(fd, 1);
        if last && answer == b"W" {
            return;
        }
    }
    panic!("no ring: {:?}", why(fd));
}

/// The accepting side of [`warm_client`].
pub fn warm_server(fd: &OwnedFd) {
    loop {
        let last = net::recv_exact(fd, 1) == b"W" && (in_ring(fd) || !expect_ring());
        assert_eq!(net::write(fd, if last { b"W" } else { b"w" }), Ok(1));
        if last {
            return;
        }
    }
}

fn with_record<T>(fd: impl Fd, f: impl FnOnce(&Record) -> T) -> Option<T> {
    let report = Report::of(std::process::id()).ok()?;
    let want = fd.raw() as u32 + 1;
    report.records().find(|r| r.fd.load(Ordering::Relaxed) == want).map(f)
}

/// Whether bytes of `fd` leave by a ring now; true in a plain process.
fn sends_by_ring(fd: &OwnedFd) -> bool {
    !expect_ring() || with_record(fd, |r| r.shm_out.load(Ordering::Relaxed) > 2).unwrap_or(false)
}

/// The same, both ways.
fn in_ring(fd: &OwnedFd) -> bool {
    if !expect_ring() {
        return true;
    }
    let moved = |r: &Record| {
        let in_shm = r.path.load(Ordering::Relaxed) == Path::Shm as u32;
        in_shm && r.shm_in.load(Ordering::Relaxed) > 2 && r.shm_out.load(Ordering::Relaxed) > 2
    };
    with_record(fd, moved).unwrap_or(false)
}

/// How bytes of `fd` travel, if this process has a report.
pub fn path(fd: impl Fd) -> Option<Path> {
    let code = with_record(fd, |r| r.path.load(Ordering::Relaxed))?;
    [Path::Tcp, Path::Shm].into_iter().find(|p| *p as u32 == code)
}

/// Why `fd` is not in a ring, if this process has a report.
pub fn why(fd: impl Fd) -> Option<Reason> {
    with_record(fd, |r| Reason::from_code(r.reason.load(Ordering::Relaxed)))?
}

/// How often `fd` moved into rings.
pub fn moves(fd: impl Fd) -> u32 {
    with_record(fd, |r| r.moves.load(Ordering::Relaxed)).unwrap_or(0)
}

/// Wake-ups this process lost so far; 0 in a plain process.
pub fn missed_bells() -> u64 {
    Report::of(std::process::id()).map_or(0, |r| r.missed_bells().load(Ordering::Relaxed))
}
