//! One end acts between any two system calls of the other end: the result is that of TCP at any moment. A run tries some of the moments;
//! `ANY_TIME=all` tries each, `ANY_TIME=7` that one.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};

use libc::{EAGAIN, ECONNRESET, EPOLLET, EPOLLIN, EPOLLOUT, MSG_DONTWAIT, MSG_PEEK, MSG_WAITALL, POLLIN};
use madrigal_tests::net::{self, poll, recv, recv_exact, send_all};
use madrigal_tests::pair::{self, Pair};

use crate::rest::mixed;
use crate::set::Set;
use crate::traced::at_stop;

crate::checks![
    receives,
    receives_all,
    peeks,
    waits_and_receives,
    waits_in_a_set_and_receives,
    splices,
    reads_by_a_file,
    reads_by_a_file_for_both,
    becomes_standard_input,
    forks,
    is_read_by_a_child,
    is_read_by_a_program,
    sends,
    writes_by_a_file,
    shuts,
];

/// The number of unread bytes at the beginning, and of those that the other end sends.
const UNREAD: usize = 4000;
const TAIL: usize = 1000;
/// The last moment: later ones repeat, since some calls keep polling while they wait.
const MOST: u32 = 400;
/// A run tries one of so many moments.
const STRIDE: u32 = 37;

/// What the other end does, with its descriptor and the rest of the stream.
type Act = fn(OwnedFd, &[u8]) -> Left;

/// The state in which an act leaves the connection.
enum Left {
    Open(OwnedFd),
    HalfClosed(OwnedFd),
    Closed,
    Reset,
}

/// What was done.
#[derive(Default)]
struct Did {
    read: Vec<u8>,
    sent: &'static [u8],
    /// The sending direction was shut.
    shut: bool,
}

/// Those that leave the connection open, and those that end it.
const OPEN: &[(&str, Act)] = &[
    ("sends", |c, tail| {
        send_all(&c, tail);
        Left::Open(c)
    }),
    ("prints", |c, tail| {
        assert_eq!(net::print(&c, &CString::new(tail).unwrap()), Ok(TAIL));
        Left::Open(c)
    }),
    ("splices", |c, tail| {
        let (out, input) = net::pipe();
        assert_eq!(net::write(&input, tail), Ok(TAIL));
        assert_eq!(net::splice(&out, &c, TAIL), Ok(TAIL));
        Left::Open(c)
    }),
    ("forks and sends", |c, tail| {
        assert_eq!(net::wait(net::fork(|| 0)), 0);
        send_all(&c, tail);
        Left::Open(c)
    }),
    ("writes by a file for both", |c, tail| {
        let file = File::open(&c, c"r+");
        file.write(tail);
        drop(file);
        Left::Open(c)
    }),
    ("writes by a file", |c, tail| {
        let file = File::open(&c, c"w");
        file.write(tail);
        drop(file);
        Left::Open(c)
    }),
];
const HALF_CLOSES: &[(&str, Act)] = &[("sends and shuts", |c, tail| {
    send_all(&c, tail);
    net::shutdown(&c, libc::SHUT_WR).unwrap();
    Left::HalfClosed(c)
})];
const ENDS: &[(&str, Act)] = &[
    ("sends and closes", |c, tail| {
        send_all(&c, tail);
        Left::Closed
    }),
    ("prints and closes", |c, tail| {
        assert_eq!(net::print(&c, &CString::new(tail).unwrap()), Ok(TAIL));
        Left::Closed
    }),
    ("sends and resets", |c, tail| {
        send_all(&c, tail);
        net::linger(&c, 0);
        Left::Reset
    }),
];

/// What is done meanwhile, at an end that gets so many bytes in all.
type Deed = fn(&OwnedFd, usize) -> Did;

/// A connection, and what is unread of it.
pub(crate) type Start = fn() -> (Pair, Vec<u8>);

/// All of it in a ring; most of it in front of doorbells; and in the kernel, where connections may move at once.
pub(crate) const STARTS: [(&str, Start); 3] =
    [("a ring", unread_in_a_ring), ("a mixture", mixed), ("its beginning", unread_in_the_kernel)];

fn unread_in_a_ring() -> (Pair, Vec<u8>) {
    let (pair, unread) = (Pair::warm(), letters(UNREAD));
    send_all(&pair.c, &unread);
    (pair, unread)
}

fn unread_in_the_kernel() -> (Pair, Vec<u8>) {
    let (pair, unread) = (Pair::fresh(), letters(UNREAD));
    send_all(&pair.c, &unread);
    (pair, unread)
}

/// Letters, in which nothing is printed for something else.
fn letters(n: usize) -> Vec<u8> {
    (0..n).map(|i| b'a' + ((i * 7 + (i >> 7)) % 26) as u8).collect()
}

/// Whether each moment is tried.
pub(crate) fn tries_all() -> bool {
    std::env::var("ANY_TIME").is_ok_and(|moments| moments == "all")
}

/// Does it beside each of these acts, at each moment.
fn beside(acts: &[(&str, Act)], deed: Deed) {
    for (number, (name, act)) in acts.iter().enumerate() {
        for (from, start) in STARTS {
            for writer in [false, true] {
                let name = format!("{name}, {from}{}", if writer { ", stopped" } else { "" });
                moments(number, |at| at_moment(at, &name, start, *act, deed, writer));
            }
        }
    }
}

/// At some moments, chosen by the number, or at each, as long as it is not done before.
fn moments(number: usize, at_moment: impl FnMut(u32) -> bool) {
    let first = (std::process::id() + number as u32) % STRIDE;
    let asked = std::env::var("ANY_TIME").ok();
    let is_tried = |at: u32| match &asked {
        Some(asked) => asked == "all" || *asked == at.to_string(),
        None => at % STRIDE == first,
    };
    (1..MOST).filter(|at| is_tried(*at)).all(at_moment);
}

fn beside_all(deed: Deed) {
    beside(&[OPEN, HALF_CLOSES, ENDS].concat(), deed);
    moments(0, |at| at_a_kill(at, deed));
}

/// False: it was done by then. With `writer` the act stops at the moment, else the deed.
fn at_moment(at: u32, name: &str, start: Start, act: Act, deed: Deed, writer: bool) -> bool {
    let ((go, goes), (done, does_it)) = (net::pipe(), net::pipe());
    let tell = || {
        net::write(&goes, b"g").unwrap();
        // It may have to wait for the end that stands still.
        poll(&done, POLLIN, 20);
    };
    at_stop(at, tell, |mark| {
        let (Pair { c, s }, unread) = start();
        let tail = letters(TAIL);
        let acts = || act(c, &tail);
        let does = || deed(&s, unread.len() + TAIL);
        let (left, did) = if writer {
            beside_the_other(acts, does, &mark, (&go, &does_it))
        } else {
            let (did, left) = beside_the_other(does, acts, &mark, (&go, &does_it));
            (left, did)
        };
        verify(&s, did, left, &[unread, tail.clone()].concat(), &format!("{name}, stop {at}"));
    })
}

/// Runs `this` between the marks, and `that` in another thread once it gets the signal to go. Returns both results.
fn beside_the_other<A, B: Send>(
    this: impl FnOnce() -> A,
    that: impl FnOnce() -> B + Send,
    mark: &dyn Fn(),
    (go, done): (&OwnedFd, &OwnedFd),
) -> (A, B) {
    let told = || {
        net::read(go, &mut [0]).unwrap();
        let that = that();
        net::write(done, b"d").unwrap();
        that
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(told);
        mark();
        let this = this();
        mark();
        (this, other.join().unwrap())
    })
}

/// The same where the other end is a process that sends the rest and is killed.
fn at_a_kill(at: u32, deed: Deed) -> bool {
    let ((go, goes), (done, does)) = (net::pipe(), net::pipe());
    let tell = || {
        net::write(&goes, b"g").unwrap();
        poll(&done, POLLIN, 20);
        // It is dead in a moment.
        net::sleep_ms(2);
    };
    at_stop(at, tell, |mark| {
        let (unread, tail) = (letters(UNREAD), letters(TAIL));
        let sends = |c: &OwnedFd| {
            send_all(c, &unread);
            net::read(&go, &mut [0]).unwrap();
            send_all(c, &tail);
            net::write(&does, b"d").unwrap();
        };
        let mut did = Did::default();
        let here = |s: &OwnedFd| {
            while net::readable(s) < UNREAD {
                net::sleep_ms(1);
            }
            mark();
            did = deed(s, UNREAD + TAIL);
            mark();
        };
        let s = pair::left_beside(sends, here);
        verify(&s, did, Left::Closed, &[&unread[..], &tail].concat(), &format!("a kill, stop {at}"));
    })
}

/// Every byte of the stream comes, and then the end that the other side made; and the bytes sent here arrive there.
fn verify(s: &OwnedFd, mut did: Did, left: Left, stream: &[u8], when: &str) {
    let mut buf = [0; UNREAD + TAIL];
    let told = loop {
        match recv(s, &mut buf, if did.read.len() < stream.len() { 0 } else { MSG_DONTWAIT }) {
            Ok(n @ 1..) => did.read.extend(&buf[..n]),
            told => break told,
        }
    };
    let (got, whole) = (did.read.len(), !matches!(left, Left::Reset));
    assert!(did.read == stream[..got.min(stream.len())], "{when}: other bytes, {got}, {told:?}");
    assert!(!whole || got == stream.len(), "{when}: {got} bytes, then {told:?}");
    let answers = |c: &OwnedFd| {
        let end: &[u8] = if did.shut { b"" } else { b"answer" };
        send_all(s, end);
        let all = [did.sent, end].concat();
        assert_eq!(recv_exact(c, all.len()), all, "{when}: what was said");
        assert!(!did.shut || recv(c, &mut [0], 0) == Ok(0), "{when}: shut");
    };
    match left {
        Left::Open(c) => {
            assert_eq!(told, Err(EAGAIN), "{when}");
            answers(&c);
            send_all(&c, b"more");
            assert_eq!(recv_exact(s, 4), b"more", "{when}");
        }
        Left::HalfClosed(c) => {
            assert_eq!(told, Ok(0), "{when}");
            answers(&c);
        }
        Left::Closed => assert_eq!(told, Ok(0), "{when}"),
        Left::Reset => assert!(matches!(told, Ok(0) | Err(ECONNRESET)), "{when}: {told:?}"),
    }
}

fn read(bytes: Vec<u8>) -> Did {
    Did { read: bytes, ..Did::default() }
}

fn receive(s: &OwnedFd, n: usize, flags: i32) -> Vec<u8> {
    let mut buf = vec![0; n];
    // A reset takes what has come before.
    let n = recv(s, &mut buf, flags).unwrap_or(0);
    buf.truncate(n);
    buf
}

fn receives() {
    beside_all(|s, all| read(receive(s, all * 3 / 5, 0)));
}

fn receives_all() {
    beside_all(|s, all| read(receive(s, all, MSG_WAITALL)));
}

fn peeks() {
    let peeks = |s: &OwnedFd, all| {
        receive(s, all, MSG_PEEK | MSG_WAITALL);
        Did::default()
    };
    beside_all(peeks);
}

fn waits_and_receives() {
    let waits = |s: &OwnedFd, all: usize| {
        assert_eq!(poll(s, POLLIN, -1) & POLLIN, POLLIN);
        let mut bytes = receive(s, all - TAIL, 0);
        poll(s, POLLIN, -1);
        bytes.extend(receive(s, 500, 0));
        read(bytes)
    };
    beside_all(waits);
}

fn waits_in_a_set_and_receives() {
    let waits = |s: &OwnedFd, all: usize| {
        let set = Set::new();
        set.add(s, EPOLLIN | EPOLLOUT | EPOLLET, 1);
        assert!(!set.wait(4, -1).is_empty());
        let mut bytes = receive(s, all - TAIL, 0);
        while recv(s, &mut [0; TAIL], MSG_DONTWAIT | MSG_PEEK) == Err(EAGAIN) {
            assert!(!set.wait(4, -1).is_empty());
        }
        bytes.extend(receive(s, 500, 0));
        read(bytes)
    };
    beside_all(waits);
}

fn splices() {
    let splices = |s: &OwnedFd, all: usize| {
        let (out, input) = net::pipe();
        // A reset takes what has come before.
        let n = net::splice(s, &input, all - TAIL).unwrap_or(0);
        read(net::read_exact(&out, n))
    };
    beside_all(splices);
}

/// A FILE on another descriptor of a socket.
struct File(*mut libc::FILE);

impl File {
    fn open(fd: &OwnedFd, mode: &CStr) -> Self {
        // SAFETY: a descriptor of its own, and a string.
        let file = unsafe { libc::fdopen(net::dup(fd).into_raw_fd(), mode.as_ptr()) };
        assert!(!file.is_null());
        Self(file)
    }

    fn read(&self, n: usize) -> Vec<u8> {
        let mut bytes = vec![0; n];
        // SAFETY: our own memory, and a FILE that is open.
        let n = unsafe { libc::fread(bytes.as_mut_ptr().cast(), 1, n, self.0) };
        bytes.truncate(n);
        bytes
    }

    fn write(&self, bytes: &[u8]) {
        // SAFETY: our own memory, and a FILE that is open.
        let written = unsafe { libc::fwrite(bytes.as_ptr().cast(), 1, bytes.len(), self.0) };
        assert_eq!(written, bytes.len());
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: open.
        unsafe { libc::fclose(self.0) };
    }
}

fn reads_by_a_file() {
    beside_all(|s, all| read(File::open(s, c"r").read(all)));
}

fn reads_by_a_file_for_both() {
    beside_all(|s, all| read(File::open(s, c"r+").read(all)));
}

fn becomes_standard_input() {
    beside_all(|s, _| {
        // SAFETY: this process reads nothing there.
        assert_eq!(unsafe { libc::dup2(s.as_raw_fd(), 0) }, 0);
        Did::default()
    });
}

fn forks() {
    let forks = |_: &OwnedFd, _: usize| {
        assert_eq!(net::wait(net::fork(|| 0)), 0);
        Did::default()
    };
    beside_all(forks);
}

fn is_read_by_a_child() {
    let forks = |s: &OwnedFd, all: usize| {
        let (out, input) = net::pipe();
        let child = net::fork(|| {
            let bytes = receive(s, all * 3 / 5, 0);
            i32::from(net::write(&input, &bytes) != Ok(bytes.len()))
        });
        drop(input);
        assert_eq!(net::wait(child), 0);
        let n = net::readable(&out);
        read(net::read_exact(&out, n))
    };
    beside_all(forks);
}

fn is_read_by_a_program() {
    let spawns = |s: &OwnedFd, all: usize| {
        let mut head = std::process::Command::new("head");
        let output = head.args(["-c", &(all - TAIL).to_string()]).stdin(net::dup(s)).output().unwrap();
        read(output.stdout)
    };
    beside(&OPEN[..1], spawns);
}

fn sends() {
    const SENT: &[u8] = &[b'!'; 3000];
    let sends = |s: &OwnedFd, _: usize| {
        send_all(s, SENT);
        Did { sent: SENT, ..Did::default() }
    };
    beside(OPEN, sends);
    beside(HALF_CLOSES, sends);
}

fn writes_by_a_file() {
    const SENT: &[u8] = b"by a file";
    let writes = |s: &OwnedFd, _: usize| {
        File::open(s, c"w").write(SENT);
        Did { sent: SENT, ..Did::default() }
    };
    beside(OPEN, writes);
    beside(HALF_CLOSES, writes);
}

fn shuts() {
    let shuts = |s: &OwnedFd, _: usize| {
        net::shutdown(s, libc::SHUT_WR).unwrap();
        Did { shut: true, ..Did::default() }
    };
    beside(OPEN, shuts);
    beside(HALF_CLOSES, shuts);
}
