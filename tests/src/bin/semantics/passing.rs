//! Descriptors in messages (SCM_RIGHTS): a connection goes to another process, with what is unread.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, OwnedFd};

use libc::POLLIN;
use madrigal_tests::net::{self, read, recv_exact, recv_up_to, send_all};
use madrigal_tests::pair::Pair;

use crate::rest::mixed;

crate::checks![
    passed_by_message,
    passed_with_unread_bytes,
    passed_after_end,
    passed_behind_unread_bytes,
    passed_with_bytes_that_both_ends_stand_behind,
    passed_and_kept,
    passed_by_the_peer,
    received_and_used,
    passed_and_shut_behind_a_deaf_reader,
];

/// Sends one descriptor with a byte.
pub(crate) fn pass(over: &OwnedFd, fd: &OwnedFd) {
    let mut iov = net::const_pieces(&[b"f"]);
    let mut msg = net::message(&mut iov);
    let mut control = [0u64; 4];
    msg.msg_control = control.as_mut_ptr().cast();
    // SAFETY: arithmetic only.
    msg.msg_controllen = unsafe { libc::CMSG_SPACE(4) } as usize;
    // SAFETY: the control buffer is large enough for one header and one descriptor.
    let header = unsafe { &mut *libc::CMSG_FIRSTHDR(&raw const msg) };
    header.cmsg_level = libc::SOL_SOCKET;
    header.cmsg_type = libc::SCM_RIGHTS;
    // SAFETY: arithmetic only.
    header.cmsg_len = unsafe { libc::CMSG_LEN(4) } as usize;
    // SAFETY: the data part has room for one descriptor.
    unsafe { libc::CMSG_DATA(header).cast::<i32>().write_unaligned(fd.as_raw_fd()) };
    // SAFETY: a complete header.
    assert_eq!(unsafe { libc::sendmsg(over.as_raw_fd(), &raw const msg, 0) }, 1);
}

fn receive_fd(over: &OwnedFd) -> OwnedFd {
    let mut byte = [0; 1];
    let mut iov = net::pieces(&mut [&mut byte]);
    let mut msg = net::message(&mut iov);
    let mut control = [0u64; 4];
    msg.msg_control = control.as_mut_ptr().cast();
    msg.msg_controllen = size_of_val(&control);
    // SAFETY: a complete header.
    assert_eq!(unsafe { libc::recvmsg(over.as_raw_fd(), &raw mut msg, libc::MSG_CMSG_CLOEXEC) }, 1);
    // SAFETY: filled in by the kernel.
    let header = unsafe { &*libc::CMSG_FIRSTHDR(&raw const msg) };
    assert_eq!((header.cmsg_level, header.cmsg_type), (libc::SOL_SOCKET, libc::SCM_RIGHTS));
    // SAFETY: one descriptor stands there.
    net::new_fd(unsafe { libc::CMSG_DATA(header).cast::<i32>().read_unaligned() })
}

/// A child that gets one descriptor and does `work` with it.
fn taker(work: impl FnOnce(OwnedFd)) -> (OwnedFd, i32) {
    let (mine, theirs) = net::unix_pair();
    let pid = net::fork(|| {
        work(receive_fd(&theirs));
        0
    });
    (mine, pid)
}

fn passed_by_message() {
    let (over, pid) = taker(|fd| {
        send_all(&fd, &recv_exact(&fd, 5));
    });
    let Pair { c, s } = Pair::warm();
    pass(&over, &s);
    drop(s);
    send_all(&c, b"hello");
    assert_eq!(recv_up_to(&c, 100), b"hello");
    assert_eq!(net::wait(pid), 0);
}

fn passed_with_unread_bytes() {
    let bytes: Vec<u8> = (0..3000u32).map(|i| (i / 2) as u8).collect();
    let (over, pid) = taker(|fd| {
        assert!(recv_up_to(&fd, 5000) == bytes);
        send_all(&fd, b"got it");
    });
    let Pair { c, s } = Pair::warm();
    send_all(&c, &bytes[..900]);
    net::await_events(&s, POLLIN);
    pass(&over, &s);
    drop(s);
    send_all(&c, &bytes[900..]);
    net::shutdown(&c, libc::SHUT_WR).unwrap();
    assert_eq!(recv_up_to(&c, 100), b"got it");
    assert_eq!(net::wait(pid), 0);
}

fn passed_after_end() {
    for closed in [false, true] {
        let (over, pid) = taker(|fd| assert_eq!(recv_up_to(&fd, 5000), [5; 900]));
        let Pair { c, s } = Pair::warm();
        send_all(&c, &[5; 900]);
        let kept = if closed {
            drop(c);
            None
        } else {
            net::shutdown(&c, libc::SHUT_WR).unwrap();
            Some(c)
        };
        pass(&over, &s);
        drop(s);
        assert_eq!(net::wait(pid), 0, "closed: {closed}");
        drop(kept);
    }
}

/// One end has shut its receiving direction with a byte unread, and then the other one both of its own.
fn passed_with_bytes_that_both_ends_stand_behind() {
    let (over, pid) = taker(|fd| assert_eq!(recv_up_to(&fd, 100), b"x"));
    let Pair { c, s } = Pair::warm();
    send_all(&c, b"x");
    net::await_events(&s, POLLIN);
    net::shutdown(&s, libc::SHUT_RD).unwrap();
    net::shutdown(&c, libc::SHUT_RDWR).unwrap();
    pass(&over, &s);
    assert_eq!(net::wait(pid), 0);
}

/// At any point of its way into a ring, with the last byte but one unread: what came behind that is there, too.
fn passed_behind_unread_bytes() {
    for rounds in 0..=12 {
        let (over, pid) = taker(|fd| assert_eq!(recv_up_to(&fd, 100), b"ab"));
        let Pair { c, s } = Pair::fresh();
        for _ in 0..rounds {
            send_all(&c, b"x");
            assert_eq!(recv_exact(&s, 1), b"x");
        }
        send_all(&c, b"xa");
        assert_eq!(recv_exact(&s, 1), b"x");
        send_all(&c, b"b");
        drop(c);
        pass(&over, &s);
        drop(s);
        assert_eq!(net::wait(pid), 0, "after {rounds} rounds");
    }
}

fn passed_and_kept() {
    let (over, pid) = taker(|fd| {
        send_all(&fd, b"by the child");
    });
    let p = Pair::warm();
    pass(&over, &p.s);
    assert_eq!(recv_exact(&p.c, 12), b"by the child");
    assert_eq!(net::wait(pid), 0);
    send_all(&p.s, b"by the parent");
    assert_eq!(recv_exact(&p.c, 13), b"by the parent");
}

/// The peer's end is in a message, where it cannot be found, while this end becomes the standard error stream, too.
fn passed_by_the_peer() {
    let ((p, unread), (mine, theirs)) = (mixed(), net::unix_pair());
    pass(&mine, &p.c);
    drop(p.c);
    let kept = net::dup(2);
    for from in [&p.s, &kept] {
        // SAFETY: no pointers.
        assert_eq!(unsafe { libc::dup2(from.as_raw_fd(), 2) }, 2);
    }
    assert!(recv_exact(&p.s, unread.len()) == unread);
    let c = receive_fd(&theirs);
    send_all(&p.s, b"there");
    assert_eq!(recv_exact(&c, 5), b"there");
    send_all(&c, b"back");
    assert_eq!(recv_exact(&p.s, 4), b"back");
}

fn received_and_used() {
    // A process that hands over what it accepted, as cluster servers do; the receiver serves for long.
    let (over, pid) = taker(|fd| {
        while let Ok(n @ 1..) = read(&fd, &mut [0; 1]) {
            send_all(&fd, &[b'x'; 1][..n]);
        }
    });
    let Pair { c, s } = Pair::fresh();
    pass(&over, &s);
    drop(s);
    for _ in 0..3000 {
        send_all(&c, b"x");
        assert_eq!(recv_exact(&c, 1), b"x");
    }
    drop(c);
    assert_eq!(net::wait(pid), 0);
}

/// Who has a socket by another descriptor ends the stream behind bytes that are unread in the ring: they are read all the same, by splice(2), too.
fn passed_and_shut_behind_a_deaf_reader() {
    let Pair { c, s } = Pair::warm();
    send_all(&s, b"unread");
    net::shutdown(&c, libc::SHUT_RD).unwrap();
    let (mine, theirs) = net::unix_pair();
    pass(&mine, &s);
    let again = receive_fd(&theirs);
    net::shutdown(&again, libc::SHUT_WR).unwrap();
    let (out, input) = net::pipe();
    let none = std::ptr::null_mut();
    // SAFETY: no offsets.
    assert_eq!(unsafe { libc::splice(c.as_raw_fd(), none, input.as_raw_fd(), none, 100, 0) }, 6);
    let mut read_back = [0; 6];
    assert_eq!((read(&out, &mut read_back), &read_back), (Ok(6), b"unread"));
    assert_eq!(read(&c, &mut [0; 1]), Ok(0));
}
