//! Many connections: an event-loop server, clients in numbers, short connections by the thousand.
#![allow(unsafe_code)]

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};

use madrigal_report::{Path, Report};
use madrigal_tests::{net, pair};

/// Serves echo to everybody by epoll, level-triggered, until it is killed.
pub(crate) fn echo(listener: &OwnedFd) {
    // SAFETY: no pointers.
    let set = net::new_fd(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) });
    let add = |fd: i32| {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: fd as u64 };
        // SAFETY: our own event.
        assert_eq!(unsafe { libc::epoll_ctl(set.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) }, 0);
    };
    net::set_nonblocking(listener, true);
    add(listener.as_raw_fd());
    let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; 64];
    let mut buf = vec![0; 65_536];
    loop {
        // SAFETY: room for 64 events.
        let n = unsafe { libc::epoll_wait(set.as_raw_fd(), events.as_mut_ptr(), 64, -1) };
        for event in &events[..usize::try_from(n).expect("epoll_wait")] {
            let fd = event.u64 as i32;
            if fd == listener.as_raw_fd() {
                while let Ok(s) = net::accept(listener, libc::SOCK_CLOEXEC) {
                    add(s.into_raw_fd());
                }
                continue;
            }
            match net::recv(fd, &mut buf, libc::MSG_DONTWAIT) {
                Ok(n @ 1..) if answer(fd, &buf[..n]) => {}
                Err(libc::EAGAIN) => {}
                // SAFETY: the connection is over; the number is ours.
                _ => drop(unsafe { OwnedFd::from_raw_fd(fd) }),
            }
        }
    }
}

/// Sends it all back; false when the peer is gone, or takes nothing for long.
fn answer(fd: i32, mut bytes: &[u8]) -> bool {
    let mut sleeps = 0;
    while !bytes.is_empty() && sleeps < 1000 {
        match net::send(fd, bytes, libc::MSG_DONTWAIT) {
            Ok(n) => bytes = &bytes[n..],
            Err(libc::EAGAIN) => {
                sleeps += 1;
                net::sleep_ms(1);
            }
            Err(_) => return false,
        }
    }
    bytes.is_empty()
}

/// Gives up the user for another.
pub(crate) fn become_user(user: u32) {
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::setresuid(user, user, user) }, 0, "setresuid");
}

/// While there is no other thread.
pub(crate) fn clear_environment() {
    // SAFETY: no other thread reads or writes the environment.
    assert_eq!(unsafe { libc::clearenv() }, 0, "clearenv");
}

/// How many connections of this process are in rings.
fn moved() -> usize {
    let report = Report::of(std::process::id()).ok();
    let in_shm = |r: &&madrigal_report::Record| r.path.load(std::sync::atomic::Ordering::Relaxed) == Path::Shm as u32;
    report.map_or(0, |report| report.records().filter(in_shm).count())
}

/// Opens `count` connections, warms each, then stays idle; reports this by `file`, and ends when that is gone.
pub(crate) fn many(addr: SocketAddr, count: usize, file: &str) {
    let connections: Vec<OwnedFd> = (0..count).map(|_| net::client(addr)).collect();
    for c in &connections {
        for _ in 0..40 {
            net::send_all(c, b"ping");
            assert_eq!(net::recv_exact(c, 4), b"ping");
        }
    }
    std::fs::write(file, moved().to_string()).expect("the report's file");
    while std::path::Path::new(file).exists() {
        net::sleep_ms(100);
    }
    for c in connections.iter().rev() {
        net::send_all(c, b"still there");
        assert_eq!(net::recv_exact(c, 11), b"still there");
    }
    println!("{}", super::described(&connections[0]));
}

/// Many processes, each with many short connections; some send nothing, some a little, some enough to move.
pub(crate) fn bomb(addr: SocketAddr, children: usize, each: usize) {
    let pids: Vec<i32> = (0..children)
        .map(|child| {
            net::fork(|| {
                for i in 0..each {
                    let c = net::client(addr);
                    for _ in 0..[0, 1, 5, 30][(child + i) % 4] {
                        net::send_all(&c, b"hello");
                        assert_eq!(net::recv_exact(&c, 5), b"hello");
                    }
                }
                i32::from(pair::missed_bells() != 0)
            })
        })
        .collect();
    for pid in pids {
        assert_eq!(net::wait(pid), 0);
    }
    println!("done missed={}", pair::missed_bells());
}

/// Connects to itself until descriptors run out, uses the connections, and reports their number.
pub(crate) fn until_no_more_files(limit: usize) {
    let (listener, addr) = net::listener(pair::loopback());
    net::limit_files(limit as u64);
    let mut ends = Vec::new();
    let error = loop {
        // SAFETY: no pointers.
        let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0) };
        if fd < 0 {
            break net::errno();
        }
        let c = net::new_fd(fd);
        net::connect(&c, addr).expect("connect");
        match net::accept(&listener, 0) {
            Ok(s) => ends.push(pair::Pair { c, s }),
            Err(e) => break e,
        }
        let p = ends.last().expect("just pushed");
        for _ in 0..30 {
            net::send_all(&p.c, b"ping");
            assert_eq!(net::recv_exact(&p.s, 4), b"ping");
            net::send_all(&p.s, b"pong");
            assert_eq!(net::recv_exact(&p.c, 4), b"pong");
        }
    };
    println!("pairs={} error={error}", ends.len());
}
