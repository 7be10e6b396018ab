//! epoll(7), edge-triggered and one-shot.

use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{EPOLLET, EPOLLHUP, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLRDHUP, MSG_DONTWAIT};
use madrigal_tests::net::{self, recv_exact, send_all};
use madrigal_tests::pair::Pair;

use crate::both;
use crate::set::Set;

crate::checks![
    edge_once_per_arrival,
    edge_once_while_moving,
    edge_with_a_rest_moves,
    edge_after_drain,
    edge_rearmed_by_mod,
    edge_out_after_full,
    edge_out_by_option,
    edge_at_end,
    edge_behind_a_low_water_mark,
    edge_at_close,
    oneshot_once,
    oneshot_fired_before_the_ring,
    oneshot_many_threads,
    edge_stream_by_loop,
    edge_both_directions,
    edge_added_when_readable,
    edge_reported_to_one_thread,
    shutdown_of_broken_is_an_edge,
    bytes_of_a_ring_are_an_edge_behind_its_end,
    bytes_that_were_read_are_an_edge,
];

fn edge_once_per_arrival() {
    let p = Pair::warm();
    let set = Set::new();
    set.add(&p.s, EPOLLIN | EPOLLET, 7);
    assert_eq!(set.wait(4, 0), []);
    send_all(&p.c, b"12");
    assert_eq!(set.wait(4, 5000), [(7, EPOLLIN)]);
    assert_eq!(set.wait(4, 40), [], "reported once");
    recv_exact(&p.s, 1);
    assert_eq!(set.wait(4, 40), [], "a rest is no edge");
    send_all(&p.c, b"3");
    assert_eq!(set.wait(4, 5000), [(7, EPOLLIN)]);
    assert_eq!(recv_exact(&p.s, 2), b"23");
    assert_eq!(set.wait(4, 0), []);
    p.assert_in_rings();
}

/// The connection moves in the middle of it.
fn edge_once_while_moving() {
    let p = Pair::fresh();
    let set = Set::new();
    set.add(&p.s, EPOLLIN | EPOLLRDHUP | EPOLLET, 7);
    for _ in 0..24 {
        send_all(&p.c, b"12");
        assert_eq!(set.wait(4, 5000), [(7, EPOLLIN)]);
        assert_eq!(recv_exact(&p.s, 1), b"1");
        assert_eq!(set.wait(4, 5), [], "a rest is no edge");
        assert_eq!(recv_exact(&p.s, 1), b"2");
        send_all(&p.s, b"3");
        assert_eq!(recv_exact(&p.c, 1), b"3");
        assert_eq!(set.wait(4, 0), []);
    }
    p.assert_in_rings();
}

/// One that never reads all that there is moves all the same.
fn edge_with_a_rest_moves() {
    let p = Pair::fresh();
    let set = Set::new();
    set.add(&p.s, EPOLLIN | EPOLLET, 7);
    send_all(&p.c, b"0");
    for _ in 0..150 {
        send_all(&p.c, b"1");
        assert_eq!(set.wait(4, 5000), [(7, EPOLLIN)]);
        recv_exact(&p.s, 1);
        send_all(&p.s, b"2");
        recv_exact(&p.c, 1);
    }
    p.assert_in_rings();
}

fn edge_after_drain() {
    let p = Pair::warm();
    let set = Set::new();
    set.add(&p.s, EPOLLIN | EPOLLET | EPOLLRDHUP, 7);
    for i in 0..500u32 {
        both(
            || {
                if i % 50 == 0 {
                    net::sleep_ms(5);
                }
                send_all(&p.c, b"abc");
            },
            || assert_eq!(set.wait(4, -1), [(7, EPOLLIN)]),
        );
        assert_eq!(recv_exact(&p.s, 3), b"abc");
        assert_eq!(net::recv(&p.s, &mut [0; 4], MSG_DONTWAIT), Err(libc::EAGAIN));
    }
}

fn edge_rearmed_by_mod() {
    let p = Pair::warm();
    let set = Set::new();
    set.add(&p.s, EPOLLIN | EPOLLET, 1);
    send_all(&p.c, b"x");
    assert_eq!(set.wait(4, 5000), [(1, EPOLLIN)]);
    assert_eq!(set.wait(4, 0), []);
    set.modify(&p.s, EPOLLIN | EPOLLET, 2);
    assert_eq!(set.wait(4, 5000), [(2, EPOLLIN)]);
    set.modify(&p.s, EPOLLIN | EPOLLOUT | EPOLLET, 3);
    assert_eq!(set.wait(4, 5000), [(3, EPOLLIN | EPOLLOUT)]);
    assert_eq!(set.wait(4, 0), []);
}

fn edge_out_after_full() {
    let p = Pair::warm();
    let set = Set::new();
    net::set_nonblocking(&p.c, true);
    set.add(&p.c, EPOLLOUT | EPOLLIN | EPOLLET, 1);
    assert_eq!(set.wait(4, 5000), [(1, EPOLLOUT)]);
    assert_eq!(set.wait(4, 0), []);
    for _ in 0..5 {
        let sent = net::fill(&p.c, &[1; 20_000]);
        both(
            || {
                net::sleep_ms(10);
                recv_exact(&p.s, sent);
            },
            || assert_eq!(set.wait(4, -1), [(1, EPOLLOUT)], "space is an edge"),
        );
    }
}

/// Linux reports room again when the program changes the buffer size.
fn edge_out_by_option() {
    let p = Pair::warm();
    let (set, reading) = (Set::new(), Set::new());
    set.add(&p.c, EPOLLOUT | EPOLLIN | EPOLLET, 1);
    reading.add(&p.c, EPOLLIN | EPOLLET, 2);
    assert_eq!(set.wait(4, 5000), [(1, EPOLLOUT)]);
    let options = [(libc::SOL_SOCKET, libc::SO_SNDBUF, 100_000), (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, 50_000)];
    for (level, name, value) in options {
        assert_eq!(set.wait(4, 0), []);
        net::set(&p.c, level, name, value).unwrap();
        assert_eq!(set.wait(4, 0), [(1, EPOLLOUT)]);
        assert_eq!(reading.wait(4, 0), []);
        both(
            || {
                net::sleep_ms(10);
                net::set(&p.c, level, name, 2 * value).unwrap();
            },
            || assert_eq!(set.wait(4, -1), [(1, EPOLLOUT)]),
        );
    }
    p.assert_in_rings();
}

fn edge_at_end() {
    let p = Pair::warm();
    let set = Set::new();
    set.add(&p.s, EPOLLIN | EPOLLET | EPOLLRDHUP, 1);
    net::shutdown(&p.c, libc::SHUT_WR).unwrap();
    assert_eq!(set.wait(4, -1), [(1, EPOLLIN | EPOLLRDHUP)]);
    assert_eq!(net::read(&p.s, &mut [0; 4]), Ok(0));
    assert_eq!(set.wait(4, 30), []);
    net::shutdown(&p.s, libc::SHUT_WR).unwrap();
    assert_eq!(set.wait(4, -1), [(1, EPOLLIN | EPOLLRDHUP | EPOLLHUP)]);
}

/// Linux reports bytes again when the program sets how many a receive waits for.
fn edge_behind_a_low_water_mark() {
    let p = Pair::warm();
    let set = Set::new();
    set.add(&p.s, EPOLLIN | EPOLLET, 1);
    send_all(&p.c, b"bytes");
    assert_eq!(set.wait(4, -1), [(1, EPOLLIN)]);
    assert_eq!(set.wait(4, 0), []);
    net::set(&p.s, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 1).unwrap();
    assert_eq!(set.wait(4, 0), [(1, EPOLLIN)]);
    assert_eq!(set.wait(4, 0), []);
    recv_exact(&p.s, 5);
    net::set(&p.s, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 1).unwrap();
    assert_eq!(set.wait(4, 0), [], "nothing is there");
}

fn edge_at_close() {
    let Pair { c, s } = Pair::warm();
    let set = Set::new();
    set.add(&s, EPOLLIN | EPOLLET | EPOLLRDHUP, 1);
    send_all(&c, b"bye");
    both(
        || drop(c),
        || {
            let mut bits = 0;
            while bits & EPOLLRDHUP == 0 {
                bits |= set.wait(4, -1).iter().fold(0, |all, e| all | e.1);
            }
        },
    );
    assert_eq!(net::recv_up_to(&s, 10), b"bye");
}

fn oneshot_once() {
    let p = Pair::warm();
    let set = Set::new();
    set.add(&p.s, EPOLLIN | EPOLLONESHOT, 1);
    send_all(&p.c, b"x");
    assert_eq!(set.wait(4, 5000), [(1, EPOLLIN)]);
    assert_eq!(set.wait(4, 20), []);
    send_all(&p.c, b"y");
    assert_eq!(set.wait(4, 20), [], "spent");
    set.modify(&p.s, EPOLLIN | EPOLLONESHOT, 2);
    assert_eq!(set.wait(4, 5000), [(2, EPOLLIN)]);
    recv_exact(&p.s, 2);
    set.modify(&p.s, EPOLLIN | EPOLLONESHOT, 3);
    assert_eq!(set.wait(4, 20), []);
    both(
        || {
            net::sleep_ms(20);
            send_all(&p.c, b"z");
        },
        || assert_eq!(set.wait(4, -1), [(3, EPOLLIN)]),
    );
    // The end does not break the silence of a spent member.
    net::shutdown(&p.c, libc::SHUT_WR).unwrap();
    assert_eq!(set.wait(4, 20), []);
}

/// An edge that the kernel reported is not repeated when the connection moves to a ring, which happens as the program arms it again (P2).
fn oneshot_fired_before_the_ring() {
    let p = Pair::fresh();
    let set = Set::new();
    let exchange = || {
        send_all(&p.s, b"s");
        assert_eq!(recv_exact(&p.c, 1), b"s");
        send_all(&p.c, b"c");
    };
    set.add(&p.s, EPOLLIN | EPOLLONESHOT, 1);
    exchange();
    assert_eq!(set.wait(4, -1), [(1, EPOLLIN)]);
    assert_eq!(recv_exact(&p.s, 1), b"c");
    for _ in 0..100 {
        exchange();
        assert_eq!(set.wait(4, 0), [], "spent");
        assert_eq!(recv_exact(&p.s, 1), b"c");
    }
    for i in 2..200 {
        set.modify(&p.s, EPOLLIN | EPOLLONESHOT, i);
        exchange();
        assert_eq!(set.wait(4, -1), [(i, EPOLLIN)]);
        assert_eq!(set.wait(4, 0), [], "spent");
        assert_eq!(recv_exact(&p.s, 1), b"c");
    }
    p.assert_in_rings();
}

fn oneshot_many_threads() {
    let pairs: Vec<Pair> = (0..8).map(|_| Pair::warm()).collect();
    let set = Set::new();
    for (i, p) in pairs.iter().enumerate() {
        set.add(&p.s, EPOLLIN | EPOLLONESHOT, i as u64);
    }
    let work = |_: usize| {
        // A server thread: takes an event, echoes, arms again; a message `q` ends it.
        loop {
            for (i, _) in set.wait(1, -1) {
                let s = &pairs[i as usize].s;
                let mut b = [0; 1];
                assert_eq!(net::recv(s, &mut b, MSG_DONTWAIT), Ok(1));
                if b[0] == b'q' {
                    return;
                }
                send_all(s, &b);
                set.modify(s, EPOLLIN | EPOLLONESHOT, i);
            }
        }
    };
    std::thread::scope(|scope| {
        for t in 0..3 {
            scope.spawn(move || work(t));
        }
        for round in 0..300usize {
            let p = &pairs[round * 5 % 8];
            send_all(&p.c, b"e");
            assert_eq!(recv_exact(&p.c, 1), b"e");
        }
        for p in &pairs[..3] {
            send_all(&p.c, b"q");
        }
    });
}

fn edge_stream_by_loop() {
    // An event loop that reads until EAGAIN and waits for the next edge gets every byte.
    let p = Pair::warm();
    let set = Set::new();
    net::set_nonblocking(&p.s, true);
    set.add(&p.s, EPOLLIN | EPOLLET, 1);
    let bytes: Vec<u8> = (0..3_000_000u32).map(|i| (i / 11) as u8).collect();
    both(
        || net::send_in_pieces(&p.c, &bytes, |size| size * 5 % 7919 + 1),
        || {
            let mut got = Vec::new();
            let mut b = vec![0; 4096];
            while got.len() < bytes.len() {
                assert!(!set.wait(4, -1).is_empty());
                while let Ok(n) = net::read(&p.s, &mut b) {
                    got.extend_from_slice(&b[..n]);
                }
            }
            assert!(got == bytes);
        },
    );
}

fn edge_both_directions() {
    // Both ends in one edge-triggered set, from the first byte on: ping-pong through the switch.
    let p = Pair::fresh();
    let set = Set::new();
    net::set_nonblocking(&p.c, true);
    net::set_nonblocking(&p.s, true);
    set.add(&p.c, EPOLLIN | EPOLLOUT | EPOLLET, 1);
    set.add(&p.s, EPOLLIN | EPOLLOUT | EPOLLET, 2);
    let mut rounds = 0;
    assert_eq!(net::send(&p.c, b"0", 0), Ok(1));
    while rounds < 4000 {
        for (data, events) in set.wait(4, -1) {
            let fd = if data == 1 { &p.c } else { &p.s };
            if events & EPOLLIN != 0 && net::read(fd, &mut [0; 8]) == Ok(1) {
                rounds += 1;
                assert_eq!(net::send(fd, b"1", 0), Ok(1));
            }
        }
    }
    p.assert_in_rings();
}

fn edge_added_when_readable() {
    let p = Pair::warm();
    let set = Set::new();
    send_all(&p.c, b"x");
    net::await_events(&p.s, libc::POLLIN);
    set.add(&p.s, EPOLLIN | EPOLLOUT | EPOLLET, 1);
    assert_eq!(set.wait(4, 5000), [(1, EPOLLIN | EPOLLOUT)]);
    assert_eq!(set.wait(4, 20), []);
}

fn edge_reported_to_one_thread() {
    let (p, set) = (Pair::warm(), Set::new());
    let (out, input) = net::pipe();
    set.add(&p.s, EPOLLIN | EPOLLET, 1);
    set.add(&out, EPOLLIN, 2);
    for _ in 0..30 {
        let seen = AtomicUsize::new(0);
        let count = || {
            while set.wait(1, -1) == [(1, EPOLLIN)] {
                seen.fetch_add(1, Ordering::SeqCst);
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(count);
            scope.spawn(count);
            net::sleep_ms(5);
            send_all(&p.c, b"x");
            while seen.load(Ordering::SeqCst) == 0 {
                net::sleep_ms(1);
            }
            net::sleep_ms(10);
            net::write(&input, b"q").unwrap();
        });
        assert_eq!(seen.into_inner(), 1, "one edge, one thread");
        assert_eq!((net::read(&p.s, &mut [0; 4]), net::read(&out, &mut [0; 4])), (Ok(1), Ok(1)));
    }
}

/// A shutdown(2) wakes every waiter of the socket, with any requested events, though there is nothing left to shut.
fn shutdown_of_broken_is_an_edge() {
    for asked in [EPOLLIN | EPOLLRDHUP, EPOLLOUT, 0] {
        let Pair { c, s } = Pair::warm();
        let set = Set::new();
        set.add(&c, asked | EPOLLET, 1);
        send_all(&c, b"x");
        drop(s);
        net::await_events(&c, libc::POLLHUP);
        assert_eq!(net::read(&c, &mut [0; 4]), Err(libc::ECONNRESET));
        for _ in 0..3 {
            // To leave a ring may be one more edge.
            while !set.wait(4, 20).is_empty() {}
            assert_eq!(net::shutdown(&c, libc::SHUT_WR), Err(libc::ENOTCONN));
            assert_eq!(set.wait(4, 0), [(1, asked | EPOLLHUP)]);
        }
    }
}

/// The last wait was before the connection moved to a ring, the next one is after the ring's end: bytes that went by the ring are an edge.
fn bytes_of_a_ring_are_an_edge_behind_its_end() {
    let (_keep, pipe) = net::pipe();
    for rounds in 0..60 {
        let p = Pair::fresh();
        let set = Set::new();
        set.add(&p.s, EPOLLIN | EPOLLOUT | EPOLLET, 7);
        for _ in 0..rounds {
            send_all(&p.c, &[b'x'; 100]);
            recv_exact(&p.s, 100);
            send_all(&p.s, &[b'y'; 100]);
            recv_exact(&p.c, 100);
        }
        send_all(&p.c, b"12");
        assert_eq!(set.wait(4, 0), [(7, EPOLLIN | EPOLLOUT)], "{rounds} rounds");
        recv_exact(&p.s, 2);
        send_all(&p.c, b"3");
        recv_exact(&p.s, 1);
        // Its end leaves the rings.
        net::set_nonblocking(&p.c, true);
        assert_eq!(net::splice_with(&p.c, &pipe, 1, libc::SPLICE_F_NONBLOCK), Err(libc::EAGAIN));
        assert_eq!(set.wait(4, 0), [(7, EPOLLOUT)], "{rounds} rounds");
    }
}

/// Bytes come and are read before a wait: that was an edge, by ring or by kernel, and the events that are ready then are reported.
fn bytes_that_were_read_are_an_edge() {
    for rounds in 0..60 {
        let p = Pair::fresh();
        let set = Set::new();
        // By the kernel, while the other direction has moved.
        let sends = |bytes: &[u8]| assert_eq!(net::send_by_kernel(&p.c, bytes), Ok(bytes.len()));
        for _ in 0..rounds {
            send_all(&p.c, &[b'x'; 3000]);
            recv_exact(&p.s, 3000);
            send_all(&p.s, &[b'y'; 3000]);
            recv_exact(&p.c, 3000);
        }
        sends(b"12");
        set.add(&p.s, EPOLLIN | EPOLLOUT | EPOLLET, 7);
        assert_eq!(set.wait(4, 0), [(7, EPOLLIN | EPOLLOUT)], "{rounds} rounds");
        for unread in [3, 1, 1] {
            sends(b"3");
            recv_exact(&p.s, unread);
            assert_eq!(set.wait(4, 0), [(7, EPOLLOUT)], "{rounds} rounds");
        }
        assert_eq!(set.wait(4, 0), [], "{rounds} rounds");
    }
}
