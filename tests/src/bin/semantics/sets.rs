//! epoll(7), level-triggered: what is reported, sets that change.
#![allow(unsafe_code)]

use std::os::fd::AsRawFd;
use std::ptr;

use libc::{
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLERR, EPOLLEXCLUSIVE, EPOLLHUP, EPOLLIN, EPOLLONESHOT, EPOLLOUT,
    EPOLLRDHUP, POLLIN, epoll_event,
};
use madrigal_tests::net::{self, recv_exact, send_all};
use madrigal_tests::pair::{self, Pair};

use crate::both;
use crate::set::Set;

crate::checks![
    level_stays,
    level_out,
    level_full_then_drained,
    level_told_whole,
    churn,
    same_socket_in_two_sets,
    duplicate_in_set,
    duplicate_number_twice,
    closed_leaves_set,
    closed_but_duplicated,
    hup_and_rdhup,
    reset_events,
    reset_told_with_room,
    death_told_with_room,
    mixed_kinds,
    errors_of_control,
    exclusive_sets,
    wait2,
    small_event_array,
    fair_between_members,
    many_members,
    other_thread_changes_set,
    woken_by_any,
    added_when_readable,
    set_before_upgrade,
    pipe_not_starved,
    rings_beside_what_was_just_added,
];

fn late(f: impl FnOnce()) {
    net::sleep_ms(20);
    f();
}

fn level_stays() {
    let p = Pair::warm();
    let set = Set::new();
    set.add(&p.s, EPOLLIN, 7);
    assert_eq!(set.wait(4, 0), []);
    send_all(&p.c, b"ab");
    for _ in 0..3 {
        assert_eq!(set.wait(4, 5000), [(7, EPOLLIN)]);
    }
    recv_exact(&p.s, 1);
    assert_eq!(set.wait(4, 0), [(7, EPOLLIN)]);
    recv_exact(&p.s, 1);
    assert_eq!(set.wait(4, 0), []);
    assert_eq!(set.wait(4, 30), []);
    p.assert_in_rings();
}

fn level_out() {
    let p = Pair::warm();
    let set = Set::new();
    set.add(&p.s, EPOLLIN | EPOLLOUT, 7);
    for _ in 0..3 {
        assert_eq!(set.wait(4, 0), [(7, EPOLLOUT)]);
    }
    send_all(&p.c, b"x");
    set.await_exactly(&[(7, EPOLLIN | EPOLLOUT)]);
    set.modify(&p.s, EPOLLIN, 8);
    assert_eq!(set.wait(4, 0), [(8, EPOLLIN)]);
}

fn level_full_then_drained() {
    let p = Pair::warm();
    let set = Set::new();
    net::set_nonblocking(&p.c, true);
    set.add(&p.c, EPOLLOUT, 1);
    let sent = net::fill(&p.c, &[1; 50_000]);
    assert_eq!(set.wait(4, 0), [], "full");
    both(|| late(|| assert_eq!(recv_exact(&p.s, sent).len(), sent)), || assert_eq!(set.wait(4, -1), [(1, EPOLLOUT)]));
    assert_eq!(net::send(&p.c, b"x", 0), Ok(1));
    set.modify(&p.c, EPOLLIN, 1);
    assert_eq!(set.wait(4, 0), []);
}

/// The connecting end is corked behind its offer, and does not move: what comes for it comes by the kernel, beside room that is always there.
fn level_told_whole() {
    let p = Pair::fresh();
    for fd in [&p.c, &p.s] {
        net::set(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1).unwrap();
    }
    for _ in 0..8 {
        send_all(&p.c, b"x");
    }
    recv_exact(&p.s, 8);
    net::set(&p.c, libc::IPPROTO_TCP, libc::TCP_CORK, 1).unwrap();
    let set = Set::new();
    set.add(&p.c, EPOLLIN | EPOLLOUT, 7);
    for _ in 0..20 {
        assert_eq!(set.wait(4, 0), [(7, EPOLLOUT)]);
        send_all(&p.s, b"y");
        net::await_events(&p.c, POLLIN);
        assert_eq!(set.wait(4, 0), [(7, EPOLLIN | EPOLLOUT)]);
        recv_exact(&p.c, 1);
    }
}

fn churn() {
    let p = Pair::warm();
    let set = Set::new();
    for i in 0..200u64 {
        set.add(&p.s, EPOLLIN, i);
        assert_eq!(set.wait(4, 0), []);
        send_all(&p.c, b"x");
        set.await_exactly(&[(i, EPOLLIN)]);
        set.modify(&p.s, 0, i);
        assert_eq!(set.wait(4, 0), []);
        set.modify(&p.s, EPOLLIN | EPOLLOUT, i + 1);
        assert_eq!(set.wait(4, 0), [(i + 1, EPOLLIN | EPOLLOUT)]);
        set.delete(&p.s);
        assert_eq!(set.wait(4, 0), []);
        recv_exact(&p.s, 1);
    }
    assert_eq!(set.control(EPOLL_CTL_DEL, &p.s, 0, 0), Err(libc::ENOENT));
    // Asleep while a member is added that is readable already.
    send_all(&p.c, b"y");
    both(|| late(|| set.add(&p.s, EPOLLIN, 9)), || assert_eq!(set.wait(4, -1), [(9, EPOLLIN)]));
}

fn same_socket_in_two_sets() {
    let p = Pair::warm();
    let (one, two) = (Set::new(), Set::new());
    one.add(&p.s, EPOLLIN, 1);
    two.add(&p.s, EPOLLIN, 2);
    for _ in 0..20 {
        both(
            || late(|| send_all(&p.c, b"x")),
            || both(|| assert_eq!(one.wait(4, -1), [(1, EPOLLIN)]), || assert_eq!(two.wait(4, -1), [(2, EPOLLIN)])),
        );
        recv_exact(&p.s, 1);
        assert_eq!((one.wait(4, 0), two.wait(4, 0)), (vec![], vec![]));
    }
}

fn duplicate_in_set() {
    let p = Pair::warm();
    let set = Set::new();
    let copy = net::dup(&p.s);
    set.add(&copy, EPOLLIN, 5);
    send_all(&p.c, b"x");
    assert_eq!(set.wait(4, -1), [(5, EPOLLIN)]);
    recv_exact(&p.s, 1);
    assert_eq!(set.wait(4, 0), []);
}

fn duplicate_number_twice() {
    let p = Pair::warm();
    let set = Set::new();
    let copy = net::dup(&p.s);
    set.add(&p.s, EPOLLIN, 1);
    set.add(&copy, EPOLLIN, 2);
    send_all(&p.c, b"x");
    set.await_exactly(&[(1, EPOLLIN), (2, EPOLLIN)]);
    set.delete(&p.s);
    assert_eq!(set.wait(4, 0), [(2, EPOLLIN)]);
}

fn closed_leaves_set() {
    let Pair { c, s } = Pair::warm();
    let set = Set::new();
    set.add(&s, EPOLLIN, 1);
    send_all(&c, b"x");
    set.await_exactly(&[(1, EPOLLIN)]);
    drop(s);
    assert_eq!(set.wait(4, 20), []);
    // The number is used again by another connection, which is not in the set.
    let other = Pair::warm();
    send_all(&other.c, b"x");
    net::await_events(&other.s, POLLIN);
    assert_eq!(set.wait(4, 0), []);
    set.add(&other.s, EPOLLIN, 2);
    assert_eq!(set.wait(4, 0), [(2, EPOLLIN)]);
}

fn closed_but_duplicated() {
    let Pair { c, s } = Pair::warm();
    let set = Set::new();
    let copy = net::dup(&s);
    set.add(&s, EPOLLIN, 1);
    drop(s);
    send_all(&c, b"x");
    // Linux goes on reporting: the open file is still there.
    assert_eq!(set.wait(4, -1), [(1, EPOLLIN)]);
    drop(copy);
    assert_eq!(set.wait(4, 20), []);
}

fn hup_and_rdhup() {
    let Pair { c, s } = Pair::warm();
    let set = Set::new();
    set.add(&s, EPOLLIN | EPOLLRDHUP, 1);
    set.add(&c, EPOLLIN | EPOLLOUT, 2);
    send_all(&c, b"last");
    net::shutdown(&c, libc::SHUT_WR).unwrap();
    net::await_events(&s, libc::POLLRDHUP);
    set.await_all(&[(1, EPOLLIN | EPOLLRDHUP), (2, EPOLLOUT)]);
    recv_exact(&s, 4);
    set.await_all(&[(1, EPOLLIN | EPOLLRDHUP), (2, EPOLLOUT)]);
    net::shutdown(&s, libc::SHUT_WR).unwrap();
    net::await_events(&c, libc::POLLHUP);
    set.await_all(&[(1, EPOLLIN | EPOLLRDHUP | EPOLLHUP), (2, EPOLLIN | EPOLLOUT | EPOLLHUP)]);
}

fn reset_events() {
    let Pair { c, s } = Pair::warm();
    let set = Set::new();
    set.add(&s, EPOLLIN | EPOLLRDHUP, 1);
    both(
        || {
            late(|| {
                net::linger(&c, 0);
                drop(c);
            });
        },
        || {
            assert_ne!(set.wait(4, -1), []);
        },
    );
    set.await_exactly(&[(1, EPOLLIN | EPOLLRDHUP | EPOLLERR | EPOLLHUP)]);
    assert_eq!(net::read(&s, &mut [0; 1]), Err(libc::ECONNRESET));
    assert_eq!(set.wait(4, 0), [(1, EPOLLIN | EPOLLRDHUP | EPOLLHUP)]);
}

/// A one-shot registration is reported once: the end comes together with the room.
fn reset_told_with_room() {
    for added_before in [false, true] {
        let Pair { c, s } = Pair::warm();
        let set = Set::new();
        let once = EPOLLIN | EPOLLOUT | EPOLLONESHOT;
        if added_before {
            set.add(&s, once, 7);
            assert_eq!(set.wait(4, 0), [(7, EPOLLOUT)]);
            assert_eq!(set.wait(4, 0), []);
        }
        send_all(&s, b"unread");
        drop(c);
        set.control(if added_before { EPOLL_CTL_MOD } else { EPOLL_CTL_ADD }, &s, once, 7).unwrap();
        assert_eq!(set.wait(4, 0), [(7, EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP)]);
        assert_eq!(set.wait(4, 0), []);
    }
}

fn death_told_with_room() {
    let fd = pair::left_by_a_killed_peer(|_| {});
    let set = Set::new();
    set.add(&fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLONESHOT, 7);
    assert_eq!(set.wait(4, 0), [(7, EPOLLIN | EPOLLOUT | EPOLLRDHUP)]);
    assert_eq!(set.wait(4, 0), []);
}

fn mixed_kinds() {
    let p = Pair::warm();
    let set = Set::new();
    let (pipe_out, pipe_in) = net::pipe();
    let (unix_a, unix_b) = net::unix_pair();
    // SAFETY: no pointers.
    let event = net::new_fd(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) });
    // SAFETY: no pointers.
    let timer = net::new_fd(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC) });
    for (i, fd) in [&p.s, &pipe_out, &unix_b, &event, &timer].into_iter().enumerate() {
        set.add(fd, EPOLLIN, i as u64);
    }
    assert_eq!(set.wait(8, 0), []);
    let soon = libc::timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    let time = libc::itimerspec { it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 }, it_value: soon };
    // SAFETY: our own time.
    assert_eq!(unsafe { libc::timerfd_settime(timer.as_raw_fd(), 0, &raw const time, ptr::null_mut()) }, 0);
    assert_eq!(set.wait(8, -1), [(4, EPOLLIN)], "a timer wakes it");
    net::read(&timer, &mut [0; 8]).unwrap();
    both(|| late(|| assert!(net::write(&pipe_in, b"z").is_ok())), || assert_eq!(set.wait(8, -1), [(1, EPOLLIN)]));
    net::read(&pipe_out, &mut [0; 8]).unwrap();
    both(|| late(|| send_all(&p.c, b"x")), || assert_eq!(set.wait(8, -1), [(0, EPOLLIN)]));
    net::write(&pipe_in, b"z").unwrap();
    net::write(&unix_a, b"u").unwrap();
    net::write(&event, &1u64.to_ne_bytes()).unwrap();
    set.await_all(&[(0, EPOLLIN), (1, EPOLLIN), (2, EPOLLIN), (3, EPOLLIN)]);
}

fn errors_of_control() {
    let p = Pair::warm();
    let set = Set::new();
    assert_eq!(set.control(EPOLL_CTL_MOD, &p.s, EPOLLIN, 0), Err(libc::ENOENT));
    assert_eq!(set.control(EPOLL_CTL_DEL, &p.s, 0, 0), Err(libc::ENOENT));
    set.add(&p.s, EPOLLIN, 0);
    assert_eq!(set.control(EPOLL_CTL_ADD, &p.s, EPOLLIN, 0), Err(libc::EEXIST));
    assert_eq!(set.control(EPOLL_CTL_ADD, &set.0, EPOLLIN, 0), Err(libc::EINVAL));
    assert_eq!(set.control(99, &p.s, EPOLLIN, 0), Err(libc::EINVAL));
    let number = net::dup(&p.s).as_raw_fd();
    assert_eq!(set.control(EPOLL_CTL_ADD, number, EPOLLIN, 0), Err(libc::EBADF));
    let mut event = epoll_event { events: 0, u64: 0 };
    // SAFETY: room for one event; 0 of them are asked for, which is refused.
    let n = unsafe { libc::epoll_wait(set.0.as_raw_fd(), &raw mut event, 0, 0) };
    assert_eq!((n, net::errno()), (-1, libc::EINVAL));
}

fn exclusive_sets() {
    let p = Pair::warm();
    let (one, two) = (Set::new(), Set::new());
    one.add(&p.s, EPOLLIN | EPOLLEXCLUSIVE, 1);
    two.add(&p.s, EPOLLIN | EPOLLEXCLUSIVE, 2);
    assert_eq!(one.control(EPOLL_CTL_MOD, &p.s, EPOLLIN, 1), Err(libc::EINVAL), "exclusive members cannot be changed");
    for _ in 0..5 {
        both(
            || late(|| send_all(&p.c, b"x")),
            || {
                while one.wait(4, 1).is_empty() && two.wait(4, 1).is_empty() {}
            },
        );
        recv_exact(&p.s, 1);
        assert_eq!((one.wait(4, 0), two.wait(4, 0)), (vec![], vec![]));
    }
}

fn wait2() {
    let p = Pair::warm();
    let set = Set::new();
    set.add(&p.s, EPOLLIN, 3);
    let wait = |ns: i64| {
        let mut event = epoll_event { events: 0, u64: 0 };
        let time = libc::timespec { tv_sec: 0, tv_nsec: ns };
        let (epfd, none) = (set.0.as_raw_fd(), ptr::null::<libc::sigset_t>());
        // SAFETY: room for one event, our own time, no mask. By number, as programs do where the C library is old.
        let n =
            unsafe { libc::syscall(libc::SYS_epoll_pwait2, epfd, &raw mut event, 1, &raw const time, none, 8usize) };
        (n, if n > 0 { event.u64 } else { 0 })
    };
    assert_eq!(wait(20_000_000), (0, 0));
    send_all(&p.c, b"x");
    net::await_events(&p.s, POLLIN);
    assert_eq!(wait(500_000_000), (1, 3));
}

fn small_event_array() {
    let pairs: Vec<Pair> = (0..6).map(|_| Pair::warm()).collect();
    let set = Set::new();
    for (i, p) in pairs.iter().enumerate() {
        set.add(&p.s, EPOLLIN, i as u64);
        send_all(&p.c, b"x");
        net::await_events(&p.s, POLLIN);
    }
    let mut seen = std::collections::BTreeSet::new();
    while seen.len() < pairs.len() {
        let got = set.wait(2, 5000);
        assert!(!got.is_empty() && got.len() <= 2);
        seen.extend(got.into_iter().map(|(data, _)| data));
    }
}

fn fair_between_members() {
    // A member that is always readable must not hide the others.
    let (busy, rare) = (Pair::warm(), Pair::warm());
    let set = Set::new();
    set.add(&busy.s, EPOLLIN, 1);
    set.add(&rare.s, EPOLLIN, 2);
    send_all(&busy.c, b"x");
    net::await_events(&busy.s, POLLIN);
    send_all(&rare.c, b"x");
    net::await_events(&rare.s, POLLIN);
    let mut rare_seen = 0;
    for _ in 0..20 {
        rare_seen += set.wait(1, 5000).iter().filter(|e| e.0 == 2).count();
    }
    assert!(rare_seen > 0);
}

fn many_members() {
    let pairs: Vec<Pair> = (0..40).map(|_| Pair::warm()).collect();
    let set = Set::new();
    for (i, p) in pairs.iter().enumerate() {
        set.add(&p.s, EPOLLIN, i as u64);
    }
    for i in (0..pairs.len()).cycle().step_by(13).take(200) {
        both(|| send_all(&pairs[i].c, b"x"), || assert_eq!(set.wait(64, -1), [(i as u64, EPOLLIN)]));
        recv_exact(&pairs[i].s, 1);
    }
    for p in &pairs {
        send_all(&p.c, b"x");
        net::await_events(&p.s, POLLIN);
    }
    assert_eq!(set.wait(64, -1).len(), pairs.len());
}

fn other_thread_changes_set() {
    let (p, q) = (Pair::warm(), Pair::warm());
    let set = Set::new();
    set.add(&p.s, EPOLLIN, 1);
    both(
        || {
            late(|| set.delete(&p.s));
            send_all(&p.c, b"x");
            late(|| set.add(&q.s, EPOLLIN, 2));
            send_all(&q.c, b"x");
        },
        || assert_eq!(set.wait(4, -1), [(2, EPOLLIN)]),
    );
}

fn woken_by_any() {
    let pairs: Vec<Pair> = (0..4).map(|_| Pair::warm()).collect();
    let set = Set::new();
    for (i, p) in pairs.iter().enumerate() {
        set.add(&p.s, EPOLLIN, i as u64);
    }
    for round in 0..60 {
        let p = &pairs[round % 4];
        both(
            || {
                if round % 3 == 0 {
                    net::sleep_ms(5);
                }
                send_all(&p.c, b"x");
            },
            || assert_eq!(set.wait(4, -1), [(round as u64 % 4, EPOLLIN)]),
        );
        recv_exact(&p.s, 1);
    }
}

fn added_when_readable() {
    let p = Pair::warm();
    let set = Set::new();
    send_all(&p.c, b"x");
    net::await_events(&p.s, POLLIN);
    set.add(&p.s, EPOLLIN, 1);
    assert_eq!(set.wait(4, 0), [(1, EPOLLIN)]);
}

fn set_before_upgrade() {
    // The usual server: in the set from accept on, while the connection moves.
    let p = Pair::fresh();
    let set = Set::new();
    set.add(&p.s, EPOLLIN, 1);
    set.add(&p.c, EPOLLIN, 2);
    for i in 0..3000u32 {
        let byte = [i as u8];
        send_all(&p.c, &byte);
        assert_eq!(set.wait(4, -1), [(1, EPOLLIN)]);
        assert_eq!(recv_exact(&p.s, 1), byte);
        send_all(&p.s, &byte);
        assert_eq!(set.wait(4, -1), [(2, EPOLLIN)]);
        assert_eq!(recv_exact(&p.c, 1), byte);
    }
    p.assert_in_rings();
}

fn pipe_not_starved() {
    let p = Pair::warm();
    let set = Set::new();
    let (pipe_out, pipe_in) = net::pipe();
    set.add(&p.s, EPOLLIN, 1);
    set.add(&pipe_out, EPOLLIN, 2);
    // The ring always has something; the pipe must show up all the same.
    send_all(&p.c, &[1; 100]);
    net::await_events(&p.s, POLLIN);
    net::write(&pipe_in, b"z").unwrap();
    while !set.wait(4, -1).iter().any(|e| e.0 == 2) {}
}

/// A descriptor that was just added to a set is reported at once, beside ready rings; and so are all events, if a wait has no time.
fn rings_beside_what_was_just_added() {
    let p = Pair::warm();
    let set = Set::new();
    set.add(&p.s, EPOLLOUT, 1);
    for ms in [0, 5000] {
        assert_eq!(set.wait(4, ms), [(1, EPOLLOUT)]);
        let (out, input) = net::pipe();
        set.add(&out, EPOLLIN, 2);
        assert_eq!(set.wait(4, ms), [(1, EPOLLOUT)]);
        net::write(&input, b"x").unwrap();
        set.modify(&out, EPOLLIN, 3);
        assert_eq!(set.wait(4, ms), [(1, EPOLLOUT), (3, EPOLLIN)]);
        set.delete(&out);
    }
    let (out, input) = net::pipe();
    set.add(&out, EPOLLIN, 4);
    assert_eq!(set.wait(4, 0), [(1, EPOLLOUT)]);
    net::write(&input, b"x").unwrap();
    assert_eq!(set.wait(4, 0), [(1, EPOLLOUT), (4, EPOLLIN)]);
    p.assert_in_rings();
}
