//! The end of a connection: half close, close, reset, broken pipe, and what each shows to poll(2).

use libc::{
    ECONNRESET, ENOTCONN, EPIPE, EPOLLET, EPOLLIN, EPOLLONESHOT, MSG_DONTWAIT, POLLERR, POLLHUP, POLLIN, POLLOUT,
    POLLRDHUP, SHUT_RD, SHUT_RDWR, SHUT_WR,
};
use madrigal_tests::net::{self, await_events, poll, read, recv, recv_exact, recv_up_to, send, send_all, shutdown};
use madrigal_tests::pair::Pair;

use crate::both;
use crate::set::Set;

crate::checks![
    half_close_by_client,
    half_close_by_server,
    half_close_then_big_answer,
    half_close_with_ring_full,
    shutdown_both,
    shutdown_read,
    shutdown_write_twice,
    write_after_shutdown,
    sigpipe_by_write,
    linger_zero_resets,
    linger_zero_after_data,
    close_with_unread_resets,
    close_with_data_on_its_way,
    close_before_the_last_doorbell,
    close_behind_a_ring_that_was_left,
    peer_closed_then_send,
    events_after_half_close,
    events_after_both_shut,
    events_after_reset,
    reset_is_told_once,
    blocked_reader_sees_end,
    blocked_writer_sees_end,
    error_taken_by_so_error,
    error_stays_behind_a_shutdown_that_fails,
    end_is_told_for_ever,
    linger_waits,
    simultaneous_close,
];

const ALL: i16 = POLLIN | POLLOUT | POLLRDHUP;

fn half_close_by_client() {
    let p = Pair::warm();
    send_all(&p.c, b"half");
    shutdown(&p.c, SHUT_WR).unwrap();
    assert_eq!(recv_up_to(&p.s, 100), b"half");
    send_all(&p.s, b"back");
    assert_eq!(recv_exact(&p.c, 4), b"back");
    drop(p.s);
    assert_eq!(read(&p.c, &mut [0; 4]), Ok(0));
}

fn half_close_by_server() {
    let p = Pair::warm();
    shutdown(&p.s, SHUT_WR).unwrap();
    assert_eq!(read(&p.c, &mut [0; 4]), Ok(0));
    for i in 0..200u8 {
        send_all(&p.c, &[i]);
        assert_eq!(recv_exact(&p.s, 1), [i]);
    }
    shutdown(&p.c, SHUT_WR).unwrap();
    assert_eq!(read(&p.s, &mut [0; 4]), Ok(0));
}

fn half_close_then_big_answer() {
    let p = Pair::warm();
    send_all(&p.c, b"request");
    shutdown(&p.c, SHUT_WR).unwrap();
    let answer: Vec<u8> = (0..5_000_000u32).map(|i| (i / 7) as u8).collect();
    both(
        || {
            assert_eq!(recv_up_to(&p.s, 100), b"request");
            send_all(&p.s, &answer);
            shutdown(&p.s, SHUT_WR).unwrap();
        },
        || assert!(recv_up_to(&p.c, answer.len() + 1) == answer),
    );
}

fn half_close_with_ring_full() {
    let p = Pair::warm();
    net::set_nonblocking(&p.s, true);
    let sent = net::fill(&p.s, &[7; 10_000]);
    net::set_nonblocking(&p.s, false);
    shutdown(&p.c, SHUT_WR).unwrap();
    both(
        || {
            assert_eq!(read(&p.s, &mut [0; 4]), Ok(0));
            send_all(&p.s, &[8; 100_000]);
            shutdown(&p.s, SHUT_WR).unwrap();
        },
        || {
            let got = recv_up_to(&p.c, sent + 100_001);
            assert_eq!(got.len(), sent + 100_000);
            assert!(got[..sent].iter().all(|b| *b == 7) && got[sent..].iter().all(|b| *b == 8));
        },
    );
}

fn shutdown_both() {
    let p = Pair::warm();
    send_all(&p.c, b"last");
    shutdown(&p.c, SHUT_RDWR).unwrap();
    assert_eq!(recv_up_to(&p.s, 10), b"last");
    assert_eq!(read(&p.c, &mut [0; 4]), Ok(0));
    assert_eq!(send(&p.c, b"x", 0), Err(EPIPE));
}

fn shutdown_read() {
    let p = Pair::warm();
    send_all(&p.c, b"before");
    net::await_events(&p.s, POLLIN);
    shutdown(&p.s, SHUT_RD).unwrap();
    assert_eq!(poll(&p.s, ALL, 0), ALL);
    assert_eq!(recv_up_to(&p.s, 6), b"before");
    let mut b = [0; 8];
    assert_eq!(read(&p.s, &mut b), Ok(0));
    assert_eq!(recv(&p.s, &mut b, MSG_DONTWAIT), Ok(0));
    send_all(&p.s, b"the other way");
    assert_eq!(recv_exact(&p.c, 13), b"the other way");
    // Linux goes on taking what the peer sends, and shows it.
    assert_eq!(send(&p.c, b"late", 0), Ok(4));
    net::sleep_ms(5);
    assert_eq!(read(&p.s, &mut b), Ok(4));
    assert_eq!(read(&p.s, &mut b), Ok(0));
}

fn shutdown_write_twice() {
    let p = Pair::warm();
    shutdown(&p.c, SHUT_WR).unwrap();
    shutdown(&p.c, SHUT_WR).unwrap();
    assert_eq!(read(&p.s, &mut [0; 4]), Ok(0));
    shutdown(&p.s, SHUT_WR).unwrap();
    assert_eq!(read(&p.c, &mut [0; 4]), Ok(0));
    assert_eq!(shutdown(&p.s, SHUT_WR), Err(ENOTCONN));
}

fn write_after_shutdown() {
    let p = Pair::warm();
    net::on_signal(libc::SIGPIPE, net::count_signal, true);
    shutdown(&p.c, SHUT_WR).unwrap();
    assert_eq!(send(&p.c, b"x", 0), Err(EPIPE));
    assert_eq!(net::signals(), 0, "MSG_NOSIGNAL");
    assert_eq!(net::send_raw(&p.c, b"x", 0), Err(EPIPE));
    assert_eq!(net::signals(), 1);
    assert_eq!(net::writev(&p.c, &[b"a", b"b"]), Err(EPIPE));
    assert_eq!(net::signals(), 2);
}

fn sigpipe_by_write() {
    let p = Pair::warm();
    net::on_signal(libc::SIGPIPE, net::count_signal, true);
    drop(p.s);
    await_events(&p.c, POLLRDHUP);
    // The first may still go out (and is answered by a reset), the second may not.
    let _ = net::write(&p.c, b"one");
    await_events(&p.c, POLLHUP | POLLERR);
    let before = net::signals();
    assert!(matches!(net::write(&p.c, b"two"), Err(EPIPE | ECONNRESET)));
    assert_eq!(net::write(&p.c, b"three"), Err(EPIPE));
    assert!(net::signals() > before);
}

fn linger_zero_resets() {
    let p = Pair::warm();
    net::linger(&p.c, 0);
    drop(p.c);
    await_events(&p.s, POLLIN);
    assert_eq!(read(&p.s, &mut [0; 4]), Err(ECONNRESET));
    assert_eq!(read(&p.s, &mut [0; 4]), Ok(0));
}

fn linger_zero_after_data() {
    let p = Pair::warm();
    send_all(&p.c, b"data");
    await_events(&p.s, POLLIN);
    net::linger(&p.c, 0);
    drop(p.c);
    await_events(&p.s, POLLERR);
    let mut b = [0; 16];
    // Linux keeps what had arrived before the reset.
    assert_eq!(read(&p.s, &mut b), Ok(4));
    assert_eq!(read(&p.s, &mut b), Err(ECONNRESET));
    assert_eq!(read(&p.s, &mut b), Ok(0));
}

fn close_with_unread_resets() {
    let p = Pair::warm();
    send_all(&p.s, b"for the client");
    send_all(&p.c, b"never read");
    await_events(&p.s, POLLIN);
    await_events(&p.c, POLLIN);
    drop(p.s);
    await_events(&p.c, POLLERR);
    assert_eq!(recv_exact(&p.c, 14), b"for the client");
    assert_eq!(read(&p.c, &mut [0; 4]), Err(ECONNRESET));
    assert_eq!(read(&p.c, &mut [0; 4]), Ok(0));
}

fn close_with_data_on_its_way() {
    let p = Pair::warm();
    let bytes: Vec<u8> = (0..100_000u32).map(|i| (i / 3) as u8).collect();
    both(|| send_all(&p.c, &bytes[..500]), || ());
    let Pair { c, s } = p;
    both(
        || {
            send_all(&c, &bytes[500..]);
            drop(c);
        },
        || {
            net::sleep_ms(30);
            assert!(recv_up_to(&s, bytes.len() + 1) == bytes);
        },
    );
}

/// A reader may have notified a writer of free space just before the writer closes: this doorbell is no unread byte.
fn close_before_the_last_doorbell() {
    let p = Pair::warm();
    // A doorbell goes at once, the next one some 50 ms later.
    net::set(&p.c, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, 20u32).unwrap();
    net::set_nonblocking(&p.c, true);
    net::set_nonblocking(&p.s, true);
    for _ in 0..3 {
        net::fill(&p.s, &[7; 10_000]);
        both(
            || _ = poll(&p.s, POLLOUT, 10),
            || {
                net::sleep_ms(5);
                while read(&p.c, &mut [0; 10_000]).is_ok() {}
            },
        );
    }
    drop(p.s);
    await_events(&p.c, POLLRDHUP);
    net::sleep_ms(200);
    assert_eq!(poll(&p.c, ALL, 0), ALL);
    assert_eq!(read(&p.c, &mut [0; 4]), Ok(0));
}

fn peer_closed_then_send() {
    let p = Pair::warm();
    drop(p.s);
    await_events(&p.c, POLLRDHUP);
    assert_eq!(poll(&p.c, ALL, 0), ALL, "readable (the end) and writable");
    assert_eq!(send(&p.c, b"x", 0), Ok(1), "the first one goes out");
    await_events(&p.c, POLLERR);
    assert_eq!(send(&p.c, b"y", 0), Err(EPIPE));
    assert_eq!(send(&p.c, b"z", 0), Err(EPIPE));
    assert_eq!(read(&p.c, &mut [0; 4]), Ok(0));
}

fn events_after_half_close() {
    let p = Pair::warm();
    shutdown(&p.c, SHUT_WR).unwrap();
    await_events(&p.s, POLLRDHUP);
    assert_eq!(poll(&p.s, ALL, 0), ALL);
    assert_eq!(poll(&p.s, POLLOUT, 0), POLLOUT);
    assert_eq!(poll(&p.c, ALL, 0), POLLOUT, "the side that shut down sees nothing");
}

fn events_after_both_shut() {
    let p = Pair::warm();
    shutdown(&p.c, SHUT_WR).unwrap();
    await_events(&p.s, POLLRDHUP);
    shutdown(&p.s, SHUT_WR).unwrap();
    await_events(&p.c, POLLHUP);
    assert_eq!(poll(&p.c, ALL, 0), ALL | POLLHUP);
    assert_eq!(poll(&p.s, ALL, 0), ALL | POLLHUP);
    assert_eq!(poll(&p.s, 0, 0), POLLHUP);
}

fn events_after_reset() {
    let p = Pair::warm();
    net::linger(&p.c, 0);
    drop(p.c);
    await_events(&p.s, POLLERR);
    assert_eq!(poll(&p.s, ALL, 0), ALL | POLLERR | POLLHUP);
    assert_eq!(poll(&p.s, 0, 0), POLLERR | POLLHUP);
    assert_eq!(read(&p.s, &mut [0; 4]), Err(ECONNRESET));
    assert_eq!(poll(&p.s, ALL, 0), ALL | POLLHUP, "the error has been told");
}

fn reset_is_told_once() {
    let p = Pair::warm();
    net::linger(&p.c, 0);
    drop(p.c);
    await_events(&p.s, POLLERR);
    assert_eq!(send(&p.s, b"x", 0), Err(ECONNRESET));
    assert_eq!(send(&p.s, b"x", 0), Err(EPIPE));
    assert_eq!(read(&p.s, &mut [0; 4]), Ok(0));
}

fn blocked_reader_sees_end() {
    for reset in [false, true] {
        let Pair { c, s } = Pair::warm();
        both(
            || {
                let want = if reset { Err(ECONNRESET) } else { Ok(0) };
                assert_eq!(read(&s, &mut [0; 4]), want);
            },
            || {
                net::sleep_ms(20);
                if reset {
                    net::linger(&c, 0);
                }
                drop(c);
            },
        );
    }
}

fn blocked_writer_sees_end() {
    let Pair { c, s } = Pair::warm();
    both(
        || {
            let big = vec![1; 1 << 20];
            // Until it breaks.
            while let Ok(n) = send(&c, &big, 0) {
                assert!(n > 0);
            }
            assert!(matches!(send(&c, b"x", 0), Err(EPIPE)));
        },
        || {
            net::sleep_ms(50);
            drop(s);
        },
    );
}

fn error_taken_by_so_error() {
    let p = Pair::warm();
    assert_eq!(net::take_error(&p.s), 0);
    net::linger(&p.c, 0);
    drop(p.c);
    await_events(&p.s, POLLERR);
    assert_eq!(net::take_error(&p.s), ECONNRESET);
    assert_eq!(net::take_error(&p.s), 0);
    assert_eq!(read(&p.s, &mut [0; 4]), Ok(0), "the error has been taken");
}

fn error_stays_behind_a_shutdown_that_fails() {
    for trigger in [0, EPOLLET, EPOLLET | EPOLLONESHOT] {
        let (p, set) = (Pair::warm(), Set::new());
        set.add(&p.s, EPOLLIN | trigger, 1);
        drop(p.c);
        assert_eq!(set.wait(4, -1), [(1, EPOLLIN)]);
        assert_eq!(send(&p.s, b"x", 0), Ok(1));
        await_events(&p.s, POLLERR);
        assert_eq!(net::shutdown(&p.s, libc::SHUT_WR), Err(ENOTCONN));
        assert_eq!(net::take_error(&p.s), EPIPE, "{trigger:#x}");
        assert_eq!(net::take_error(&p.s), 0);
    }
}

fn end_is_told_for_ever() {
    let p = Pair::warm();
    drop(p.c);
    for _ in 0..5 {
        assert_eq!(read(&p.s, &mut [0; 4]), Ok(0));
        assert_eq!(recv(&p.s, &mut [0; 4], libc::MSG_PEEK), Ok(0));
        assert_eq!(poll(&p.s, POLLIN, 0), POLLIN);
    }
}

/// Bytes sent right behind a ring are not held back because of the doorbells in front of them: they arrive before a close.
fn close_behind_a_ring_that_was_left() {
    for nodelay in [0, 1] {
        let Pair { c, s } = Pair::warm();
        net::set(&c, libc::IPPROTO_TCP, libc::TCP_NODELAY, nodelay).unwrap();
        // The kernel carries what is to be stamped.
        net::set(&c, libc::SOL_SOCKET, libc::SO_TIMESTAMP, 1).unwrap();
        send_all(&c, b"x");
        assert_eq!(net::get(&c, libc::IPPROTO_TCP, libc::TCP_NODELAY), Ok(nodelay));
        drop(s);
        await_events(&c, POLLHUP);
        assert_eq!(read(&c, &mut [0; 4]), Err(ECONNRESET));
    }
}

fn linger_waits() {
    let p = Pair::warm();
    net::linger(&p.c, 20);
    send_all(&p.c, b"slowly");
    drop(p.c);
    assert_eq!(recv_up_to(&p.s, 100), b"slowly");
}

fn simultaneous_close() {
    for _ in 0..50 {
        let Pair { c, s } = Pair::warm();
        both(|| drop(c), || drop(s));
    }
}
