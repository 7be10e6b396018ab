//! Event sets that watch a connection which goes on without its ring, and sets that several processes have.
#![allow(unsafe_code)]

use libc::{ECONNRESET, EPOLLHUP, EPOLLIN, EPOLLRDHUP, IPPROTO_TCP, POLLERR};
use madrigal_tests::net::{self, recv_exact, send_all};
use madrigal_tests::pair::{self, Pair};

use crate::killed;
use crate::rest::{assert_same, mixed};
use crate::set::Set;

crate::checks![
    by_who_closed_first,
    around_doorbells,
    by_a_child,
    by_two_processes,
    from_after_a_fork,
    as_another_process_asks,
    as_another_process_changes,
    as_a_process_has_changed_that_is_gone,
    in_vain,
];

/// A connection that broke, in a set that another process has, too: the set reports the kernel's events, with the program's own data.
fn by_a_child() {
    let p = Pair::warm();
    let set = Set::new();
    send_all(&p.s, b"never read");
    net::await_events(&p.c, libc::POLLIN);
    drop(p.c);
    net::await_events(&p.s, POLLERR);
    assert_eq!(net::read(&p.s, &mut [0; 1]), Err(ECONNRESET));
    let child = net::fork(|| {
        set.add(&p.s, 0, 2);
        net::sleep_ms(60_000);
        0
    });
    assert_eq!(set.wait(4, 5000), [(2, EPOLLHUP)]);
    net::kill(child, libc::SIGKILL).unwrap();
    net::wait(child);
}

/// An entry of an event set lives as long as any process has the socket open.
fn by_who_closed_first() {
    let p = Pair::warm();
    let set = Set::new();
    set.add(&p.s, EPOLLIN | EPOLLRDHUP, 7);
    send_all(&p.c, b"x");
    let (out, input) = net::pipe();
    let child = net::fork(|| {
        assert_eq!(net::read(&out, &mut [0; 1]), Ok(1));
        assert_eq!(recv_exact(&p.s, 2), b"xy");
        0
    });
    drop(p.s);
    assert_eq!(set.wait(4, 5000), [(7, EPOLLIN)]);
    send_all(&p.c, b"y");
    assert_eq!(set.wait(4, 5000), [(7, EPOLLIN)]);
    net::write(&input, b"g").unwrap();
    assert_eq!(net::wait(child), 0);
    assert_eq!(set.wait(4, 0), []);
}

/// An event set goes on watching by a closed descriptor; the bytes are read by another one.
fn around_doorbells() {
    let ((p, unread), set) = (mixed(), Set::new());
    let other = net::dup(&p.s);
    set.add(&other, EPOLLIN, 7);
    net::shutdown(&p.c, libc::SHUT_WR).unwrap();
    drop(other);
    assert_eq!(set.wait(4, 5000), [(7, EPOLLIN)]);
    assert_same(&recv_exact(&p.s, unread.len()), &unread);
    send_all(&p.s, b"on");
    assert_eq!(recv_exact(&p.c, 2), b"on");
}

/// A set that two processes have: one of them registers a connection and moves enough bytes by it to earn a ring. The other gets its events
/// with the program's own data, and only when there are some.
fn by_two_processes() {
    let set = Set::new();
    let ((warm, input), (go, start)) = (net::pipe(), net::pipe());
    let child = net::fork(|| {
        let p = Pair::fresh();
        set.add(&p.s, EPOLLIN, 9);
        for _ in 0..300 {
            for (from, to) in [(&p.c, &p.s), (&p.s, &p.c)] {
                send_all(from, b"w");
                assert_eq!(recv_exact(to, 1), b"w");
            }
        }
        net::write(&input, b"w").unwrap();
        assert_eq!(net::read(&go, &mut [0; 1]), Ok(1));
        send_all(&p.c, b"x");
        assert_eq!(net::read(&go, &mut [0; 1]), Ok(1));
        0
    });
    assert_eq!(net::read(&warm, &mut [0; 1]), Ok(1));
    assert_eq!(set.wait(4, 0), []);
    net::write(&start, b"g").unwrap();
    assert_eq!(set.wait(4, 5000), [(9, EPOLLIN)]);
    net::write(&start, b"g").unwrap();
    assert_eq!(net::wait(child), 0);
}

/// A connection that broke, put into a set that another process has, too.
fn from_after_a_fork() {
    let ((out, input), (go, start), (is_warm, warm)) = (net::pipe(), net::pipe(), net::pipe());
    let peer = net::fork(|| {
        let fd = pair::client_of_port(&out);
        pair::warm_client(&fd);
        // It leaves no doorbell either: the kernel sees an end.
        assert_eq!(net::recv(&fd, &mut [0; 1], libc::MSG_DONTWAIT), Err(libc::EAGAIN));
        net::write(&warm, b"w").unwrap();
        net::read(&go, &mut [0; 1]).unwrap();
        net::kill(std::process::id() as i32, libc::SIGKILL).unwrap();
        0
    });
    let (listener, addr) = net::listener(pair::loopback());
    pair::send_port(&input, addr);
    let fd = net::accept(&listener, 0).unwrap();
    // Sent bytes are in the peer's queue at once.
    net::set(&fd, IPPROTO_TCP, libc::TCP_NODELAY, 1).unwrap();
    pair::warm_server(&fd);
    net::read(&is_warm, &mut [0; 1]).unwrap();
    send_all(&fd, b"never read");
    net::write(&start, b"g").unwrap();
    net::wait(peer);
    assert_eq!(net::read(&fd, &mut [0; 1]), Err(ECONNRESET));
    let set = Set::new();
    let child = net::fork(|| {
        net::read(&go, &mut [0; 1]).unwrap();
        0
    });
    set.add(&fd, EPOLLIN | libc::EPOLLOUT, 2);
    assert_eq!(set.wait(4, 0), [(2, EPOLLIN | libc::EPOLLOUT | EPOLLHUP)]);
    assert_eq!(set.wait(4, 5000), [(2, EPOLLIN | libc::EPOLLOUT | EPOLLHUP)]);
    net::write(&start, b"g").unwrap();
    assert_eq!(net::wait(child), 0);
}

/// Two processes have a set, and one requests an event that the other has not requested.
fn as_another_process_asks() {
    let (fd, set) = (killed::left_behind_a_doorbell(), Set::new());
    set.add(&fd, libc::EPOLLPRI, 7);
    let child = net::fork(|| {
        set.modify(&fd, EPOLLIN, 7);
        net::sleep_ms(60_000);
        0
    });
    assert_eq!(set.wait(4, 5000), [(7, EPOLLIN)]);
    net::kill(child, libc::SIGKILL).unwrap();
    net::wait(child);
}

/// One process changes the registration of a socket with bytes that were unread at the fork: the other one gets the changed events, also if
/// the writer's buffer is small, and its small segments wait for acknowledgements.
fn as_another_process_changes() {
    const BOTH: i32 = EPOLLIN | libc::EPOLLOUT;
    for (unread, small) in [(1, false), (30_000, false), (30_000, true)] {
        let (p, set, (out, input)) = (Pair::warm(), Set::new(), net::pipe());
        if small {
            net::set(&p.c, libc::SOL_SOCKET, libc::SO_SNDBUF, 4000).unwrap();
        }
        set.add(&p.s, EPOLLIN, 1);
        send_all(&p.c, &vec![b'u'; unread]);
        let child = net::fork(|| {
            assert_eq!(net::read(&out, &mut [0; 1]), Ok(1));
            assert_eq!(set.wait(4, 5000), [(2, BOTH)]);
            recv_exact(&p.s, unread);
            assert_eq!(set.wait(4, 5000), [(2, libc::EPOLLOUT)]);
            set.modify(&p.s, EPOLLIN | libc::EPOLLONESHOT, 3);
            0
        });
        set.modify(&p.s, BOTH, 2);
        net::write(&input, b"g").unwrap();
        assert_eq!(net::wait(child), 0);
        assert_eq!(set.wait(4, 0), []);
        send_all(&p.c, b"x");
        assert_eq!(set.wait(4, 5000), [(3, EPOLLIN)]);
        assert_eq!(set.wait(4, 0), []);
    }
}

/// A change by a process that has ended holds when the connection goes back to its ring.
fn as_a_process_has_changed_that_is_gone() {
    type Change = fn(&Set, &Pair);
    type Reported = &'static [(u64, i32)];
    const OUT: i32 = libc::EPOLLOUT;
    let changes: [(Change, Reported); 4] = [
        (|set, p| set.modify(&p.s, EPOLLIN | OUT, 2), &[(2, OUT)]),
        (|set, p| set.modify(&p.s, OUT | libc::EPOLLET, 3), &[(3, OUT)]),
        (|set, p| set.delete(&p.s), &[]),
        (|set, p| (set.delete(&p.s), set.add(&p.s, OUT, 4)).1, &[(4, OUT)]),
    ];
    for (i, (change, told)) in changes.into_iter().enumerate() {
        let (p, set) = (Pair::warm(), Set::new());
        set.add(&p.s, EPOLLIN, 1);
        let child = net::fork(|| {
            change(&set, &p);
            0
        });
        assert_eq!(net::wait(child), 0);
        for round in 0..2000u32 {
            send_all(&p.c, &round.to_ne_bytes());
            assert_eq!(recv_exact(&p.s, 4), round.to_ne_bytes());
            send_all(&p.s, &round.to_ne_bytes());
            assert_eq!(recv_exact(&p.c, 4), round.to_ne_bytes());
        }
        p.assert_in_rings();
        assert_eq!(set.wait(4, 0), told, "{i}");
    }
}

/// Another process changes a set's registration of a socket that this one has closed: it may be reported or not, but it takes no time.
fn in_vain() {
    let (fd, set) = (killed::left_behind_a_doorbell(), Set::new());
    let ((out, input), (go, start)) = (net::pipe(), net::pipe());
    set.add(&fd, EPOLLIN, 7);
    let child = net::fork(|| {
        net::close_in_child(&fd);
        net::write(&input, b"c").unwrap();
        net::read(&go, &mut [0; 1]).unwrap();
        let before = processor_ms();
        set.wait(4, 400);
        let used = processor_ms() - before;
        assert!(used < 150, "{used} ms");
        0
    });
    net::read(&out, &mut [0; 1]).unwrap();
    set.modify(&fd, EPOLLIN, 7);
    net::write(&start, b"g").unwrap();
    assert_eq!(net::wait(child), 0);
}

/// How long this process has been running on a processor.
fn processor_ms() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: our own memory.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec * 1000 + time.tv_nsec / 1_000_000
}
