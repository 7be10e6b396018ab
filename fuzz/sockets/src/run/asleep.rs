//! The descriptors that a sleeping thread waits for, from its system call, with the present events of each. This distinguishes a sleep that
//! should have ended from one without a reason to end.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;

/// The most descriptors in a report.
const MOST: usize = 8;

/// `call`: as /proc/PID/task/TID/syscall has it, the number and six arguments. Empty: no descriptors are known of such a call.
pub(super) fn shown(process: i32, call: &str) -> String {
    let mut words = call.split_whitespace();
    let Some(number) = words.next().and_then(|word| word.parse::<i64>().ok()) else { return String::new() };
    let arguments: Vec<u64> = words.filter_map(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok()).collect();
    let &[first, second, ..] = &arguments[..] else { return String::new() };
    let waits = match number {
        libc::SYS_poll | libc::SYS_ppoll => polled(process, first, second as usize),
        libc::SYS_read | libc::SYS_readv | libc::SYS_recvfrom | libc::SYS_recvmsg | libc::SYS_splice => {
            vec![(first as i32, libc::POLLIN)]
        }
        libc::SYS_write | libc::SYS_writev | libc::SYS_sendto | libc::SYS_sendmsg => {
            vec![(first as i32, libc::POLLOUT)]
        }
        _ => Vec::new(),
    };
    waits.into_iter().map(|(fd, events)| line(process, fd, events)).collect()
}

/// The entries of a poll.
fn polled(process: i32, at: u64, count: usize) -> Vec<(i32, i16)> {
    const ENTRY: usize = size_of::<libc::pollfd>();
    let mut bytes = vec![0; count.min(MOST) * ENTRY];
    let read = File::open(format!("/proc/{process}/mem")).and_then(|memory| memory.read_exact_at(&mut bytes, at));
    if read.is_err() {
        return Vec::new();
    }
    let word = |entry: &[u8], at: usize| i16::from_ne_bytes([entry[at], entry[at + 1]]);
    let fd = |entry: &[u8]| i32::from_ne_bytes([entry[0], entry[1], entry[2], entry[3]]);
    bytes.chunks_exact(ENTRY).map(|entry| (fd(entry), word(entry, 4))).filter(|(fd, _)| *fd >= 0).collect()
}

fn line(process: i32, fd: i32, asked: i16) -> String {
    const SIOCATMARK: libc::c_ulong = 0x8905;
    let Some(copy) = copy_of(process, fd) else {
        return format!("    descriptor {fd}, asked for {asked:#x}: cannot be looked at\n");
    };
    let mut entry = libc::pollfd { fd: copy.as_raw_fd(), events: !0, revents: 0 };
    let (mut bytes, mut mark) = (-1, -1);
    // SAFETY: places of our own.
    unsafe {
        libc::poll(&raw mut entry, 1, 0);
        libc::ioctl(copy.as_raw_fd(), libc::FIONREAD, &raw mut bytes);
        libc::ioctl(copy.as_raw_fd(), SIOCATMARK, &raw mut mark);
    }
    let mark = if mark == 1 { ", at the urgent mark" } else { "" };
    format!("    descriptor {fd}, asked for {asked:#x}: shows {:#x}, {bytes} bytes{mark}\n", entry.revents)
}

/// A descriptor of another process of ours.
fn copy_of(process: i32, fd: i32) -> Option<OwnedFd> {
    // SAFETY: no memory is passed; what comes back is a descriptor just made, owned by nobody else.
    let own = |made: libc::c_long| (made >= 0).then(|| unsafe { OwnedFd::from_raw_fd(made as i32) });
    // SAFETY: no memory is passed.
    let process = own(unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) })?;
    // SAFETY: no memory is passed.
    own(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), fd, 0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_sleep_waits_for_is_shown() {
        use std::io::Write as _;
        let (one, mut other) = std::os::unix::net::UnixStream::pair().expect("a pair");
        other.write_all(b"four").expect("bytes");
        let entry = libc::pollfd { fd: one.as_raw_fd(), events: libc::POLLIN | libc::POLLRDHUP, revents: 0 };
        let call = format!("{} {:#x} 0x1 0x0", libc::SYS_ppoll, &raw const entry as usize);
        let own = std::process::id() as i32;
        let text = shown(own, &call);
        assert!(text.contains("asked for 0x2001: shows 0x"), "{text}");
        assert!(text.contains(", 4 bytes"), "{text}");
        assert!(shown(own, &format!("{} {:#x} 0x0 0x0", libc::SYS_recvfrom, one.as_raw_fd())).contains("4 bytes"));
        assert_eq!(shown(own, "202 0x1 0x0"), "");
        assert_eq!(shown(own, "running"), "");
    }
}
