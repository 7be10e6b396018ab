//! Sending: full buffers, vectors, time-outs, modes that change under way.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, OwnedFd};

use libc::{EAGAIN, MSG_DONTWAIT, POLLIN, POLLOUT};
use madrigal_report::Path;
use madrigal_tests::net::{self, poll, recv_exact, send, send_all};
use madrigal_tests::pair::{self, Pair};

use crate::both;

crate::checks![
    nonblocking_until_full,
    dontwait_until_full,
    send_timeout,
    partial_write_is_exact,
    many_pieces,
    too_many_pieces,
    sendmsg_pieces,
    blocking_write_waits_for_reader,
    more_arrives,
    cork_and_uncork,
    corked_answers,
    nodelay_toggles,
    nonblocking_by_fcntl_mid_stream,
    nonblocking_by_fionbio_mid_stream,
    full_both_ways,
    writable_at_half,
    sendto_with_name,
];

/// Sends `buf` again and again until the socket is full; how many bytes went.
fn fill(fd: &OwnedFd, buf: &[u8], flags: i32) -> Vec<u8> {
    let mut sent = Vec::new();
    loop {
        match send(fd, buf, flags) {
            Ok(n) => sent.extend_from_slice(&buf[..n]),
            Err(EAGAIN) => return sent,
            Err(e) => panic!("errno {e}"),
        }
        assert!(sent.len() < 256 << 20, "it never fills");
    }
}

fn pattern(n: usize) -> Vec<u8> {
    (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 23) as u8).collect()
}

fn nonblocking_until_full() {
    let p = Pair::warm();
    net::set_nonblocking(&p.c, true);
    let sent = fill(&p.c, &pattern(70_001), 0);
    assert_eq!(poll(&p.c, POLLOUT, 0), 0, "full");
    assert!(recv_exact(&p.s, sent.len()) == sent);
    assert_eq!(poll(&p.s, POLLIN, 0), 0, "nothing more was sent");
    assert_eq!(poll(&p.c, POLLOUT, 10_000), POLLOUT);
    assert_eq!(send(&p.c, b"again", 0), Ok(5));
    assert_eq!(recv_exact(&p.s, 5), b"again");
}

fn dontwait_until_full() {
    let p = Pair::warm();
    let sent = fill(&p.c, &pattern(999), MSG_DONTWAIT);
    assert!(recv_exact(&p.s, sent.len()) == sent);
    send_all(&p.c, b"blocking");
    assert_eq!(recv_exact(&p.s, 8), b"blocking");
}

fn send_timeout() {
    let p = Pair::warm();
    net::set(&p.c, libc::SOL_SOCKET, libc::SO_SNDTIMEO, net::timeval(100)).unwrap();
    let sent = fill(&p.c, &pattern(70_000), 0);
    assert!(recv_exact(&p.s, sent.len()) == sent);
    send_all(&p.c, b"after");
    assert_eq!(recv_exact(&p.s, 5), b"after");
}

fn partial_write_is_exact() {
    let p = Pair::warm();
    net::set_nonblocking(&p.c, true);
    let bytes = pattern(32 << 20);
    let n = send(&p.c, &bytes, 0).unwrap();
    assert!(n > 0 && n < bytes.len());
    let mut got = 0;
    while got < n {
        let part = recv_exact(&p.s, (n - got).min(100_000));
        assert!(part == bytes[got..got + part.len()]);
        got += part.len();
    }
    assert_eq!(poll(&p.s, POLLIN, 0), 0);
}

fn many_pieces() {
    let p = Pair::warm();
    let bytes = pattern(1024 * 3);
    let parts: Vec<&[u8]> = bytes.chunks(3).collect();
    both(
        || {
            let mut at = 0;
            while at < bytes.len() {
                // After a short count go on where it ended.
                let rest: Vec<&[u8]> = if at == 0 { parts.clone() } else { bytes[at..].chunks(3).collect() };
                at += net::writev(&p.c, &rest).unwrap();
            }
        },
        || {
            let mut buf = vec![0; bytes.len()];
            let mut got = 0;
            while got < buf.len() {
                let mut into: Vec<&mut [u8]> = buf[got..].chunks_mut(5).take(1024).collect();
                got += net::readv(&p.s, &mut into).unwrap();
            }
            assert!(buf == bytes);
        },
    );
}

fn too_many_pieces() {
    let p = Pair::warm();
    let parts = vec![&b"x"[..]; 1025];
    assert_eq!(net::writev(&p.c, &parts), Err(libc::EINVAL));
    assert_eq!(net::sendmsg(&p.c, &parts, 0), Err(libc::EMSGSIZE));
    let mut bytes = vec![0u8; 1025];
    let mut into: Vec<&mut [u8]> = bytes.chunks_mut(1).collect();
    assert_eq!(net::readv(&p.s, &mut into), Err(libc::EINVAL));
    assert_eq!(poll(&p.s, POLLIN, 0), 0);
}

fn sendmsg_pieces() {
    let p = Pair::warm();
    assert_eq!(net::sendmsg(&p.c, &[b"one", b"", b"two"], 0), Ok(6));
    assert_eq!(net::sendmsg(&p.c, &[], 0), Ok(0));
    let (mut x, mut y) = ([0; 1], [0; 7]);
    assert_ne!(poll(&p.s, POLLIN, 5000), 0);
    assert_eq!(net::recvmsg(&p.s, &mut [&mut x, &mut y], 0), Ok((6, 0)));
    assert_eq!((x[0], &y[..5]), (b'o', &b"netwo"[..]));
    p.assert_in_rings();
}

fn blocking_write_waits_for_reader() {
    let p = Pair::warm();
    let bytes = pattern(24 << 20);
    both(
        || assert_eq!(send(&p.c, &bytes, 0), Ok(bytes.len())),
        || {
            net::sleep_ms(100);
            let mut got = 0;
            while got < bytes.len() {
                let part = recv_exact(&p.s, (bytes.len() - got).min(333_333));
                assert!(part == bytes[got..got + part.len()]);
                got += part.len();
                net::sleep_ms(1);
            }
        },
    );
}

fn more_arrives() {
    let p = Pair::warm();
    assert_eq!(send(&p.c, b"head", libc::MSG_MORE), Ok(4));
    assert_eq!(send(&p.c, b"body", 0), Ok(4));
    assert_eq!(recv_exact(&p.s, 8), b"headbody");
    assert_eq!(send(&p.c, b"late", libc::MSG_MORE), Ok(4));
    assert_eq!(recv_exact(&p.s, 4), b"late", "held back only for a while");
}

fn cork_and_uncork() {
    let p = Pair::warm();
    net::set(&p.c, libc::IPPROTO_TCP, libc::TCP_CORK, 1).unwrap();
    for part in [b"aa", b"bb", b"cc"] {
        send_all(&p.c, part);
    }
    assert_eq!(net::get(&p.c, libc::IPPROTO_TCP, libc::TCP_CORK), Ok(1));
    net::set(&p.c, libc::IPPROTO_TCP, libc::TCP_CORK, 0).unwrap();
    assert_eq!(recv_exact(&p.s, 6), b"aabbcc");
    for round in 0..200u8 {
        send_all(&p.c, &[round]);
        send_all(&p.s, &recv_exact(&p.s, 1));
        assert_eq!(recv_exact(&p.c, 1), [round]);
    }
}

/// A server as nginx with `tcp_nopush`: one read for each event, and every answer sent in parts while corked.
fn corked_answers() {
    let p = Pair::fresh();
    let cork = |on: i32| net::set(&p.s, libc::IPPROTO_TCP, libc::TCP_CORK, on).unwrap();
    both(
        || {
            for _ in 0..400 {
                send_all(&p.c, b"a request");
                assert_eq!(recv_exact(&p.c, 1440), [[1; 1440]].concat());
            }
        },
        || {
            for _ in 0..400 {
                net::await_events(&p.s, POLLIN);
                assert_eq!(net::recv(&p.s, &mut [0; 4000], 0), Ok(9));
                cork(1);
                send_all(&p.s, &[1; 240]);
                send_all(&p.s, &[1; 1200]);
                cork(0);
            }
        },
    );
    if pair::expect_ring() {
        assert_eq!(pair::path(&p.s), Some(Path::Shm), "the answers never left the kernel");
    }
}

fn nodelay_toggles() {
    let p = Pair::warm();
    for on in [1, 0, 1, 0, 0, 1] {
        net::set(&p.c, libc::IPPROTO_TCP, libc::TCP_NODELAY, on).unwrap();
        assert_eq!(net::get(&p.c, libc::IPPROTO_TCP, libc::TCP_NODELAY), Ok(on));
        send_all(&p.c, b"x");
        assert_eq!(recv_exact(&p.s, 1), b"x");
    }
    p.assert_in_rings();
}

fn flips(set: impl Fn(&Pair, bool)) {
    let p = Pair::warm();
    let mut b = [0; 8];
    for i in 0..50u8 {
        let on = i % 2 == 0;
        set(&p, on);
        if on {
            assert_eq!(net::read(&p.s, &mut b), Err(EAGAIN));
        }
        send_all(&p.c, &[i]);
        while net::read(&p.s, &mut b) == Err(EAGAIN) {
            assert!(on, "a blocking socket blocks");
        }
        assert_eq!(b[0], i);
    }
}

fn nonblocking_by_fcntl_mid_stream() {
    flips(|p, on| net::set_nonblocking(&p.s, on));
}

fn nonblocking_by_fionbio_mid_stream() {
    flips(|p, on| assert!(net::ioctl(&p.s, libc::FIONBIO, on.into()).is_ok()));
}

fn full_both_ways() {
    let p = Pair::warm();
    net::set_nonblocking(&p.c, true);
    net::set_nonblocking(&p.s, true);
    let to_s = fill(&p.c, &pattern(50_000), 0);
    let to_c = fill(&p.s, &pattern(30_000), 0);
    net::set_nonblocking(&p.c, false);
    net::set_nonblocking(&p.s, false);
    both(|| assert!(recv_exact(&p.s, to_s.len()) == to_s), || assert!(recv_exact(&p.c, to_c.len()) == to_c));
    send_all(&p.c, b"1");
    send_all(&p.s, b"2");
    assert_eq!((recv_exact(&p.s, 1), recv_exact(&p.c, 1)), (vec![b'1'], vec![b'2']));
}

fn writable_at_half() {
    let p = Pair::warm();
    net::set_nonblocking(&p.c, true);
    let mut waiting = fill(&p.c, &pattern(40_000), 0).len();
    // A reader that takes little by little must make the writer writable again before it has taken all.
    let all = waiting;
    while poll(&p.c, POLLOUT, 0) == 0 {
        assert!(waiting > 0, "drained {all} bytes and still not writable");
        waiting -= recv_exact(&p.s, waiting.min(20_000)).len();
        net::sleep_ms(1);
    }
    assert!(send(&p.c, b"x", 0) == Ok(1));
}

fn sendto_with_name() {
    let p = Pair::warm();
    let name = [0u8; 16];
    let (fd, from) = (p.c.as_raw_fd(), name.as_ptr().cast());
    // SAFETY: our own buffers; TCP ignores the name.
    let n = unsafe { libc::sendto(fd, b"abc".as_ptr().cast(), 3, 0, from, 16) };
    assert_eq!(net::count(n), Ok(3));
    assert_eq!(recv_exact(&p.s, 3), b"abc");
}
