//! The reports of event sets about a socket whose peer has gone: by any number that it is registered by, over a fork, and to which
//! process (P2).
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};

use libc::{
    ECONNRESET, EPIPE, EPOLLERR, EPOLLET, EPOLLHUP, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLRDHUP, MSG_MORE, POLLIN,
};
use madrigal_tests::net::{self, poll, read, send, send_all};
use madrigal_tests::pair::Pair;

use crate::gone::{end, rung, rung_and_alive, victim};
use crate::set::Set;
use crate::traced;

crate::checks![
    killed_then_closed_but_duplicated,
    reset_then_closed_but_duplicated_beside_a_spawn,
    reset_told_by_an_edge_then_forked,
    killed_then_shut_wakes,
    killed_then_closed_wakes_nobody,
    half_closed_told_by_an_edge_then_reset_and_forked,
    half_closed_behind_a_half_close_then_forked,
    killed_then_registered_by_a_child,
    killed_then_forked_with_a_set,
    killed_behind_a_fork_with_a_set,
    error_stays_for_a_set_of_two,
    sleeps_behind_what_was_lost,
];

/// A set goes on reporting a socket after the registered descriptor is closed.
fn killed_then_closed_but_duplicated() {
    let (fd, pid) = rung();
    let set = Set::new();
    let copy = net::dup(&fd);
    set.add(&fd, EPOLLIN, 1);
    assert_eq!(set.wait(4, 0), [(1, EPOLLIN)]);
    drop(fd);
    assert_eq!(set.wait(4, 0), [(1, EPOLLIN)]);
    assert_eq!(set.wait(4, -1), [(1, EPOLLIN)]);
    assert_eq!(send(&copy, b"taken", 0), Ok(5));
    assert_eq!(set.wait(4, 0), [(1, EPOLLIN | EPOLLHUP | EPOLLERR)]);
    assert_eq!(send(&copy, b"not taken", 0), Err(EPIPE));
    assert_eq!(set.wait(4, -1), [(1, EPOLLIN | EPOLLHUP)]);
    drop(copy);
    assert_eq!(set.wait(4, 0), []);
    net::wait(pid);
}

/// The same of a reset, where a program is spawned that has the socket, or the set, too.
fn reset_then_closed_but_duplicated_beside_a_spawn() {
    for (socket_goes_on, set_goes_on) in [(true, false), (false, true), (true, true)] {
        let Pair { c, s } = Pair::warm();
        let set = Set::new();
        let goes_on = |fd: &OwnedFd, on| net::fcntl(fd, libc::F_SETFD, if on { 0 } else { libc::FD_CLOEXEC }).unwrap();
        goes_on(&s, socket_goes_on);
        goes_on(&set.0, set_goes_on);
        send_all(&s, b"never read");
        assert_eq!(poll(&c, POLLIN, -1), POLLIN);
        set.add(&s, EPOLLIN | EPOLLOUT, 1);
        drop(c);
        assert_eq!(read(&s, &mut [0; 1]), Err(ECONNRESET));
        let copy = net::dup(&s);
        goes_on(&copy, socket_goes_on);
        drop(s);
        assert!(std::process::Command::new("true").status().unwrap().success());
        let told = [(1, EPOLLIN | EPOLLOUT | EPOLLHUP)];
        assert_eq!(set.wait(4, 0), told, "{socket_goes_on} {set_goes_on}");
        assert_eq!(set.wait(4, -1), told, "{socket_goes_on} {set_goes_on}");
        drop(copy);
        assert_eq!(set.wait(4, 0), [], "{socket_goes_on} {set_goes_on}");
    }
}

/// An edge that was reported is not reported again because of a fork, nor because a child closes its half.
fn reset_told_by_an_edge_then_forked() {
    let Pair { c, s } = Pair::warm();
    let set = Set::new();
    set.add(&s, EPOLLIN | EPOLLET, 1);
    send_all(&s, b"never read");
    assert_eq!(poll(&c, POLLIN, -1), POLLIN);
    drop(c);
    assert_eq!(set.wait(4, -1), [(1, EPOLLIN | EPOLLHUP | EPOLLERR)]);
    let copy = net::dup(&s);
    assert_eq!(read(&s, &mut [0; 1]), Err(ECONNRESET));
    let child = net::fork(|| {
        // SAFETY: closes what is this process's own.
        unsafe { libc::close(s.as_raw_fd()) };
        i32::from(!set.wait(4, 0).is_empty())
    });
    assert_eq!(net::wait(child), 0);
    assert_eq!(set.wait(4, 0), []);
    drop((s, copy));
}

/// A connection whose peer was killed before it read.
fn killed_with_bytes_unread() -> OwnedFd {
    let (s, pid) = victim(|_| {});
    // They have to arrive: an acknowledgement that they would wait for may be delayed, and TCP may pace them.
    net::set(&s, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1).unwrap();
    send_all(&s, b"never read");
    net::sleep_ms(30);
    end(pid);
    s
}

/// It is registered by two descriptors, and one is closed: no change for the other one.
fn killed_then_closed_wakes_nobody() {
    let (s, set) = (killed_with_bytes_unread(), Set::new());
    let copy = net::dup(&s);
    set.add(&s, EPOLLIN | EPOLLET, 1);
    set.add(&copy, EPOLLIN | EPOLLET, 2);
    assert_eq!(set.wait(4, -1), [(1, EPOLLIN | EPOLLHUP | EPOLLERR), (2, EPOLLIN | EPOLLHUP | EPOLLERR)]);
    assert_eq!(read(&s, &mut [0; 1]), Err(ECONNRESET));
    drop(s);
    assert_eq!(set.wait(4, 0), []);
    assert_eq!(net::shutdown(&copy, libc::SHUT_WR), Err(libc::ENOTCONN));
    assert_eq!(set.wait(4, 0), [(1, EPOLLIN | EPOLLHUP), (2, EPOLLIN | EPOLLHUP)]);
    assert_eq!(set.wait(4, 0), []);
}

type Change = fn(OwnedFd) -> OwnedFd;

/// shutdown(2) wakes the waiters of a socket whose peer is gone, which is an edge: also if its descriptor is closed then, and before a
/// fork or after it.
fn killed_then_shut_wakes() {
    let still = |s| s;
    let changes: [[Change; 2]; 6] =
        [[still, still], [still, copied], [copied, still], [still, forked], [forked, still], [renumbered, still]];
    for (number, [before, behind]) in changes.into_iter().enumerate() {
        let (s, set) = (killed_with_bytes_unread(), Set::new());
        set.add(&s, EPOLLIN | EPOLLOUT | EPOLLET, 1);
        assert_eq!(set.wait(4, -1), [(1, EPOLLIN | EPOLLOUT | EPOLLHUP | EPOLLERR)], "{number}");
        assert_eq!(read(&s, &mut [0; 1]), Err(ECONNRESET), "{number}");
        assert_eq!(set.wait(4, 0), [], "{number}");
        let s = before(s);
        assert_eq!(set.wait(4, 0), [], "{number}");
        assert_eq!(net::shutdown(&s, libc::SHUT_WR), Err(libc::ENOTCONN));
        let _s = behind(s);
        assert_eq!(set.wait(4, 0), [(1, EPOLLIN | EPOLLOUT | EPOLLHUP)], "{number}");
        assert_eq!(set.wait(4, 0), [], "{number}");
    }
}

fn copied(s: OwnedFd) -> OwnedFd {
    net::dup(&s)
}

/// A copy of it, which has taken its number, too.
fn renumbered(s: OwnedFd) -> OwnedFd {
    let (copy, number) = (net::dup(&s), s.into_raw_fd());
    // SAFETY: a number that nobody else knows.
    assert_eq!(unsafe { libc::dup2(copy.as_raw_fd(), number) }, number);
    copy
}

fn forked(s: OwnedFd) -> OwnedFd {
    assert_eq!(net::wait(net::fork(|| 0)), 0);
    s
}

/// An edge reported one half close; a reset by parent or child then adds events, which are reported with all the others.
fn half_closed_told_by_an_edge_then_reset_and_forked() {
    let both = EPOLLIN | EPOLLOUT | EPOLLRDHUP;
    for reset_first in [true, false] {
        let Pair { c, s } = Pair::warm();
        let set = Set::new();
        set.add(&s, both | EPOLLET, 1);
        net::shutdown(&c, libc::SHUT_WR).unwrap();
        assert_eq!(poll(&s, libc::POLLRDHUP, -1), libc::POLLRDHUP);
        assert_eq!(set.wait(4, -1), [(1, both)]);
        send_all(&s, b"never read");
        assert_eq!(poll(&c, POLLIN, -1), POLLIN);
        let mut c = Some(c);
        drop(c.take_if(|_| reset_first));
        net::wait(net::fork(|| 0));
        let behind_fork = c.is_some();
        drop(c);
        let mut told = set.wait(4, -1);
        if behind_fork && told == [(1, EPOLLOUT)] {
            // Room may be reported again as the session ends.
            told = set.wait(4, -1);
        }
        assert_eq!(told, [(1, both | EPOLLHUP | EPOLLERR)], "{reset_first}");
    }
}

/// For an end that has shut its receiving half the peer's FIN is still an edge, also over a fork; with a read before it, after it or never.
fn half_closed_behind_a_half_close_then_forked() {
    for (forks, reads) in (0..2).flat_map(|forks| (0..3).map(move |reads| (forks == 1, reads))) {
        let Pair { c, s } = Pair::warm();
        net::shutdown(&s, libc::SHUT_RD).unwrap();
        let set = Set::new();
        send_all(&c, b"told");
        set.add(&s, EPOLLIN | EPOLLET, 1);
        assert_eq!(set.wait(4, 0), [(1, EPOLLIN)], "{forks} {reads}");
        assert_eq!(set.wait(4, 0), [], "{forks} {reads}");
        let read_if = |now| {
            if reads == now {
                assert_eq!(read(&s, &mut [0; 8]), Ok(4));
            }
        };
        read_if(0);
        net::shutdown(&c, libc::SHUT_WR).unwrap();
        read_if(1);
        if forks {
            assert_eq!(net::wait(net::fork(|| 0)), 0);
        }
        assert_eq!(set.wait(4, 0), [(1, EPOLLIN)], "{forks} {reads}");
        assert_eq!(set.wait(4, 0), [], "{forks} {reads}");
    }
}

/// A child that registers a connection of its parent's gets the end as with TCP.
fn killed_then_registered_by_a_child() {
    let (fd, pid) = rung_and_alive();
    let set = Set::new();
    let (out, input) = net::pipe();
    let child = net::fork(|| {
        assert_eq!(net::read(&out, &mut [0; 1]), Ok(1));
        set.add(&fd, EPOLLIN | EPOLLOUT | EPOLLONESHOT, 1);
        i32::from(set.wait(4, -1) != [(1, EPOLLIN | EPOLLOUT)])
    });
    end(pid);
    net::write(&input, b"g").unwrap();
    assert_eq!(net::wait(child), 0);
}

/// A one-shot event goes to one of the processes that share the set.
fn killed_then_forked_with_a_set() {
    let (fd, pid) = rung();
    let set = Set::new();
    set.add(&fd, EPOLLIN | EPOLLRDHUP | EPOLLONESHOT, 1);
    let (out, input) = net::pipe();
    let child = net::fork(|| {
        assert_eq!(net::read(&out, &mut [0; 1]), Ok(1));
        assert_eq!(set.wait(4, 0), []);
        set.modify(&fd, EPOLLIN, 2);
        assert_eq!(set.wait(4, 0), [(2, EPOLLIN)]);
        0
    });
    assert_eq!(set.wait(4, 0), [(1, EPOLLIN | EPOLLRDHUP)]);
    assert_eq!(set.wait(4, 0), []);
    net::write(&input, b"g").unwrap();
    assert_eq!(net::wait(child), 0);
    net::wait(pid);
}

/// A fork ended the session before, and the peer left only doorbells unread: a set, made before the kill or after it, reports the end only.
fn killed_behind_a_fork_with_a_set() {
    const ALL: i32 = EPOLLIN | EPOLLOUT | EPOLLRDHUP;
    for (early, how) in [(true, 0), (false, 0), (true, EPOLLET), (false, EPOLLET), (true, EPOLLONESHOT)] {
        let (fd, pid) = victim(|_| {});
        assert_eq!(net::wait(net::fork(|| 0)), 0);
        let set = Set::new();
        let asked = if how == EPOLLONESHOT { EPOLLRDHUP } else { ALL };
        if early {
            set.add(&fd, asked | how, 1);
            assert_eq!(set.wait(4, 0).len(), usize::from(asked == ALL));
        }
        end(pid);
        if !early {
            set.add(&fd, asked | how, 1);
        }
        assert_eq!(set.wait(4, -1), [(1, asked)]);
        assert_eq!(set.wait(4, 0).len(), usize::from(how == 0));
        assert_eq!(send(&fd, b"taken", 0), Ok(5));
        assert_eq!(send(&fd, b"not taken", 0), Err(EPIPE));
    }
}

/// A report of the kernel for a set of two processes contains the error, too.
fn error_stays_for_a_set_of_two() {
    let p = Pair::warm();
    drop(p.s);
    net::sleep_ms(20);
    assert_eq!(send(&p.c, b"taken", 0), Ok(5));
    let set = Set::new();
    let (out, input) = net::pipe();
    let child = net::fork(|| i32::from(net::read(&out, &mut [0; 1]) != Ok(1)));
    set.add(&p.c, EPOLLIN, 1);
    assert_eq!(set.wait(4, 0), [(1, EPOLLIN | EPOLLHUP | EPOLLERR)]);
    net::write(&input, b"g").unwrap();
    assert_eq!(net::wait(child), 0);
    assert_eq!(send(&p.c, b"not taken", 0), Err(EPIPE));
}

/// A wait behind bytes that were held back, and lost, sleeps: it has nothing to poll for.
fn sleeps_behind_what_was_lost() {
    let calls = traced::system_calls(|mark| {
        let (fd, pid) = rung_and_alive();
        let set = Set::new();
        set.add(&fd, EPOLLIN | EPOLLET, 1);
        assert_eq!(set.wait(4, 0), []);
        end(pid);
        assert_eq!(set.wait(4, -1), [(1, EPOLLIN)]);
        assert_eq!(send(&fd, b"held", MSG_MORE), Ok(4));
        assert_eq!(send(&fd, b"not held", 0), Ok(8));
        assert_eq!(set.wait(4, -1), [(1, EPOLLIN | EPOLLHUP | EPOLLERR)]);
        mark();
        assert_eq!(set.wait(4, 500), []);
        mark();
    });
    assert!(calls < 500, "{calls} system calls of one wait");
}
