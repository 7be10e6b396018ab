//! Signals between two sleeps of one call: it ends as the one sleep of the kernel's would.
#![allow(unsafe_code)]

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use libc::{EINTR, POLLIN, SIGUSR1, pollfd};
use madrigal_tests::net::{self, read, send_all};
use madrigal_tests::pair::Pair;

use crate::interrupts::{HANDLER_FD, interrupting};
use crate::set::Set;

crate::checks![
    every_signal_ends_a_wait_of_a_full_sender,
    every_signal_ends_what_is_woken_for_nothing,
    waitall_interrupted_keeps_part,
    waitall_interrupted_as_bytes_come,
    peek_interrupted_sees_all,
    peek_interrupted_by_a_receive,
];

/// Such a wait sleeps again and again, and looks at the ring in between.
fn every_signal_ends_a_wait_of_a_full_sender() {
    const SIGNALS: u32 = 300;
    let p = Pair::one_way();
    net::set_nonblocking(&p.c, true);
    net::fill(&p.c, &[4; 65_536]);
    net::on_signal(SIGUSR1, net::count_signal, true);
    let set = Set::new();
    set.add(&p.c, libc::EPOLLRDHUP, 1);
    let waits: [&dyn Fn() -> Result<usize, i32>; 2] = [
        &|| {
            let mut event = libc::epoll_event { events: 0, u64: 0 };
            // SAFETY: room for one event.
            net::count(unsafe { libc::epoll_wait(set.0.as_raw_fd(), &raw mut event, 1, -1) } as isize)
        },
        &|| net::poll_many(&mut [pollfd { fd: p.c.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 }], -1),
    ];
    for wait in waits {
        for attempt in 0..SIGNALS {
            // At any point of a sleep's time, and of a poll.
            let later = u64::from(attempt * 7 % 1_100);
            let me = net::this_thread();
            // SAFETY: no pointers.
            let tid = unsafe { libc::gettid() };
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    crate::await_asleep(tid);
                    spin(later);
                    net::signal_thread(me, SIGUSR1);
                });
                assert_eq!(wait(), Err(EINTR));
            });
        }
    }
    assert_eq!(net::signals(), 2 * SIGNALS);
}

/// Spins for so many microseconds.
fn spin(micros: u64) {
    let until = Instant::now() + Duration::from_micros(micros);
    while Instant::now() < until {
        std::hint::spin_loop();
    }
}

/// A receive and another call sleep, one byte comes, and a receive gets it: the other call sleeps on, or returns. A signal handler that
/// runs between two of its sleeps always ends it.
fn every_signal_ends_what_is_woken_for_nothing() {
    net::on_signal(SIGUSR1, net::count_signal, false);
    let p = Pair::warm();
    let set = Set::new();
    set.add(&p.s, libc::EPOLLIN, 1);
    let calls: [Call<'_>; 3] = [
        &|| read(&p.s, &mut [0; 1]),
        &|| net::poll_many(&mut [pollfd { fd: p.s.as_raw_fd(), events: POLLIN, revents: 0 }], -1),
        &|| {
            let mut event = libc::epoll_event { events: 0, u64: 0 };
            // SAFETY: room for one event.
            net::count(unsafe { libc::epoll_wait(set.0.as_raw_fd(), &raw mut event, 1, -1) } as isize)
        },
    ];
    for (kind, call) in calls.into_iter().enumerate() {
        let hung: u64 =
            (0..40).map(|attempt| u64::from(sleeps_on_behind_a_signal(&p, (call, kind == 0), attempt * 4))).sum();
        assert_eq!(hung, 0, "so many calls of kind {kind} slept on behind a signal");
    }
}

type Call<'a> = &'a (dyn Fn() -> Result<usize, i32> + Sync);

/// `reads`: the call is a receive, too; `later`: after so many microseconds the signal comes.
fn sleeps_on_behind_a_signal(p: &Pair, (call, reads): (Call<'_>, bool), later: u64) -> bool {
    let ids = [const { (AtomicI32::new(0), AtomicU64::new(0)) }; 2];
    let ended = AtomicU32::new(0);
    let run = |(tid, thread): &(AtomicI32, AtomicU64), call: Call<'_>| {
        thread.store(net::this_thread(), Ordering::SeqCst);
        // SAFETY: no pointers.
        tid.store(unsafe { libc::gettid() }, Ordering::SeqCst);
        let got = call();
        ended.fetch_add(1, Ordering::SeqCst);
        while ended.load(Ordering::SeqCst) < 2 {
            net::sleep_ms(1);
        }
        got
    };
    let signal = || ids.each_ref().map(|(_, thread)| net::signal_thread(thread.load(Ordering::SeqCst), SIGUSR1));
    let receive = || read(&p.s, &mut [0; 1]);
    let (got, hung) = std::thread::scope(|scope| {
        let calls = [scope.spawn(|| run(&ids[0], &receive)), scope.spawn(|| run(&ids[1], call))];
        for (tid, _) in &ids {
            while tid.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            crate::await_asleep(tid.load(Ordering::SeqCst));
        }
        send_all(&p.c, b"x");
        spin(later);
        signal();
        let since = Instant::now();
        while ended.load(Ordering::SeqCst) < 2 && since.elapsed() < Duration::from_millis(300) {
            net::sleep_ms(1);
        }
        let hung = ended.load(Ordering::SeqCst) < 2;
        if hung {
            signal();
        }
        (calls.map(|call| call.join().unwrap()), hung)
    });
    assert!(got.iter().all(|got| [Ok(1), Err(EINTR)].contains(got)), "{got:?}");
    // If the signal came first, the byte is still there.
    let receives = if reads { 2 } else { 1 };
    if !got[..receives].contains(&Ok(1)) {
        assert_eq!(read(&p.s, &mut [0; 1]), Ok(1));
    }
    hung
}

fn waitall_interrupted_keeps_part() {
    // Restarted calls, too: a call that has got a part returns it.
    for restarts in [false, true] {
        for p in [Pair::fresh(), Pair::warm()] {
            net::on_signal(SIGUSR1, net::count_signal, restarts);
            send_all(&p.c, b"part");
            let mut b = [0; 16];
            assert_eq!(interrupting(|| net::recv(&p.s, &mut b, libc::MSG_WAITALL), || {}), Ok(4));
            assert_eq!(&b[..4], b"part");
        }
    }
}

/// A handler that runs in the moment in which bytes end a sleep ends the call, too. The thread that sleeps gets the processor, which it shares
/// with the one that wakes it, only when both are there.
fn waitall_interrupted_as_bytes_come() {
    crate::stay_here();
    let give = |tid: i32, policy: i32| {
        let parameter = libc::sched_param { sched_priority: 0 };
        // SAFETY: a parameter of our own.
        assert_eq!(unsafe { libc::sched_setscheduler(tid, policy, &raw const parameter) }, 0);
    };
    for (restarts, parts, flags) in [(false, 0, 0), (false, 4, 0), (true, 4, 0), (true, 4, libc::MSG_PEEK)] {
        let p = Pair::warm();
        net::on_signal(SIGUSR1, net::count_signal, restarts);
        net::set(&p.c, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1).unwrap();
        send_all(&p.c, &b"part"[..parts]);
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let receiver = scope.spawn(|| {
                // SAFETY: no pointers.
                tell.send((net::this_thread(), unsafe { libc::gettid() })).unwrap();
                net::recv(&p.s, &mut [0; 16], libc::MSG_WAITALL | flags)
            });
            let (thread, tid) = told.recv().unwrap();
            crate::await_asleep(tid);
            give(tid, libc::SCHED_IDLE);
            send_all(&p.c, b"more");
            net::signal_thread(thread, SIGUSR1);
            give(tid, libc::SCHED_OTHER);
            assert_eq!(receiver.join().unwrap(), Ok(parts + 4));
        });
    }
}

fn peek_interrupted_sees_all() {
    for _ in 0..20 {
        let (p, over) = (Pair::warm(), AtomicBool::new(false));
        net::set(&p.c, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1).unwrap();
        net::on_signal(SIGUSR1, net::count_signal, true);
        send_all(&p.c, b"one");
        let me = net::this_thread();
        // SAFETY: no pointers.
        let tid = unsafe { libc::gettid() };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                crate::await_asleep(tid);
                send_all(&p.c, b"two");
                // The first one may run just before the system call.
                while !over.load(Ordering::SeqCst) {
                    net::signal_thread(me, SIGUSR1);
                    net::sleep_ms(50);
                }
            });
            assert_eq!(net::recv(&p.s, &mut [0; 16], libc::MSG_PEEK | libc::MSG_WAITALL), Ok(6));
            over.store(true, Ordering::SeqCst);
        });
    }
}

extern "C" fn count_and_receive(signal: libc::c_int) {
    net::count_signal(signal);
    let _ = net::recv(HANDLER_FD.load(Ordering::SeqCst), &mut [0; 2], libc::MSG_DONTWAIT);
}

/// A peek returns the bytes that it has seen, though the handler that ends it takes a part of them.
fn peek_interrupted_by_a_receive() {
    let p = Pair::warm();
    HANDLER_FD.store(p.s.as_raw_fd(), Ordering::SeqCst);
    net::on_signal(SIGUSR1, count_and_receive, true);
    for _ in 0..20 {
        send_all(&p.c, b"abcd");
        assert_eq!(net::poll(&p.s, POLLIN, -1), POLLIN);
        let mut seen = [0; 16];
        let peek = || net::recv(&p.s, &mut seen, libc::MSG_PEEK | libc::MSG_WAITALL);
        assert_eq!(interrupting(peek, || {}), Ok(4));
        assert_eq!(&seen[..4], b"abcd");
        assert_eq!(net::recv_exact(&p.s, 2), b"cd");
    }
}
