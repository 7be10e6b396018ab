//! Several threads on one socket; cancelled threads.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::Barrier;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use libc::POLLIN;
use madrigal_tests::net::{self, read, recv_exact, send_all};
use madrigal_tests::pair::Pair;

crate::checks![
    many_readers,
    many_writers,
    reader_and_writer,
    duplex_ping_pong,
    many_pairs_at_once,
    cancelled_in_recv,
    cancelled_behind_a_close,
    cancelled_in_waits_for_all,
    cancelled_in_send,
    cancelled_as_bytes_come,
    cancelled_before_it_sleeps,
    cancelled_beside_handlers_of_both_kinds,
    readers_end_together,
    thread_per_connection,
    closed_beside_a_spawn,
    spin_and_sleep_mixed,
];

fn many_readers() {
    // Whoever gets a message: each byte is read exactly once.
    let p = Pair::warm();
    let sum = AtomicU64::new(0);
    let total = 200_000u64;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut b = [0; 64];
                while let Ok(n @ 1..) = read(&p.s, &mut b) {
                    sum.fetch_add(b[..n].iter().map(|x| u64::from(*x) + 1).sum(), Ordering::Relaxed);
                }
            });
        }
        let bytes: Vec<u8> = (0..total).map(|i| (i % 251) as u8).collect();
        for (i, part) in bytes.chunks(97).enumerate() {
            send_all(&p.c, part);
            if i % 500 == 0 {
                net::sleep_ms(2);
            }
        }
        net::shutdown(&p.c, libc::SHUT_WR).unwrap();
    });
    assert_eq!(sum.into_inner(), (0..total).map(|i| i % 251 + 1).sum());
}

fn many_writers() {
    // Small writes are whole.
    let p = Pair::warm();
    let p = &p;
    std::thread::scope(|scope| {
        for id in 1..=4u8 {
            scope.spawn(move || {
                for _ in 0..3000 {
                    assert_eq!(net::send(&p.c, &[id; 64], 0), Ok(64));
                }
            });
        }
        let mut count = [0; 5];
        for _ in 0..12_000 {
            let message = recv_exact(&p.s, 64);
            assert!(message.iter().all(|b| *b == message[0]), "a write was torn");
            count[message[0] as usize] += 1;
        }
        assert_eq!(count, [0, 3000, 3000, 3000, 3000]);
    });
}

fn reader_and_writer() {
    // One thread sends, one receives, on each end.
    let p = Pair::warm();
    let bytes: Vec<u8> = (0..4_000_000u32).map(|i| (i / 13) as u8).collect();
    let bytes = &bytes;
    std::thread::scope(|scope| {
        for (from, to) in [(&p.c, &p.s), (&p.s, &p.c)] {
            scope.spawn(move || bytes.chunks(10_007).for_each(|part| send_all(from, part)));
            scope.spawn(move || assert!(recv_exact(to, bytes.len()) == *bytes));
        }
    });
}

fn duplex_ping_pong() {
    let p = Pair::warm();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..20_000 {
                send_all(&p.s, &recv_exact(&p.s, 8));
            }
        });
        for i in 0..20_000u64 {
            send_all(&p.c, &i.to_ne_bytes());
            assert_eq!(recv_exact(&p.c, 8), i.to_ne_bytes());
        }
    });
    p.assert_in_rings();
}

fn many_pairs_at_once() {
    let pairs: Vec<Pair> = (0..12).map(|_| Pair::warm()).collect();
    std::thread::scope(|scope| {
        for p in &pairs {
            scope.spawn(|| {
                for _ in 0..500 {
                    send_all(&p.s, &recv_exact(&p.s, 8));
                }
            });
            scope.spawn(|| {
                for i in 0..500u64 {
                    send_all(&p.c, &i.to_ne_bytes());
                    assert_eq!(recv_exact(&p.c, 8), i.to_ne_bytes());
                }
            });
        }
    });
}

type Call = unsafe extern "C-unwind" fn(c_int, *mut c_void, usize, c_int) -> isize;

unsafe extern "C-unwind" {
    fn recv(fd: c_int, buf: *mut c_void, n: usize, flags: c_int) -> isize;
    fn send(fd: c_int, buf: *mut c_void, n: usize, flags: c_int) -> isize;
    fn pthread_cancel(thread: libc::pthread_t) -> c_int;
    fn _pthread_cleanup_push(cleanup: *mut [usize; 4], routine: extern "C" fn(*mut c_void), arg: *mut c_void);
    fn _pthread_cleanup_pop(cleanup: *mut [usize; 4], runs: c_int);
}

static IDLE: libc::sched_param = libc::sched_param { sched_priority: 0 };
static CANCEL_TID: AtomicI32 = AtomicI32::new(0);
/// What the end of a cancelled thread found: 1 where it could be interrupted by a signal, else 2.
static CANCEL_MASK: AtomicI32 = AtomicI32::new(0);

/// A call that blocks for ever. If it is idle, the thread gets a processor only when no other thread wants it; if it is over, the thread has
/// cancelled itself before.
struct Blocking {
    call: Call,
    fd: c_int,
    memory: *mut c_void,
    len: usize,
    flags: c_int,
    idle: bool,
    over: bool,
}

extern "C" fn note_mask(_: *mut c_void) {
    let mut set = net::signal_set(libc::SIGUSR1);
    // SAFETY: our own set.
    let blocked = unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &raw mut set);
        libc::sigismember(&raw const set, libc::SIGUSR1)
    };
    CANCEL_MASK.store(1 + blocked, Ordering::SeqCst);
}

/// Blocks for ever; no Rust value needs to be dropped on the way out.
extern "C-unwind" fn blocked(what: *mut c_void) -> *mut c_void {
    // SAFETY: what `cancelled` gave, which outlives this thread; a parameter and a buffer of our own.
    unsafe {
        let Blocking { call, fd, memory, len, flags, idle, over } = *what.cast::<Blocking>();
        if idle {
            libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const IDLE);
        }
        CANCEL_TID.store(libc::gettid(), Ordering::SeqCst);
        if over {
            pthread_cancel(libc::pthread_self());
        }
        let mut cleanup = [0; 4];
        _pthread_cleanup_push(&raw mut cleanup, note_mask, ptr::null_mut());
        call(fd, memory, len, flags);
        _pthread_cleanup_pop(&raw mut cleanup, 0);
    }
    ptr::null_mut()
}

/// Cancels a thread that sleeps in such a call, behind `first`: it ends, and its end runs under its own mask.
fn cancelled(mut what: Blocking, first: impl FnOnce()) {
    type Start = extern "C" fn(*mut c_void) -> *mut c_void;
    // SAFETY: the same function, as the type pthread_create wants; the C library is ready for it to be unwound.
    let start = unsafe { std::mem::transmute::<extern "C-unwind" fn(*mut c_void) -> *mut c_void, Start>(blocked) };
    let mut thread: libc::pthread_t = 0;
    CANCEL_TID.store(0, Ordering::SeqCst);
    CANCEL_MASK.store(0, Ordering::SeqCst);
    // SAFETY: room for the thread's name; its argument lives until it is joined.
    assert_eq!(unsafe { libc::pthread_create(&raw mut thread, ptr::null(), start, (&raw mut what).cast()) }, 0);
    while CANCEL_TID.load(Ordering::SeqCst) == 0 {
        net::sleep_ms(1);
    }
    if !what.over {
        crate::await_asleep(CANCEL_TID.load(Ordering::SeqCst));
        first();
        // SAFETY: a thread that has not been joined.
        assert_eq!(unsafe { pthread_cancel(thread) }, 0);
    }
    let mut result = ptr::null_mut();
    // SAFETY: as above.
    assert_eq!(unsafe { libc::pthread_join(thread, &raw mut result) }, 0);
    assert_eq!(result.addr() as isize, -1, "PTHREAD_CANCELED");
    assert_eq!(CANCEL_MASK.load(Ordering::SeqCst), 1, "its end has all signals blocked");
}

/// A receive that is to be cancelled.
fn receiving(fd: &impl AsRawFd, buffer: &mut [u8], flags: c_int) -> Blocking {
    let (memory, len) = (buffer.as_mut_ptr().cast(), buffer.len());
    Blocking { call: recv, fd: fd.as_raw_fd(), memory, len, flags, idle: false, over: false }
}

/// The connection, which lived as long as the call, ends with it.
fn cancelled_behind_a_close() {
    let Pair { c, s } = Pair::warm();
    let receive = receiving(&s, &mut [0; 1], 0);
    cancelled(receive, || drop(s));
    assert_eq!(read(&c, &mut [0; 1]), Ok(0));
}

fn cancelled_in_recv() {
    let p = Pair::warm();
    cancelled(receiving(&p.s, &mut [0; 1], 0), || {});
    // The socket is as usable as before.
    send_all(&p.c, b"x");
    assert_eq!(net::poll(&p.s, POLLIN, 10_000), POLLIN);
    assert_eq!(recv_exact(&p.s, 1), b"x");
    send_all(&p.s, b"y");
    assert_eq!(recv_exact(&p.c, 1), b"y");
}

/// Of which a part is there.
fn cancelled_in_waits_for_all() {
    for flags in [libc::MSG_WAITALL, libc::MSG_WAITALL | libc::MSG_PEEK] {
        let p = Pair::warm();
        send_all(&p.c, b"part");
        cancelled(receiving(&p.s, &mut [0; 16], flags), || {});
    }
}

fn cancelled_in_send() {
    let p = Pair::warm();
    let mut bytes = vec![1; 64 << 20];
    cancelled(Blocking { call: send, ..receiving(&p.c, &mut bytes, 0) }, || {});
}

/// The thread that sleeps gets the processor, which it shares with the one that cancels it, only when bytes are there, too.
fn cancelled_as_bytes_come() {
    crate::stay_here();
    let p = Pair::warm();
    send_all(&p.c, b"part");
    let call = Blocking { idle: true, ..receiving(&p.s, &mut [0; 16], libc::MSG_WAITALL) };
    cancelled(call, || send_all(&p.c, b"more"));
}

/// On its way to the sleep the call opens and closes descriptors of its own.
fn cancelled_before_it_sleeps() {
    let p = Pair::warm();
    for flags in [0, libc::MSG_WAITALL] {
        cancelled(Blocking { over: true, ..receiving(&p.s, &mut [0; 16], flags) }, || {});
    }
    send_all(&p.c, b"x");
    assert_eq!(recv_exact(&p.s, 1), b"x");
}

/// In a sleep that some handlers end and others do not: no descriptor of it stays open.
fn cancelled_beside_handlers_of_both_kinds() {
    let p = Pair::warm();
    net::on_signal(libc::SIGUSR1, net::count_signal, true);
    net::on_signal(libc::SIGUSR2, net::count_signal, false);
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    let sleeps = || {
        net::set_nonblocking(&p.s, true);
        // None of it is carried by a ring, and no byte comes.
        assert_eq!(net::send(&p.c, b"", libc::MSG_OOB), Ok(0));
        crate::await_asleep(CANCEL_TID.load(Ordering::SeqCst));
    };
    cancelled(receiving(&p.s, &mut [0; 1], 0), sleeps);
    assert_eq!(open(), before);
}

fn readers_end_together() {
    let Pair { c, s } = Pair::warm();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(read(&s, &mut [0; 4]), Ok(0)));
        }
        net::sleep_ms(30);
        drop(c);
    });
}

fn thread_per_connection() {
    let (listener, addr) = net::listener(madrigal_tests::pair::loopback());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..30 {
                let s = net::accept(&listener, 0).unwrap();
                scope.spawn(move || {
                    let mut b = [0; 256];
                    while let Ok(n @ 1..) = read(&s, &mut b) {
                        send_all(&s, &b[..n]);
                    }
                });
            }
        });
        for _ in 0..6 {
            scope.spawn(|| {
                for _ in 0..5 {
                    let c = net::client(addr);
                    for i in 0..300u32 {
                        send_all(&c, &i.to_ne_bytes());
                        assert_eq!(recv_exact(&c, 4), i.to_ne_bytes());
                    }
                }
            });
        }
    });
}

/// A connection leaves its ring for the sake of a child while another thread closes it: what that opens next has the same descriptor.
fn closed_beside_a_spawn() {
    let (listener, addr) = net::listener(madrigal_tests::pair::loopback());
    let (barrier, rounds) = (Barrier::new(2), 150);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..rounds {
                barrier.wait();
                spawn_nothing();
                barrier.wait();
            }
        });
        for round in 0..rounds {
            let p = Pair::over(&listener, addr);
            p.warm_up();
            assert_eq!(net::fcntl(&p.s, libc::F_SETFD, 0), Ok(0));
            send_all(&p.c, &[1; 20_000]);
            barrier.wait();
            std::thread::sleep(Duration::from_micros(round % 50));
            drop(p.s);
            let next = Pair::over(&listener, addr);
            for i in 0..20u8 {
                send_all(&next.s, &[i]);
                assert_eq!(recv_exact(&next.c, 1), [i]);
            }
            barrier.wait();
        }
    });
}

/// A directory cannot be executed, so that there is no child to wait for.
fn spawn_nothing() {
    let (mut child, none) = (0, [ptr::null_mut()]);
    // SAFETY: an empty list twice.
    let error = unsafe {
        libc::posix_spawn(&raw mut child, c"/".as_ptr(), ptr::null(), ptr::null(), none.as_ptr(), none.as_ptr())
    };
    assert_eq!(error, libc::EACCES);
}

fn spin_and_sleep_mixed() {
    // Answers that come now at once, now late, now by one reader, now by another.
    let p = Pair::warm();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0..3000u32 {
                let message = recv_exact(&p.s, 4);
                if i % 100 == 7 {
                    net::sleep_ms(3);
                }
                send_all(&p.s, &message);
            }
        });
        for i in 0..3000u32 {
            if i % 130 == 11 {
                net::sleep_ms(4);
            }
            send_all(&p.c, &i.to_ne_bytes());
            assert_eq!(recv_exact(&p.c, 4), i.to_ne_bytes());
        }
    });
}
