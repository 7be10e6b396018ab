//! Sockets in other processes: fork, vfork, spawn, exec, descriptors in messages.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::ptr;

use libc::c_char;
use madrigal_tests::net::{self, read, recv_exact, recv_up_to, send_all};
use madrigal_tests::pair::{self, Pair};

use crate::set::Set;

crate::checks![
    two_processes,
    fork_child_serves,
    fork_child_reads_parent_writes,
    fork_both_write,
    fork_parent_closes_its_copy,
    fork_with_unread_bytes,
    fork_end_only_when_last_closes,
    fork_then_earned_again,
    spawned_and_forked,
    prefork_accept,
    exec_inherits,
    exec_inherits_a_listener,
    exec_shares_with_the_parent,
    exec_inherits_a_set,
    spawn_inherits_a_set,
    vfork_exec,
    spawn_with_dup2,
    cat_on_the_socket,
    wc_on_the_socket,
    wc_after_end,
    exec_after_end,
    exec_after_a_reset,
    reset_in_a_sleep_from_before,
    slots_come_back_after_forks,
    memory_of_many_ports,
    many_clients_come_back,
    close_on_exec_ends,
    grandchild,
    exit_without_close,
    raw_fork_by_number,
];

/// Both ends in processes of their own: `client` in a child that never saw the listener.
fn split(client: impl FnOnce(OwnedFd), server: impl FnOnce(&OwnedFd)) {
    let (out, input) = net::pipe();
    let child = net::fork(|| {
        let fd = pair::client_told_by(&out);
        pair::warm_client(&fd);
        client(fd);
        assert_eq!(pair::missed_bells(), 0, "a wake-up was lost");
        0
    });
    let (listener, addr) = net::listener(pair::loopback());
    pair::tell_port(&input, addr);
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
        // Keeps the other end until told.
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
        net::nap(50);
        send_all(&c, b"by the child");
        0
    });
    drop(c);
    net::nap(10);
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

/// One that is spawned holds the socket, too, though nobody counts it (P2): the forked one is not alone when this process lets go.
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

/// `semantics --child FD`: answers on an inherited socket, or as a server where it is a listener; waits once on an event set.
pub(crate) fn exec_child(args: &[String]) {
    let fd: i32 = args[0].parse().expect("a number");
    // SAFETY: whoever started us gave us this descriptor.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    if net::get(&fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN) == Ok(1) {
        let fd = net::accept(&fd, 0).unwrap();
        pair::warm_server(&fd);
        return assert_eq!(read(&fd, &mut [0; 4]), Err(libc::EAGAIN), "the time-out is the listener's");
    }
    if net::get(&fd, libc::SOL_SOCKET, libc::SO_TYPE).is_err() {
        return assert_eq!(Set(fd).wait(4, 2000), [(7, libc::EPOLLIN)]);
    }
    if net::poll(&fd, 0, 0) & libc::POLLERR != 0 {
        return assert_eq!(net::take_error(&fd), libc::EPIPE);
    }
    let message = recv_exact(&fd, 5);
    send_all(&fd, &message.iter().rev().copied().collect::<Vec<u8>>());
    net::shutdown(&fd, libc::SHUT_WR).unwrap();
}

struct Arguments {
    _words: Vec<CString>,
    pointers: Vec<*const c_char>,
}

fn arguments(fd: i32) -> Arguments {
    let words: Vec<CString> =
        ["semantics", "--child", &fd.to_string()].iter().map(|w| CString::new(*w).unwrap()).collect();
    let mut pointers: Vec<_> = words.iter().map(|w| w.as_ptr()).collect();
    pointers.push(ptr::null());
    Arguments { _words: words, pointers }
}

const SELF: &CStr = c"/proc/self/exe";

/// A pair whose accepting end survives exec.
fn inheritable() -> Pair {
    let p = Pair::warm();
    net::fcntl(&p.s, libc::F_SETFD, 0).unwrap();
    p
}

fn answered(p: Pair, start: impl FnOnce(&OwnedFd) -> i32) {
    let Pair { c, s } = p;
    // Some bytes wait in the ring already.
    send_all(&c, b"he");
    let pid = start(&s);
    drop(s);
    send_all(&c, b"llo");
    assert_eq!(recv_up_to(&c, 100), b"olleh");
    assert_eq!(net::wait(pid), 0);
}

fn exec_inherits() {
    answered(inheritable(), |s| {
        let args = arguments(s.as_raw_fd());
        // SAFETY: a null-terminated list of strings.
        net::fork(|| unsafe { libc::execv(SELF.as_ptr(), args.pointers.as_ptr()) })
    });
}

/// A child becomes a program that writes by itself, much later, while the parent goes on.
fn exec_shares_with_the_parent() {
    let Pair { c, s } = inheritable();
    let (out, input) = net::pipe();
    net::fcntl(&out, libc::F_SETFD, 0).unwrap();
    let script = format!("read line <&{}; echo hello >&{}", out.as_raw_fd(), s.as_raw_fd());
    let script = CString::new(script).unwrap();
    let child = net::fork(|| {
        let args = [c"sh", c"-c", &script].map(CStr::as_ptr);
        // SAFETY: null-terminated strings in a null-terminated list, alive until the call returns.
        unsafe { libc::execv(c"/bin/sh".as_ptr(), [args[0], args[1], args[2], ptr::null()].as_ptr()) };
        127
    });
    for i in 0..1000u32 {
        send_all(&c, &i.to_ne_bytes());
        assert_eq!(recv_exact(&s, 4), i.to_ne_bytes());
        send_all(&s, &i.to_ne_bytes());
        assert_eq!(recv_exact(&c, 4), i.to_ne_bytes());
    }
    assert_eq!(net::write(&input, b"go\n"), Ok(3));
    assert_eq!(net::wait(child), 0);
    send_all(&s, b"end");
    drop(s);
    assert_eq!(recv_up_to(&c, 100), b"hello\nend");
}

/// What the parent puts into a set is told to a program that has the set as well, with the parent's data.
fn exec_inherits_a_set() {
    let (set, first) = (Set::new(), Pair::warm());
    net::fcntl(&set.0, libc::F_SETFD, 0).unwrap();
    let (out, input) = net::pipe();
    let args = arguments(set.0.as_raw_fd());
    // SAFETY: a null-terminated list of strings.
    let child = net::fork(|| unsafe { libc::execv(SELF.as_ptr(), args.pointers.as_ptr()) });
    drop(input);
    assert_eq!(read(&out, &mut [0; 1]), Ok(0), "the child has become another program");
    drop(first);
    let Pair { c, s } = Pair::warm();
    set.add(&s, libc::EPOLLIN, 7);
    send_all(&c, b"x");
    assert_eq!(net::wait(child), 0);
    assert_eq!(set.wait(4, 0), [(7, libc::EPOLLIN)]);
}

/// A program that is spawned has every set that is not closed on exec, and what it is told by one is the program's.
fn spawn_inherits_a_set() {
    let (set, p) = (Set::new(), Pair::warm());
    net::fcntl(&set.0, libc::F_SETFD, 0).unwrap();
    set.add(&p.s, libc::EPOLLIN, 7);
    assert_eq!(set.wait(4, 0), []);
    let number = set.0.as_raw_fd().to_string();
    let mut child = Command::new("/proc/self/exe").args(["--child", &number]).spawn().unwrap();
    send_all(&p.c, b"x");
    assert!(child.wait().unwrap().success());
    assert_eq!(set.wait(4, 0), [(7, libc::EPOLLIN)]);
    assert_eq!(recv_exact(&p.s, 1), b"x");
}

fn exec_inherits_a_listener() {
    let (listener, addr) = net::listener(pair::loopback());
    net::set(&listener, libc::SOL_SOCKET, libc::SO_RCVTIMEO, net::timeval(2000)).unwrap();
    net::fcntl(&listener, libc::F_SETFD, 0).unwrap();
    let args = arguments(listener.as_raw_fd());
    // SAFETY: a null-terminated list of strings.
    let pid = net::fork(|| unsafe { libc::execv(SELF.as_ptr(), args.pointers.as_ptr()) });
    let c = net::client(addr);
    pair::warm_client(&c);
    assert_eq!(net::wait(pid), 0);
}

fn vfork_exec() {
    answered(inheritable(), |s| {
        let args = arguments(s.as_raw_fd());
        // SAFETY: the child only calls execv and _exit.
        #[expect(deprecated, reason = "what is tested here")]
        let pid = unsafe { libc::vfork() };
        if pid == 0 {
            // SAFETY: a null-terminated list of strings.
            unsafe { libc::execv(SELF.as_ptr(), args.pointers.as_ptr()) };
            // SAFETY: ends the child.
            unsafe { libc::_exit(99) };
        }
        pid
    });
}

fn spawn_with_dup2() {
    answered(Pair::warm(), |s| {
        let args = arguments(17);
        // SAFETY: all-zero storage, initialised by the next call.
        let mut actions: libc::posix_spawn_file_actions_t = unsafe { std::mem::zeroed() };
        // SAFETY: our own storage.
        assert_eq!(unsafe { libc::posix_spawn_file_actions_init(&raw mut actions) }, 0);
        // SAFETY: initialised above.
        assert_eq!(unsafe { libc::posix_spawn_file_actions_adddup2(&raw mut actions, s.as_raw_fd(), 17) }, 0);
        let environment = environment();
        let mut pid = 0;
        let (argv, envp) = (args.pointers.as_ptr().cast(), environment.pointers.as_ptr().cast());
        // SAFETY: null-terminated lists of strings, our own actions.
        let error =
            unsafe { libc::posix_spawn(&raw mut pid, SELF.as_ptr(), &raw const actions, ptr::null(), argv, envp) };
        assert_eq!(error, 0);
        pid
    });
}

fn environment() -> Arguments {
    let words: Vec<CString> =
        std::env::vars().map(|(name, value)| CString::new(format!("{name}={value}")).unwrap()).collect();
    let mut pointers: Vec<_> = words.iter().map(|w| w.as_ptr()).collect();
    pointers.push(ptr::null());
    Arguments { _words: words, pointers }
}

fn cat_on_the_socket() {
    let Pair { c, s } = Pair::warm();
    let text: Vec<u8> = (0..300_000u32).map(|i| (i / 5) as u8).collect();
    send_all(&c, &text[..700]);
    let other = net::dup(&s);
    let mut cat = Command::new("cat").stdin(Stdio::from(s)).stdout(Stdio::from(other)).spawn().unwrap();
    // The command's copies go with it.
    crate::both(
        || {
            send_all(&c, &text[700..]);
            net::shutdown(&c, libc::SHUT_WR).unwrap();
        },
        || assert!(recv_up_to(&c, text.len() + 1) == text),
    );
    assert!(cat.wait().unwrap().success());
}

fn wc_on_the_socket() {
    let Pair { c, s } = Pair::warm();
    send_all(&c, &[b'\n'; 1000]);
    let wc = Command::new("wc").arg("-c").stdin(Stdio::from(s)).stdout(Stdio::piped()).spawn().unwrap();
    send_all(&c, &[b'\n'; 99_000]);
    drop(c);
    let out = wc.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&out.stdout).trim(), "100000");
}

fn wc_after_end() {
    for closed in [false, true] {
        let Pair { c, s } = Pair::warm();
        send_all(&c, &[b'\n'; 900]);
        let kept = net::dup(&c);
        drop(c);
        if closed {
            drop(kept);
        } else {
            net::shutdown(&kept, libc::SHUT_WR).unwrap();
            std::mem::forget(kept);
        }
        let wc = Command::new("wc").arg("-c").stdin(Stdio::from(s)).stdout(Stdio::piped()).spawn().unwrap();
        let out = wc.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&out.stdout).trim(), "900", "closed: {closed}");
    }
}

fn exec_after_end() {
    let Pair { c, s } = inheritable();
    send_all(&c, b"hello");
    net::shutdown(&c, libc::SHUT_WR).unwrap();
    let args = arguments(s.as_raw_fd());
    // SAFETY: a null-terminated list of strings.
    let pid = net::fork(|| unsafe { libc::execv(SELF.as_ptr(), args.pointers.as_ptr()) });
    drop(s);
    assert_eq!(recv_up_to(&c, 100), b"olleh");
    assert_eq!(net::wait(pid), 0);
}

/// What the kernel keeps to tell is for the next program.
fn exec_after_a_reset() {
    let Pair { c, s } = inheritable();
    drop(c);
    send_all(&s, b"x");
    net::await_events(&s, libc::POLLERR);
    let args = arguments(s.as_raw_fd());
    // SAFETY: a null-terminated list of strings.
    let pid = net::fork(|| unsafe { libc::execv(SELF.as_ptr(), args.pointers.as_ptr()) });
    assert_eq!(net::wait(pid), 0);
}

fn reset_in_a_sleep_from_before() {
    // A receive sleeps while its process forks, which takes the connection out of its ring, and is told of the reset all the same.
    let (p, (out, input)) = (Pair::warm(), net::pipe());
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| read(&p.c, &mut [0; 16]));
        net::nap(50);
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
    // A session that ends while a child has it, too, is left by whoever is the last: its place in shared memory is used again.
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

fn close_on_exec_ends() {
    let Pair { c, s } = Pair::warm();
    let pid = net::fork(|| {
        let args = [c"sleep".as_ptr(), c"20".as_ptr(), ptr::null()];
        // SAFETY: a null-terminated list of strings.
        unsafe { libc::execvp(args[0], args.as_ptr()) }
    });
    drop(s);
    assert_eq!(read(&c, &mut [0; 4]), Ok(0), "exec closed the copy");
    net::kill(pid, libc::SIGKILL).unwrap();
    net::wait(pid);
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
            pair::tell_port(&input, addr);
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
        let c = pair::client_told_by(&out);
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
