//! Receiving: flags, sizes, time-outs, vectors.
#![allow(unsafe_code)]

use std::os::fd::AsRawFd;

use libc::{EAGAIN, MSG_DONTWAIT, MSG_PEEK, MSG_TRUNC, MSG_WAITALL, POLLIN};
use madrigal_tests::net::{self, poll, read, readable, recv, send_all};
use madrigal_tests::pair::{self, Pair};

use crate::both;

use crate::traced;

crate::checks![
    peek_leaves_bytes,
    peek_then_more,
    peek_waitall,
    peek_waitall_made_nonblocking,
    waitall_over_parts,
    waitall_short_at_end,
    waitall_nonblocking,
    dontwait_when_empty,
    trunc_discards,
    peek_trunc,
    zero_length,
    short_buffers,
    fionread_counts,
    readv_scatters,
    recvmsg_fields,
    recvfrom_name,
    recvmmsg_some,
    recvmmsg_blocks_for_all,
    receive_timeout,
    timeout_restarts,
    low_water,
    waitall_timeout_keeps_part,
    mixed_sizes_in_order,
    as_many_pieces_as_there_are,
    both_parts_behind_an_end_of_reading,
    few_system_calls_in_rings,
];

fn peek_leaves_bytes() {
    let p = Pair::warm();
    send_all(&p.c, b"abcdef");
    let mut b = [0; 16];
    assert_ne!(poll(&p.s, POLLIN, 5000), 0);
    assert_eq!(recv(&p.s, &mut b[..3], MSG_PEEK), Ok(3));
    assert_eq!(&b[..3], b"abc");
    assert_eq!(readable(&p.s), 6);
    assert_eq!(recv(&p.s, &mut b, MSG_PEEK), Ok(6));
    assert_eq!(recv(&p.s, &mut b, 0), Ok(6));
    assert_eq!(&b[..6], b"abcdef");
    assert_eq!(recv(&p.s, &mut b, MSG_DONTWAIT | MSG_PEEK), Err(EAGAIN));
    p.assert_in_rings();
}

fn peek_then_more() {
    let p = Pair::warm();
    let mut b = [0; 16];
    send_all(&p.c, b"12");
    assert_eq!(recv(&p.s, &mut b, MSG_PEEK), Ok(2));
    send_all(&p.c, b"34");
    while readable(&p.s) < 4 {
        net::sleep_ms(1);
    }
    assert_eq!(recv(&p.s, &mut b, MSG_PEEK), Ok(4));
    assert_eq!(&b[..4], b"1234");
    assert_eq!(net::recv_exact(&p.s, 4), b"1234");
}

fn peek_waitall() {
    let p = Pair::warm();
    let mut b = [0; 10];
    both(
        || {
            send_all(&p.c, b"12345");
            net::sleep_ms(30);
            send_all(&p.c, b"67890");
        },
        || assert_eq!(recv(&p.s, &mut b, MSG_PEEK | MSG_WAITALL), Ok(10)),
    );
    assert_eq!(&b, b"1234567890");
    assert_eq!(net::recv_exact(&p.s, 10), b"1234567890");
}

/// It was to wait, and waits on, when another thread changes that; in the ring, and when the connection leaves it.
fn peek_waitall_made_nonblocking() {
    for parts in [&b"1234"[..], b""] {
        let p = Pair::warm();
        send_all(&p.c, parts);
        // SAFETY: no pointers.
        let tid = unsafe { libc::gettid() };
        let mut b = [0; 10];
        let sends = || {
            crate::await_asleep(tid);
            net::set_nonblocking(&p.s, true);
            send_all(&p.c, b"x");
            net::sleep_ms(30);
            // None of it is carried by a ring, and no byte comes.
            assert_eq!(net::send(&p.c, b"", libc::MSG_OOB), Ok(0));
            for _ in 0..3 {
                net::sleep_ms(30);
                send_all(&p.c, b"567");
            }
        };
        both(sends, || assert_eq!(recv(&p.s, &mut b, MSG_PEEK | MSG_WAITALL), Ok(10)));
        assert_eq!(b, [parts, b"x567567567"].concat()[..10]);
    }
}

fn waitall_over_parts() {
    let p = Pair::warm();
    let mut b = [0; 20];
    both(
        || {
            for _ in 0..4 {
                net::sleep_ms(10);
                send_all(&p.c, b"12345");
            }
        },
        || assert_eq!(recv(&p.s, &mut b, MSG_WAITALL), Ok(20)),
    );
    assert_eq!(&b, b"12345123451234512345");
}

fn waitall_short_at_end() {
    let p = Pair::warm();
    let Pair { c, s } = p;
    let mut b = [0; 20];
    send_all(&c, b"1234567");
    drop(c);
    assert_eq!(recv(&s, &mut b, MSG_WAITALL), Ok(7));
    assert_eq!(recv(&s, &mut b, MSG_WAITALL), Ok(0));
    assert_eq!(recv(&s, &mut b, 0), Ok(0));
}

fn waitall_nonblocking() {
    let p = Pair::warm();
    let mut b = [0; 20];
    send_all(&p.c, b"abc");
    assert_ne!(poll(&p.s, POLLIN, 5000), 0);
    assert_eq!(recv(&p.s, &mut b, MSG_WAITALL | MSG_DONTWAIT), Ok(3));
    net::set_nonblocking(&p.s, true);
    assert_eq!(recv(&p.s, &mut b, MSG_WAITALL), Err(EAGAIN));
}

fn dontwait_when_empty() {
    let p = Pair::warm();
    let mut b = [0; 4];
    assert_eq!(recv(&p.s, &mut b, MSG_DONTWAIT), Err(EAGAIN));
    assert_eq!(recv(&p.c, &mut b, MSG_DONTWAIT), Err(EAGAIN));
    net::set_nonblocking(&p.s, true);
    assert_eq!(read(&p.s, &mut b), Err(EAGAIN));
    p.assert_in_rings();
}

fn trunc_discards() {
    let p = Pair::warm();
    let mut b = [7; 8];
    send_all(&p.c, b"abcdef");
    assert_ne!(poll(&p.s, POLLIN, 5000), 0);
    assert_eq!(recv(&p.s, &mut b[..2], MSG_TRUNC), Ok(2));
    assert_eq!(b, [7; 8], "MSG_TRUNC copies nothing on TCP");
    assert_eq!(readable(&p.s), 4);
    assert_eq!(recv(&p.s, &mut b, 0), Ok(4));
    assert_eq!(&b[..4], b"cdef");
}

fn peek_trunc() {
    let p = Pair::warm();
    let mut b = [7; 8];
    send_all(&p.c, b"abcdef");
    assert_ne!(poll(&p.s, POLLIN, 5000), 0);
    assert_eq!(recv(&p.s, &mut b[..4], MSG_PEEK | MSG_TRUNC), Ok(4));
    assert_eq!(readable(&p.s), 6);
    assert_eq!(net::recv_exact(&p.s, 6), b"abcdef");
}

fn zero_length() {
    let p = Pair::warm();
    assert_eq!(read(&p.s, &mut []), Ok(0));
    assert_eq!(recv(&p.s, &mut [], MSG_DONTWAIT), Err(EAGAIN));
    assert_eq!(net::write(&p.c, &[]), Ok(0));
    assert_eq!(net::send(&p.c, &[], 0), Ok(0));
    assert_eq!(net::writev(&p.c, &[]), Ok(0));
    assert_eq!(net::writev(&p.c, &[b"", b""]), Ok(0));
    assert_eq!(poll(&p.s, POLLIN, 0), 0, "nothing was sent");
    send_all(&p.c, b"x");
    assert_ne!(poll(&p.s, POLLIN, 5000), 0);
    assert_eq!(recv(&p.s, &mut [], 0), Ok(0));
    assert_eq!(net::readv(&p.s, &mut [&mut [], &mut []]), Ok(0));
    assert_eq!(net::recv_exact(&p.s, 1), b"x");
    let Pair { c, s } = p;
    drop(c);
    assert_ne!(poll(&s, POLLIN, 5000), 0);
    assert_eq!(recv(&s, &mut [], 0), Ok(0), "the end");
}

fn short_buffers() {
    let p = Pair::warm();
    let bytes: Vec<u8> = (0..=255).collect();
    send_all(&p.c, &bytes);
    let mut got = Vec::new();
    let mut b = [0; 7];
    while got.len() < bytes.len() {
        let n = read(&p.s, &mut b).unwrap();
        assert!(n > 0 && n <= 7);
        got.extend_from_slice(&b[..n]);
    }
    assert_eq!(got, bytes);
    p.assert_in_rings();
}

fn fionread_counts() {
    let p = Pair::warm();
    assert_eq!(readable(&p.s), 0);
    for n in 1..=40usize {
        send_all(&p.c, b"0123456789");
        while readable(&p.s) != n * 10 {
            net::sleep_ms(1);
        }
    }
    net::recv_exact(&p.s, 150);
    assert_eq!(readable(&p.s), 250);
    net::recv_exact(&p.s, 250);
    assert_eq!(readable(&p.s), 0);
    // Bytes nobody has acknowledged yet: none in the end.
    while net::ioctl(&p.c, libc::TIOCOUTQ, -1).unwrap() != 0 {
        net::sleep_ms(1);
    }
}

fn readv_scatters() {
    let p = Pair::warm();
    assert_eq!(net::writev(&p.c, &[b"ab", b"", b"cde", b"f"]), Ok(6));
    let (mut x, mut y) = ([0; 2], [0; 9]);
    assert_ne!(poll(&p.s, POLLIN, 5000), 0);
    assert_eq!(net::readv(&p.s, &mut [&mut x, &mut [], &mut y]), Ok(6));
    assert_eq!((&x, &y[..4]), (b"ab", &b"cdef"[..]));
    p.assert_in_rings();
}

fn recvmsg_fields() {
    let p = Pair::warm();
    send_all(&p.c, b"hello");
    assert_ne!(poll(&p.s, POLLIN, 5000), 0);
    let (mut buf, mut control) = ([0u8; 16], [9u8; 64]);
    let mut name = [9u8; 128];
    let mut iov = net::pieces(&mut [&mut buf]);
    let mut msg = net::message(&mut iov);
    msg.msg_control = control.as_mut_ptr().cast();
    msg.msg_controllen = control.len();
    msg.msg_name = name.as_mut_ptr().cast();
    msg.msg_namelen = 128;
    msg.msg_flags = 0x7f;
    // SAFETY: all parts of the header point to our own buffers.
    let n = net::count(unsafe { libc::recvmsg(p.s.as_raw_fd(), &raw mut msg, libc::MSG_CMSG_CLOEXEC) });
    assert_eq!(n, Ok(5));
    assert_eq!(&buf[..5], b"hello");
    assert_eq!((msg.msg_controllen, msg.msg_namelen), (0, 0));
    assert_eq!(msg.msg_flags & !libc::MSG_CMSG_CLOEXEC, 0);
    let mut rest = [0; 1];
    assert_eq!(net::recvmsg(&p.s, &mut [&mut rest], MSG_DONTWAIT).err(), Some(EAGAIN));
}

fn recvfrom_name() {
    let p = Pair::warm();
    send_all(&p.c, b"hey");
    assert_ne!(poll(&p.s, POLLIN, 5000), 0);
    let mut buf = [0u8; 8];
    // SAFETY: an all-zero address is valid.
    let mut name: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&name) as libc::socklen_t;
    let (to, from) = (buf.as_mut_ptr().cast(), (&raw mut name).cast());
    // SAFETY: our own buffers of these lengths.
    let n = unsafe { libc::recvfrom(p.s.as_raw_fd(), to, 8, 0, from, &raw mut len) };
    assert_eq!((n, len, name.ss_family), (3, 0, 0));
}

fn messages(iov: &mut [libc::iovec]) -> Vec<libc::mmsghdr> {
    iov.iter_mut().map(|v| libc::mmsghdr { msg_hdr: net::message(std::slice::from_mut(v)), msg_len: 0 }).collect()
}

fn recvmmsg_some() {
    let p = Pair::warm();
    let mut out = net::const_pieces(&[b"ab", b"cde"]);
    let mut headers = messages(&mut out);
    // SAFETY: two headers over our own buffers.
    assert_eq!(unsafe { libc::sendmmsg(p.c.as_raw_fd(), headers.as_mut_ptr(), 2, 0) }, 2);
    assert_eq!((headers[0].msg_len, headers[1].msg_len), (2, 3));
    while readable(&p.s) < 5 {
        net::sleep_ms(1);
    }
    let (mut x, mut y, mut z) = ([0; 2], [0; 2], [0; 8]);
    let mut iov = net::pieces(&mut [&mut x, &mut y, &mut z]);
    let mut headers = messages(&mut iov);
    // SAFETY: three headers over our own buffers.
    let n =
        unsafe { libc::recvmmsg(p.s.as_raw_fd(), headers.as_mut_ptr(), 3, libc::MSG_WAITFORONE, std::ptr::null_mut()) };
    assert_eq!(n, 3);
    assert_eq!([headers[0].msg_len, headers[1].msg_len, headers[2].msg_len], [2, 2, 1]);
    assert_eq!((&x, &y, z[0]), (b"ab", b"cd", b'e'));
}

fn recvmmsg_blocks_for_all() {
    let p = Pair::warm();
    let (mut x, mut y) = ([0; 2], [0; 2]);
    let mut iov = net::pieces(&mut [&mut x, &mut y]);
    let mut headers = messages(&mut iov);
    send_all(&p.c, b"ab");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            net::sleep_ms(20);
            send_all(&p.c, b"cd");
        });
        // SAFETY: two headers over our own buffers.
        let n = unsafe { libc::recvmmsg(p.s.as_raw_fd(), headers.as_mut_ptr(), 2, 0, std::ptr::null_mut()) };
        assert_eq!(n, 2);
    });
    assert_eq!((&x, &y), (b"ab", b"cd"));
}

fn receive_timeout() {
    let p = Pair::warm();
    net::set(&p.s, libc::SOL_SOCKET, libc::SO_RCVTIMEO, net::timeval(80)).unwrap();
    let mut b = [0; 4];
    let before = std::time::Instant::now();
    assert_eq!(read(&p.s, &mut b), Err(EAGAIN));
    assert!(before.elapsed().as_millis() >= 79, "it came too early");
    send_all(&p.c, b"x");
    assert_eq!(read(&p.s, &mut b), Ok(1));
    net::set(&p.s, libc::SOL_SOCKET, libc::SO_RCVTIMEO, net::timeval(0)).unwrap();
    both(
        || {
            net::sleep_ms(120);
            send_all(&p.c, b"y");
        },
        || assert_eq!(read(&p.s, &mut b), Ok(1)),
    );
    p.assert_in_rings();
}

fn timeout_restarts() {
    let p = Pair::warm();
    net::set(&p.s, libc::SOL_SOCKET, libc::SO_RCVTIMEO, net::timeval(60_000)).unwrap();
    let mut b = [0; 4];
    for _ in 0..20 {
        both(
            || {
                net::sleep_ms(2);
                send_all(&p.c, b"x");
            },
            || assert_eq!(read(&p.s, &mut b), Ok(1)),
        );
    }
}

fn waitall_timeout_keeps_part() {
    let p = Pair::warm();
    net::set(&p.s, libc::SOL_SOCKET, libc::SO_RCVTIMEO, net::timeval(60)).unwrap();
    let mut b = [0; 10];
    send_all(&p.c, b"part");
    assert_eq!(recv(&p.s, &mut b, MSG_WAITALL), Ok(4));
    assert_eq!(&b[..4], b"part");
    assert_eq!(recv(&p.s, &mut b, MSG_WAITALL), Err(EAGAIN));
}

fn low_water() {
    let p = Pair::warm();
    net::set(&p.s, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 4).unwrap();
    assert_eq!(net::get(&p.s, libc::SOL_SOCKET, libc::SO_RCVLOWAT), Ok(4));
    send_all(&p.c, b"12");
    assert_eq!(poll(&p.s, POLLIN, 50), 0, "below the mark");
    send_all(&p.c, b"34");
    assert_eq!(poll(&p.s, POLLIN, 5000), POLLIN);
    let mut b = [0; 16];
    assert_eq!(read(&p.s, &mut b), Ok(4));
    // Once the read sleeps: with less than the mark there from the start, Linux lets it sleep on when the rest comes.
    both(
        || {
            for part in [b"56", b"78"] {
                net::sleep_ms(50);
                send_all(&p.c, part);
            }
        },
        || assert_eq!(read(&p.s, &mut b), Ok(4), "a blocking read waits for the mark"),
    );
}

fn mixed_sizes_in_order() {
    let p = Pair::warm();
    let bytes: Vec<u8> = (0..200_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    both(
        || net::send_in_pieces(&p.c, &bytes, |size| size * 7 % 5003 + 1),
        || {
            let (mut got, mut size) = (Vec::new(), 1);
            while got.len() < bytes.len() {
                let mut b = vec![0; size];
                let n = read(&p.s, &mut b).unwrap();
                got.extend_from_slice(&b[..n]);
                size = size * 11 % 3001 + 1;
            }
            assert!(got == bytes);
        },
    );
}

/// More pieces than one of our own calls takes, looked at and received, by the kernel and by the ring.
fn as_many_pieces_as_there_are() {
    let bytes: Vec<u8> = (0..20_000u32).map(|i| (i / 7) as u8).collect();
    for p in [Pair::fresh(), Pair::warm()] {
        bytes.chunks(1000).for_each(|piece| send_all(&p.c, piece));
        // It may begin to move here.
        send_all(&p.s, b"x");
        while net::readable(&p.s) < bytes.len() {
            net::sleep_ms(1);
        }
        let mut parts = vec![[0u8; 100]; 200];
        for flags in [libc::MSG_PEEK, 0] {
            let mut pieces: Vec<&mut [u8]> = parts.iter_mut().map(|part| &mut part[..]).collect();
            assert_eq!(net::recvmsg(&p.s, &mut pieces, flags).unwrap().0, bytes.len());
            assert!(parts.concat() == bytes);
        }
    }
}

/// Messages that come now and then, each read into a larger buffer, are not worth a question to the kernel.
fn few_system_calls_in_rings() {
    const MESSAGES: u32 = 300;
    let calls = traced::system_calls(|mark| {
        let p = Pair::warm();
        mark();
        for _ in 0..MESSAGES {
            send_all(&p.c, b"a message");
            assert_eq!(read(&p.s, &mut [0; 64]), Ok(9));
            let begun = std::time::Instant::now();
            while begun.elapsed().as_micros() < 200 {}
        }
        mark();
    });
    // A sender asks once in a tick of the kernel's clock, which may be a millisecond.
    assert!(!pair::expect_ring() || calls < MESSAGES * 2 / 3, "{calls} system calls for {MESSAGES} messages");
}

/// A shutdown of the reading side ends the ring: its bytes and the kernel's behind them are one stream, and one receive takes both.
fn both_parts_behind_an_end_of_reading() {
    let p = Pair::warm();
    send_all(&p.c, b"by the ring, ");
    net::shutdown(&p.s, libc::SHUT_RD).unwrap();
    send_all(&p.c, b"by the kernel");
    while readable(&p.s) < 26 {
        net::sleep_ms(1);
    }
    let mut b = [0; 64];
    assert_eq!(recv(&p.s, &mut b, 0), Ok(26));
    assert_eq!(&b[..26], b"by the ring, by the kernel");
}
