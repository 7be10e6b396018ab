//! Sockets in other processes of the program: fork, and what becomes of what forked processes share.
#![allow(unsafe_code)]

use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Command, Stdio};

use madrigal_tests::net::{self, read, recv_exact, recv_up_to, send_all};
use madrigal_tests::pair::{self, Pair};

crate::checks![
    two_processes,
    fork_child_serves,
    fork_child_reads_parent_writes,
    fork_both_write,
    fork_parent_closes_its_copy,
    fork_with_unread_bytes,
    fork_end_only_when_last_closes,
    fork_then_earned_again,
    fork_of_the_peer_wakes_nobody,
    spawned_and_forked,
    prefork_accept,
    reset_in_a_sleep_from_before,
    slots_come_back_after_forks,
    memory_of_many_ports,
    many_clients_come_back,
    grandchild,
    exit_without_close,
    raw_fork_by_number,
];

/// Both ends in processes of their own: `client` in a child that never saw the listener.
fn split(client: impl FnOnce(OwnedFd), server: impl FnOnce(&OwnedFd)) {
    let (out, input) = net::pipe();
    let child = net::fork(|| {
        let fd = pair::client_of_port(&out);
        pair::warm_client(&fd);
        client(fd);
        assert_eq!(pair::missed_bells(), 0, "a wake-up was lost");
        0
    });
    let (listener, addr) = net::listener(pair::loopback());
    pair::send_port(&input, addr);
    let fd = net::accept(&listener, 0).unwrap();
    pair::warm_server(&fd);
    server(&fd);
    drop(fd);
    assert_eq!(net::wait(child), 0);
}

fn two_processes() {
    let bytes: Vec<u8> = (0..2_000_000u32).map(|i| (i / 3) as u8).collect();
    split(
        |fd| {
            for i in 0..2000u32 {
                send_all(&fd, &i.to_ne_bytes());
                assert_eq!(recv_exact(&fd, 4), i.to_ne_bytes());
            }
            assert!(recv_exact(&fd, bytes.len()) == bytes);
        },
        |fd| {
            for _ in 0..2000 {
                let message = recv_exact(fd, 4);
                send_all(fd, &message);
            }
            send_all(fd, &bytes);
            assert_eq!(read(fd, &mut [0; 1]), Ok(0));
        },
    );
}

fn fork_child_serves() {
    let Pair { c, s } = Pair::warm();
    let child = net::fork(|| {
        send_all(&s, &recv_exact(&s, 5));
        0
    });
    drop(s);
    send_all(&c, b"hello");
    assert_eq!(recv_exact(&c, 5), b"hello");
    assert_eq!(net::wait(child), 0);
    // The child also held a copy of our end, which is gone with it.
    assert_eq!(read(&c, &mut [0; 4]), Ok(0));
}

fn fork_child_reads_parent_writes() {
    split_by_fork(
        |p| {
            for i in 0..1000u32 {
                assert_eq!(recv_exact(&p.s, 4), i.to_ne_bytes());
            }
        },
        |p| {
            for i in 0..1000u32 {
                send_all(&p.c, &i.to_ne_bytes());
            }
        },
    );
}

/// Both processes hold both ends.
fn split_by_fork(child: impl FnOnce(&Pair), parent: impl FnOnce(&Pair)) {
    let p = Pair::warm();
    let pid = net::fork(|| {
        child(&p);
        0
    });
    parent(&p);
    assert_eq!(net::wait(pid), 0);
}

fn fork_both_write() {
    let p = Pair::warm();
    let pid = net::fork(|| {
        for _ in 0..500 {
            send_all(&p.c, b"child...");
        }
        0
    });
    for _ in 0..500 {
        send_all(&p.c, b"parent..");
    }
    let got = recv_exact(&p.s, 8000);
    let of_child = got.chunks(8).filter(|m| *m == b"child...").count();
    let of_parent = got.chunks(8).filter(|m| *m == b"parent..").count();
    assert_eq!((of_child, of_parent), (500, 500), "messages are whole");
    assert_eq!(net::wait(pid), 0);
}

fn fork_parent_closes_its_copy() {
    let Pair { c, s } = Pair::warm();
    let pid = net::fork(|| {
        for _ in 0..3000 {
            send_all(&s, &recv_exact(&s, 1));
        }
        0
    });
    drop(s);
    for i in 0..3000u32 {
        send_all(&c, &[i as u8]);
        assert_eq!(recv_exact(&c, 1), [i as u8]);
    }
    assert_eq!(net::wait(pid), 0);
}

fn fork_with_unread_bytes() {
    let p = Pair::warm();
    let bytes: Vec<u8> = (0..5000u32).map(|i| i as u8).collect();
    send_all(&p.c, &bytes[..2000]);
    let pid = net::fork(|| {
        assert!(recv_exact(&p.s, 3000) == bytes[..3000]);
        0
    });
    send_all(&p.c, &bytes[2000..]);
    assert_eq!(net::wait(pid), 0);
    assert!(recv_exact(&p.s, 2000) == bytes[3000..]);
}

fn fork_end_only_when_last_closes() {
    let Pair { c, s } = Pair::warm();
    let (out, input) = net::pipe();
    let pid = net::fork(|| {
        net::close_in_child(&c);
        // Keeps the other end until the parent writes.
        let mut b = [0; 1];
        assert_eq!(net::read(&out, &mut b), Ok(1));
        0
    });
    send_all(&c, b"x");
    drop(c);
    assert_eq!(recv_exact(&s, 1), b"x");
    assert_eq!(read(&s, &mut [0; 4]), Ok(0));
    let Pair { c, s } = Pair::warm();
    let second = net::fork(|| {
        net::close_in_child(&s);
        net::sleep_ms(50);
        send_all(&c, b"by the child");
        0
    });
    drop(c);
    net::sleep_ms(10);
    assert_eq!(net::recv(&s, &mut [0; 4], libc::MSG_DONTWAIT), Err(libc::EAGAIN), "the child still holds it");
    assert_eq!(recv_up_to(&s, 100), b"by the child");
    assert_eq!(net::wait(second), 0);
    net::write(&input, b"q").unwrap();
    assert_eq!(net::wait(pid), 0);
}

fn fork_then_earned_again() {
    let p = Pair::warm();
    let pid = net::fork(|| 0);
    assert_eq!(net::wait(pid), 0);
    // The child is gone: the connection is this process's alone, and works (by whatever way).
    for i in 0..2000u32 {
        send_all(&p.c, &i.to_ne_bytes());
        assert_eq!(recv_exact(&p.s, 4), i.to_ne_bytes());
    }
}

/// A spawned process holds the socket, too, though it is not counted (P2): the forked one is not alone when this process closes its copy.
/// A receive of nothing sleeps until something comes, and a peer that forks sends nothing.
fn fork_of_the_peer_wakes_nobody() {
    split(
        |c| {
            net::sleep_ms(50);
            assert_eq!(net::wait(net::fork(|| 0)), 0);
            net::sleep_ms(50);
            send_all(&c, b"x");
            assert_eq!(read(&c, &mut [0; 1]), Ok(0));
        },
        |s| {
            assert_eq!(net::recv(s, &mut [], libc::MSG_WAITALL), Ok(0));
            assert_eq!(net::readable(s), 1, "woken by the byte");
            assert_eq!(recv_exact(s, 1), b"x");
        },
    );
}

fn spawned_and_forked() {
    let p = inheritable();
    let (told, tells) = net::pipe();
    let forked = net::fork(|| {
        assert_eq!(read(&told, &mut [0; 1]), Ok(1));
        for i in 0..100u32 {
            send_all(&p.c, &i.to_ne_bytes());
            assert_eq!(recv_exact(&p.s, 4), i.to_ne_bytes());
            send_all(&p.s, &i.to_ne_bytes());
            assert_eq!(recv_exact(&p.c, 4), i.to_ne_bytes());
        }
        send_all(&p.c, b"hello");
        0
    });
    let script = format!("read go && exec head -c 5 <&{}", p.s.as_raw_fd());
    let mut sh = Command::new("sh").arg("-c").arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    drop(p);
    assert_eq!(net::write(&tells, b"!"), Ok(1));
    assert_eq!(net::wait(forked), 0);
    sh.stdin.take().unwrap().write_all(b"go\n").unwrap();
    assert_eq!(sh.wait_with_output().unwrap().stdout, b"hello");
}

fn prefork_accept() {
    let (listener, addr) = net::listener(pair::loopback());
    let children: Vec<i32> = (0..3)
        .map(|_| {
            net::fork(|| {
                for _ in 0..10 {
                    let s = net::accept(&listener, 0).unwrap();
                    while let Ok(n @ 1..) = read(&s, &mut [0; 1]) {
                        send_all(&s, &[b'x'; 1][..n]);
                    }
                }
                0
            })
        })
        .collect();
    let mut order: Vec<u32> = (0..30).collect();
    order.reverse();
    for _ in order {
        let c = net::client(addr);
        for _ in 0..200 {
            send_all(&c, b"x");
            assert_eq!(recv_exact(&c, 1), b"x");
        }
    }
    for child in children {
        assert_eq!(net::wait(child), 0);
    }
}

/// A pair whose accepting end survives exec.
pub(crate) fn inheritable() -> Pair {
    let p = Pair::warm();
    net::fcntl(&p.s, libc::F_SETFD, 0).unwrap();
    p
}

fn reset_in_a_sleep_from_before() {
    // A receive sleeps while its process forks, which takes the connection out of its ring; it returns the reset all the same.
    let (p, (out, input)) = (Pair::warm(), net::pipe());
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| read(&p.c, &mut [0; 16]));
        net::sleep_ms(50);
        let child = net::fork(|| {
            net::close_in_child(&p.s);
            net::close_in_child(&input);
            read(&out, &mut [0]).map_or(1, |_| 0)
        });
        for _ in 0..2 {
            send_all(&p.c, b"by the kernel");
            assert_eq!(recv_exact(&p.s, 13), b"by the kernel");
        }
        net::linger(&p.s, 0);
        net::close_in_child(&p.s);
        assert_eq!(reader.join().unwrap(), Err(libc::ECONNRESET));
        drop(input);
        assert_eq!(net::wait(child), 0);
    });
    std::mem::forget(p.s);
}

fn slots_come_back_after_forks() {
    // A session that ends while a child has it, too, is released by the last process: its place in shared memory is used again.
    let (listener, addr) = net::listener(pair::loopback());
    let warm = || {
        let p = Pair::over(&listener, addr);
        p.warm_up();
        p
    };
    let round = || {
        let (pairs, (out, input)) = ((0..20).map(|_| warm()).collect::<Vec<_>>(), net::pipe());
        let child = net::fork(|| {
            net::close_in_child(&input);
            read(&out, &mut [0]).map_or(1, |_| 0)
        });
        for p in &pairs {
            for _ in 0..4 {
                send_all(&p.c, b"to");
                assert_eq!(recv_exact(&p.s, 2), b"to");
                send_all(&p.s, b"fro");
                assert_eq!(recv_exact(&p.c, 3), b"fro");
            }
        }
        drop(input);
        assert_eq!(net::wait(child), 0);
    };
    (0..10).for_each(|_| round());
    let before = shared_memory();
    (0..20).for_each(|_| round());
    let grown = shared_memory().saturating_sub(before);
    assert!(grown < 500, "{grown} KiB of shared memory more");
}

fn memory_of_many_ports() {
    // As FTP does: each connection to a port of its own.
    let some = || (0..60).for_each(|_| drop(Pair::warm()));
    some();
    let before = shared_memory();
    (0..3).for_each(|_| some());
    let grown = shared_memory().saturating_sub(before);
    assert!(grown < 10_000, "{grown} KiB of shared memory more");
}

fn many_clients_come_back() {
    // A server gives up what it has for clients that have no connection; they live, and come again.
    let (listener, addr) = net::listener(pair::loopback());
    let clients: Vec<_> = (0..40)
        .map(|_| {
            let (told, tell) = net::pipe();
            let child = net::fork(|| {
                pair::warm_client(&net::client(addr));
                assert_eq!(read(&told, &mut [0]), Ok(1));
                pair::warm_client(&net::client(addr));
                0
            });
            pair::warm_server(&net::accept(&listener, 0).unwrap());
            (child, tell)
        })
        .collect();
    for (child, tell) in clients {
        assert_eq!(net::write(&tell, b"x"), Ok(1));
        pair::warm_server(&net::accept(&listener, 0).unwrap());
        assert_eq!(net::wait(child), 0);
    }
}

/// KiB of shared memory that this process has touched.
fn shared_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssShmem:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse().unwrap()
}

fn grandchild() {
    let Pair { c, s } = Pair::warm();
    let pid = net::fork(|| {
        net::close_in_child(&c);
        net::wait(net::fork(|| {
            send_all(&s, &recv_exact(&s, 3));
            0
        }))
    });
    drop(s);
    send_all(&c, b"abc");
    assert_eq!(recv_up_to(&c, 100), b"abc");
    assert_eq!(net::wait(pid), 0);
}

fn exit_without_close() {
    for way in 0..3 {
        let (out, input) = net::pipe();
        let pid = net::fork(|| {
            let (listener, addr) = net::listener(pair::loopback());
            pair::send_port(&input, addr);
            let s = net::accept(&listener, 0).unwrap();
            pair::warm_server(&s);
            send_all(&s, &[7; 900]);
            match way {
                0 => std::process::exit(0),
                // SAFETY: ends the process.
                1 => unsafe { libc::_exit(0) },
                _ => 0,
            }
        });
        let c = pair::client_of_port(&out);
        pair::warm_client(&c);
        assert_eq!(recv_up_to(&c, 5000), [7; 900]);
        assert_eq!(net::wait(pid), 0);
    }
}

fn raw_fork_by_number() {
    // fork(2) by number, which no atfork handler sees.
    let p = Pair::warm();
    // SAFETY: single-threaded; the child only uses its copy of the memory.
    let pid = unsafe { libc::syscall(libc::SYS_fork) } as i32;
    if pid == 0 {
        send_all(&p.s, b"child");
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) };
    }
    assert_eq!(net::wait(pid), 0);
    assert_eq!(recv_exact(&p.c, 5), b"child");
    send_all(&p.c, b"parent");
    assert_eq!(recv_exact(&p.s, 6), b"parent");
}
