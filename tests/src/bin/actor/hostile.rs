//! Victims and noise for the tests of hostile peers, and calls on descriptors that are no sockets.
#![allow(unsafe_code)]

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use libc::{MSG_DONTWAIT, MSG_PEEK};
use madrigal_tests::host::Choices;
use madrigal_tests::net;

/// Serves echo, a thread for each connection, with any behaviour of peers.
pub(crate) fn echo_threads(listener: &OwnedFd) {
    while let Ok(s) = net::accept(listener, libc::SOCK_CLOEXEC) {
        std::thread::spawn(move || {
            let mut buf = vec![0; 65_536];
            while let Ok(n @ 1..) = net::read(&s, &mut buf) {
                let mut rest = &buf[..n];
                while !rest.is_empty() {
                    match net::send(&s, rest, 0) {
                        Ok(n) => rest = &rest[n..],
                        Err(_) => return,
                    }
                }
            }
        });
    }
}

/// Uses some connections in every way for ever, with any result.
pub(crate) fn noise(addr: SocketAddr) {
    let mut choices = Choices::from_seed(u64::from(std::process::id()));
    let mut connections: Vec<OwnedFd> = (0..3).map(|_| warm(addr)).collect();
    let mut buf = vec![0; 100_000];
    loop {
        let which = choices.below(3) as usize;
        let c = &connections[which];
        let result = match choices.below(16) {
            0..6 => net::send(c, b"a few bytes of noise", MSG_DONTWAIT),
            6 => net::send(c, &buf, MSG_DONTWAIT),
            7..12 => net::recv(c, &mut buf, MSG_DONTWAIT),
            12 => net::recv(c, &mut buf, MSG_DONTWAIT | MSG_PEEK),
            13 => Ok(net::poll(c, libc::POLLIN | libc::POLLOUT, 1) as usize),
            14 => net::ioctl(c, libc::FIONREAD, 0).map(|n| n as usize),
            _ => net::send(c, &[1; 700], MSG_DONTWAIT),
        };
        let ended = !matches!(result, Ok(_) | Err(libc::EAGAIN));
        if ended || choices.below(3000) == 0 {
            connections[which] = warm(addr);
        }
    }
}

/// A connection after some ping-pong, if the other side plays along.
fn warm(addr: SocketAddr) -> OwnedFd {
    let c = net::client(addr);
    let _ = net::set(&c, libc::SOL_SOCKET, libc::SO_RCVTIMEO, net::timeval(50));
    for _ in 0..30 {
        if net::send(&c, b".", 0) != Ok(1) || net::read(&c, &mut [0; 1]) != Ok(1) {
            break;
        }
    }
    c
}

/// Sends a byte behind the library's back once `file` is gone, and nothing else.
pub(crate) fn stray(addr: SocketAddr, file: &str) {
    let c = warm(addr);
    while std::path::Path::new(file).exists() {
        net::sleep_ms(1);
    }
    // By an instruction: the library hooks syscall(2).
    let (mut sent, byte) = (libc::SYS_sendto, b'a');
    // SAFETY: sendto(2) reads one byte of our own.
    unsafe {
        core::arch::asm!("syscall", inout("rax") sent, in("rdi") i64::from(c.as_raw_fd()), in("rsi") &raw const byte, in("rdx") 1,
            in("r10") 0, in("r8") 0, in("r9") 0, out("rcx") _, out("r11") _);
    }
    assert_eq!(sent, 1, "one byte");
    loop {
        net::sleep_ms(1000);
    }
}

/// Echo of numbered messages on one connection, every byte checked, until `file` is gone.
pub(crate) fn good(addr: SocketAddr, file: &str) {
    let c = net::client(addr);
    let mut i = 0u64;
    while i < 200 || std::path::Path::new(file).exists() {
        let size = [1, 8, 64, 900, 5000][i as usize % 5];
        let message: Vec<u8> = (0..size as u64).map(|k| ((i ^ k) * 37) as u8).collect();
        net::send_all(&c, &message);
        assert!(net::recv_exact(&c, size) == message, "message {i} came back different");
        i += 1;
    }
    println!("good {i} {}", super::described(&c));
}

/// `count` reads and writes on a pipe, a file and an AF_UNIX pair.
pub(crate) fn foreign(count: usize) {
    // Something of ours exists, so that the library is at work.
    let _tcp = net::listener(madrigal_tests::pair::loopback());
    let (out, input) = net::pipe();
    let (a, b) = net::unix_pair();
    let zero = std::fs::File::open("/dev/zero").expect("/dev/zero");
    let mut buf = [0; 16];
    for _ in 0..count {
        assert_eq!(net::write(&input, b"sixteen bytes ok"), Ok(16));
        assert_eq!(net::read(&out, &mut buf), Ok(16));
        assert_eq!(net::read(zero.as_raw_fd(), &mut buf), Ok(16));
        assert_eq!(net::send(&a, &buf, 0), Ok(16));
        assert_eq!(net::recv(&b, &mut buf, 0), Ok(16));
        assert_eq!(net::readv(zero.as_raw_fd(), &mut [&mut buf]), Ok(16));
        assert_eq!(net::poll(&input, libc::POLLOUT, 0), libc::POLLOUT);
        drop(net::dup(&out));
    }
}
