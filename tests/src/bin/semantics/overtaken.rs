//! Calls that another thread's close(2) overtakes: they go on by the connection, which lives as long as they do.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::sync::mpsc;
use std::thread::{Scope, ScopedJoinHandle};

use libc::{EPOLLIN, POLLIN};
use madrigal_tests::net::{self, read, recv_exact, recv_up_to, send_all};
use madrigal_tests::pair::Pair;

use crate::set::Set;

crate::checks![
    reader_goes_on,
    reader_finds_end,
    reader_finds_reset,
    readers_go_on,
    reader_of_a_number_used_again,
    reader_for_a_time_of_a_number_used_again,
    look_for_all_of_a_number_used_again,
    reader_of_a_shut_direction,
    reader_of_a_range,
    reader_of_one_of_two,
    reader_of_all_goes_on,
    reader_in_a_set,
    reader_beside_a_fork,
    reader_ended_by_a_signal,
    sender_goes_on,
    sender_of_a_number_used_again,
    sender_finds_reset,
    file_goes_on,
    messages_leave_the_next_alone,
    poll_ends_with_the_number,
    call_beside_a_close,
];

/// A thread that makes this call, once it sleeps.
fn asleep<'s, T: Send + 's>(
    scope: &'s Scope<'s, '_>,
    call: impl FnOnce() -> T + Send + 's,
) -> (ScopedJoinHandle<'s, T>, libc::pthread_t) {
    let (send, ready) = mpsc::channel();
    let thread = scope.spawn(move || {
        // SAFETY: no pointers.
        send.send((unsafe { libc::gettid() }, net::this_thread())).unwrap();
        call()
    });
    let (tid, name) = ready.recv().unwrap();
    crate::await_asleep(tid);
    (thread, name)
}

fn read_some(number: i32) -> Result<Vec<u8>, i32> {
    let mut b = [0; 16];
    read(number, &mut b).map(|n| b[..n].to_vec())
}

/// A reader of `s` falls asleep, `s` is closed by `close`, and the reader ends once `rest` is done.
fn overtake(s: OwnedFd, close: impl FnOnce(i32), rest: impl FnOnce()) -> Result<Vec<u8>, i32> {
    let number = s.into_raw_fd();
    std::thread::scope(|scope| {
        let (reader, _) = asleep(scope, move || read_some(number));
        close(number);
        rest();
        reader.join().unwrap()
    })
}

fn close(number: i32) {
    drop(net::new_fd(number));
}

fn assert_ended(c: &OwnedFd) {
    assert_eq!(net::poll(c, POLLIN, 10_000) & POLLIN, POLLIN);
    assert_eq!(read(c, &mut [0; 4]), Ok(0));
}

fn reader_goes_on() {
    let Pair { c, s } = Pair::warm();
    let got = overtake(s, close, || {
        assert_eq!(net::poll(&c, POLLIN, 30), 0, "no end before the reader's");
        send_all(&c, b"x");
    });
    assert_eq!(got, Ok(b"x".to_vec()));
    assert_ended(&c);
}

fn reader_finds_end() {
    let Pair { c, s } = Pair::warm();
    assert_eq!(overtake(s, close, || net::shutdown(&c, libc::SHUT_WR).unwrap()), Ok(vec![]));
    assert_ended(&c);
}

fn reader_finds_reset() {
    let Pair { c, s } = Pair::warm();
    net::linger(&c, 0);
    assert_eq!(overtake(s, close, || drop(c)), Err(libc::ECONNRESET));
}

/// The connection lives until the last of them has ended.
fn readers_go_on() {
    let Pair { c, s } = Pair::warm();
    let number = s.into_raw_fd();
    std::thread::scope(|scope| {
        let readers = [(), (), ()].map(|()| asleep(scope, move || read_some(number)).0);
        close(number);
        for _ in 0..readers.len() {
            assert_eq!(net::poll(&c, POLLIN, 20), 0);
            send_all(&c, b"x");
            net::sleep_ms(10);
        }
        for reader in readers {
            assert_eq!(reader.join().unwrap(), Ok(b"x".to_vec()));
        }
    });
    assert_ended(&c);
}

/// The number is another connection's: the reader leaves that alone.
fn reader_of_a_number_used_again() {
    let (Pair { c, s }, other) = (Pair::warm(), Pair::warm());
    let number = s.as_raw_fd();
    // SAFETY: numbers of our own.
    let over = |number| assert_eq!(unsafe { libc::dup2(other.s.as_raw_fd(), number) }, number);
    let got = overtake(s, over, || {
        send_all(&other.c, b"new");
        assert_eq!(net::poll(&c, POLLIN, 30), 0);
        send_all(&c, b"old");
    });
    assert_eq!(got, Ok(b"old".to_vec()));
    assert_eq!(recv_exact(number, 3), b"new");
    assert_ended(&c);
    close(number);
    send_all(&other.c, b"on");
    assert_eq!(recv_exact(&other.s, 2), b"on");
}

/// The number of `s`, in which `read` sleeps, becomes that of a pipe without events.
fn used_again(Pair { c, s }: Pair, read: impl FnOnce(i32) -> Result<usize, i32> + Send) -> OwnedFd {
    let (out, _input) = net::pipe();
    let number = s.into_raw_fd();
    std::thread::scope(|scope| {
        let (reader, _) = asleep(scope, move || read(number));
        // SAFETY: numbers of our own.
        assert_eq!(unsafe { libc::dup2(out.as_raw_fd(), number) }, number);
        send_all(&c, b"old");
        assert_eq!(reader.join().unwrap(), Ok(3));
    });
    close(number);
    c
}

/// It sleeps for a time, which is by poll(2).
fn reader_for_a_time_of_a_number_used_again() {
    let pair = Pair::warm();
    net::set(&pair.s, libc::SOL_SOCKET, libc::SO_RCVTIMEO, net::timeval(20_000)).unwrap();
    assert_ended(&used_again(pair, |number| read(number, &mut [0; 16])));
}

/// The same, where some handlers of the program's end calls, and others do not.
fn look_for_all_of_a_number_used_again() {
    net::on_signal(libc::SIGUSR1, net::count_signal, true);
    net::on_signal(libc::SIGUSR2, net::count_signal, false);
    let peek = |number| net::recv(number, &mut [0; 3], libc::MSG_PEEK | libc::MSG_WAITALL);
    let c = used_again(Pair::warm(), peek);
    // Peeked bytes are unread.
    assert_eq!(net::poll(&c, POLLIN, 10_000) & POLLIN, POLLIN);
    assert_eq!(read_some(c.as_raw_fd()), Err(libc::ECONNRESET));
}

/// Another thread shuts the direction that it reads. The peer's next action is reported all the same.
fn reader_of_a_shut_direction() {
    for linger in [false, true] {
        let Pair { c, s } = Pair::warm();
        // Unread, and so a reset.
        send_all(&s, b"x");
        assert_eq!(net::poll(&c, POLLIN, 10_000), POLLIN);
        std::thread::scope(|scope| {
            let number = s.as_raw_fd();
            let (reader, _) = asleep(scope, move || read_some(number));
            net::shutdown(&s, libc::SHUT_RD).unwrap();
            assert_eq!(reader.join().unwrap(), Ok(vec![]));
        });
        if linger {
            net::linger(&c, 0);
        }
        drop(c);
        // No call may check for it before the read does.
        net::sleep_ms(100);
        assert_eq!(read_some(s.as_raw_fd()), Err(libc::ECONNRESET));
        assert_eq!(read_some(s.as_raw_fd()), Ok(vec![]));
    }
}

fn reader_of_a_range() {
    let Pair { c, s } = Pair::warm();
    // SAFETY: numbers of our own.
    let close = |n: i32| assert_eq!(unsafe { libc::close_range(n as u32, n as u32, 0) }, 0);
    assert_eq!(overtake(s, close, || send_all(&c, b"x")), Ok(b"x".to_vec()));
    assert_ended(&c);
}

fn reader_of_one_of_two() {
    let Pair { c, s } = Pair::warm();
    let copy = net::dup(&s);
    assert_eq!(overtake(s, close, || send_all(&c, b"x")), Ok(b"x".to_vec()));
    send_all(&c, b"y");
    assert_eq!(recv_exact(&copy, 1), b"y");
}

/// It has a part when its descriptor is closed, and waits for the rest.
fn reader_of_all_goes_on() {
    let Pair { c, s } = Pair::warm();
    let number = s.into_raw_fd();
    std::thread::scope(|scope| {
        send_all(&c, b"ab");
        let mut b = [0; 5];
        let (reader, _) = asleep(scope, move || net::recv(number, &mut b, libc::MSG_WAITALL).map(|n| (n, b)));
        close(number);
        assert_eq!(net::poll(&c, POLLIN, 20), 0);
        send_all(&c, b"cde");
        assert_eq!(reader.join().unwrap(), Ok((5, *b"abcde")));
    });
    assert_ended(&c);
}

/// A set reports the connection as long as that lives.
fn reader_in_a_set() {
    let Pair { c, s } = Pair::warm();
    let set = Set::new();
    set.add(&s, EPOLLIN, 7);
    assert_eq!(set.wait(4, 0), []);
    assert_eq!(overtake(s, close, || send_all(&c, b"x")), Ok(b"x".to_vec()));
    assert_ended(&c);
    drop(c);
    assert_eq!(set.wait(4, 20), []);
}

/// A child that is made meanwhile has nothing of it.
fn reader_beside_a_fork() {
    let Pair { c, s } = Pair::warm();
    let (wait, go) = net::pipe();
    let mut child = 0;
    let got = overtake(s, close, || {
        child = net::fork(|| {
            net::close_in_child(&c);
            net::close_in_child(&go);
            i32::from(read(&wait, &mut [0; 1]) != Ok(0))
        });
        send_all(&c, b"x");
    });
    assert_eq!(got, Ok(b"x".to_vec()));
    assert_ended(&c);
    drop(go);
    assert_eq!(net::wait(child), 0);
}

/// A call that is restarted uses its number, which is closed.
fn reader_ended_by_a_signal() {
    for (restarts, error) in [(true, libc::EBADF), (false, libc::EINTR)] {
        let Pair { c, s } = Pair::warm();
        net::on_signal(libc::SIGUSR1, net::count_signal, restarts);
        let number = s.into_raw_fd();
        std::thread::scope(|scope| {
            let (reader, name) = asleep(scope, move || read_some(number));
            close(number);
            net::signal_thread(name, libc::SIGUSR1);
            assert_eq!(reader.join().unwrap(), Err(error));
        });
        assert_ended(&c);
    }
}

const MUCH: usize = 8 << 20;

fn sender_goes_on() {
    let Pair { c, s } = Pair::warm();
    let number = s.into_raw_fd();
    let bytes: Vec<u8> = (0..MUCH).map(|i| (i % 251) as u8).collect();
    std::thread::scope(|scope| {
        let (sender, _) = asleep(scope, || net::send(number, &bytes, 0));
        close(number);
        net::sleep_ms(20);
        assert!(recv_exact(&c, MUCH) == bytes);
        assert_eq!(sender.join().unwrap(), Ok(MUCH));
    });
    assert_ended(&c);
}

fn sender_of_a_number_used_again() {
    let Pair { c, s } = Pair::warm();
    let (_out, input) = net::pipe();
    // No room, until the end.
    net::set_nonblocking(&input, true);
    while net::write(&input, &[0; 4096]).is_ok() {}
    net::set(&s, libc::SOL_SOCKET, libc::SO_SNDTIMEO, net::timeval(20_000)).unwrap();
    let number = s.into_raw_fd();
    let bytes: Vec<u8> = (0..MUCH).map(|i| (i % 251) as u8).collect();
    std::thread::scope(|scope| {
        let (sender, _) = asleep(scope, || net::send(number, &bytes, 0));
        // SAFETY: numbers of our own.
        assert_eq!(unsafe { libc::dup2(input.as_raw_fd(), number) }, number);
        net::sleep_ms(20);
        assert!(recv_exact(&c, MUCH) == bytes);
        assert_eq!(sender.join().unwrap(), Ok(MUCH));
    });
    assert_ended(&c);
    close(number);
}

fn sender_finds_reset() {
    let Pair { c, s } = Pair::warm();
    let number = s.into_raw_fd();
    let bytes = vec![0; MUCH];
    std::thread::scope(|scope| {
        let (sender, _) = asleep(scope, || net::send(number, &bytes, 0));
        close(number);
        net::sleep_ms(20);
        drop(c);
        assert!(sender.join().unwrap().is_ok_and(|n| n < MUCH));
    });
}

/// A sendfile(2) whose number becomes another connection's meanwhile leaves that alone.
fn file_goes_on() {
    let (Pair { c, s }, other) = (Pair::warm(), Pair::warm());
    let number = s.into_raw_fd();
    let bytes: Vec<u8> = (0..MUCH).map(|i| (i % 251) as u8).collect();
    let file = crate::files::file_of(&bytes);
    std::thread::scope(|scope| {
        let send = || {
            let mut sent = 0;
            while sent < MUCH {
                let mut at = sent as i64;
                // SAFETY: descriptors of our own.
                let n = unsafe { libc::sendfile(number, file.as_raw_fd(), &raw mut at, MUCH - sent) };
                sent += net::count(n)?;
                if sent < MUCH {
                    break;
                }
            }
            Ok::<usize, i32>(sent)
        };
        let (sender, _) = asleep(scope, send);
        // SAFETY: numbers of our own.
        assert_eq!(unsafe { libc::dup2(other.s.as_raw_fd(), number) }, number);
        net::sleep_ms(20);
        assert!(recv_exact(&c, MUCH) == bytes);
        assert_eq!(sender.join().unwrap(), Ok(MUCH));
    });
    assert_ended(&c);
    send_all(number, b"other");
    assert_eq!(recv_exact(&other.c, 5), b"other");
    close(number);
}

/// The first of many messages sleeps, and the number becomes another connection's meanwhile: that gets none of the others.
fn messages_leave_the_next_alone() {
    let (Pair { c, s }, other) = (Pair::warm(), Pair::warm());
    let number = s.into_raw_fd();
    let bytes = vec![7; MUCH];
    std::thread::scope(|scope| {
        let send = || {
            let mut pieces = net::const_pieces(&[&bytes, b"second"]);
            let (first, second) = pieces.split_at_mut(1);
            let mut messages = [first, second].map(|iov| libc::mmsghdr { msg_hdr: net::message(iov), msg_len: 0 });
            // SAFETY: messages of our own.
            net::count(unsafe { libc::sendmmsg(number, messages.as_mut_ptr(), 2, 0) } as isize)
        };
        let (sender, _) = asleep(scope, send);
        // SAFETY: numbers of our own.
        assert_eq!(unsafe { libc::dup2(other.s.as_raw_fd(), number) }, number);
        net::sleep_ms(20);
        let got = recv_up_to(&c, MUCH + 100).len();
        let sent = sender.join().unwrap().unwrap();
        assert_eq!(got, [MUCH, MUCH + 6][sent - 1]);
    });
    send_all(number, b"other");
    assert_eq!(recv_exact(&other.c, 5), b"other");
    close(number);
}

/// poll(2) checks by number, once it is woken.
fn poll_ends_with_the_number() {
    let Pair { c, s } = Pair::warm();
    let number = s.into_raw_fd();
    std::thread::scope(|scope| {
        let (poller, _) = asleep(scope, move || net::poll(number, POLLIN, 10_000));
        close(number);
        send_all(&c, b"x");
        assert_eq!(poller.join().unwrap(), libc::POLLNVAL);
    });
}

/// Calls that begin while another thread closes find the connection's bytes or no connection; never a doorbell.
fn call_beside_a_close() {
    for round in 0..200 {
        let Pair { c, s } = Pair::warm();
        let number = s.into_raw_fd();
        std::thread::scope(|scope| {
            let (tell, told) = mpsc::channel();
            let reader = scope.spawn(move || {
                let mut got = vec![];
                net::poll(number, POLLIN, 10_000);
                tell.send(()).unwrap();
                loop {
                    let mut b = [0; 16];
                    match net::recv(number, &mut b, libc::MSG_DONTWAIT) {
                        Ok(0) | Err(libc::EBADF) => return got,
                        Ok(n) => got.extend_from_slice(&b[..n]),
                        Err(e) => assert_eq!(e, libc::EAGAIN),
                    }
                }
            });
            net::sleep_ms(1);
            send_all(&c, b"x");
            told.recv().unwrap();
            for _ in 0..round {
                std::hint::spin_loop();
            }
            // It may be unread: any report is right.
            let _ = net::send(&c, b"x", libc::MSG_NOSIGNAL);
            close(number);
            let got = reader.join().unwrap();
            assert!(got.len() <= 2 && got.iter().all(|&b| b == b'x'), "round {round}: {got:?}");
        });
    }
}
