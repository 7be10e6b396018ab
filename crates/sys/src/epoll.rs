//! What the kernel has in an event set: `/proc/self/fdinfo` (proc_pid_fdinfo(5)).

use core::ffi::c_int;
use std::os::fd::BorrowedFd;

use rustix::fs::{Mode, OFlags};

use crate::Errno;
use crate::process::{own_pid, proc_path};

/// An entry of an event set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// A one-shot entry that was reported has only its flags left.
    pub events: u32,
    /// The data it reports.
    pub data: u64,
}

/// Lines are shorter.
const LINE: usize = 256;

/// The entry of descriptor `fd` in the set `epfd`, made by this process or one that shares the set. `None`: there is none.
pub fn entry(epfd: c_int, fd: c_int) -> Result<Option<Entry>, Errno> {
    // SAFETY: only queried, for the time of the call.
    let ino = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(fd) })?.st_ino;
    let path = proc_path(own_pid(), format_args!("fdinfo/{epfd}"));
    let file = crate::fd::Fd::from(rustix::fs::open(path.as_c_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?);
    let (mut text, mut len) = ([0u8; 16 * LINE], 0);
    loop {
        let n = rustix::io::read(&file, &mut text[len..])?;
        if n == 0 {
            return Ok(None);
        }
        len += n;
        let mut begin = 0;
        while let Some(end) = text[begin..len].iter().position(|&byte| byte == b'\n').map(|at| begin + at) {
            if let Some(found) = parse(&text[begin..end]).filter(|line| line.fd == fd && line.ino == ino) {
                return Ok(Some(found.entry));
            }
            begin = end + 1;
        }
        text.copy_within(begin..len, 0);
        len -= begin;
        if len == text.len() {
            return Err(Errno::INVAL);
        }
    }
}

struct Line {
    fd: c_int,
    ino: u64,
    entry: Entry,
}

/// `tfd: 5 events: 19 data: 7  pos:0 ino:2a sdev:9`
fn parse(line: &[u8]) -> Option<Line> {
    let line = core::str::from_utf8(line).ok()?;
    let after = |name: &str| line.split_once(name)?.1.split_ascii_whitespace().next();
    let hex = |name: &str| u64::from_str_radix(after(name)?, 16).ok();
    Some(Line {
        fd: after("tfd:")?.parse().ok()?,
        ino: hex("ino:")?,
        entry: Entry { events: hex("events:")? as u32, data: hex("data:")? },
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::raw;

    #[test]
    fn an_entry_is_what_was_said_last() {
        let set = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
        let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
        let (epfd, fd) = (set.as_raw_fd(), one.as_raw_fd());
        assert_eq!(entry(epfd, fd), Ok(None));
        let wanted = (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLONESHOT) as u32;
        raw::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, wanted, 0xfedc_ba98_7654_3210).unwrap();
        let always = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
        let seen = entry(epfd, fd).unwrap().unwrap();
        assert_eq!((seen.events & !always, seen.data), (wanted, 0xfedc_ba98_7654_3210));
        assert_eq!(entry(epfd, other.as_raw_fd()), Ok(None));
        // Reported once: it wants nothing any more.
        let mut reported = [libc::epoll_event { events: 0, u64: 0 }; 1];
        // SAFETY: room for one event; no mask.
        unsafe { raw::epoll_pwait(epfd, reported.as_mut_ptr(), 1, 0, core::ptr::null()) }.unwrap();
        assert_eq!(entry(epfd, fd).unwrap().unwrap().events, libc::EPOLLONESHOT as u32);
    }

    #[test]
    fn entries_of_a_large_set_are_found() {
        let set = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
        let ends: Vec<_> = (0..200).map(|_| std::os::unix::net::UnixStream::pair().unwrap()).collect();
        for (at, (one, _)) in ends.iter().enumerate() {
            let fd = one.as_raw_fd();
            raw::epoll_ctl(set.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32, at as u64).unwrap();
        }
        for (at, (one, _)) in ends.iter().enumerate() {
            assert_eq!(entry(set.as_raw_fd(), one.as_raw_fd()).unwrap().unwrap().data, at as u64);
        }
    }
}
