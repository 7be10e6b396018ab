//! The order of events of a set, where there is room for a few: the member that was ready first comes first; a level-triggered member goes
//! to the end once it was reported.
#![allow(unsafe_code)]

use std::os::fd::AsRawFd;

use libc::{EPOLLET, EPOLLIN, EPOLLONESHOT, EPOLLOUT, POLLIN, epoll_event};
use madrigal_tests::net::{self, recv_exact, send_all};
use madrigal_tests::pair::Pair;

use crate::set::Set;

crate::checks![
    level_takes_turns,
    edges_once_each,
    one_shots_once_each,
    who_comes_goes_to_the_end,
    drained_loses_its_turn,
    room_for_one_and_a_pipe,
    queued_by_what_was_read,
    queued_by_an_end,
    polled_beside_a_pipe,
    rings_beside_others,
    room_for_one_beside_a_ring,
    a_ring_leaves_room_for_others
];

/// epoll_wait(2): data, in the order of the events.
fn wait(set: &Set, max: usize) -> Vec<u64> {
    let mut events = [epoll_event { events: 0, u64: 0 }; 16];
    // SAFETY: room for `max` events.
    let n = unsafe { libc::epoll_wait(set.0.as_raw_fd(), events.as_mut_ptr(), max as i32, 0) };
    let n = net::count(n as isize).expect("epoll_wait");
    events[..n].iter().map(|event| event.u64).collect()
}

/// A set of these events, and pairs that are numbered from 1 on; there is something to read for the first `ready`, in turn.
fn ready_set(events: i32, n: usize, ready: usize) -> (Set, Vec<Pair>) {
    let pairs: Vec<Pair> = (0..n).map(|_| Pair::warm()).collect();
    pairs.iter().for_each(|p| net::set(&p.c, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1).unwrap());
    let set = Set::new();
    pairs.iter().zip(1..).for_each(|(p, i)| set.add(&p.s, events, i));
    pairs[..ready].iter().for_each(fill);
    (set, pairs)
}

fn fill(p: &Pair) {
    send_all(&p.c, b"x");
    net::await_events(&p.s, POLLIN);
}

fn level_takes_turns() {
    let (set, pairs) = ready_set(EPOLLIN, 5, 5);
    let told: Vec<_> = (0..5).map(|_| wait(&set, 2)).collect();
    assert_eq!(told, [[1, 2], [3, 4], [5, 1], [2, 3], [4, 5]]);
    assert_eq!(wait(&set, 16), [1, 2, 3, 4, 5]);
    assert_eq!(wait(&set, 3), [1, 2, 3]);
    assert_eq!(wait(&set, 16), [4, 5, 1, 2, 3]);
    pairs.iter().for_each(Pair::assert_in_rings);
}

fn edges_once_each() {
    let (set, pairs) = ready_set(EPOLLIN | EPOLLET, 3, 3);
    assert_eq!((wait(&set, 2), wait(&set, 2), wait(&set, 2)), (vec![1, 2], vec![3], vec![]));
    fill(&pairs[1]);
    assert_eq!((wait(&set, 1), wait(&set, 1)), (vec![2], vec![]));
}

fn one_shots_once_each() {
    let (set, pairs) = ready_set(EPOLLIN | EPOLLONESHOT, 3, 3);
    assert_eq!((wait(&set, 2), wait(&set, 2), wait(&set, 2)), (vec![1, 2], vec![3], vec![]));
    set.modify(&pairs[2].s, EPOLLIN | EPOLLONESHOT, 3);
    assert_eq!((wait(&set, 1), wait(&set, 1)), (vec![3], vec![]));
    // A member that may be reported again and again does not get in front of one that may not.
    set.modify(&pairs[0].s, EPOLLIN | EPOLLOUT, 1);
    set.modify(&pairs[1].s, EPOLLIN | EPOLLONESHOT, 2);
    assert_eq!((wait(&set, 1), wait(&set, 1), wait(&set, 1)), (vec![1], vec![2], vec![1]));
}

fn who_comes_goes_to_the_end() {
    let (set, pairs) = ready_set(EPOLLIN, 4, 2);
    assert_eq!(wait(&set, 1), [1]);
    fill(&pairs[3]);
    assert_eq!(wait(&set, 1), [2]);
    fill(&pairs[2]);
    let told: Vec<_> = (0..5).map(|_| wait(&set, 1)[0]).collect();
    assert_eq!(told, [1, 4, 2, 3, 1]);
}

fn drained_loses_its_turn() {
    let (set, pairs) = ready_set(EPOLLIN, 3, 3);
    assert_eq!(wait(&set, 16), [1, 2, 3]);
    recv_exact(&pairs[0].s, 1);
    assert_eq!(wait(&set, 16), [2, 3]);
    fill(&pairs[0]);
    assert_eq!((wait(&set, 2), wait(&set, 2)), (vec![2, 3], vec![1, 2]));
}

/// A socket that always has something does not hide a pipe, nor the pipe the socket.
fn room_for_one_and_a_pipe() {
    let (set, pairs) = ready_set(EPOLLIN, 1, 1);
    let (pipe_out, pipe_in) = net::pipe();
    set.add(&pipe_out, EPOLLIN, 2);
    net::write(&pipe_in, b"z").unwrap();
    let mut told = [0; 3];
    for _ in 0..2000 {
        told[wait(&set, 1)[0] as usize] += 1;
    }
    assert!(told[1] > 0 && told[2] > 0, "{told:?}");
    pairs.iter().for_each(Pair::assert_in_rings);
}

/// An edge-triggered member is reported when a requested event happened, with all events that are ready by then.
fn queued_by_what_was_read() {
    let (set, pairs) = ready_set(EPOLLIN | EPOLLOUT | EPOLLET, 1, 0);
    let p = &pairs[0];
    assert_eq!((set.wait(4, 0), set.wait(4, 0)), (vec![(1, EPOLLOUT)], vec![]));
    for _ in 0..5 {
        fill(p);
        recv_exact(&p.s, 1);
        assert_eq!((set.wait(4, 0), set.wait(4, 0)), (vec![(1, EPOLLOUT)], vec![]));
    }
    // Checked when no requested event was ready.
    set.modify(&p.s, EPOLLIN | EPOLLET, 2);
    fill(p);
    recv_exact(&p.s, 1);
    assert_eq!(set.wait(4, 0), []);
    p.assert_in_rings();
}

/// Bytes are no event for a registration for room, but an end is.
fn queued_by_an_end() {
    let (set, pairs) = ready_set(EPOLLOUT | EPOLLET, 1, 0);
    let p = &pairs[0];
    assert_eq!(set.wait(4, 0), [(1, EPOLLOUT)]);
    fill(p);
    assert_eq!(set.wait(4, 0), []);
    net::shutdown(&p.c, libc::SHUT_WR).unwrap();
    net::await_events(&p.s, libc::POLLRDHUP);
    assert_eq!(set.wait(4, 0), [(1, EPOLLOUT)]);
}

/// poll(2) reports all that is ready, by a ring or by the kernel.
fn polled_beside_a_pipe() {
    let p = Pair::warm();
    let (pipe_out, pipe_in) = net::pipe();
    net::write(&pipe_in, b"z").unwrap();
    let entry = |fd: i32, events| libc::pollfd { fd, events, revents: 0 };
    for _ in 0..100 {
        let mut fds = [entry(p.s.as_raw_fd(), libc::POLLOUT), entry(pipe_out.as_raw_fd(), POLLIN)];
        assert_eq!(net::poll_many(&mut fds, 0), Ok(2));
    }
}

/// Events that only the kernel has are reported each time, as long as they last, however fast the rings answer.
fn rings_beside_others() {
    let (ring, other, set) = (Pair::warm(), Pair::fresh(), Set::new());
    set.add(&ring.s, EPOLLOUT, 1);
    set.add(&other.s, EPOLLOUT, 2);
    for _ in 0..20 {
        assert_eq!(set.wait(4, 0), [(1, EPOLLOUT), (2, EPOLLOUT)]);
    }
}

/// The kernel's internal events for a ring's registration take no room from its events for other members.
fn room_for_one_beside_a_ring() {
    let (ring, set) = (Pair::warm(), Set::new());
    let (pipe_out, pipe_in) = net::pipe();
    net::write(&pipe_in, b"z").unwrap();
    set.add(&ring.s, EPOLLOUT, 1);
    set.add(&pipe_out, EPOLLIN, 2);
    net::sleep_ms(1);
    assert_eq!(set.wait(2, 0), [(1, EPOLLOUT), (2, EPOLLIN)]);
    ring.assert_in_rings();
}

/// A ring that can always be written to does not keep others from being reported, where there is room for one event.
fn a_ring_leaves_room_for_others() {
    let (ring, set) = (Pair::warm(), Set::new());
    let pipes = [2, 3, 4].map(|i| (i, net::pipe()));
    set.add(&ring.s, EPOLLOUT, 1);
    for (i, (out, input)) in &pipes {
        set.add(out, EPOLLIN | EPOLLET, *i);
        net::write(input, b"z").unwrap();
    }
    net::sleep_ms(1);
    let mut told: Vec<u64> = (0..8).flat_map(|_| wait(&set, 1)).collect();
    told.sort_unstable();
    told.dedup();
    assert_eq!(told, [1, 2, 3, 4]);
    ring.assert_in_rings();
}
