//! Sockets that other programs go on with: exec, vfork, spawn, and commands on them.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::ptr;

use libc::c_char;
use madrigal_tests::net::{self, read, recv_exact, recv_up_to, send_all};
use madrigal_tests::pair::{self, Pair};

use crate::processes::inheritable;
use crate::set::Set;

crate::checks![
    exec_inherits,
    exec_inherits_a_listener,
    exec_shares_with_the_parent,
    exec_inherits_a_set,
    exec_leaves_the_sets_of_the_parent,
    spawn_inherits_a_set,
    vfork_exec,
    spawn_with_dup2,
    cat_on_the_socket,
    wc_on_the_socket,
    wc_after_end,
    exec_after_end,
    exec_after_a_reset,
    exec_after_a_reset_that_was_told,
    exec_after_a_kill,
    exec_after_a_lost_send,
    close_on_exec_ends,
];

/// `semantics --child FD`: answers on an inherited socket, or as a server where it is a listener; waits once on an event set.
pub(crate) fn child(args: &[String]) {
    let fd: i32 = args[0].parse().expect("a number");
    // SAFETY: the process that started us passed this descriptor.
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

/// A program that inherits a set gets the events of the parent's registrations, with the parent's data.
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

/// The child's knowledge of the parent's sets is outdated when it becomes another program.
fn exec_leaves_the_sets_of_the_parent() {
    for _ in 0..4 {
        exec_beside_a_set(libc::EPOLLIN);
        exec_beside_a_set(libc::EPOLLIN | libc::EPOLLONESHOT);
    }
}

fn exec_beside_a_set(events: i32) {
    let ((told, tell), (asked, ask), (waits, go)) = (net::pipe(), net::pipe(), net::pipe());
    let client = net::fork(|| {
        let fd = pair::client_of_port(&told);
        pair::warm_client(&fd);
        for letter in [b"x", b"y", b"z"] {
            assert_eq!(read(&asked, &mut [0; 1]), Ok(1));
            send_all(&fd, letter);
        }
        net::sleep_ms(60_000);
        0
    });
    let (listener, addr) = net::listener(pair::loopback());
    pair::send_port(&tell, addr);
    let s = net::accept(&listener, libc::SOCK_CLOEXEC).unwrap();
    pair::warm_server(&s);
    let set = Set::new();
    net::fcntl(&set.0, libc::F_SETFD, 0).unwrap();
    set.add(&s, events, 7);
    net::write(&ask, b"?").unwrap();
    assert_eq!(set.wait(4, -1), [(7, libc::EPOLLIN)]);
    // With a byte unread at the fork the connection is not done with its ring.
    let child = net::fork(|| {
        assert_eq!(read(&waits, &mut [0; 1]), Ok(1));
        let args = [c"sleep".as_ptr(), c"60".as_ptr(), ptr::null()];
        // SAFETY: a null-terminated list of strings.
        unsafe { libc::execvp(args[0], args.as_ptr()) }
    });
    assert_eq!(recv_exact(&s, 1), b"x");
    set.modify(&s, events, 8);
    net::write(&go, b"!").unwrap();
    net::sleep_ms(100);
    for (data, letter) in [(8, b"y"), (9, b"z")] {
        net::write(&ask, b"?").unwrap();
        assert_eq!(set.wait(4, -1), [(data, libc::EPOLLIN)]);
        assert_eq!(recv_exact(&s, 1), letter);
        set.modify(&s, events, 9);
    }
    for pid in [child, client] {
        net::kill(pid, libc::SIGKILL).unwrap();
        net::wait(pid);
    }
}

/// A program that is spawned has every set that is not closed on exec, and the events of one have the program's data.
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

/// Events that the kernel holds go to the next program.
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

/// Bytes before a reset that was reported are read by the next program, and so is the end.
fn exec_after_a_reset_that_was_told() {
    let pid = net::fork(|| {
        let last = |fd: &OwnedFd| {
            send_all(fd, b"hello");
            // Awake, so that no doorbell is left unread: the kernel knows of no reset.
            while net::readable(fd) == 0 {}
        };
        let fd = pair::left_beside(last, |fd| send_all(fd, b"unread"));
        assert_eq!(net::send(&fd, b"x", libc::MSG_NOSIGNAL), Err(libc::ECONNRESET));
        net::fcntl(&fd, libc::F_SETFD, 0).unwrap();
        let script = CString::new(format!("test \"$(cat <&{})\" = hello", fd.as_raw_fd())).unwrap();
        let args = [c"sh".as_ptr(), c"-c".as_ptr(), script.as_ptr(), ptr::null()];
        // SAFETY: null-terminated strings in a null-terminated list, alive until the call returns.
        unsafe { libc::execv(c"/bin/sh".as_ptr(), args.as_ptr()) }
    });
    assert_eq!(net::wait(pid), 0);
}

/// Bytes that a killed peer left in the ring are read by the next program, and so is the end, though no process has its end any more.
fn exec_after_a_kill() {
    let pid = net::fork(|| {
        let fd = pair::left_by_a_killed_peer(|fd| send_all(fd, b"hello"));
        net::await_events(&fd, libc::POLLRDHUP);
        net::fcntl(&fd, libc::F_SETFD, 0).unwrap();
        let script = CString::new(format!("test \"$(cat <&{})\" = hello", fd.as_raw_fd())).unwrap();
        let args = [c"sh".as_ptr(), c"-c".as_ptr(), script.as_ptr(), ptr::null()];
        // SAFETY: null-terminated strings in a null-terminated list, alive until the call returns.
        unsafe { libc::execv(c"/bin/sh".as_ptr(), args.as_ptr()) }
    });
    assert_eq!(net::wait(pid), 0);
}

/// The error because of a send behind the peer's end goes to the next program, also if the kernel has none.
fn exec_after_a_lost_send() {
    let pid = net::fork(|| {
        let fd = crate::killed::left_behind_a_doorbell();
        net::fcntl(&fd, libc::F_SETFD, 0).unwrap();
        send_all(&fd, b"taken");
        net::await_events(&fd, libc::POLLERR);
        let args = arguments(fd.as_raw_fd());
        // SAFETY: a null-terminated list of strings.
        unsafe { libc::execv(SELF.as_ptr(), args.pointers.as_ptr()) }
    });
    assert_eq!(net::wait(pid), 0);
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
