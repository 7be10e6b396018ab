//! poll(2), ppoll(2), select(2), pselect(2).
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;

use libc::{POLLIN, POLLNVAL, POLLOUT, POLLRDHUP, POLLRDNORM, POLLWRNORM, pollfd};
use madrigal_tests::net::{self, poll, poll_many, recv_exact, send_all};
use madrigal_tests::pair::{self, Pair};

use crate::both;

crate::checks![
    poll_shows_the_end_beside_room,
    poll_readable,
    poll_norm_bits,
    poll_norm_bits_wake,
    poll_times_out,
    poll_wakes,
    poll_mixed_kinds,
    poll_same_twice,
    poll_closed_number,
    poll_negative_ignored,
    ppoll_time,
    select_sets,
    select_times_out,
    select_wakes,
    select_beside_a_close,
    select_beside_what_it_looks_away_from,
    select_mixed,
    pselect_wakes,
    poll_listener_and_ring,
    poll_many_rings,
    poll_for_space,
    poll_in_two_threads,
    poll_bell_is_not_data,
    poll_of_nothing_sleeps_on,
];

fn entry(fd: &OwnedFd, events: i16) -> pollfd {
    pollfd { fd: fd.as_raw_fd(), events, revents: 0 }
}

fn poll_readable() {
    let p = Pair::warm();
    assert_eq!(poll(&p.s, POLLIN, 0), 0);
    assert_eq!(poll(&p.s, POLLIN | POLLOUT, 0), POLLOUT);
    send_all(&p.c, b"xy");
    assert_eq!(poll(&p.s, POLLIN, 5000), POLLIN);
    assert_eq!(poll(&p.s, POLLIN | POLLOUT | POLLRDHUP, 0), POLLIN | POLLOUT);
    recv_exact(&p.s, 1);
    assert_eq!(poll(&p.s, POLLIN, 0), POLLIN, "one byte is left");
    recv_exact(&p.s, 1);
    assert_eq!(poll(&p.s, POLLIN, 0), 0);
    p.assert_in_rings();
}

fn poll_norm_bits() {
    let p = Pair::warm();
    send_all(&p.c, b"x");
    net::await_events(&p.s, POLLIN);
    assert_eq!(poll(&p.s, POLLRDNORM | POLLWRNORM, 0), POLLRDNORM | POLLWRNORM);
    assert_eq!(poll(&p.s, POLLIN | POLLRDNORM, 0), POLLIN | POLLRDNORM);
    assert_eq!(poll(&p.c, POLLRDNORM, 0), 0);
}

/// From the first byte on, polls by the other names of events only: through the move to the rings and after it.
fn poll_norm_bits_wake() {
    let p = Pair::fresh();
    for socket in [&p.c, &p.s] {
        net::set_nonblocking(socket, true);
    }
    let answer = |socket: &OwnedFd| {
        assert_eq!(poll(socket, POLLRDNORM, -1), POLLRDNORM);
        recv_exact(socket, 1);
    };
    both(
        || {
            for _ in 0..300 {
                answer(&p.s);
                send_all(&p.s, b"y");
            }
        },
        || {
            for round in 0..300 {
                send_all(&p.c, b"x");
                // The time other work takes, so that the other end is at every stage of going to sleep.
                (0..round * 977 % 200_000).for_each(|i| _ = std::hint::black_box(i));
                answer(&p.c);
            }
        },
    );
    let sent = net::fill(&p.c, &[1; 30_000]);
    both(|| late(|| drop(recv_exact(&p.s, sent))), || assert_eq!(poll(&p.c, POLLWRNORM, -1), POLLWRNORM));
}

fn poll_times_out() {
    let p = Pair::warm();
    let before = std::time::Instant::now();
    assert_eq!(poll(&p.s, POLLIN, 60), 0);
    assert!(before.elapsed().as_millis() >= 60);
    p.assert_in_rings();
}

fn poll_wakes() {
    let p = Pair::warm();
    for pause in [0, 1, 20, 0, 60] {
        both(
            || {
                net::sleep_ms(pause);
                send_all(&p.c, b"x");
            },
            || assert_eq!(poll(&p.s, POLLIN, -1), POLLIN),
        );
        recv_exact(&p.s, 1);
    }
}

fn poll_mixed_kinds() {
    let p = Pair::warm();
    let (pipe_out, pipe_in) = net::pipe();
    let (unix_a, unix_b) = net::unix_pair();
    // SAFETY: no pointers.
    let event = net::new_fd(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) });
    let mut set = [entry(&p.s, POLLIN), entry(&pipe_out, POLLIN), entry(&unix_b, POLLIN), entry(&event, POLLIN)];
    assert_eq!(poll_many(&mut set, 10), Ok(0));
    net::write(&pipe_in, b"z").unwrap();
    assert_eq!(poll_many(&mut set, -1), Ok(1));
    assert_eq!((set[0].revents, set[1].revents), (0, POLLIN));
    send_all(&p.c, b"x");
    net::write(&unix_a, b"u").unwrap();
    net::write(&event, &1u64.to_ne_bytes()).unwrap();
    // All are told, if not all in one call.
    let mut told = 0;
    while told != 0b1111 {
        poll_many(&mut set, -1).unwrap();
        told |= set.iter().enumerate().fold(0, |all, (i, e)| all | i32::from(e.revents == POLLIN) << i);
    }
    recv_exact(&p.s, 1);
    assert_eq!(poll_many(&mut set, -1), Ok(3));
    assert_eq!(set[0].revents, 0);
    // Woken by a pipe while asleep on a ring and the other way round.
    net::read(&pipe_out, &mut [0; 1]).unwrap();
    let mut pair = [entry(&p.s, POLLIN), entry(&pipe_out, POLLIN)];
    both(|| late(|| assert!(net::write(&pipe_in, b"z").is_ok())), || assert_eq!(poll_many(&mut pair, -1), Ok(1)));
    assert_eq!((pair[0].revents, pair[1].revents), (0, POLLIN));
    net::read(&pipe_out, &mut [0; 1]).unwrap();
    both(|| late(|| send_all(&p.c, b"x")), || assert_eq!(poll_many(&mut pair, -1), Ok(1)));
    assert_eq!((pair[0].revents, pair[1].revents), (POLLIN, 0));
}

fn late(f: impl FnOnce()) {
    net::sleep_ms(25);
    f();
}

fn poll_same_twice() {
    let p = Pair::warm();
    send_all(&p.c, b"x");
    net::await_events(&p.s, POLLIN);
    let mut set = [entry(&p.s, POLLIN), entry(&p.s, POLLOUT), entry(&p.c, POLLIN)];
    assert_eq!(poll_many(&mut set, 0), Ok(2));
    assert_eq!([set[0].revents, set[1].revents, set[2].revents], [POLLIN, POLLOUT, 0]);
}

fn poll_closed_number() {
    let p = Pair::warm();
    let number = net::dup(&p.s).as_raw_fd();
    let mut set = [pollfd { fd: number, events: POLLIN, revents: 0 }, entry(&p.s, POLLIN)];
    assert_eq!(poll_many(&mut set, -1), Ok(1));
    assert_eq!((set[0].revents, set[1].revents), (POLLNVAL, 0));
}

fn poll_negative_ignored() {
    let p = Pair::warm();
    let mut set = [pollfd { fd: -1, events: POLLIN, revents: 7 }, entry(&p.s, POLLOUT)];
    assert_eq!(poll_many(&mut set, -1), Ok(1));
    assert_eq!((set[0].revents, set[1].revents), (0, POLLOUT));
}

fn ppoll_time() {
    let p = Pair::warm();
    let mut set = [entry(&p.s, POLLIN)];
    let time = libc::timespec { tv_sec: 0, tv_nsec: 30_000_000 };
    // SAFETY: our own entry and time; no mask.
    let n = unsafe { libc::ppoll(set.as_mut_ptr(), 1, &raw const time, ptr::null()) };
    assert_eq!((n, time.tv_nsec), (0, 30_000_000));
    send_all(&p.c, b"x");
    // SAFETY: as above; for ever.
    assert_eq!(unsafe { libc::ppoll(set.as_mut_ptr(), 1, ptr::null(), ptr::null()) }, 1);
    let bad = libc::timespec { tv_sec: 0, tv_nsec: -1 };
    // SAFETY: as above.
    let n = unsafe { libc::ppoll(set.as_mut_ptr(), 1, &raw const bad, ptr::null()) };
    assert_eq!((n, net::errno()), (-1, libc::EINVAL));
}

/// select(2) for reading and writing; what is left in the sets, and of the time.
fn select(read: &[&OwnedFd], write: &[&OwnedFd], ms: i64) -> (i32, Vec<bool>, Vec<bool>, i64) {
    let (mut r, mut w) = (fd_set(read), fd_set(write));
    let mut time = net::timeval(ms);
    let time_ptr = if ms < 0 { ptr::null_mut() } else { &raw mut time };
    // SAFETY: our own sets and time.
    let n = unsafe { libc::select(1024, &raw mut r, &raw mut w, ptr::null_mut(), time_ptr) };
    (n, held(&r, read), held(&w, write), time.tv_sec * 1000 + time.tv_usec / 1000)
}

pub(crate) fn fd_set(fds: &[&OwnedFd]) -> libc::fd_set {
    // SAFETY: an all-zero set is the empty set.
    let mut set: libc::fd_set = unsafe { std::mem::zeroed() };
    for fd in fds {
        // SAFETY: test programs have few descriptors: below 1024.
        unsafe { libc::FD_SET(fd.as_raw_fd(), &raw mut set) };
    }
    set
}

fn held(set: &libc::fd_set, fds: &[&OwnedFd]) -> Vec<bool> {
    // SAFETY: see `fd_set`.
    fds.iter().map(|fd| unsafe { libc::FD_ISSET(fd.as_raw_fd(), set) }).collect()
}

fn select_sets() {
    let p = Pair::warm();
    assert_eq!(select(&[&p.s], &[&p.s], -1), (1, vec![false], vec![true], -1));
    send_all(&p.c, b"x");
    net::await_events(&p.s, POLLIN);
    let (n, r, w, _) = select(&[&p.s, &p.c], &[&p.s, &p.c], 1000);
    assert_eq!((n, r, w), (3, vec![true, false], vec![true, true]));
    p.assert_in_rings();
}

/// A descriptor that is closed while a thread sleeps on it is ready, as soon as something wakes the thread; one closed before is an error.
fn select_beside_a_close() {
    let p = Pair::warm();
    let copy = net::dup(&p.s);
    let number = copy.as_raw_fd();
    let ask = move || {
        // SAFETY: all-zero is an empty set.
        let mut set: libc::fd_set = unsafe { std::mem::zeroed() };
        let none = ptr::null_mut();
        // SAFETY: sets of our own, or none.
        let result = net::count(unsafe {
            libc::FD_SET(number, &raw mut set);
            libc::pselect(1024, &raw mut set, none, none, ptr::null(), ptr::null())
        } as isize);
        // SAFETY: a set of our own.
        (result, unsafe { libc::FD_ISSET(number, &raw const set) })
    };
    let asleep = std::thread::spawn(ask);
    net::sleep_ms(100);
    drop(copy);
    net::sleep_ms(100);
    send_all(&p.c, b"x");
    assert_eq!(asleep.join().unwrap(), (Ok(1), true));
    assert_eq!(ask().0, Err(libc::EBADF));
}

/// How many bits select(2) sets. The set of exceptions has an end that has hung up, which it does not report, and another thread closes
/// that end. After that `wake` makes another descriptor, in the set for reading, ready.
fn select_beside(gone: OwnedFd, other: &OwnedFd, wake: impl FnOnce() + Send) -> i32 {
    // SAFETY: no pointers.
    let tid = unsafe { libc::gettid() };
    // SAFETY: all-zero sets are empty; the descriptors are small.
    let [mut except, mut read] = unsafe { std::mem::zeroed::<[libc::fd_set; 2]>() };
    // SAFETY: as above.
    unsafe {
        libc::FD_SET(gone.as_raw_fd(), &raw mut except);
        libc::FD_SET(other.as_raw_fd(), &raw mut read);
    }
    let late = move || {
        crate::await_asleep(tid);
        // After its first sleep has begun.
        net::sleep_ms(5);
        drop(gone);
        wake();
    };
    // SAFETY: our own sets, no time.
    let mut wait = || unsafe { libc::select(1024, &raw mut read, ptr::null_mut(), &raw mut except, ptr::null_mut()) };
    std::thread::scope(|scope| {
        scope.spawn(late);
        wait()
    })
}

fn select_beside_what_it_looks_away_from() {
    let kernels = {
        let ((gone, _), (out, input)) = (net::pipe(), net::pipe());
        select_beside(gone, &out, || assert_eq!(net::write(&input, b"x"), Ok(1)))
    };
    let (left, p) = (Pair::warm(), Pair::warm());
    net::linger(&left.c, 0);
    drop(left.c);
    net::await_events(&left.s, libc::POLLHUP);
    assert_eq!(select_beside(left.s, &p.s, || send_all(&p.c, b"x")), kernels);
}

fn select_times_out() {
    let p = Pair::warm();
    let (n, r, _, left) = select(&[&p.s], &[], 40);
    assert_eq!((n, r, left), (0, vec![false], 0));
    let (n, _, w, left) = select(&[&p.s], &[&p.s], 100_000);
    assert_eq!((n, w), (1, vec![true]));
    assert!(left > 0, "Linux tells how much time was left");
}

fn select_wakes() {
    let p = Pair::warm();
    for _ in 0..5 {
        both(|| late(|| send_all(&p.c, b"x")), || assert_eq!(select(&[&p.s, &p.c], &[], 60_000).0, 1));
        recv_exact(&p.s, 1);
    }
}

fn select_mixed() {
    let p = Pair::warm();
    let (pipe_out, pipe_in) = net::pipe();
    both(
        || late(|| assert!(net::write(&pipe_in, b"z").is_ok())),
        || {
            assert_eq!(select(&[&p.s, &pipe_out], &[], -1).1, [false, true]);
        },
    );
    both(
        || late(|| send_all(&p.c, b"x")),
        || {
            let (n, r, ..) = select(&[&p.s, &pipe_out], &[], -1);
            assert_eq!((n, r.len()), (1 + i32::from(r[0]), 2), "the pipe, and the ring once it has something");
        },
    );
    // All are told, if not all in one call.
    let mut told = [false; 2];
    while told != [true; 2] {
        let (_, r, w, _) = select(&[&p.s, &pipe_out], &[&p.s], -1);
        assert_eq!(w, [true]);
        told = [told[0] | r[0], told[1] | r[1]];
    }
}

fn pselect_wakes() {
    let p = Pair::warm();
    both(
        || late(|| send_all(&p.c, b"x")),
        || {
            let mut r = fd_set(&[&p.s]);
            let time = libc::timespec { tv_sec: 50, tv_nsec: 0 };
            let (none, set) = (ptr::null_mut(), &raw mut r);
            // SAFETY: our own set and time, no mask.
            assert_eq!(unsafe { libc::pselect(1024, set, none, none, &raw const time, ptr::null()) }, 1);
            assert_eq!((held(&r, &[&p.s]), time.tv_sec), (vec![true], 50));
        },
    );
}

fn poll_listener_and_ring() {
    let (listener, addr) = net::listener(madrigal_tests::pair::loopback());
    let p = Pair::over(&listener, addr);
    p.warm_up();
    let mut set = [entry(&listener, POLLIN), entry(&p.s, POLLIN)];
    both(|| late(|| drop(net::client(addr))), || assert_eq!(poll_many(&mut set, -1), Ok(1)));
    assert_eq!((set[0].revents, set[1].revents), (POLLIN, 0));
}

fn poll_many_rings() {
    let pairs: Vec<Pair> = (0..20).map(|_| Pair::warm()).collect();
    let mut set: Vec<pollfd> = pairs.iter().map(|p| entry(&p.s, POLLIN)).collect();
    for i in (0..pairs.len()).cycle().step_by(7).take(100) {
        both(|| send_all(&pairs[i].c, b"x"), || assert_eq!(poll_many(&mut set, -1), Ok(1)));
        assert_eq!(set.iter().position(|e| e.revents != 0), Some(i));
        recv_exact(&pairs[i].s, 1);
    }
}

fn poll_for_space() {
    let p = Pair::warm();
    net::set_nonblocking(&p.c, true);
    let sent = net::fill(&p.c, &[1; 30_000]);
    both(
        || {
            net::sleep_ms(20);
            recv_exact(&p.s, sent);
        },
        || assert_eq!(poll(&p.c, POLLOUT, -1), POLLOUT),
    );
    assert!(net::send(&p.c, b"x", 0).is_ok());
}

fn poll_in_two_threads() {
    let p = Pair::warm();
    for _ in 0..20 {
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| assert_eq!(poll(&p.s, POLLIN, -1), POLLIN));
            }
            net::sleep_ms(3);
            send_all(&p.c, b"x");
        });
        recv_exact(&p.s, 1);
    }
}

/// There is room in the ring, which is an answer; but not the whole of it.
fn poll_shows_the_end_beside_room() {
    let fd = pair::left_by_a_killed_peer(|_| {});
    let both = POLLOUT | POLLRDHUP;
    assert_eq!(poll(&fd, both, -1) & both, both);
}

fn poll_bell_is_not_data() {
    let p = Pair::warm();
    // Each round leaves a sleeper's doorbell behind; none may ever look like data.
    for _ in 0..30 {
        both(|| late(|| send_all(&p.c, b"x")), || assert_eq!(poll(&p.s, POLLIN, -1), POLLIN));
        assert_eq!(recv_exact(&p.s, 1), b"x");
        assert_eq!(poll(&p.s, POLLIN, 0), 0);
        assert_eq!(net::readable(&p.s), 0);
        assert_eq!(net::recv(&p.s, &mut [0; 8], libc::MSG_DONTWAIT), Err(libc::EAGAIN));
    }
}

/// A poll for no events does not report a half close, though the connection leaves its ring meanwhile.
fn poll_of_nothing_sleeps_on() {
    let p = Pair::warm();
    both(
        || {
            net::sleep_ms(50);
            net::set(&p.s, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 2).unwrap();
            send_all(&p.s, b"x");
            net::sleep_ms(50);
            send_all(&p.c, b"y");
            net::sleep_ms(50);
            net::shutdown(&p.s, libc::SHUT_WR).unwrap();
        },
        || assert_eq!(poll(&p.c, 0, 400), 0),
    );
}
