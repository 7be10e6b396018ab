//! Urgent data: it goes by the kernel, and the stream around it stays in order.
#![allow(unsafe_code)]

use std::os::fd::OwnedFd;

use libc::{MSG_OOB, MSG_PEEK, MSG_WAITALL, POLLPRI};
use madrigal_tests::net::{self, poll, recv, recv_exact, send, send_all};
use madrigal_tests::pair::{self, Pair};

crate::checks![
    urgent_byte,
    urgent_mark,
    urgent_mark_asked_for,
    receive_ends_at_the_mark,
    receive_of_all_ends_at_the_mark,
    receive_that_waits_ends_at_the_mark,
    receive_that_waits_ends_at_a_mark_at_any_time,
    receive_that_waits_ends_beside_a_slow_sender,
    receive_that_waits_passes_over_it,
    receive_that_waits_beside_another_sender_passes_over_it,
    look_at_all_ends_at_the_mark,
    look_at_a_ring_ends_at_the_mark,
    urgent_inline,
    urgent_signal,
    urgent_byte_behind_another,
    urgent_byte_behind_another_early,
    urgent_byte_behind_another_then_inline,
    urgent_byte_behind_one_of_another_process,
    urgent_byte_of_a_child_is_passed_over,
    stream_around_urgent
];

/// `SIOCATMARK`
const SIOCATMARK: libc::c_ulong = 0x8905;

fn urgent_byte() {
    let p = Pair::warm();
    assert_eq!(send(&p.c, b"A", MSG_OOB), Ok(1));
    assert_ne!(poll(&p.s, POLLPRI, 5000) & POLLPRI, 0);
    let mut b = [0; 4];
    assert_eq!(recv(&p.s, &mut b, MSG_OOB), Ok(1));
    assert_eq!(b[0], b'A');
    assert_eq!(recv(&p.s, &mut b, MSG_OOB), Err(libc::EINVAL), "only once");
}

fn urgent_mark() {
    let p = Pair::warm();
    send_all(&p.c, b"xy");
    assert_eq!(send(&p.c, b"Z", MSG_OOB), Ok(1));
    assert_ne!(poll(&p.s, POLLPRI, 5000) & POLLPRI, 0);
    assert_eq!(recv_exact(&p.s, 2), b"xy");
    assert_eq!(net::ioctl(&p.s, SIOCATMARK, 0), Ok(1));
    send_all(&p.c, b"after");
    assert_eq!(recv_exact(&p.s, 5), b"after");
}

unsafe extern "C" {
    fn sockatmark(fd: libc::c_int) -> libc::c_int;
}

fn urgent_mark_asked_for() {
    let p = Pair::warm();
    assert_eq!(send(&p.c, b"Z", MSG_OOB), Ok(1));
    assert_ne!(poll(&p.s, POLLPRI, 5000) & POLLPRI, 0);
    // SAFETY: no pointers.
    assert_eq!(unsafe { sockatmark(std::os::fd::AsRawFd::as_raw_fd(&p.s)) }, 1);
}

/// Wherever the bytes before and behind it travel.
fn receive_ends_at_the_mark() {
    let p = Pair::warm();
    send_all(&p.c, b"xy");
    assert_eq!(recv_exact(&p.s, 1), b"x");
    assert_eq!(send(&p.c, b"Z", MSG_OOB), Ok(1));
    send_all(&p.c, b"behind");
    assert_ne!(poll(&p.s, POLLPRI, 5000) & POLLPRI, 0);
    let mut b = [0; 20];
    assert_eq!(recv(&p.s, &mut b, 0), Ok(1));
    assert_eq!(b[0], b'y');
    assert_eq!(recv_exact(&p.s, 6), b"behind");
}

/// The same of one that waits for all it asks for, where some of it is in a ring, with no room for it in the sender's buffer.
fn receive_of_all_ends_at_the_mark() {
    for (urgent, taken_before) in [(&b"Z"[..], false), (b"zZ", false), (b"zZ", true)] {
        let p = Pair::warm();
        net::set(&p.c, libc::SOL_SOCKET, libc::SO_SNDBUF, 1).unwrap();
        (0..8).for_each(|_| send_all(&p.c, &[b'x'; 500]));
        assert_eq!(send(&p.c, urgent, MSG_OOB), Ok(urgent.len()));
        assert_ne!(poll(&p.s, POLLPRI, 5000) & POLLPRI, 0);
        let mut b = [0; 5000];
        if taken_before {
            assert_eq!(recv(&p.s, &mut b, MSG_OOB), Ok(1));
        }
        send_all(&p.c, b"behind");
        assert_eq!(recv(&p.s, &mut b, MSG_WAITALL), Ok(4000 + urgent.len() - 1));
        assert_eq!(recv_exact(&p.s, 6), b"behind");
    }
}

/// The same with a mark that comes while it waits, in front of anything else.
fn receive_that_waits_ends_at_the_mark() {
    let p = Pair::warm();
    send_all(&p.c, b"xy");
    let sends = || {
        net::sleep_ms(30);
        assert_eq!(send(&p.c, b"Z", MSG_OOB), Ok(1));
        net::sleep_ms(30);
        send_all(&p.c, b"behind");
    };
    let takes = || {
        let mut b = [0; 8];
        assert_eq!(recv(&p.s, &mut b, MSG_WAITALL), Ok(2));
        assert_eq!(recv_exact(&p.s, 6), b"behind");
    };
    crate::both(sends, takes);
}

/// The same with a mark that comes between any two of its system calls.
fn receive_that_waits_ends_at_a_mark_at_any_time() {
    let takes = |at| {
        let ((go, goes), (done, does)) = (net::pipe(), net::pipe());
        let act = || {
            net::write(&goes, b"g").unwrap();
            poll(&done, libc::POLLIN, 1000);
        };
        crate::traced::at_stop(at, act, |mark| {
            let p = Pair::warm();
            send_all(&p.c, b"x");
            let sends = || {
                net::sleep_ms(20);
                // By the kernel, which is what the next byte waits behind.
                assert_eq!(net::print(&p.c, c"y"), Ok(1));
                net::read(&go, &mut [0]).unwrap();
                assert_eq!(send(&p.c, b"Z", MSG_OOB), Ok(1));
                send_all(&p.c, b"behind");
                net::write(&does, b"d").unwrap();
            };
            let takes = || {
                let mut b = [0; 8];
                mark();
                let got = recv(&p.s, &mut b, MSG_WAITALL);
                mark();
                assert_eq!(got, Ok(2));
                assert_eq!(recv_exact(&p.s, 6), b"behind");
            };
            crate::both(sends, takes);
        })
    };
    (1..).take_while(|at| takes(*at)).count();
}

/// The same with a sender that is stopped at each of its system calls: the waiter has gone to sleep again meanwhile.
fn receive_that_waits_ends_beside_a_slow_sender() {
    let sends = |at| {
        let act = || net::sleep_ms(20);
        crate::traced::at_stop(at, act, |mark| {
            let p = Pair::warm();
            send_all(&p.c, b"x");
            let sends = || {
                net::sleep_ms(10);
                mark();
                let sent = send(&p.c, b"Z", MSG_OOB);
                mark();
                assert_eq!(sent, Ok(1));
            };
            let takes = || assert_eq!(recv(&p.s, &mut [0; 8], MSG_WAITALL), Ok(1));
            crate::both(takes, sends);
        })
    };
    (1..).take_while(|at| sends(*at)).count();
}

/// One that waits for its first byte passes over an urgent one, for good.
fn receive_that_waits_passes_over_it() {
    let p = Pair::fresh();
    let sends = || {
        net::sleep_ms(30);
        send_all(&p.s, b"x");
        net::sleep_ms(30);
        assert_eq!(send(&p.s, b"Z", MSG_OOB), Ok(1));
        while poll(&p.c, POLLPRI, 0) & POLLPRI != 0 {
            net::sleep_ms(1);
        }
        send_all(&p.s, b"behind");
    };
    let takes = || {
        assert_eq!(recv_exact(&p.c, 1), b"x");
        assert_eq!(recv_exact(&p.c, 6), b"behind");
    };
    crate::both(sends, takes);
}

/// The same where another thread has just ended what it waits in, by an urgent byte of its own or the end of what it sends.
fn receive_that_waits_beside_another_sender_passes_over_it() {
    for ends in [|fd: &OwnedFd| send(fd, b"A", MSG_OOB).map(drop), |fd: &OwnedFd| net::shutdown(fd, libc::SHUT_WR)] {
        let p = Pair::warm();
        let sends = || {
            net::sleep_ms(30);
            ends(&p.s).unwrap();
            net::sleep_ms(30);
            assert_eq!(send(&p.c, b"Z", MSG_OOB), Ok(1));
            // On a busy machine the receive needs a while to wake; a poll takes out the doorbell that is to wake it.
            net::sleep_ms(100);
            let is_reported = |_: &u32| {
                net::sleep_ms(1);
                poll(&p.s, POLLPRI, 0) & POLLPRI != 0
            };
            let polls = (0..5000).take_while(is_reported).count();
            send_all(&p.c, b"behind");
            assert!(polls < 5000, "it is reported to the end");
        };
        crate::both(sends, || assert_eq!(recv_exact(&p.s, 6), b"behind"));
    }
}

/// A look that waits for more than comes before the mark, where some of it is in a ring, with no room for it in the sender's buffer; and
/// whether or not the byte stays in the stream.
fn look_at_all_ends_at_the_mark() {
    for (inline, first) in [(0, 4000), (1, 4000), (0, 2), (1, 2)] {
        let p = Pair::warm();
        net::set(&p.s, libc::SOL_SOCKET, libc::SO_OOBINLINE, inline).unwrap();
        net::set(&p.c, libc::SOL_SOCKET, libc::SO_SNDBUF, 1).unwrap();
        vec![b'x'; first].chunks(500).for_each(|piece| send_all(&p.c, piece));
        let sends = || {
            net::sleep_ms(30);
            assert_eq!(send(&p.c, b"zZ", MSG_OOB), Ok(2));
            send_all(&p.c, b"behind");
        };
        let peeks = || {
            let mut b = [0; 5000];
            assert_eq!(recv(&p.s, &mut b, MSG_PEEK | MSG_WAITALL), Ok(first + 1));
            assert_eq!(b[first], b'z');
        };
        crate::both(sends, peeks);
        let behind: &[u8] = if inline == 0 { b"zbehind" } else { b"zZbehind" };
        assert_eq!(recv_exact(&p.s, first + behind.len())[first..], *behind);
    }
}

/// A peek at a ring, behind which the kernel's next byte is the urgent one, with no doorbell in front of it.
fn look_at_a_ring_ends_at_the_mark() {
    let p = Pair::warm();
    net::set(&p.c, libc::SOL_SOCKET, libc::SO_SNDBUF, 1).unwrap();
    (0..8).for_each(|_| send_all(&p.c, &[b'x'; 500]));
    // Takes doorbells out.
    net::ioctl(&p.s, SIOCATMARK, 0).unwrap();
    assert_eq!(send(&p.s, b"", MSG_OOB), Ok(0));
    assert_eq!(send(&p.c, b"Z", MSG_OOB), Ok(1));
    send_all(&p.c, b"behind");
    assert_ne!(poll(&p.s, POLLPRI, 5000) & POLLPRI, 0);
    net::sleep_ms(10);
    assert_eq!(recv(&p.s, &mut [0; 5000], MSG_PEEK), Ok(4000));
    assert_eq!(recv(&p.s, &mut [0; 5000], 0), Ok(4000));
    assert_eq!(recv_exact(&p.s, 6), b"behind");
}

fn urgent_inline() {
    let p = Pair::warm();
    net::set(&p.s, libc::SOL_SOCKET, libc::SO_OOBINLINE, 1).unwrap();
    send_all(&p.c, b"a");
    assert_eq!(send(&p.c, b"b", MSG_OOB), Ok(1));
    send_all(&p.c, b"c");
    assert_eq!(recv_exact(&p.s, 3), b"abc");
}

fn urgent_signal() {
    let p = Pair::warm();
    net::on_signal(libc::SIGURG, net::count_signal, true);
    net::fcntl(&p.s, libc::F_SETOWN, std::process::id() as i32).unwrap();
    assert_eq!(send(&p.c, b"!", MSG_OOB), Ok(1));
    while net::signals() == 0 {
        net::sleep_ms(1);
    }
    net::on_signal(libc::SIGIO, net::count_signal, true);
    let before = net::signals();
    let flags = net::fcntl(&p.s, libc::F_GETFL, 0).unwrap();
    net::fcntl(&p.s, libc::F_SETFL, flags | libc::O_ASYNC).unwrap();
    send_all(&p.c, b"q");
    while net::signals() == before {
        net::sleep_ms(1);
    }
    assert_eq!(recv_exact(&p.s, 1), b"q");
}

/// One that is the first unread byte when the next one comes is dropped, and becomes an ordinary byte otherwise.
fn urgent_byte_behind_another() {
    let stream = |ordinary: &[u8], urgent: [&[u8]; 3], inline| {
        let p = Pair::warm();
        net::set(&p.s, libc::SOL_SOCKET, libc::SO_OOBINLINE, inline).unwrap();
        send_all(&p.c, ordinary);
        urgent.iter().for_each(|bytes| assert_eq!(send(&p.c, bytes, MSG_OOB), Ok(bytes.len())));
        send_all(&p.c, b".");
        let mut all = Vec::new();
        while all.last() != Some(&b'.') {
            let mut b = [0; 16];
            let n = recv(&p.s, &mut b, 0).unwrap();
            all.extend_from_slice(&b[..n]);
        }
        all
    };
    assert_eq!(stream(b"", [b"A", b"B", b"C"], 0), b".");
    assert_eq!(stream(b"", [b"A", b"xB", b"C"], 0), b"xB.");
    assert_eq!(stream(b"unread", [b"A", b"xB", b"C"], 0), b"unreadAxB.");
    assert_eq!(stream(b"", [b"A", b"xB", b"C"], 1), b"AxBC.");
}

/// Whether it is dropped is by the option as it was when the next one came.
fn urgent_byte_behind_another_then_inline() {
    for (before, after, stream) in [(0, 1, &b"B."[..]), (1, 0, b"A."), (1, 1, b"AB."), (0, 0, b".")] {
        let p = Pair::warm();
        net::set(&p.s, libc::SOL_SOCKET, libc::SO_OOBINLINE, before).unwrap();
        [b"A", b"B"].iter().for_each(|byte| assert_eq!(send(&p.c, *byte, MSG_OOB), Ok(1)));
        net::sleep_ms(30);
        net::set(&p.s, libc::SOL_SOCKET, libc::SO_OOBINLINE, after).unwrap();
        send_all(&p.c, b".");
        assert_eq!(recv_exact(&p.s, stream.len()), stream, "{before} {after}");
    }
}

/// The same at any byte of a connection's beginning: also where the sender has just moved, and nothing has come that way yet.
fn urgent_byte_behind_another_early() {
    for exchanges in 0..40 {
        let p = Pair::fresh();
        for _ in 0..exchanges {
            send_all(&p.c, b"to");
            assert_eq!(recv_exact(&p.s, 2), b"to");
            send_all(&p.s, b"fro");
            assert_eq!(recv_exact(&p.c, 3), b"fro");
        }
        for fd in [&p.s, &p.c] {
            assert_eq!(recv(fd, &mut [0; 4], libc::MSG_DONTWAIT), Err(libc::EAGAIN));
        }
        [b"A", b"B"].iter().for_each(|byte| assert_eq!(send(&p.c, *byte, MSG_OOB), Ok(1)));
        send_all(&p.c, b".");
        assert_eq!(recv_exact(&p.s, 1), b".", "behind {exchanges} exchanges");
    }
}

/// The same where a parent and its child have sent them.
fn urgent_byte_behind_one_of_another_process() {
    let (told, port) = net::pipe();
    let sender = net::fork(|| {
        let fd = pair::client_of_port(&told);
        pair::warm_client(&fd);
        let (out, input) = net::pipe();
        let child = net::fork(|| {
            net::read(&out, &mut [0]).unwrap();
            assert_eq!(send(&fd, b"xB", MSG_OOB), Ok(2));
            0
        });
        assert_eq!(send(&fd, b"A", MSG_OOB), Ok(1));
        net::write(&input, b"g").unwrap();
        assert_eq!(net::wait(child), 0);
        send_all(&fd, b".");
        0
    });
    let (listener, addr) = net::listener(pair::loopback());
    pair::send_port(&port, addr);
    let fd = net::accept(&listener, 0).unwrap();
    pair::warm_server(&fd);
    assert_eq!(net::wait(sender), 0);
    assert_eq!(recv_exact(&fd, 2), b"x.");
}

/// A receive that finds nothing else passes over one, also where the connection would just move.
fn urgent_byte_of_a_child_is_passed_over() {
    let p = Pair::fresh();
    let child = net::fork(|| {
        assert_eq!(send(&p.c, b"Z", MSG_OOB), Ok(1));
        0
    });
    assert_eq!(net::wait(child), 0);
    assert_ne!(poll(&p.s, POLLPRI, 5000) & POLLPRI, 0);
    for fd in [&p.c, &p.s] {
        assert_eq!(recv(fd, &mut [0; 4], libc::MSG_DONTWAIT), Err(libc::EAGAIN));
    }
    assert_eq!(poll(&p.s, POLLPRI, 0), 0);
    p.warm_up();
}

fn stream_around_urgent() {
    let p = Pair::warm();
    // Unread ring bytes, then an urgent byte, then more, in both directions at once.
    let long: Vec<u8> = (0..900u32).map(|i| i as u8).collect();
    send_all(&p.s, &long);
    send_all(&p.c, &long);
    assert_eq!(send(&p.c, b"!", MSG_OOB), Ok(1));
    send_all(&p.c, &long);
    send_all(&p.s, &long);
    assert!(recv_exact(&p.s, 1800) == [&long[..], &long].concat());
    assert!(recv_exact(&p.c, 1800) == [&long[..], &long].concat());
}
