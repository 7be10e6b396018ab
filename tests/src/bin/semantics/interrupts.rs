//! Signals: calls they end, calls that go on, masks of the waits.
#![allow(unsafe_code)]

use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use libc::{EAGAIN, EINTR, POLLIN, SIGUSR1, SIGUSR2, pollfd};
use madrigal_tests::net::{self, read, send_all};
use madrigal_tests::pair::Pair;

use crate::set::Set;

crate::checks![
    recv_interrupted,
    recv_restarts,
    recv_interrupted_by_siginterrupt,
    poll_interrupted,
    poll_interrupted_despite_restart,
    epoll_interrupted,
    select_interrupted,
    send_interrupted,
    send_restarts,
    send_restarts_while_others_end,
    send_ends_while_others_restart,
    mask_of_ppoll,
    mask_of_epoll_pwait,
    pending_signal_ends_ppoll,
    pending_signal_ends_ppoll_of_no_time,
    handler_uses_the_socket,
    interrupted_with_timeout,
    begun_again_without_waiting,
    ended_while_others_restart,
    nothing_behind_what_nobody_reads,
    ignored_signals_wake_nobody,
];

/// Ends the process should it hang.
pub(crate) fn watchdog(seconds: u32) {
    // SAFETY: no pointers.
    unsafe { libc::alarm(seconds) };
}

pub(crate) static HANDLER_FD: AtomicI32 = AtomicI32::new(-1);

extern "C" fn count_and_send(signal: libc::c_int) {
    net::count_signal(signal);
    let _ = net::send(HANDLER_FD.load(Ordering::SeqCst), b"s", 0);
}

/// Runs `blocking` here and signals this thread once it sleeps, then runs `then`.
pub(crate) fn interrupting<T>(blocking: impl FnOnce() -> T, then: impl FnOnce() + Send) -> T {
    let me = net::this_thread();
    // SAFETY: no pointers.
    let tid = unsafe { libc::gettid() };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            crate::await_asleep(tid);
            net::signal_thread(me, SIGUSR1);
            then();
        });
        blocking()
    })
}

fn recv_interrupted() {
    let p = Pair::warm();
    net::on_signal(SIGUSR1, net::count_signal, false);
    for _ in 0..3 {
        assert_eq!(interrupting(|| read(&p.s, &mut [0; 4]), || {}), Err(EINTR));
    }
    assert_eq!(net::signals(), 3);
    send_all(&p.c, b"x");
    assert_eq!(read(&p.s, &mut [0; 4]), Ok(1));
}

fn recv_restarts() {
    let p = Pair::warm();
    net::on_signal(SIGUSR1, net::count_signal, true);
    let then = || {
        while net::signals() == 0 {
            net::sleep_ms(1);
        }
        net::sleep_ms(20);
        send_all(&p.c, b"x");
    };
    assert_eq!(interrupting(|| read(&p.s, &mut [0; 4]), then), Ok(1));
}

/// siginterrupt(3) takes from a handler that calls go on behind it, and gives it back; sigignore(3) takes the handler.
fn recv_interrupted_by_siginterrupt() {
    unsafe extern "C" {
        fn sigignore(signal: libc::c_int) -> libc::c_int;
        fn siginterrupt(signal: libc::c_int, ends: libc::c_int) -> libc::c_int;
    }
    let p = Pair::warm();
    net::on_signal(SIGUSR1, net::count_signal, true);
    for ends in [true, false, true] {
        // SAFETY: no pointers.
        assert_eq!(unsafe { siginterrupt(SIGUSR1, ends.into()) }, 0);
        let before = net::signals();
        let then = || {
            while net::signals() == before {
                net::sleep_ms(1);
            }
            net::sleep_ms(20);
            if !ends {
                send_all(&p.c, b"x");
            }
        };
        let wanted = if ends { Err(EINTR) } else { Ok(1) };
        assert_eq!(interrupting(|| read(&p.s, &mut [0; 4]), then), wanted);
    }
    // SAFETY: no pointers.
    assert_eq!(unsafe { sigignore(SIGUSR1) }, 0);
    assert_eq!(interrupting(|| read(&p.s, &mut [0; 4]), || send_all(&p.c, b"x")), Ok(1));
}

fn poll_interrupted() {
    let p = Pair::warm();
    net::on_signal(SIGUSR1, net::count_signal, false);
    let mut set = [pollfd { fd: p.s.as_raw_fd(), events: POLLIN, revents: 0 }];
    assert_eq!(interrupting(|| net::poll_many(&mut set, -1), || {}), Err(EINTR));
    assert_eq!(interrupting(|| net::poll_many(&mut set, 50_000), || {}), Err(EINTR));
}

fn poll_interrupted_despite_restart() {
    let p = Pair::warm();
    net::on_signal(SIGUSR1, net::count_signal, true);
    let mut set = [pollfd { fd: p.s.as_raw_fd(), events: POLLIN, revents: 0 }];
    assert_eq!(interrupting(|| net::poll_many(&mut set, -1), || {}), Err(EINTR));
}

fn epoll_interrupted() {
    let p = Pair::warm();
    net::on_signal(SIGUSR1, net::count_signal, true);
    let set = Set::new();
    set.add(&p.s, libc::EPOLLIN, 1);
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    let wait = || {
        // SAFETY: room for one event.
        net::count(unsafe { libc::epoll_wait(set.0.as_raw_fd(), &raw mut event, 1, -1) } as isize)
    };
    assert_eq!(interrupting(wait, || {}), Err(EINTR));
}

fn select_interrupted() {
    let p = Pair::warm();
    net::on_signal(SIGUSR1, net::count_signal, true);
    // SAFETY: an all-zero set is the empty set.
    let mut set: libc::fd_set = unsafe { std::mem::zeroed() };
    // SAFETY: a small descriptor.
    unsafe { libc::FD_SET(p.s.as_raw_fd(), &raw mut set) };
    let none = ptr::null_mut();
    let wait = || {
        // SAFETY: our own set, no time.
        net::count(unsafe { libc::select(p.s.as_raw_fd() + 1, &raw mut set, none, none, ptr::null_mut()) } as isize)
    };
    assert_eq!(interrupting(wait, || {}), Err(EINTR));
}

/// A pair of which one end has sent as many bytes as fit.
fn filled() -> (Pair, usize) {
    let p = Pair::warm();
    net::set_nonblocking(&p.c, true);
    let filled = net::fill(&p.c, &[4; 65_536]);
    net::set_nonblocking(&p.c, false);
    (p, filled)
}

fn send_restarts() {
    let (p, filled) = filled();
    net::on_signal(SIGUSR1, net::count_signal, true);
    let then = || {
        while net::signals() == 0 {
            net::sleep_ms(1);
        }
        net::sleep_ms(20);
        assert_eq!(net::recv_exact(&p.s, filled).len(), filled);
    };
    assert_eq!(interrupting(|| net::send(&p.c, b"x", 0), then), Ok(1));
    assert_eq!(net::recv_exact(&p.s, 1), b"x");
}

/// What counts is the handler that runs.
fn send_restarts_while_others_end() {
    net::on_signal(SIGUSR2, net::count_signal, false);
    send_restarts();
}

fn send_ends_while_others_restart() {
    let (p, _) = filled();
    net::on_signal(SIGUSR1, net::count_signal, false);
    net::on_signal(SIGUSR2, net::count_signal, true);
    assert_eq!(interrupting(|| net::send(&p.c, b"x", 0), || {}), Err(EINTR));
    assert_eq!(net::signals(), 1);
}

fn send_interrupted() {
    let p = Pair::warm();
    net::on_signal(SIGUSR1, net::count_signal, false);
    let bytes = vec![3; 64 << 20];
    // Part of it went out: a count, not an error; when it is full: an error.
    let mut sent = 0;
    loop {
        match interrupting(|| net::send(&p.c, &bytes, 0), || {}) {
            Ok(n) => {
                assert!(n > 0 && n < bytes.len());
                sent += n;
            }
            end => break assert_eq!(end, Err(EINTR)),
        }
    }
    let mut got = 0;
    while got < sent {
        got += net::recv_exact(&p.s, (sent - got).min(1 << 20)).len();
    }
    assert_eq!(net::poll(&p.s, POLLIN, 0), 0);
}

fn mask_of_ppoll() {
    let p = Pair::warm();
    net::on_signal(SIGUSR1, net::count_signal, true);
    net::mask(SIGUSR1, true);
    let mut set = [pollfd { fd: p.s.as_raw_fd(), events: POLLIN, revents: 0 }];
    let mut open = net::signal_set(SIGUSR1);
    // SAFETY: our own set: now empty.
    unsafe { libc::sigemptyset(&raw mut open) };
    let wait = || {
        // SAFETY: our own entry and mask.
        net::count(unsafe { libc::ppoll(set.as_mut_ptr(), 1, ptr::null(), &raw const open) } as isize)
    };
    assert_eq!(interrupting(wait, || {}), Err(EINTR));
    assert_eq!(net::signals(), 1, "delivered inside the wait");
    net::signal_thread(net::this_thread(), SIGUSR1);
    assert_eq!(net::signals(), 1, "blocked again outside");
}

fn pending_signal_ends_ppoll() {
    pending_ends_ppoll(ptr::null());
}

/// The handler has run by then.
fn pending_signal_ends_ppoll_of_no_time() {
    pending_ends_ppoll(&libc::timespec { tv_sec: 0, tv_nsec: 0 });
}

fn pending_ends_ppoll(time: *const libc::timespec) {
    let p = Pair::warm();
    net::on_signal(SIGUSR1, net::count_signal, true);
    net::mask(SIGUSR1, true);
    net::signal_thread(net::this_thread(), SIGUSR1);
    let mut open = net::signal_set(SIGUSR1);
    // SAFETY: our own set: now empty.
    unsafe { libc::sigemptyset(&raw mut open) };
    let mut set = [pollfd { fd: p.s.as_raw_fd(), events: POLLIN, revents: 0 }];
    // SAFETY: our own entry, time and mask.
    let n = net::count(unsafe { libc::ppoll(set.as_mut_ptr(), 1, time, &raw const open) } as isize);
    assert_eq!((n, net::signals()), (Err(EINTR), 1));
}

fn mask_of_epoll_pwait() {
    let p = Pair::warm();
    net::on_signal(SIGUSR1, net::count_signal, true);
    net::mask(SIGUSR1, true);
    let set = Set::new();
    set.add(&p.s, libc::EPOLLIN, 1);
    let mut open = net::signal_set(SIGUSR1);
    // SAFETY: our own set: now empty.
    unsafe { libc::sigemptyset(&raw mut open) };
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    let wait = || {
        // SAFETY: room for one event, our own mask.
        let n = unsafe { libc::epoll_pwait(set.0.as_raw_fd(), &raw mut event, 1, -1, &raw const open) };
        net::count(n as isize)
    };
    assert_eq!(interrupting(wait, || {}), Err(EINTR));
    assert_eq!(net::signals(), 1);
}

fn handler_uses_the_socket() {
    // A handler that sends on the very socket the thread is sending on.
    let p = Pair::warm();
    net::on_signal(SIGUSR1, count_and_send, true);
    HANDLER_FD.store(p.c.as_raw_fd(), Ordering::SeqCst);
    let me = net::this_thread();
    let done = AtomicU32::new(0);
    let mut sent = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..200 {
                net::signal_thread(me, SIGUSR1);
                std::thread::yield_now();
            }
            done.store(1, Ordering::SeqCst);
        });
        let reader = scope.spawn(|| {
            let (mut signals, mut bytes) = (0, 0);
            let mut b = vec![0; 4096];
            loop {
                let n = read(&p.s, &mut b).unwrap();
                if n == 0 {
                    return (signals, bytes);
                }
                signals += b[..n].iter().filter(|x| **x == b's').count();
                bytes += b[..n].iter().filter(|x| **x == b'.').count();
            }
        });
        while done.load(Ordering::SeqCst) == 0 {
            sent += net::send(&p.c, &[b'.'; 100], 0).unwrap();
        }
        net::shutdown(&p.c, libc::SHUT_WR).unwrap();
        let (signals, bytes) = reader.join().unwrap();
        assert_eq!((signals, bytes), (net::signals() as usize, sent));
    });
}

fn interrupted_with_timeout() {
    let p = Pair::warm();
    net::on_signal(SIGUSR1, net::count_signal, true);
    net::set(&p.s, libc::SOL_SOCKET, libc::SO_RCVTIMEO, net::timeval(50_000)).unwrap();
    // signal(7): with a time-out set, SA_RESTART does not restart.
    assert_eq!(interrupting(|| read(&p.s, &mut [0; 4]), || {}), Err(EINTR));
}

/// A receive asleep on a socket that becomes non-blocking, and on a connection that leaves its ring; then a handler runs.
fn interrupted_when_nonblocking(signal: libc::c_int) -> Result<usize, i32> {
    let p = Pair::warm();
    net::on_signal(SIGUSR1, net::count_signal, true);
    net::on_signal(SIGUSR2, net::count_signal, false);
    let me = net::this_thread();
    // SAFETY: no pointers.
    let tid = unsafe { libc::gettid() };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            crate::await_asleep(tid);
            net::set_nonblocking(&p.s, true);
            // None of it is carried by a ring, and no byte comes.
            assert_eq!(net::send(&p.c, b"", libc::MSG_OOB), Ok(0));
            crate::await_asleep(tid);
            net::signal_thread(me, signal);
        });
        read(&p.s, &mut [0; 4])
    })
}

fn begun_again_without_waiting() {
    assert_eq!(interrupted_when_nonblocking(SIGUSR1), Err(EAGAIN));
}

fn ended_while_others_restart() {
    assert_eq!(interrupted_when_nonblocking(SIGUSR2), Err(EINTR));
}

/// A receive of no bytes that a handler ends reports no end: bytes that the peer, which lives, has not read are no sign of one.
fn nothing_behind_what_nobody_reads() {
    let p = Pair::warm();
    net::on_signal(SIGUSR1, net::count_signal, false);
    send_all(&p.c, b"never read");
    assert_eq!(net::shutdown(&p.s, libc::SHUT_RD), Ok(()));
    assert_eq!(interrupting(|| net::recv(&p.c, &mut [], libc::MSG_WAITALL), || {}), Ok(0));
    assert_eq!(net::take_error(&p.c), 0);
    // Nor is an end that the program itself has made.
    assert_eq!(net::shutdown(&p.c, libc::SHUT_RD), Ok(()));
    assert_eq!(read(&p.c, &mut [0; 4]), Ok(0));
    assert_eq!(net::take_error(&p.c), 0);
}

fn ignored_signals_wake_nobody() {
    // The kernel drops a signal that the process ignores, unless the main thread has it blocked: then another thread's call ends.
    let p = Pair::warm();
    let (end, ends) = net::pipe();
    let (begun, over) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            let set = Set::new();
            set.add(&end, libc::EPOLLIN, 1);
            set.wait(1, -1)
        });
        scope.spawn(|| {
            // The C library has all signals blocked in a thread that makes another.
            while !begun.load(Ordering::Relaxed) {
                net::sleep_ms(1);
            }
            while !over.load(Ordering::Relaxed) {
                for signal in [libc::SIGWINCH, libc::SIGCHLD, libc::SIGURG] {
                    net::kill(std::process::id() as i32, signal).unwrap();
                }
            }
        });
        scope.spawn(|| {
            for _ in 0..3000 {
                for half in [b"ab", b"cd"] {
                    send_all(&p.c, half);
                    net::sleep_ms(0);
                }
            }
        });
        begun.store(true, Ordering::Relaxed);
        for _ in 0..3000 {
            assert_eq!(net::recv(&p.s, &mut [0; 4], libc::MSG_WAITALL), Ok(4));
        }
        over.store(true, Ordering::Relaxed);
        assert_eq!(net::write(&ends, b"x"), Ok(1));
        assert_eq!(sleeper.join().unwrap(), [(1, libc::EPOLLIN)]);
    });
}
