//! Bytes that a sender wants held back: `MSG_MORE`, `TCP_CORK`. No part of them is shown before the rest is, or before TCP's 200 ms are over.

use std::os::fd::OwnedFd;

use libc::{EAGAIN, EPOLLET, EPOLLIN, MSG_DONTWAIT, MSG_MORE, POLLIN};
use madrigal_tests::net::{self, poll, read, recv, recv_exact, recv_up_to, send, send_all};
use madrigal_tests::pair::{self, Pair};

use crate::both;
use crate::set::Set;

crate::checks![
    more_is_not_shown,
    more_behind_unread_bytes,
    asleep_until_all_is_there,
    cork_is_not_shown,
    cork_goes_on_where_the_peer_closes,
    shown_by_nodelay,
    shown_after_a_while,
    asleep_until_it_is_late,
    restarted_until_it_is_late,
    segments_are_shown,
    more_than_a_ring_holds,
    shown_by_the_end,
    shown_by_a_kill,
    rest_by_another_call,
];

fn cork(fd: &OwnedFd, on: i32) {
    net::set(fd, libc::IPPROTO_TCP, libc::TCP_CORK, on).unwrap();
}

/// One receive.
fn once(fd: &OwnedFd) -> Vec<u8> {
    let mut bytes = vec![0; 200_000];
    let n = read(fd, &mut bytes).unwrap();
    bytes.truncate(n);
    bytes
}

fn nothing(fd: &OwnedFd) {
    assert_eq!(recv(fd, &mut [0; 8], MSG_DONTWAIT), Err(EAGAIN));
    assert_eq!(recv(fd, &mut [0; 8], MSG_DONTWAIT | libc::MSG_PEEK), Err(EAGAIN));
    assert_eq!((poll(fd, POLLIN, 0), net::readable(fd)), (0, 0));
}

fn more_is_not_shown() {
    let p = Pair::warm();
    let set = Set::new();
    set.add(&p.s, EPOLLIN, 1);
    for _ in 0..50 {
        assert_eq!(send(&p.c, b"he", MSG_MORE), Ok(2));
        nothing(&p.s);
        assert_eq!(send(&p.c, b"ad", MSG_MORE), Ok(2));
        nothing(&p.s);
        assert_eq!(set.wait(4, 0), []);
        assert_eq!(net::ioctl(&p.c, libc::TIOCOUTQ, 0), Ok(4), "not sent");
        assert_eq!(send(&p.c, b"body", 0), Ok(4));
        assert_eq!(poll(&p.s, POLLIN, -1), POLLIN);
        assert_eq!(once(&p.s), b"headbody");
        send_all(&p.s, b"!");
        assert_eq!(recv_exact(&p.c, 1), b"!");
    }
    p.assert_in_rings();
}

/// What is there already stays so, and is no event.
fn more_behind_unread_bytes() {
    let p = Pair::warm();
    let set = Set::new();
    set.add(&p.s, EPOLLIN | EPOLLET, 1);
    send_all(&p.c, b"one");
    assert_eq!(set.wait(4, -1), [(1, EPOLLIN)]);
    net::sleep_ms(60);
    assert_eq!(send(&p.c, b"two", MSG_MORE), Ok(3));
    assert_eq!((set.wait(4, 0), net::readable(&p.s)), (vec![], 3));
    send_all(&p.c, b"three");
    assert_eq!(set.wait(4, -1), [(1, EPOLLIN)]);
    assert_eq!(once(&p.s), b"onetwothree");
}

/// A reader that sleeps is woken when all of it is there.
fn asleep_until_all_is_there() {
    let p = Pair::warm();
    let set = Set::new();
    set.add(&p.s, EPOLLIN, 1);
    let waits: [&(dyn Fn() + Sync); 3] =
        [&|| {}, &|| assert_eq!(poll(&p.s, POLLIN, -1), POLLIN), &|| assert_eq!(set.wait(4, -1), [(1, EPOLLIN)])];
    for (i, wait) in waits.into_iter().cycle().take(24).enumerate() {
        both(
            || {
                net::sleep_ms(10);
                if i % 2 == 0 {
                    assert_eq!(send(&p.c, b"head", MSG_MORE), Ok(4));
                    net::sleep_ms(10);
                    send_all(&p.c, b"body");
                } else {
                    cork(&p.c, 1);
                    send_all(&p.c, b"head");
                    net::sleep_ms(10);
                    send_all(&p.c, b"body");
                    cork(&p.c, 0);
                }
            },
            || {
                wait();
                assert_eq!(once(&p.s), b"headbody");
            },
        );
        send_all(&p.s, b"!");
        assert_eq!(recv_exact(&p.c, 1), b"!");
    }
    p.assert_in_rings();
}

fn cork_is_not_shown() {
    let p = Pair::warm();
    for round in 0..50u8 {
        cork(&p.c, 1);
        for part in [b"aa", b"bb", b"cc"] {
            send_all(&p.c, part);
            nothing(&p.s);
        }
        assert_eq!(net::get(&p.c, libc::IPPROTO_TCP, libc::TCP_CORK), Ok(1));
        cork(&p.c, 0);
        assert_eq!(poll(&p.s, POLLIN, -1), POLLIN);
        assert_eq!(once(&p.s), b"aabbcc");
        send_all(&p.s, &[round]);
        assert_eq!(recv_exact(&p.c, 1), [round]);
    }
    p.assert_in_rings();
}

fn cork_goes_on_where_the_peer_closes() {
    for round in 0..40 {
        let p = Pair::warm();
        let (closes, end) = if round % 2 == 0 { (p.c, p.s) } else { (p.s, p.c) };
        // What the other side learns of it when: its next call may be the first.
        if round % 4 < 2 {
            cork(&end, 1);
        }
        drop(closes);
        if round % 4 >= 2 {
            cork(&end, 1);
        }
        // Nothing is sent, which the peer could answer with a reset.
        for len in [856, 1024] {
            assert_eq!(send(&end, &vec![7; len], libc::MSG_NOSIGNAL), Ok(len));
        }
        assert_eq!(net::get(&end, libc::IPPROTO_TCP, libc::TCP_CORK), Ok(1));
        cork(&end, 0);
        let reset = libc::POLLERR | libc::POLLHUP;
        assert_eq!(poll(&end, 0, -1) & reset, reset);
    }
}

fn shown_by_nodelay() {
    let p = Pair::warm();
    cork(&p.c, 1);
    send_all(&p.c, b"corked");
    nothing(&p.s);
    net::set(&p.c, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1).unwrap();
    assert_eq!(poll(&p.s, POLLIN, -1), POLLIN);
    assert_eq!(once(&p.s), b"corked");
    cork(&p.c, 0);
    send_all(&p.s, b"!");
    assert_eq!(recv_exact(&p.c, 1), b"!");
    assert_eq!(send(&p.c, b"more", MSG_MORE), Ok(4));
    nothing(&p.s);
    net::set(&p.c, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1).unwrap();
    assert_eq!(poll(&p.s, POLLIN, -1), POLLIN);
    assert_eq!(once(&p.s), b"more");
}

/// Nothing follows, and there is no further call: it comes all the same.
fn shown_after_a_while() {
    let p = Pair::warm();
    let set = Set::new();
    set.add(&p.s, EPOLLIN, 1);
    let waits: [&dyn Fn(); 4] = [
        &|| {},
        &|| assert_eq!(poll(&p.s, POLLIN, -1), POLLIN),
        &|| assert_eq!(set.wait(4, -1), [(1, EPOLLIN)]),
        &|| while recv(&p.s, &mut [0; 1], MSG_DONTWAIT | libc::MSG_PEEK) == Err(EAGAIN) {},
    ];
    for wait in waits {
        assert_eq!(send(&p.c, b"late", MSG_MORE), Ok(4));
        wait();
        assert_eq!(once(&p.s), b"late");
        send_all(&p.s, b"!");
        assert_eq!(recv_exact(&p.c, 1), b"!");
    }
    p.assert_in_rings();
}

/// The same for a reader that slept before the first byte was sent.
fn asleep_until_it_is_late() {
    let p = Pair::warm();
    let set = Set::new();
    set.add(&p.s, EPOLLIN, 1);
    let waits: [&(dyn Fn() + Sync); 3] =
        [&|| {}, &|| assert_eq!(poll(&p.s, POLLIN, -1), POLLIN), &|| assert_eq!(set.wait(4, -1), [(1, EPOLLIN)])];
    for wait in waits {
        both(
            || {
                net::sleep_ms(20);
                assert_eq!(send(&p.c, b"late", MSG_MORE), Ok(4));
            },
            || {
                wait();
                assert_eq!(once(&p.s), b"late");
            },
        );
        send_all(&p.s, b"!");
        assert_eq!(recv_exact(&p.c, 1), b"!");
    }
    p.assert_in_rings();
}

/// A signal whose handler restarts calls does not end the wait; a time-out does.
fn restarted_until_it_is_late() {
    let p = Pair::warm();
    net::on_signal(libc::SIGUSR1, net::count_signal, true);
    let reader = net::this_thread();
    assert_eq!(send(&p.c, b"late", MSG_MORE), Ok(4));
    both(
        || {
            for _ in 0..5 {
                net::sleep_ms(10);
                net::signal_thread(reader, libc::SIGUSR1);
            }
        },
        || assert_eq!(once(&p.s), b"late"),
    );
    send_all(&p.s, b"!");
    assert_eq!(recv_exact(&p.c, 1), b"!");
    net::set(&p.s, libc::SOL_SOCKET, libc::SO_RCVTIMEO, net::timeval(30)).unwrap();
    assert_eq!(send(&p.c, b"late", MSG_MORE), Ok(4));
    assert_eq!(read(&p.s, &mut [0; 8]), Err(EAGAIN));
    assert_eq!(poll(&p.s, POLLIN, -1), POLLIN);
    assert_eq!(once(&p.s), b"late");
}

/// Only a part of a segment is held back.
fn segments_are_shown() {
    let p = Pair::warm();
    let sent: Vec<u8> = (0..150_000u32).map(|i| (i % 251) as u8).collect();
    cork(&p.c, 1);
    for part in sent.chunks(1000) {
        send_all(&p.c, part);
    }
    assert_eq!(poll(&p.s, POLLIN, -1), POLLIN);
    let mut got = once(&p.s);
    cork(&p.c, 0);
    got.extend(recv_exact(&p.s, sent.len() - got.len()));
    assert!(got == sent);
}

fn more_than_a_ring_holds() {
    let p = Pair::warm();
    let sent: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
    cork(&p.c, 1);
    both(
        || {
            sent.chunks(7777).for_each(|part| send_all(&p.c, part));
            cork(&p.c, 0);
        },
        || assert!(recv_exact(&p.s, sent.len()) == sent),
    );
}

fn shown_by_the_end() {
    let p = Pair::warm();
    assert_eq!(send(&p.c, b"half", MSG_MORE), Ok(4));
    nothing(&p.s);
    net::shutdown(&p.c, libc::SHUT_WR).unwrap();
    assert_eq!(recv_up_to(&p.s, 100), b"half");
    let p = Pair::warm();
    cork(&p.c, 1);
    send_all(&p.c, b"closed");
    nothing(&p.s);
    drop(p.c);
    assert_eq!(recv_up_to(&p.s, 100), b"closed");
}

fn shown_by_a_kill() {
    let fd = pair::left_by_a_killed_peer(|fd| {
        cork(fd, 1);
        send_all(fd, b"last");
    });
    net::await_events(&fd, libc::POLLRDHUP);
    assert_eq!(net::readable(&fd), 4);
    assert_eq!(recv_up_to(&fd, 100), b"last");
}

/// Whatever follows brings the held bytes with it.
fn rest_by_another_call() {
    let p = Pair::warm();
    let rests: [&dyn Fn(); 3] = [
        &|| assert_eq!(net::write(&p.c, b"body"), Ok(4)),
        &|| assert_eq!(net::writev(&p.c, &[b"bo", b"dy"]), Ok(4)),
        &|| assert_eq!(net::sendmsg(&p.c, &[b"body"], 0), Ok(4)),
    ];
    for rest in rests {
        assert_eq!(net::sendmsg(&p.c, &[b"he", b"ad"], MSG_MORE), Ok(4));
        nothing(&p.s);
        rest();
        assert_eq!(poll(&p.s, POLLIN, -1), POLLIN);
        assert_eq!(once(&p.s), b"headbody");
        send_all(&p.s, b"!");
        assert_eq!(recv_exact(&p.c, 1), b"!");
    }
    p.assert_in_rings();
}
