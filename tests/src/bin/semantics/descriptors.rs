//! dup(2) and its relatives, close(2) and close_range(2), numbers used again.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{EBADF, EINTR, EINVAL, POLLIN, SIGUSR1};
use madrigal_tests::net::{self, read, recv_exact, send_all};
use madrigal_tests::pair::Pair;

use crate::set::Set;

crate::checks![
    dup_survives_close,
    dup2_and_dup3,
    dup2_to_itself,
    dup2_of_a_copy,
    dupfd_numbers,
    close_range_ends,
    numbers_used_again,
    least_number_beside_waits,
    dup2_over_ends_connection,
    dup2_that_fails_closes_nothing,
    dup2_over_blocked_reader,
    dup2_over_blocked_sender,
    close_under_blocked_reader,
    shutdown_under_blocked_reader,
    flags_are_shared,
    closed_is_ebadf,
    sent_by_one_copy_read_by_other,
    many_descriptors,
    fds_are_small_and_real,
];

fn dup_survives_close() {
    let Pair { c, s } = Pair::warm();
    let copy = net::dup(&s);
    drop(s);
    send_all(&c, b"dup");
    assert_eq!(recv_exact(&copy, 3), b"dup");
    send_all(&copy, b"back");
    assert_eq!(recv_exact(&c, 4), b"back");
    drop(copy);
    assert_eq!(read(&c, &mut [0; 4]), Ok(0));
}

fn dup2(from: &OwnedFd, to: i32) -> i32 {
    // SAFETY: checks name numbers that are theirs.
    unsafe { libc::dup2(from.as_raw_fd(), to) }
}

/// A copy takes the number of the one that it was made of: that is the same socket, registered as before.
fn dup2_of_a_copy() {
    let (p, set) = (Pair::warm(), Set::new());
    set.add(&p.s, libc::EPOLLIN, 1);
    let copy = net::dup(&p.s);
    assert_eq!(dup2(&copy, p.s.as_raw_fd()), p.s.as_raw_fd());
    p.assert_in_rings();
    send_all(&p.c, b"x");
    assert_eq!(set.wait(4, -1), [(1, libc::EPOLLIN)]);
    set.modify(&p.s, libc::EPOLLIN, 2);
    assert_eq!(set.wait(4, -1), [(2, libc::EPOLLIN)]);
    drop(copy);
    assert_eq!(recv_exact(&p.s, 1), b"x");
    set.delete(&p.s);
}

fn dup2_and_dup3() {
    let Pair { c, s } = Pair::warm();
    assert_eq!(dup2(&s, 200), 200);
    // SAFETY: as for dup2.
    assert_eq!(unsafe { libc::dup3(200, 201, libc::O_CLOEXEC) }, 201);
    drop(s);
    send_all(&c, b"xy");
    assert_eq!(recv_exact(200, 1), b"x");
    assert_eq!(recv_exact(201, 1), b"y");
    assert_eq!(net::fcntl(201, libc::F_GETFD, 0), Ok(libc::FD_CLOEXEC));
    assert_eq!(net::fcntl(200, libc::F_GETFD, 0), Ok(0));
    drop(net::new_fd(200));
    send_all(&c, b"z");
    assert_eq!(recv_exact(201, 1), b"z");
    drop(net::new_fd(201));
    assert_eq!(read(&c, &mut [0; 4]), Ok(0));
}

fn dup2_to_itself() {
    let p = Pair::warm();
    assert_eq!(dup2(&p.s, p.s.as_raw_fd()), p.s.as_raw_fd());
    // SAFETY: as for dup2.
    let n = unsafe { libc::dup3(p.s.as_raw_fd(), p.s.as_raw_fd(), 0) };
    assert_eq!((n, net::errno()), (-1, libc::EINVAL));
    send_all(&p.c, b"x");
    assert_eq!(recv_exact(&p.s, 1), b"x");
    p.assert_in_rings();
}

fn dupfd_numbers() {
    let Pair { c, s } = Pair::warm();
    let high = net::fcntl(&s, libc::F_DUPFD_CLOEXEC, 300).unwrap();
    let other = net::fcntl(&s, libc::F_DUPFD, 400).unwrap();
    assert!(high >= 300 && other >= 400);
    drop(s);
    send_all(&c, b"1");
    assert_eq!(recv_exact(high, 1), b"1");
    drop(net::new_fd(high));
    send_all(&c, b"2");
    assert_eq!(recv_exact(other, 1), b"2");
    drop(net::new_fd(other));
    assert_eq!(read(&c, &mut [0; 4]), Ok(0));
}

fn close_range_ends() {
    let Pair { c, s } = Pair::warm();
    assert_eq!((dup2(&s, 500), dup2(&s, 505)), (500, 505));
    drop(s);
    // SAFETY: these numbers are ours.
    assert_eq!(unsafe { libc::close_range(500, 505, 0) }, 0);
    assert_eq!(read(&c, &mut [0; 4]), Ok(0));
    assert_eq!(read(500, &mut [0; 4]), Err(libc::EBADF));
}

fn numbers_used_again() {
    for _ in 0..20 {
        let Pair { c, s } = Pair::warm();
        let number = s.as_raw_fd();
        send_all(&c, b"left unread");
        drop(s);
        drop(c);
        // A pipe at the same number is only a pipe.
        let (out, input) = net::pipe();
        let mine = dup2(&out, number);
        net::write(&input, b"pipe").unwrap();
        assert_eq!(recv_like_read(mine), b"pipe");
        if mine != out.as_raw_fd() && mine != input.as_raw_fd() {
            drop(net::new_fd(mine));
        }
    }
}

/// A new descriptor gets the least free number, while other threads wait in any call.
fn least_number_beside_waits() {
    let Pair { c, s } = Pair::warm();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| while read(&s, &mut [0]) == Ok(1) && net::write(&s, b"a") == Ok(1) {});
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                send_all(&c, b"q");
                recv_exact(&c, 1);
            }
            net::shutdown(&c, libc::SHUT_WR).unwrap();
        });
        // The first wait of all may open something that is kept.
        net::sleep_ms(50);
        // SAFETY: opens a file of the system's, and closes it.
        let opened = || unsafe { OwnedFd::from_raw_fd(libc::open(c"/dev/null".as_ptr(), libc::O_CLOEXEC)) };
        let least = opened().as_raw_fd();
        let (mut others, mut was_other) = (0, false);
        for _ in 0..200_000 {
            let is_other = opened().as_raw_fd() != least;
            others += u32::from(is_other && !was_other);
            was_other = is_other;
        }
        stop.store(true, Ordering::Relaxed);
        // Once in its life a process looks whether it may move to another processor.
        assert!(others <= 1, "{others} times another number than {least}");
    });
}

fn recv_like_read(fd: i32) -> Vec<u8> {
    let mut b = [0; 16];
    let n = read(fd, &mut b).unwrap();
    b[..n].to_vec()
}

fn dup2_over_ends_connection() {
    let Pair { c, s } = Pair::warm();
    let other = Pair::warm();
    let number = s.into_raw_fd();
    assert_eq!(dup2(&other.s, number), number);
    assert_eq!(read(&c, &mut [0; 4]), Ok(0), "the first connection is over");
    send_all(&other.c, b"new");
    assert_eq!(recv_exact(number, 3), b"new");
    drop(net::new_fd(number));
    send_all(&other.c, b"old");
    assert_eq!(recv_exact(&other.s, 3), b"old");
}

/// The kernel refuses it before it closes anything: the connection goes on.
fn dup2_that_fails_closes_nothing() {
    let (p, other) = (Pair::warm(), Pair::warm());
    let (number, high) = (p.s.as_raw_fd(), 900);
    // SAFETY: numbers of our own.
    assert_eq!(net::count(unsafe { libc::dup3(other.s.as_raw_fd(), number, libc::O_APPEND) } as isize), Err(EINVAL));
    assert_eq!(dup2(&p.s, high), high);
    net::limit_files(800);
    // SAFETY: as above.
    assert_eq!(net::count(unsafe { libc::dup2(other.s.as_raw_fd(), high) } as isize), Err(EBADF));
    for fd in [number, high] {
        send_all(&p.c, b"on");
        assert_eq!(recv_exact(fd, 2), b"on");
        send_all(fd, b"back");
        assert_eq!(recv_exact(&p.c, 4), b"back");
    }
    p.assert_in_rings();
    drop(net::new_fd(high));
}

/// As the Java runtime closes a socket: shut down, put the end of a dead pair over it, signal the threads blocked on it.
fn dup2_over_blocked_reader() {
    let p = Pair::warm();
    net::on_signal(SIGUSR1, net::count_signal, false);
    let (dead, other) = net::unix_pair();
    drop(other);
    let number = p.s.as_raw_fd();
    std::thread::scope(|scope| {
        let (send, ready) = std::sync::mpsc::channel();
        let reader = scope.spawn(move || {
            // SAFETY: no pointers.
            send.send((net::this_thread(), unsafe { libc::gettid() })).unwrap();
            read(number, &mut [0; 4])
        });
        let (thread, tid) = ready.recv().unwrap();
        crate::await_asleep(tid);
        assert_eq!(dup2(&dead, number), number);
        net::signal_thread(thread, SIGUSR1);
        assert_eq!(reader.join().unwrap(), Err(EINTR));
    });
    assert_eq!(read(number, &mut [0; 4]), Ok(0), "now the dead pair's end");
    assert_eq!(read(&p.c, &mut [0; 4]), Ok(0), "the connection is over");
}

/// A send that sleeps behind the end of a session, whose number another socket takes: the next signal ends it, with what it has sent.
fn dup2_over_blocked_sender() {
    net::on_signal(SIGUSR1, net::count_signal, false);
    let (p, other, (out, input)) = (Pair::warm(), Pair::warm(), net::pipe());
    let copy = net::dup(&p.c);
    net::write(&input, b"x").unwrap();
    assert_eq!(net::splice(&out, &copy, 1), Ok(1));
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            // SAFETY: no pointers.
            tell.send((net::this_thread(), unsafe { libc::gettid() })).unwrap();
            net::send(&copy, &vec![7; 32 << 20], 0)
        });
        let (thread, tid) = told.recv().unwrap();
        crate::await_asleep(tid);
        assert_eq!(dup2(&other.c, copy.as_raw_fd()), copy.as_raw_fd());
        crate::await_asleep(tid);
        net::signal_thread(thread, SIGUSR1);
        let sent = sender.join().unwrap().unwrap();
        assert!((1..32 << 20).contains(&sent), "{sent}");
    });
    // The number is the other's, which is none the worse for it.
    send_all(&copy, b"other");
    assert_eq!(recv_exact(&other.s, 5), b"other");
}

fn close_under_blocked_reader() {
    let Pair { c, s } = Pair::warm();
    let number = s.into_raw_fd();
    std::thread::scope(|scope| {
        let (send, ready) = std::sync::mpsc::channel();
        let reader = scope.spawn(move || {
            // SAFETY: no pointers.
            send.send(unsafe { libc::gettid() }).unwrap();
            let mut b = [0; 4];
            let n = read(number, &mut b);
            (n, b[0])
        });
        crate::await_asleep(ready.recv().unwrap());
        drop(net::new_fd(number));
        // Linux: the read goes on until something comes; here it does.
        send_all(&c, b"x");
        assert_eq!(reader.join().unwrap(), (Ok(1), b'x'));
    });
    assert_eq!(read(&c, &mut [0; 4]), Ok(0));
}

fn shutdown_under_blocked_reader() {
    let p = Pair::warm();
    std::thread::scope(|scope| {
        let (send, ready) = std::sync::mpsc::channel();
        let s = &p.s;
        let reader = scope.spawn(move || {
            // SAFETY: no pointers.
            send.send(unsafe { libc::gettid() }).unwrap();
            read(s, &mut [0; 4])
        });
        crate::await_asleep(ready.recv().unwrap());
        net::shutdown(&p.s, libc::SHUT_RDWR).unwrap();
        assert_eq!(reader.join().unwrap(), Ok(0));
    });
}

fn flags_are_shared() {
    let p = Pair::warm();
    let copy = net::dup(&p.s);
    net::set_nonblocking(&copy, true);
    assert_eq!(read(&p.s, &mut [0; 4]), Err(libc::EAGAIN), "one open file, one set of flags");
    net::ioctl(&p.s, libc::FIONBIO, 0).unwrap();
    assert_eq!(net::fcntl(&copy, libc::F_GETFL, 0).unwrap() & libc::O_NONBLOCK, 0);
}

fn closed_is_ebadf() {
    let p = Pair::warm();
    let number = p.s.into_raw_fd();
    // SAFETY: the number is ours.
    drop(unsafe { OwnedFd::from_raw_fd(number) });
    assert_eq!(read(number, &mut [0; 4]), Err(libc::EBADF));
    assert_eq!(net::send(number, b"x", 0), Err(libc::EBADF));
    assert_eq!(net::shutdown(number, libc::SHUT_WR), Err(libc::EBADF));
    assert_eq!(net::poll(number, POLLIN, 0), libc::POLLNVAL);
}

fn sent_by_one_copy_read_by_other() {
    let p = Pair::warm();
    let (c2, s2) = (net::dup(&p.c), net::dup(&p.s));
    for i in 0..500u32 {
        let (from, to) = if i % 2 == 0 { (&p.c, &s2) } else { (&c2, &p.s) };
        send_all(from, &i.to_ne_bytes());
        assert_eq!(recv_exact(to, 4), i.to_ne_bytes());
    }
    p.assert_in_rings();
}

fn many_descriptors() {
    let p = Pair::warm();
    let copies: Vec<OwnedFd> = (0..300).map(|_| net::dup(&p.s)).collect();
    for (i, copy) in copies.iter().enumerate() {
        send_all(&p.c, &[i as u8]);
        assert_eq!(recv_exact(copy, 1), [i as u8]);
    }
    drop(copies);
    send_all(&p.c, b"x");
    assert_eq!(recv_exact(&p.s, 1), b"x");
}

fn fds_are_small_and_real() {
    let p = Pair::warm();
    let next = net::dup(&p.s).as_raw_fd();
    assert!(p.s.as_raw_fd() < 16 && next < 16, "the library takes no low numbers: {next}");
    let link = std::fs::read_link(format!("/proc/self/fd/{}", p.s.as_raw_fd())).unwrap();
    assert!(link.to_str().unwrap().starts_with("socket:["));
    // SAFETY: an all-zero status is valid.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: our own status.
    assert_eq!(unsafe { libc::fstat(p.s.as_raw_fd(), &raw mut stat) }, 0);
    assert_eq!(stat.st_mode & libc::S_IFMT, libc::S_IFSOCK);
}
