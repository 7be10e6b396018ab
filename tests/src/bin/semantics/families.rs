//! An event set that parent and child of a fork share, with what each of them changes in it behind unread bytes.
#![allow(unsafe_code)]

use std::os::fd::OwnedFd;

use libc::{EPOLLET, EPOLLIN, EPOLLONESHOT, EPOLLOUT};
use madrigal_tests::net::{self, recv_exact, recv_up_to, send_all};
use madrigal_tests::pair;

use crate::set::Set;

crate::checks![
    data_changed_by_the_parent,
    armed_by_the_parent,
    told_to_one_of_them,
    an_edge_for_one_of_them,
    deleted_by_the_parent,
    added_again_by_the_parent,
    read_by_the_child,
    changed_by_the_child,
];

/// How much is unread when the fork comes: little, and more than any queue of the kernel's is sure to take.
const UNREAD: [usize; 3] = [1, 3000, 150_000];
/// What makes a ring grow to hold that.
const BULK: usize = 8 << 20;

/// A set with one socket, registered for `events` with 1 as data and with so many bytes unread; the peer is another process.
struct Family {
    s: OwnedFd,
    set: Set,
    unread: usize,
    /// Each process waits for a byte in its own.
    pipes: [(OwnedFd, OwnedFd); 3],
}

const PARENT: usize = 0;
const CHILD: usize = 1;
const PEER: usize = 2;

impl Family {
    /// For each amount of bytes: what happens `before` a fork, then in the parent, and, once that sends a message, in the child.
    fn each(events: i32, before: fn(&Self), parent: fn(&Self), child: fn(&Self)) {
        Self::with_each(events, |family| {
            before(family);
            let pid = net::fork(|| {
                family.await_message(CHILD);
                child(family);
                family.send_message(PARENT);
                0
            });
            parent(family);
            family.send_message(CHILD);
            family.await_message(PARENT);
            assert_eq!(net::wait(pid), 0);
        });
    }

    /// With the right to copy the peer's descriptors, and without.
    fn with_each(events: i32, check: impl Fn(&Self)) {
        UNREAD.into_iter().for_each(|unread| Self::with(events, unread, true, &check));
        net::forgo_copies();
        UNREAD.into_iter().for_each(|unread| Self::with(events, unread, false, &check));
    }

    fn with(events: i32, unread: usize, copies: bool, check: impl Fn(&Self)) {
        let pipes = [net::pipe(), net::pipe(), net::pipe()];
        let (out, input) = net::pipe();
        let peer = net::fork(|| {
            let fd = pair::client_of_port(&out);
            pair::warm_client(&fd);
            if !copies {
                net::refuse_copies();
            }
            send_all(&fd, &vec![1; BULK]);
            send_all(&fd, &vec![7; unread]);
            while net::read(&pipes[PEER].0, &mut [0]) == Ok(1) {
                send_all(&fd, b"news");
            }
            0
        });
        let (listener, addr) = net::listener(pair::loopback());
        pair::send_port(&input, addr);
        let s = net::accept(&listener, 0).unwrap();
        pair::warm_server(&s);
        drop(recv_exact(&s, BULK));
        while net::readable(&s) < unread {
            net::sleep_ms(1);
        }
        let set = Set::new();
        set.add(&s, events, 1);
        let family = Self { s, set, unread, pipes };
        check(&family);
        net::kill(peer, libc::SIGKILL).unwrap();
        net::wait(peer);
    }

    fn send_message(&self, to: usize) {
        assert_eq!(net::write(&self.pipes[to].1, b"g"), Ok(1));
    }

    fn await_message(&self, to: usize) {
        assert_eq!(net::read(&self.pipes[to].0, &mut [0]), Ok(1));
    }

    fn events(&self) -> Vec<(u64, i32)> {
        self.set.wait(4, 0)
    }

    fn is_little(&self) -> bool {
        self.unread < 64 << 10
    }
}

const IDLE: fn(&Family) = |_| {};

/// A waiter in either process gets the data that was set last.
fn data_changed_by_the_parent() {
    Family::each(
        EPOLLIN,
        |family| assert_eq!(family.set.wait(4, -1), [(1, EPOLLIN)]),
        |family| family.set.modify(&family.s, EPOLLIN | EPOLLOUT, 2),
        |family| assert_eq!(family.events(), [(2, EPOLLIN | EPOLLOUT)]),
    );
}

/// Spent before the fork, and armed again behind it.
fn armed_by_the_parent() {
    Family::each(
        EPOLLIN | EPOLLONESHOT,
        |family| assert_eq!(family.set.wait(4, -1), [(1, EPOLLIN)]),
        |family| family.set.modify(&family.s, EPOLLIN | EPOLLONESHOT, 2),
        |family| {
            assert_eq!(family.events(), [(2, EPOLLIN)]);
            assert_eq!(family.events(), []);
        },
    );
}

/// Armed before the fork: one of the two gets the event.
fn told_to_one_of_them() {
    Family::each(
        EPOLLIN | EPOLLONESHOT,
        IDLE,
        |family| assert_eq!(family.events(), [(1, EPOLLIN)]),
        |family| assert_eq!(family.events(), []),
    );
}

/// An edge is reported once, to the first process that polls.
fn an_edge_for_one_of_them() {
    Family::each(
        EPOLLIN | EPOLLET,
        IDLE,
        |family| assert_eq!(family.events(), [(1, EPOLLIN)]),
        |family| {
            assert_eq!(family.events(), []);
            // More may not have room in a window that is full.
            if family.is_little() {
                family.send_message(PEER);
                assert_eq!(family.set.wait(4, -1), [(1, EPOLLIN)]);
            }
        },
    );
}

/// What is deleted is deleted for both; it may be added again.
fn deleted_by_the_parent() {
    Family::each(
        EPOLLIN,
        |family| assert_eq!(family.set.wait(4, -1), [(1, EPOLLIN)]),
        |family| family.set.delete(&family.s),
        |family| {
            assert_eq!(family.events(), []);
            family.set.add(&family.s, EPOLLIN, 3);
            assert_eq!(family.events(), [(3, EPOLLIN)]);
        },
    );
}

/// The parent removes a socket and adds it again: both get its events, with the new data.
fn added_again_by_the_parent() {
    Family::each(
        EPOLLIN,
        |family| assert_eq!(family.set.wait(4, -1), [(1, EPOLLIN)]),
        |family| {
            family.set.delete(&family.s);
            family.set.add(&family.s, EPOLLIN | EPOLLOUT, 4);
            assert_eq!(family.events(), [(4, EPOLLIN | EPOLLOUT)]);
        },
        |family| assert_eq!(family.events(), [(4, EPOLLIN | EPOLLOUT)]),
    );
}

/// Both read: what the child has not read the parent finds, and then nothing.
fn read_by_the_child() {
    Family::each(
        EPOLLIN,
        IDLE,
        |family| {
            assert_eq!(family.events(), [(1, EPOLLIN)]);
            assert_eq!(recv_exact(&family.s, family.unread / 3), vec![7; family.unread / 3]);
            assert_eq!(family.events(), [(1, EPOLLIN)]);
        },
        |family| {
            assert_eq!(family.events(), [(1, EPOLLIN)]);
            let left = family.unread - family.unread / 3;
            assert_eq!(recv_up_to(&family.s, left).len(), left);
            assert_eq!(family.events(), []);
            family.send_message(PEER);
            assert_eq!(family.set.wait(4, -1), [(1, EPOLLIN)]);
        },
    );
}

/// The parent sleeps on a registration of the child's.
fn changed_by_the_child() {
    Family::with_each(EPOLLIN | EPOLLONESHOT, |family| {
        assert_eq!(family.set.wait(4, -1), [(1, EPOLLIN)]);
        let pid = net::fork(|| {
            net::sleep_ms(20);
            family.set.modify(&family.s, EPOLLOUT | EPOLLONESHOT, 5);
            0
        });
        assert_eq!(family.set.wait(4, -1), [(5, EPOLLOUT)]);
        assert_eq!(net::wait(pid), 0);
        assert_eq!(recv_exact(&family.s, family.unread), vec![7; family.unread]);
    });
}
