//! Streams that a kill may cut at any moment: what arrives must be an exact prefix of what was sent.
#![allow(unsafe_code)]

use std::os::fd::OwnedFd;

use madrigal_tests::host::Choices;
use madrigal_tests::net;

/// Ends the process should it hang.
pub(crate) fn watchdog(seconds: u32) {
    // SAFETY: no pointers.
    unsafe { libc::alarm(seconds) };
}

/// Byte `i` of every stream.
fn byte(i: u64) -> u8 {
    ((i as u32).wrapping_mul(2_654_435_761) >> 24) as u8
}

/// Plays one side until the connection ends; reports how it ended.
pub(crate) fn play(fd: &OwnedFd, mode: &str) {
    let (bytes, how) = match mode {
        "send" => warm(fd, true).unwrap_or_else(|| send(fd)),
        "receive" => warm(fd, false).unwrap_or_else(|| receive(fd)),
        // Both at once, from the first byte on.
        "duplex" => {
            let mut received = (0, "");
            std::thread::scope(|scope| {
                scope.spawn(|| send(fd));
                received = receive(fd);
                // The sender ends with the connection.
                let _ = net::shutdown(fd, libc::SHUT_RDWR);
            });
            received
        }
        "turns" => turns(fd),
        _ => panic!("unknown mode {mode}"),
    };
    println!("end bytes={bytes} how={how} {}", super::described(fd));
}

fn ending(result: net::Count) -> &'static str {
    match result {
        Ok(_) => "eof",
        Err(libc::ECONNRESET) => "reset",
        Err(libc::EPIPE) => "pipe",
        Err(e) => panic!("errno {e}"),
    }
}

/// Ping-pong, so that the connection moves; `Some`: it ended.
fn warm(fd: &OwnedFd, first: bool) -> Option<(u64, &'static str)> {
    for _ in 0..100 {
        for sending in [first, !first] {
            let result = if sending { net::send(fd, b"w", 0) } else { net::read(fd, &mut [0; 1]) };
            if result != Ok(1) {
                return Some((0, ending(result)));
            }
        }
    }
    None
}

fn send(fd: &OwnedFd) -> (u64, &'static str) {
    let mut choices = Choices::from_seed(u64::from(std::process::id()));
    let mut at = 0;
    loop {
        let size = if choices.below(4) == 0 { choices.below(100_000) } else { choices.below(300) } + 1;
        let part: Vec<u8> = (at..at + size).map(byte).collect();
        match net::send(fd, &part, 0) {
            Ok(n) => at += n as u64,
            end => return (at, ending(end)),
        }
    }
}

fn receive(fd: &OwnedFd) -> (u64, &'static str) {
    let mut buf = vec![0; 70_000];
    let mut at = 0;
    loop {
        match net::read(fd, &mut buf) {
            Ok(n) if n > 0 => {
                let bad = |k: &usize| buf[*k] != byte(at + *k as u64);
                let (first, count) = ((0..n).find(bad), (0..n).filter(bad).count());
                let shown = first.map_or(&buf[..0], |k| &buf[k..n.min(k + 16)]);
                let end = at + n as u64;
                assert!(first.is_none(), "{count} wrong bytes between {at} and {end}, from {first:?}: {shown:?}");
                at += n as u64;
            }
            end => return (at, ending(end)),
        }
    }
}

/// Request and answer of a few bytes, for ever; the connecting side begins.
fn turns(fd: &OwnedFd) -> (u64, &'static str) {
    let first = std::env::args().nth(1).is_some_and(|role| role == "connect");
    let mut at = 0;
    loop {
        for sending in [first, !first] {
            let message = [byte(at); 16];
            let mut got = [0; 16];
            let result = if sending { net::send(fd, &message, 0) } else { net::recv(fd, &mut got, libc::MSG_WAITALL) };
            match result {
                Ok(16) => assert!(sending || got == message, "wrong bytes at turn {at}"),
                Ok(n @ 1..) => assert!(!sending && got[..n] == message[..n]),
                end => return (at, ending(end)),
            }
            at += 1;
        }
    }
}
