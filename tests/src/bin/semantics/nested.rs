//! Sets inside sets, up to four deep, and sets inside poll(2) and select(2): ready as long as epoll_wait(2) on them would return events.
#![allow(unsafe_code)]

use std::os::fd::AsRawFd;

use libc::{
    EINVAL, EPOLL_CTL_ADD, EPOLLET, EPOLLEXCLUSIVE, EPOLLHUP, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLRDHUP, POLLIN,
};
use madrigal_tests::net::{self, poll, recv_exact, send_all};
use madrigal_tests::pair::Pair;

use crate::both;
use crate::killed;
use crate::set::Set;

crate::checks![
    one_in_another,
    one_in_poll,
    level_and_deep,
    edge_inside,
    edge_outside,
    one_shot_inside,
    one_shot_outside,
    exclusive_inside,
    only_room_is_asked_for,
    room_is_never_told_of,
    ended_inside,
    watched_with_bytes_unread,
    moved_into_a_watched_set,
    added_while_polled,
    polled_for_room,
    asleep_outside,
    beside_a_pipe,
    beside_another_member,
    spent_and_left,
    spent_behind_the_end,
    one_shot_around_the_end,
];

/// Makes it readable once the waiter sleeps.
fn late(p: &Pair) {
    net::sleep_ms(20);
    send_all(&p.c, b"x");
}

fn one_in_another() {
    let p = Pair::warm();
    let (inner, outer) = (Set::new(), Set::new());
    inner.add(&p.s, EPOLLIN, 1);
    outer.add(&inner.0, EPOLLIN, 2);
    assert_eq!(outer.wait(4, 0), []);
    for _ in 0..5 {
        both(|| late(&p), || assert_eq!(outer.wait(4, -1), [(2, EPOLLIN)]));
        assert_eq!(outer.wait(4, 0), [(2, EPOLLIN)]);
        assert_eq!(inner.wait(4, 0), [(1, EPOLLIN)]);
        recv_exact(&p.s, 1);
        assert_eq!(inner.wait(4, 0), []);
        assert_eq!(outer.wait(4, 0), []);
    }
    outer.delete(&inner.0);
    send_all(&p.c, b"x");
    inner.await_exactly(&[(1, EPOLLIN)]);
    assert_eq!(outer.wait(4, 0), []);
}

fn one_in_poll() {
    let p = Pair::warm();
    let set = Set::new();
    set.add(&p.s, EPOLLIN, 1);
    assert_eq!(net::poll(&set.0, POLLIN, 0), 0);
    for _ in 0..5 {
        both(|| late(&p), || assert_eq!(net::poll(&set.0, POLLIN, -1), POLLIN));
        assert_eq!(set.wait(4, 0), [(1, EPOLLIN)]);
        recv_exact(&p.s, 1);
        assert_eq!(net::poll(&set.0, POLLIN, 0), 0);
    }
}

/// Sets, the first inside the second and so on, for these events each.
struct Chain(Vec<Set>);

impl Chain {
    fn new(deep: usize, events: i32) -> Self {
        let sets: Vec<Set> = (0..deep).map(|_| Set::new()).collect();
        for (i, pair) in sets.windows(2).enumerate() {
            pair[1].add(&pair[0].0, events, 100 + i as u64);
        }
        Self(sets)
    }

    fn inner(&self) -> &Set {
        &self.0[0]
    }

    fn outer(&self) -> &Set {
        &self.0[self.0.len() - 1]
    }

    /// The event of the outermost set when the others are ready.
    fn event(&self) -> [(u64, i32); 1] {
        [(98 + self.0.len() as u64, EPOLLIN)]
    }

    /// Whether each set is ready by poll(2).
    fn assert_ready(&self, ready: bool) {
        for set in &self.0 {
            assert_eq!(poll(&set.0, POLLIN, 0), if ready { POLLIN } else { 0 });
        }
    }
}

fn level_and_deep() {
    for deep in 2..=4 {
        let p = Pair::warm();
        let chain = Chain::new(deep, EPOLLIN);
        chain.inner().add(&p.s, EPOLLIN, 1);
        assert_eq!(chain.outer().wait(4, 0), []);
        for _ in 0..10 {
            send_all(&p.c, b"xy");
            net::await_events(&p.s, POLLIN);
            for _ in 0..2 {
                assert_eq!(chain.outer().wait(4, 0), chain.event());
                assert_eq!(chain.inner().wait(4, 0), [(1, EPOLLIN)]);
                chain.assert_ready(true);
                recv_exact(&p.s, 1);
            }
            assert_eq!(chain.outer().wait(4, 0), []);
            chain.assert_ready(false);
            assert_eq!(chain.inner().wait(4, 0), []);
        }
    }
}

fn edge_inside() {
    for deep in 2..=4 {
        let p = Pair::warm();
        let chain = Chain::new(deep, EPOLLIN);
        chain.inner().add(&p.s, EPOLLIN | EPOLLET, 1);
        for _ in 0..10 {
            send_all(&p.c, b"x");
            assert_eq!(chain.outer().wait(4, -1), chain.event());
            chain.assert_ready(true);
            assert_eq!(chain.inner().wait(4, -1), [(1, EPOLLIN)]);
            // Reported, though nothing was read.
            chain.assert_ready(false);
            assert_eq!(chain.outer().wait(4, 0), []);
        }
        recv_exact(&p.s, 10);
        send_all(&p.c, b"x");
        assert_eq!(chain.outer().wait(4, -1), chain.event());
    }
}

fn edge_outside() {
    let p = Pair::warm();
    let chain = Chain::new(2, EPOLLIN | EPOLLET);
    chain.inner().add(&p.s, EPOLLIN, 1);
    for _ in 0..10 {
        send_all(&p.c, b"x");
        assert_eq!(chain.outer().wait(4, -1), chain.event());
        assert_eq!(chain.outer().wait(4, 0), []);
        assert_eq!(chain.inner().wait(4, 0), [(1, EPOLLIN)]);
        assert_eq!(chain.outer().wait(4, 0), []);
    }
}

fn one_shot_inside() {
    let p = Pair::warm();
    let chain = Chain::new(3, EPOLLIN);
    chain.inner().add(&p.s, EPOLLIN | EPOLLONESHOT, 1);
    send_all(&p.c, b"x");
    assert_eq!(chain.outer().wait(4, -1), chain.event());
    assert_eq!(chain.inner().wait(4, 0), [(1, EPOLLIN)]);
    send_all(&p.c, b"x");
    net::sleep_ms(20);
    assert_eq!(chain.outer().wait(4, 0), []);
    chain.assert_ready(false);
    chain.inner().modify(&p.s, EPOLLIN | EPOLLONESHOT, 2);
    assert_eq!(chain.outer().wait(4, 0), chain.event());
    assert_eq!(chain.inner().wait(4, 0), [(2, EPOLLIN)]);
    drop(p.c);
    net::sleep_ms(20);
    chain.assert_ready(false);
    assert_eq!(chain.outer().wait(4, 0), []);
}

fn one_shot_outside() {
    let p = Pair::warm();
    let chain = Chain::new(2, EPOLLIN | EPOLLONESHOT);
    chain.inner().add(&p.s, EPOLLIN, 1);
    for _ in 0..3 {
        send_all(&p.c, b"x");
        assert_eq!(chain.outer().wait(4, -1), chain.event());
        assert_eq!(chain.outer().wait(4, 0), []);
        send_all(&p.c, b"x");
        assert_eq!(chain.outer().wait(4, 10), []);
        chain.outer().modify(&chain.inner().0, EPOLLIN | EPOLLONESHOT, 100);
    }
}

fn exclusive_inside() {
    let p = Pair::warm();
    let chain = Chain::new(2, EPOLLIN);
    chain.inner().add(&p.s, EPOLLIN | EPOLLEXCLUSIVE, 1);
    assert_eq!(chain.outer().control(EPOLL_CTL_ADD, &Set::new().0, EPOLLIN | EPOLLEXCLUSIVE, 2), Err(EINVAL));
    for _ in 0..3 {
        send_all(&p.c, b"x");
        assert_eq!(chain.outer().wait(4, -1), chain.event());
        assert_eq!(chain.inner().wait(4, 0), [(1, EPOLLIN)]);
        recv_exact(&p.s, 1);
        chain.assert_ready(false);
    }
}

/// Events that the program did not request make no set ready.
fn only_room_is_asked_for() {
    let p = Pair::warm();
    let chain = Chain::new(3, EPOLLIN);
    chain.inner().add(&p.s, EPOLLOUT | EPOLLET, 1);
    assert_eq!(chain.outer().wait(4, 0), chain.event());
    assert_eq!(chain.inner().wait(4, 0), [(1, EPOLLOUT)]);
    chain.assert_ready(false);
    for _ in 0..5 {
        send_all(&p.c, b"x");
        net::sleep_ms(10);
        chain.assert_ready(false);
        assert_eq!(chain.outer().wait(4, 0), []);
    }
}

fn room_is_never_told_of() {
    // A set never reports room: registered for that only, it shows nothing of its members, and neither does the set around it.
    let (p, chain) = (Pair::warm(), Chain::new(3, EPOLLOUT));
    send_all(&p.c, b"one");
    chain.inner().add(&p.s, EPOLLIN, 1);
    assert_eq!(poll(&chain.inner().0, POLLIN, 0), POLLIN);
    assert_eq!(poll(&chain.0[1].0, POLLIN, 0), 0);
    assert_eq!(poll(&chain.outer().0, POLLIN, 0), 0);
    assert_eq!(chain.outer().wait(4, 0), []);
    send_all(&p.c, b"two");
    assert_eq!(poll(&chain.0[1].0, POLLIN, 0), 0);
    assert_eq!(recv_exact(&p.s, 6), b"onetwo");
}

fn ended_inside() {
    let p = Pair::warm();
    let chain = Chain::new(2, EPOLLIN);
    chain.inner().add(&p.s, EPOLLIN | EPOLLRDHUP | EPOLLET, 1);
    send_all(&p.c, b"x");
    assert_eq!(chain.inner().wait(4, -1), [(1, EPOLLIN)]);
    net::shutdown(&p.c, libc::SHUT_WR).unwrap();
    assert_eq!(chain.outer().wait(4, -1), chain.event());
    assert_eq!(chain.inner().wait(4, 0), [(1, EPOLLIN | EPOLLRDHUP)]);
    chain.assert_ready(false);
    net::shutdown(&p.s, libc::SHUT_WR).unwrap();
    assert_eq!(chain.outer().wait(4, -1), chain.event());
    chain.inner().await_all(&[(1, EPOLLIN | EPOLLRDHUP | EPOLLHUP)]);
    chain.assert_ready(false);
}

/// A set that was not watched before, with a ring that holds something.
fn watched_with_bytes_unread() {
    let p = Pair::warm();
    let chain = Chain::new(1, EPOLLIN);
    chain.inner().add(&p.s, EPOLLIN, 1);
    send_all(&p.c, b"first");
    assert_eq!(chain.inner().wait(4, -1), [(1, EPOLLIN)]);
    chain.assert_ready(true);
    assert_eq!(recv_exact(&p.s, 5), b"first");
    chain.assert_ready(false);
    send_all(&p.c, b"second");
    send_all(&p.s, b"back");
    assert_eq!(poll(&chain.inner().0, POLLIN, -1), POLLIN);
    assert_eq!((recv_exact(&p.s, 6), recv_exact(&p.c, 4)), (b"second".to_vec(), b"back".to_vec()));
    chain.assert_ready(false);
}

fn moved_into_a_watched_set() {
    let (p, q) = (Pair::warm(), Pair::fresh());
    let chain = Chain::new(2, EPOLLIN);
    chain.inner().add(&q.s, EPOLLIN, 2);
    chain.assert_ready(false);
    send_all(&p.c, b"unread");
    net::await_events(&p.s, POLLIN);
    chain.inner().add(&p.s, EPOLLIN, 1);
    assert_eq!(chain.outer().wait(4, 0), chain.event());
    assert_eq!(recv_exact(&p.s, 6), b"unread");
    for round in 0..100u8 {
        for (pair, data) in [(&p, 1), (&q, 2)] {
            chain.assert_ready(false);
            send_all(&pair.c, &[round]);
            assert_eq!(chain.outer().wait(4, -1), chain.event());
            assert_eq!(chain.inner().wait(4, 0), [(data, EPOLLIN)]);
            send_all(&pair.s, &recv_exact(&pair.s, 1));
            assert_eq!(recv_exact(&pair.c, 1), [round]);
        }
    }
}

/// A poll(2) that sleeps on an empty set, alone or beside a ring: a descriptor that is added to the set wakes it when a requested event
/// comes, and not before.
fn added_while_polled() {
    for beside in [false, true] {
        let (ring, p, set) = (Pair::warm(), Pair::warm(), Set::new());
        std::thread::scope(|scope| {
            let (tell, tid) = std::sync::mpsc::channel();
            let (ring, set) = (&ring.s, &set);
            let poller = scope.spawn(move || {
                let entry = |fd: i32| libc::pollfd { fd, events: POLLIN, revents: 0 };
                let mut fds = [entry(set.0.as_raw_fd()), entry(if beside { ring.as_raw_fd() } else { -1 })];
                // SAFETY: no pointers.
                tell.send(unsafe { libc::gettid() }).unwrap();
                (net::poll_many(&mut fds, -1), set.wait(4, 0))
            });
            crate::await_asleep(tid.recv().unwrap());
            set.add(&p.s, EPOLLIN, 1);
            net::sleep_ms(20);
            send_all(&p.c, b"x");
            assert_eq!(poller.join().unwrap(), (Ok(1), vec![(1, EPOLLIN)]));
        });
    }
}

/// A set never has room: a wait for that sleeps, also if the set has events.
fn polled_for_room() {
    let Pair { c, s } = Pair::warm();
    let set = Set::new();
    send_all(&s, b"unread");
    assert_eq!(poll(&c, POLLIN, 10_000), POLLIN);
    drop(c);
    set.add(&s, EPOLLIN, 1);
    assert_eq!(net::recv(&s, &mut [0; 4], 0), Err(libc::ECONNRESET));
    set.await_all(&[(1, EPOLLIN | EPOLLHUP)]);
    std::thread::scope(|scope| {
        let (tell, tid) = std::sync::mpsc::channel();
        let set = &set;
        let poller = scope.spawn(move || {
            // SAFETY: no pointers.
            tell.send(unsafe { libc::gettid() }).unwrap();
            poll(&set.0, libc::POLLOUT, 1000)
        });
        crate::await_asleep(tid.recv().unwrap());
        assert_eq!(poller.join().unwrap(), 0);
    });
    assert_eq!(poll(&set.0, POLLIN | libc::POLLOUT, 0), POLLIN);
}

fn asleep_outside() {
    for deep in 2..=4 {
        let p = Pair::warm();
        let chain = Chain::new(deep, EPOLLIN);
        chain.inner().add(&p.s, EPOLLIN, 1);
        for _ in 0..10 {
            both(
                || {
                    net::sleep_ms(5);
                    send_all(&p.c, b"x");
                },
                || assert_eq!(chain.outer().wait(4, -1), chain.event()),
            );
            recv_exact(&p.s, 1);
        }
    }
}

fn beside_a_pipe() {
    let p = Pair::warm();
    let (pipe_out, pipe_in) = net::pipe();
    let chain = Chain::new(2, EPOLLIN);
    chain.inner().add(&p.s, EPOLLIN | EPOLLET, 1);
    chain.inner().add(&pipe_out, EPOLLIN | EPOLLET, 2);
    net::write(&pipe_in, b"z").unwrap();
    assert_eq!(chain.outer().wait(4, 0), chain.event());
    assert_eq!(chain.inner().wait(4, 0), [(2, EPOLLIN)]);
    chain.assert_ready(false);
    send_all(&p.c, b"x");
    assert_eq!(chain.outer().wait(4, -1), chain.event());
    net::write(&pipe_in, b"z").unwrap();
    chain.inner().await_all(&[(1, EPOLLIN), (2, EPOLLIN)]);
    chain.assert_ready(false);
}

/// A set inside another is reported with the kernel's other events: here a socket whose peer was killed behind a doorbell.
fn beside_another_member() {
    let fd = killed::left_behind_a_doorbell();
    let (outer, inner) = (Set::new(), Set::new());
    outer.add(&inner.0, EPOLLIN, 1);
    outer.add(&fd, EPOLLIN | EPOLLRDHUP | EPOLLET, 2);
    inner.add(&fd, EPOLLIN, 3);
    assert_eq!(inner.wait(4, 0), [(3, EPOLLIN)]);
    assert_eq!(outer.wait(4, 0), [(1, EPOLLIN), (2, EPOLLIN | EPOLLRDHUP)]);
    assert_eq!(outer.wait(4, 0), [(1, EPOLLIN)]);
}

/// A spent one-shot registration stays silent when its socket leaves the ring, also at the end of the connection.
fn spent_and_left() {
    let p = Pair::warm();
    let set = Set::new();
    set.add(&p.s, EPOLLIN | EPOLLONESHOT, 1);
    send_all(&p.c, b"x");
    assert_eq!(set.wait(4, -1), [(1, EPOLLIN)]);
    recv_exact(&p.s, 1);
    // A socket with signals goes by TCP.
    net::ioctl(&p.s, libc::FIOASYNC, 1).unwrap();
    net::ioctl(&p.s, libc::FIOASYNC, 0).unwrap();
    send_all(&p.c, b"yz");
    assert_eq!(recv_exact(&p.s, 2), b"yz");
    assert_eq!(set.control(EPOLL_CTL_ADD, &p.s, EPOLLIN, 3), Err(libc::EEXIST));
    drop(p.c);
    net::await_events(&p.s, POLLIN);
    net::shutdown(&p.s, libc::SHUT_WR).unwrap();
    net::await_events(&p.s, libc::POLLHUP);
    assert_eq!(set.wait(4, 10), []);
    set.modify(&p.s, EPOLLOUT, 2);
    assert_eq!(set.wait(4, 0).iter().map(|event| event.0).collect::<Vec<_>>(), [2]);
    set.delete(&p.s);
    assert_eq!(set.wait(4, 0), []);
}

fn spent_behind_the_end() {
    // A one-shot registration that has reported the end reports nothing more, also to an outer set.
    let Pair { c, s } = Pair::warm();
    send_all(&s, b"unread");
    net::linger(&c, 0);
    drop(c);
    assert_eq!(net::read(&s, &mut [0; 8]), Err(libc::ECONNRESET));
    let chain = Chain::new(2, EPOLLIN);
    chain.inner().add(&s, EPOLLIN | EPOLLRDHUP | EPOLLONESHOT, 1);
    assert_eq!(chain.inner().wait(4, -1), [(1, EPOLLIN | EPOLLRDHUP | EPOLLHUP)]);
    chain.assert_ready(false);
    chain.inner().modify(&s, EPOLLIN | EPOLLONESHOT, 2);
    assert_eq!(chain.outer().wait(4, -1), chain.event());
    assert_eq!(chain.inner().wait(4, -1), [(2, EPOLLIN | EPOLLHUP)]);
    chain.assert_ready(false);
}

/// A set with a one-shot registration in another set is reported once there; after a modification, once more.
fn one_shot_around_the_end() {
    let fd = killed::left_behind_a_doorbell();
    let (inner, outer) = (Set::new(), Set::new());
    inner.add(&fd, EPOLLIN | EPOLLRDHUP, 1);
    outer.add(&inner.0, EPOLLIN | EPOLLONESHOT, 2);
    for _ in 0..3 {
        assert_eq!(outer.wait(4, 5000), [(2, EPOLLIN)]);
        assert_eq!(outer.wait(4, 0), []);
        assert_eq!(inner.wait(4, 0), [(1, EPOLLIN | EPOLLRDHUP)]);
        assert_eq!(outer.wait(4, 0), []);
        outer.modify(&inner.0, EPOLLIN | EPOLLONESHOT, 2);
    }
}
