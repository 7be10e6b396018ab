//! Unread bytes when a connection goes on without its ring: every byte is where the next reader reads, with any room.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use libc::{ECONNRESET, IPPROTO_TCP, POLLERR, SO_RCVBUF, SO_SNDBUF, SOL_SOCKET};
use madrigal_report::Path;
use madrigal_tests::net::{self, recv_exact, send_all};
use madrigal_tests::pair::{self, Pair};

use crate::both;

crate::checks![
    spliced_from_small_buffers,
    spliced_from_little_unsent,
    spliced_when_the_peer_has_closed,
    spliced_when_the_peer_has_reset,
    spliced_into_a_full_pipe,
    spliced_when_both_have_shut,
    spliced_around_doorbells,
    found_by_another_descriptor,
    half_closed_at_any_time_beside_a_file,
    read_by_a_file,
    written_by_a_file_for_both,
    beside_a_file_that_writes,
    written_by_a_file_behind_a_kill,
    error_told_to_a_file,
    moved_behind_a_reset,
    moved_behind_a_broken_pipe,
    flags_of_what_was_withheld,
    inherited_with_small_buffers,
    left_to_a_parent,
    left_when_exec_fails,
    left_by_a_child,
    kept_beside_a_command,
];

/// A pair in rings, with buffers that hold less than a ring does.
fn small() -> Pair {
    let pair = Pair::warm();
    for fd in [&pair.c, &pair.s] {
        net::set(fd, SOL_SOCKET, SO_SNDBUF, 4096).unwrap();
        net::set(fd, SOL_SOCKET, SO_RCVBUF, 4096).unwrap();
    }
    pair
}

/// Sends as much as goes without waiting; what that was.
fn fill(fd: &OwnedFd) -> Vec<u8> {
    net::set_nonblocking(fd, true);
    let mut sent = Vec::new();
    loop {
        let piece: Vec<u8> = (sent.len()..sent.len() + 30_000).map(|i| (i * 7 + (i >> 9)) as u8).collect();
        match net::send(fd, &piece, libc::MSG_NOSIGNAL) {
            Ok(n) => sent.extend(&piece[..n]),
            Err(_) => break,
        }
    }
    net::set_nonblocking(fd, false);
    sent
}

/// Takes `n` bytes out by splice(2).
fn spliced(from: &OwnedFd, n: usize) -> Vec<u8> {
    let ((out, input), mut got) = (net::pipe(), Vec::new());
    while got.len() < n {
        let moved = net::splice(from, &input, 60_000).expect("splice");
        assert!(moved > 0, "the end after {} of {n}", got.len());
        got.extend(net::read_exact(&out, moved));
    }
    got
}

pub(crate) fn assert_same(got: &[u8], sent: &[u8]) {
    let at = got.iter().zip(sent).position(|(got, sent)| got != sent);
    assert_eq!((got.len(), at), (sent.len(), None));
}

fn spliced_from_small_buffers() {
    let p = small();
    let sent = fill(&p.c);
    let before = net::get(&p.c, SOL_SOCKET, SO_SNDBUF);
    assert_same(&spliced(&p.s, sent.len()), &sent);
    assert_eq!(net::get(&p.c, SOL_SOCKET, SO_SNDBUF), before);
    send_all(&p.c, b"on");
    assert_eq!(recv_exact(&p.s, 2), b"on");
}

fn spliced_from_little_unsent() {
    let p = Pair::warm();
    net::set(&p.c, IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, 1).unwrap();
    let sent = fill(&p.c);
    assert_same(&spliced(&p.s, sent.len()), &sent);
    assert_eq!(net::get(&p.c, IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT), Ok(1));
}

fn spliced_when_the_peer_has_closed() {
    let p = small();
    let sent = fill(&p.c);
    // The end comes behind unread bytes, which the window may keep away.
    drop(p.c);
    assert_same(&spliced(&p.s, sent.len()), &sent);
    assert_eq!(net::splice(&p.s, &net::pipe().1, 1), Ok(0));
}

fn spliced_when_the_peer_has_reset() {
    let p = Pair::warm();
    send_all(&p.s, b"never read");
    send_all(&p.c, b"before");
    drop(p.c);
    net::await_events(&p.s, POLLERR);
    assert_eq!(spliced(&p.s, 6), b"before");
    let (_out, input) = net::pipe();
    assert_eq!(net::splice(&p.s, &input, 1), Err(ECONNRESET));
    assert_eq!(net::splice(&p.s, &input, 1), Ok(0));
}

fn spliced_into_a_full_pipe() {
    let p = Pair::warm();
    let sent: Vec<u8> = (0..20_000).map(|i| (i * 7 + (i >> 9)) as u8).collect();
    send_all(&p.s, b"never read");
    send_all(&p.c, &sent);
    drop(p.c);
    net::await_events(&p.s, POLLERR);
    let (out, input) = net::pipe();
    let holds = net::fcntl(&input, libc::F_SETPIPE_SZ, 8192).unwrap() as usize;
    let mut done = 0;
    while done < sent.len() {
        let moved = net::splice_with(&p.s, &input, sent.len(), libc::SPLICE_F_NONBLOCK).unwrap();
        assert!((1..=holds).contains(&moved), "{moved}");
        assert_same(&net::read_exact(&out, moved), &sent[done..done + moved]);
        done += moved;
    }
    assert_eq!(net::splice(&p.s, &input, 1), Err(ECONNRESET));
}

/// Nothing can be put behind a FIN: unread bytes are in front of it.
fn spliced_when_both_have_shut() {
    let p = Pair::warm();
    send_all(&p.c, b"before");
    net::shutdown(&p.s, libc::SHUT_WR).unwrap();
    net::await_events(&p.c, libc::POLLRDHUP);
    net::shutdown(&p.c, libc::SHUT_WR).unwrap();
    assert_eq!(spliced(&p.s, 6), b"before");
    assert_eq!(net::splice(&p.s, &net::pipe().1, 1), Ok(0));
}

/// A connection whose accepting end has not read all that came by the kernel, behind which lie a doorbell and bytes of the ring; and what
/// is unread.
pub(crate) fn mixed() -> (Pair, Vec<u8>) {
    let (p, mut unread) = (Pair::fresh(), Vec::new());
    let moved = || pair::path(&p.c) == Some(Path::Shm);
    loop {
        let next = [unread.len() as u8; 2];
        send_all(&p.c, &next);
        unread.extend(next);
        if unread.len() > 500 || moved() {
            break;
        }
        assert_eq!(recv_exact(&p.s, 1), [unread.remove(0)]);
    }
    assert!(!pair::expect_ring() || moved(), "no ring: {:?}", pair::why(&p.c));
    (p, unread)
}

/// The last sent bytes go by the kernel again, behind doorbells that only we can distinguish from bytes.
fn spliced_around_doorbells() {
    let (p, unread) = mixed();
    net::shutdown(&p.c, libc::SHUT_WR).unwrap();
    net::await_events(&p.s, libc::POLLRDHUP);
    assert_same(&spliced(&p.s, unread.len()), &unread);
    assert_eq!(net::splice(&p.s, &net::pipe().1, 1), Ok(0));
    send_all(&p.s, b"on");
    assert_eq!(recv_exact(&p.c, 2), b"on");

    let (p, unread) = mixed();
    drop(p.c);
    net::await_events(&p.s, libc::POLLRDHUP);
    assert_same(&spliced(&p.s, unread.len()), &unread);
    assert_eq!(net::splice(&p.s, &net::pipe().1, 1), Ok(0));
}

/// A connection that its peer has reset, with so much unread that it lies in the ring.
fn reset_behind(n: usize) -> (OwnedFd, Vec<u8>) {
    let p = Pair::warm();
    let sent: Vec<u8> = (0..n).map(|i| (i * 7 + (i >> 9)) as u8).collect();
    send_all(&p.s, b"never read");
    send_all(&p.c, &sent);
    drop(p.c);
    net::await_events(&p.s, POLLERR);
    (p.s, sent)
}

fn file(fd: &OwnedFd, mode: &std::ffi::CStr) -> *mut libc::FILE {
    // SAFETY: a descriptor of its own, and a string.
    let file = unsafe { libc::fdopen(net::dup(fd).into_raw_fd(), mode.as_ptr()) };
    assert!(!file.is_null());
    file
}

/// Bytes come back by the other end's descriptor that is left, whichever of them it moved by, or left its ring by.
fn found_by_another_descriptor() {
    let onto_stdin = |fd: &OwnedFd| {
        // SAFETY: this process reads nothing there.
        assert_eq!(unsafe { libc::dup2(fd.as_raw_fd(), 0) }, 0);
        drop(net::new_fd(0));
    };
    let p = Pair::fresh();
    let copy = net::dup(&p.c);
    for _ in 0..20 {
        send_all(&copy, b"?");
        recv_exact(&p.s, 1);
        send_all(&p.s, b"!");
        recv_exact(&copy, 1);
    }
    drop(copy);
    p.warm_up();
    send_all(&p.c, b"unread");
    onto_stdin(&p.s);
    assert_eq!(recv_exact(&p.s, 6), b"unread");
    send_all(&p.s, b"answer");
    assert_eq!(recv_exact(&p.c, 6), b"answer", "still connected");

    let p = small();
    let sent = fill(&p.s);
    onto_stdin(&p.s);
    onto_stdin(&p.c);
    assert_eq!(recv_exact(&p.c, sent.len()), sent);
    send_all(&p.c, b"answer");
    assert_eq!(recv_exact(&p.s, 6), b"answer", "still connected");
}

/// The peer half-closes between any two of the system calls by which a FILE is made of what is unread.
fn half_closed_at_any_time_beside_a_file() {
    let sent: Vec<u8> = (0..5000).map(|i| (i * 7 + (i >> 9)) as u8).collect();
    let reads = |at| {
        let ((go, goes), (done, does)) = (net::pipe(), net::pipe());
        let act = || {
            net::write(&goes, b"g").unwrap();
            // It may have to wait for this end.
            net::poll(&done, libc::POLLIN, 50);
        };
        crate::traced::at_stop(at, act, |mark| {
            let p = Pair::warm();
            send_all(&p.c, &sent[..4000]);
            let ends = || {
                net::read(&go, &mut [0]).unwrap();
                send_all(&p.c, &sent[4000..]);
                net::shutdown(&p.c, libc::SHUT_WR).unwrap();
                net::write(&does, b"d").unwrap();
            };
            let reads = || {
                mark();
                let file = file(&p.s, c"r");
                mark();
                let mut got = vec![0; 6000];
                // SAFETY: our own memory, and a FILE that is open.
                let n = unsafe { libc::fread(got.as_mut_ptr().cast(), 1, got.len(), file) };
                assert_same(&got[..n], &sent);
                // SAFETY: open.
                unsafe { libc::fclose(file) };
            };
            crate::both(ends, reads);
        })
    };
    (1..).take_while(|at| reads(*at)).count();
}

fn read_by_a_file() {
    let (fd, sent) = reset_behind(40_000);
    let file = file(&fd, c"r");
    let mut got = vec![0; 50_000];
    // SAFETY: our own memory, and a FILE that is open.
    let n = unsafe { libc::fread(got.as_mut_ptr().cast(), 1, got.len(), file) };
    assert_same(&got[..n], &sent);
    // SAFETY: open.
    unsafe { libc::fclose(file) };
}

/// A FILE for both directions is made of what a killed peer has left, and written to first.
fn written_by_a_file_for_both() {
    let fd = pair::left_by_a_killed_peer(|fd| send_all(fd, b"hello"));
    net::await_events(&fd, libc::POLLRDHUP);
    let file = file(&fd, c"r+");
    // SAFETY: open.
    assert_eq!(unsafe { (libc::fputc(i32::from(b'x'), file), libc::fflush(file)) }, (i32::from(b'x'), 0));
    assert_eq!(recv_exact(&fd, 5), b"hello");
    // SAFETY: open.
    unsafe { libc::fclose(file) };
}

fn beside_a_file_that_writes() {
    let (fd, sent) = reset_behind(40_000);
    let file = file(&fd, c"w");
    assert_same(&recv_exact(&fd, sent.len()), &sent);
    // SAFETY: open.
    unsafe { libc::fclose(file) };
}

/// A peer that had read everything was killed: that is an end of the stream, and the next bytes are taken.
fn written_by_a_file_behind_a_kill() {
    let fd = pair::left_by_a_killed_peer(|_| ());
    let file = file(&fd, c"w");
    // SAFETY: open.
    unsafe {
        assert_eq!((libc::fputc(i32::from(b'x'), file), libc::fflush(file)), (i32::from(b'x'), 0));
        libc::fclose(file);
    }
}

/// A receive has taken the bytes before a reset; a FILE gets the reset.
fn error_told_to_a_file() {
    let Pair { c, s } = Pair::warm();
    send_all(&s, b"unread");
    send_all(&c, b"1");
    drop(c);
    let mut bytes = [0; 2];
    assert_eq!(net::recv(&s, &mut bytes, 0), Ok(1));
    let file = file(&s, c"r");
    // SAFETY: open.
    unsafe {
        assert_eq!((libc::fgetc(file), net::errno()), (libc::EOF, ECONNRESET));
        libc::fclose(file);
    }
}

/// Another number is given to a socket that was reset, with more unread than a window holds: poll(2) shows both.
fn moved_behind_a_reset() {
    let (fd, sent) = reset_behind(600_000);
    // SAFETY: the test reads nothing by that number.
    assert_eq!(unsafe { libc::dup2(fd.as_raw_fd(), 0) }, 0);
    assert_eq!(
        net::poll(&fd, libc::POLLIN | libc::POLLRDHUP, 0),
        libc::POLLIN | libc::POLLRDHUP | POLLERR | libc::POLLHUP
    );
    assert_same(&recv_exact(&fd, 1000), &sent[..1000]);
}

/// The same for a killed peer that a send has found gone: the kernel reports that by itself.
fn moved_behind_a_broken_pipe() {
    let fd = pair::left_by_a_killed_peer(|fd| send_all(fd, b"hello"));
    net::await_events(&fd, libc::POLLRDHUP);
    assert_eq!(net::send(&fd, b"taken", 0), Ok(5));
    net::await_events(&fd, POLLERR);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::dup2(fd.as_raw_fd(), 0) }, 0);
    assert_eq!(
        net::poll(&fd, libc::POLLIN | libc::POLLRDHUP, 0),
        libc::POLLIN | libc::POLLRDHUP | POLLERR | libc::POLLHUP
    );
    assert_eq!(recv_exact(&fd, 5), b"hello");
    assert_eq!(net::take_error(&fd), libc::EPIPE);
}

/// Sockets that a command must not read are closed on exec for the time that it takes to make one.
fn flags_of_what_was_withheld() {
    let fd = pair::left_by_a_killed_peer(|fd| send_all(fd, b"hello"));
    let others = [net::dup(&fd), net::dup(&fd)];
    let all = || others.iter().chain([&fd]);
    all().for_each(|fd| _ = net::fcntl(fd, libc::F_SETFD, 0).unwrap());
    // Another process holds it, too.
    let child = net::fork(|| {
        assert!(Command::new("true").status().unwrap().success());
        all().for_each(|fd| assert_eq!(net::fcntl(fd, libc::F_GETFD, 0), Ok(0)));
        0
    });
    assert_eq!(net::wait(child), 0);
    assert_eq!(recv_exact(&fd, 5), b"hello");
}

/// A program that knows nothing of rings reads what is there as its standard input.
fn inherited_with_small_buffers() {
    let p = small();
    let mut sent = fill(&p.c);
    let stdin = Stdio::from(net::dup(&p.s));
    let cat = Command::new("cat").env_clear().stdin(stdin).stdout(Stdio::piped()).spawn().unwrap();
    sent.extend(b"more");
    // Beside the reader of its output: there may be more on the way than pipe and socket hold.
    let more = || {
        send_all(&p.c, b"more");
        net::shutdown(&p.c, libc::SHUT_WR).unwrap();
    };
    both(more, || {
        let told = cat.wait_with_output().unwrap();
        assert!(told.status.success());
        assert_same(&told.stdout, &sent);
    });
}

/// A child becomes another program, which has the socket by accident: what a killed peer left is the parent's.
fn left_to_a_parent() {
    let fd = pair::left_by_a_killed_peer(|fd| send_all(fd, &[7; 300]));
    let child = net::fork(|| {
        let _ = Command::new("true").exec();
        1
    });
    assert_eq!(net::wait(child), 0);
    assert_eq!(recv_exact(&fd, 300), [7; 300]);
    assert_eq!(net::read(&fd, &mut [0; 1]), Ok(0));
}

/// A process fails to become another program, while a child has the socket, too.
fn left_when_exec_fails() {
    let fd = pair::left_by_a_killed_peer(|fd| send_all(fd, &[7; 300]));
    net::fcntl(&fd, libc::F_SETFD, 0).unwrap();
    let child = net::fork(|| {
        net::sleep_ms(300);
        0
    });
    let _ = Command::new("/nonexistent").exec();
    assert_eq!(net::get(&fd, libc::SOL_SOCKET, libc::SO_DOMAIN), Ok(libc::AF_INET), "the same socket");
    assert_eq!(recv_exact(&fd, 300), [7; 300]);
    assert_eq!(net::read(&fd, &mut [0; 1]), Ok(0));
    assert_eq!(net::wait(child), 0);
}

/// A child has taken what was in the ring, and the doorbells behind it: what has come since is the parent's.
fn left_by_a_child() {
    let p = Pair::warm();
    send_all(&p.c, b"1");
    let (out, input) = net::pipe();
    let child = net::fork(|| {
        send_all(&p.s, b"2");
        assert_eq!(recv_exact(&p.s, 1), b"1");
        send_all(&p.s, b"3");
        assert_eq!(recv_exact(&p.s, 1), b"4");
        net::write(&input, b"done").unwrap();
        0
    });
    assert_eq!(recv_exact(&p.c, 2), b"23");
    send_all(&p.c, b"4");
    assert_eq!(net::read(&out, &mut [0; 4]), Ok(4));
    send_all(&p.c, b"5");
    net::await_events(&p.s, libc::POLLIN);
    assert_eq!(net::readable(&p.s), 1);
    assert_eq!(recv_exact(&p.s, 1), b"5");
    assert_eq!(net::wait(child), 0);
}

/// A child keeps both ends, which its parent has closed, and runs a program that has one of them by accident.
fn kept_beside_a_command() {
    let ((p, unread), (out, input)) = (mixed(), net::pipe());
    let child = net::fork(|| {
        assert_eq!(net::read(&out, &mut [0; 1]), Ok(1));
        let inherited = net::dup(&p.s);
        // SAFETY: a string.
        assert_eq!(unsafe { libc::system(c"true".as_ptr()) }, 0);
        assert_same(&recv_exact(&inherited, unread.len()), &unread);
        send_all(&inherited, b"on");
        assert_eq!(recv_exact(&p.c, 2), b"on");
        0
    });
    drop(p);
    net::write(&input, b"g").unwrap();
    assert_eq!(net::wait(child), 0);
}
