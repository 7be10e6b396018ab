//! Threads asleep on a socket, or on a set it is in, while other threads use it.
#![allow(unsafe_code)]

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use libc::{ECONNRESET, EPOLLET, EPOLLIN, EPOLLRDHUP, MSG_DONTWAIT};
use madrigal_tests::net::{self, read, recv, recv_exact, send_all};
use madrigal_tests::pair::{self, Pair};

use crate::await_asleep;
use crate::set::Set;

crate::checks![
    another_takes_what_woke_it,
    another_on_the_set_has_gone,
    another_sees_to_nothing,
    reader_asleep_as_it_moves,
    set_asleep_as_it_moves,
    set_asleep_as_a_doorbell_is_added,
    reader_asleep_as_its_session_ends,
    workers_asleep_as_all_move,
];

/// sockatmark(3) by its ioctl (asm-generic/sockios.h).
const SIOCATMARK: libc::c_ulong = 0x8905;

/// The id of a thread, for another one that waits until it sleeps.
#[derive(Default)]
struct Tid(AtomicI32);

impl Tid {
    fn tell(&self) {
        // SAFETY: no pointers.
        self.0.store(unsafe { libc::gettid() }, Ordering::SeqCst);
    }

    fn await_asleep(&self) {
        while self.0.load(Ordering::SeqCst) == 0 {
            net::sleep_ms(1);
        }
        await_asleep(self.0.load(Ordering::SeqCst));
    }
}

/// The byte that woke a reader is gone when it reads, taken by a thread that does not wait: the next byte wakes the reader all the same.
fn another_takes_what_woke_it() {
    let p = Pair::warm();
    let (tid, count) = (Tid::default(), AtomicU32::new(0));
    let await_count = |n: u32| {
        while count.load(Ordering::SeqCst) < n {
            net::sleep_ms(1);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            tid.tell();
            while recv_exact(&p.s, 1) != b"q" {
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
        let mut due = 0;
        for _ in 0..100 {
            tid.await_asleep();
            send_all(&p.c, b"a");
            due += u32::from(recv(&p.s, &mut [0; 1], MSG_DONTWAIT) != Ok(1));
            net::ioctl(&p.s, SIOCATMARK, 0).unwrap();
            await_count(due);
            send_all(&p.c, b"b");
            due += 1;
            await_count(due);
        }
        send_all(&p.c, b"q");
    });
}

/// Two threads are asleep on a set. A byte wakes one, which does not come back; the next byte wakes the other.
fn another_on_the_set_has_gone() {
    let p = Pair::warm();
    let set = Set::new();
    set.add(&p.s, EPOLLIN | EPOLLET, 1);
    for _ in 0..10 {
        let (tids, woken) = ([Tid::default(), Tid::default()], AtomicU32::new(0));
        std::thread::scope(|scope| {
            for tid in &tids {
                scope.spawn(|| {
                    tid.tell();
                    assert_eq!(set.wait(4, -1), [(1, EPOLLIN)]);
                    recv_exact(&p.s, 1);
                    woken.fetch_add(1, Ordering::SeqCst);
                });
            }
            tids.iter().for_each(Tid::await_asleep);
            send_all(&p.c, b"a");
            while woken.load(Ordering::SeqCst) == 0 {
                net::sleep_ms(1);
            }
            send_all(&p.c, b"b");
        });
    }
}

/// The thread that is woken first does not read, so the socket stays ready: another thread asleep on the set is woken at once, too.
fn another_sees_to_nothing() {
    let p = Pair::warm();
    let set = Set::new();
    set.add(&p.s, EPOLLIN, 1);
    let mut fastest = Duration::MAX;
    for _ in 0..5 {
        let tids = [Tid::default(), Tid::default()];
        let sent = std::thread::scope(|scope| {
            for tid in &tids {
                scope.spawn(|| {
                    tid.tell();
                    assert_eq!(set.wait(4, -1), [(1, EPOLLIN)]);
                });
            }
            tids.iter().for_each(Tid::await_asleep);
            send_all(&p.c, b"a");
            Instant::now()
        });
        fastest = fastest.min(sent.elapsed());
        recv_exact(&p.s, 1);
    }
    // A sleep without a wake-up is cut after a second.
    assert!(fastest < Duration::from_millis(500), "{fastest:?}");
}

/// A connection moves while a thread is in a receive of it, where a doorbell would be a byte.
fn reader_asleep_as_it_moves() {
    let mut moved = 0;
    for _ in 0..5 {
        let (p, tid, count) = (Pair::fresh(), Tid::default(), AtomicU32::new(0));
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                tid.tell();
                for i in 0..200 {
                    assert_eq!(recv_exact(&p.s, 1), [i]);
                    count.fetch_add(1, Ordering::SeqCst);
                }
            });
            tid.await_asleep();
            for i in 0..200 {
                // The accepting end answers in sends alone.
                send_all(&p.s, b"y");
                assert_eq!(recv_exact(&p.c, 1), b"y");
                send_all(&p.c, &[i]);
                while count.load(Ordering::SeqCst) <= u32::from(i) && !reader.is_finished() {
                    std::thread::yield_now();
                }
            }
        });
        moved += pair::moves(&p.c);
    }
    assert!(moved > 0 || !pair::expect_ring(), "none of them moved");
}

/// A connection moves while a thread is asleep on a set with it; this does not wake the thread.
fn set_asleep_as_it_moves() {
    for _ in 0..5 {
        let (p, tid, set) = (Pair::fresh(), Tid::default(), Set::new());
        let (out, input) = net::pipe();
        set.add(&p.s, EPOLLRDHUP, 1);
        set.add(&out, EPOLLIN, 2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                tid.tell();
                assert_eq!(set.wait(4, -1), [(2, EPOLLIN)]);
            });
            tid.await_asleep();
            p.warm_up();
            net::write(&input, b"q").unwrap();
        });
    }
}

/// A thread is asleep on an empty set, to which a connection in rings is added: an unread doorbell does not wake the thread.
fn set_asleep_as_a_doorbell_is_added() {
    for _ in 0..10 {
        let (p, tid, set) = (Pair::warm(), Tid::default(), Set::new());
        let (out, input) = net::pipe();
        set.add(&out, EPOLLIN, 2);
        // It arms the ring, so that the next byte rings.
        assert_eq!(net::poll(&p.s, libc::POLLIN, 20), 0);
        send_all(&p.c, b"x");
        assert_eq!(recv(&p.s, &mut [0; 1], MSG_DONTWAIT), Ok(1));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                tid.tell();
                assert_eq!(set.wait(4, -1), [(2, EPOLLIN)]);
            });
            tid.await_asleep();
            set.add(&p.s, EPOLLIN, 1);
            net::sleep_ms(5);
            net::write(&input, b"q").unwrap();
        });
    }
}

/// At any point of a connection's way into a ring a fork ends it, while a thread is in a receive: this receive returns the reset.
fn reader_asleep_as_its_session_ends() {
    for rounds in 1..=12 {
        let (p, tid) = (Pair::fresh(), Tid::default());
        for _ in 0..rounds {
            send_all(&p.c, b"x");
            assert_eq!(recv_exact(&p.s, 1), b"x");
        }
        let Pair { c, s } = p;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                tid.tell();
                assert_eq!(read(&s, &mut [0; 1]), Err(ECONNRESET), "after {rounds} rounds");
                assert_eq!(read(&s, &mut [0; 1]), Ok(0));
            });
            tid.await_asleep();
            let child = net::fork(|| {
                net::close_in_child(&c);
                send_all(&s, b"never read");
                0
            });
            assert_eq!(net::wait(child), 0);
            drop(c);
        });
    }
}

/// Two workers with an event set each, and one client of both whose connections all move in the same moment.
fn workers_asleep_as_all_move() {
    const EACH: usize = 4;
    let (listener, addr) = net::listener(pair::loopback());
    let serve = || {
        let mut fds: Vec<Option<OwnedFd>> = (0..EACH).map(|_| net::accept(&listener, 0).ok()).collect();
        let set = Set::new();
        fds.iter().flatten().zip(0..).for_each(|(fd, i)| set.add(fd, EPOLLIN | EPOLLET, i));
        while fds.iter().any(Option::is_some) {
            for (i, _) in set.wait(EACH, -1) {
                let place = &mut fds[i as usize];
                let Some(fd) = place.as_ref() else { continue };
                match read(fd, &mut [0; 8]) {
                    Ok(0) => *place = None,
                    n => assert_eq!((n, net::write(fd, b"x")), (Ok(1), Ok(1))),
                }
            }
        }
        assert_eq!(pair::missed_bells(), 0, "a wake-up was lost");
        0
    };
    let workers = [net::fork(serve), net::fork(serve)];
    let fds: Vec<OwnedFd> = (0..2 * EACH).map(|_| net::client(addr)).collect();
    for round in 0..600 {
        // Both orders, and sometimes late enough for the workers to fall asleep.
        let order: Vec<_> = if round % 2 == 0 { fds.iter().collect() } else { fds.iter().rev().collect() };
        order.iter().for_each(|fd| send_all(fd, b"x"));
        order.iter().for_each(|fd| assert_eq!(recv_exact(fd, 1), b"x"));
        if round % 4 == 0 {
            net::sleep_ms(1);
        }
    }
    drop(fds);
    workers.into_iter().for_each(|pid| assert_eq!(net::wait(pid), 0));
}
