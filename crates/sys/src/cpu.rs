//! Processors: how many this process may use, which one it is on, and how many tasks want them.

use core::ffi::{CStr, c_int};
use core::sync::atomic::{AtomicI32, Ordering};
use std::os::fd::BorrowedFd;

use rustix::fs::{Mode, OFlags};

use crate::Errno;
use crate::fd::Fd;

/// The processor the calling thread runs on (vDSO getcpu(2), no system call).
#[inline]
pub fn current() -> u32 {
    rustix::thread::sched_getcpu() as u32
}

/// How many processors this process and its peers may use, to be compared with [`runnable`]: all that are online, unless a cgroup v2 quota
/// (`cpu.max`) grants less than two. An affinity mask does not limit the peers. At least 1.
pub fn usable() -> u32 {
    if quota().is_some_and(|q| q < 2) { 1 } else { online() }
}

/// Processors of the machine that are online.
fn online() -> u32 {
    listed_in(c"/sys/devices/system/cpu/online")
}

/// Processors in a file's list; where there is none, as in a container without /sys, those that this thread may use.
fn listed_in(file: &CStr) -> u32 {
    let mut buf = [0u8; 256];
    match crate::process::read_small(file, &mut buf) {
        Ok(text) => count(core::str::from_utf8(text).unwrap_or("").trim()),
        Err(_) => rustix::thread::sched_getaffinity(None).map_or(1, |own| own.count().max(1)),
    }
}

/// Processors in a list such as `0-3,8`.
fn count(list: &str) -> u32 {
    let number = |text: &str| text.parse::<u32>().ok();
    let range = |text: &str| match text.split_once('-') {
        Some((from, to)) => Some(number(to)?.checked_sub(number(from)?)? + 1),
        None => number(text).map(|_| 1),
    };
    list.split(',').filter_map(range).sum::<u32>().max(1)
}

/// Whole processors granted by the cgroup v2 quota as seen from inside a container; `None` without one.
fn quota() -> Option<u32> {
    let mut buf = [0u8; 64];
    let text = crate::process::read_small(c"/sys/fs/cgroup/cpu.max", &mut buf).ok()?;
    let mut words = core::str::from_utf8(text).ok()?.split_whitespace();
    let (max, period) = (words.next()?.parse::<u64>().ok()?, words.next()?.parse::<u64>().ok()?);
    Some((max / period.max(1)) as u32)
}

/// A descriptor of `/proc/loadavg` for [`runnable`]; -1: none.
static LOAD: AtomicI32 = AtomicI32::new(-1);

/// Opens `/proc/loadavg` (proc(5)).
pub fn open_load() -> Result<Fd, Errno> {
    rustix::fs::open(c"/proc/loadavg", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map(Fd::from)
}

/// Makes [`runnable`] read from this descriptor of `/proc/loadavg`, which the caller keeps open; -1: it opens one each time. Returns the
/// one before. (A newly opened descriptor takes the least number for a moment, which may matter to another thread.)
pub fn read_load_from(fd: c_int) -> c_int {
    LOAD.swap(fd, Ordering::Relaxed)
}

/// The last argument of [`read_load_from`].
pub fn load_fd() -> c_int {
    LOAD.load(Ordering::Relaxed)
}

/// How many tasks want a processor right now on the whole machine, this one included (`/proc/loadavg`, proc(5)).
pub fn runnable() -> Option<u32> {
    let mut buf = [0u8; 64];
    let kept = load_fd();
    if kept >= 0 {
        // SAFETY: should the number be another file's by now, a few bytes of it are read, and its position stays.
        let kept = unsafe { BorrowedFd::borrow_raw(kept) };
        let known = rustix::io::pread(kept, &mut buf[..], 0).ok().and_then(|n| runnable_in(buf.get(..n)?));
        if known.is_some() {
            return known;
        }
    }
    let file = open_load().ok()?;
    let n = rustix::io::read(&file, &mut buf[..]).ok()?;
    runnable_in(buf.get(..n)?)
}

fn runnable_in(load: &[u8]) -> Option<u32> {
    let text = core::str::from_utf8(load).ok()?;
    text.split_whitespace().nth(3)?.split('/').next()?.parse().ok()
}

/// Moves the calling thread to processor `there`, if it may run on it, without binding it: the affinity mask is as before.
pub fn visit(there: u32) {
    let Ok(before) = rustix::thread::sched_getaffinity(None) else { return };
    let place = there as usize;
    if place >= rustix::thread::CpuSet::MAX_CPU || before.count() < 2 || !before.is_set(place) {
        return;
    }
    let mut only = rustix::thread::CpuSet::new();
    only.set(place);
    if rustix::thread::sched_setaffinity(None, &only).is_ok() {
        let _ = rustix::thread::sched_setaffinity(None, &before);
    }
}

/// Prefetches the cache line `at` begins in, to be written soon. Only a hint, and nothing if the processor has none.
#[inline]
pub fn claim<T>(at: &T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch neither reads nor writes memory as far as a program can see, and never faults.
    unsafe {
        core::arch::asm!(
            "prefetchw [{}]",
            in(reg) core::ptr::from_ref(at),
            options(nostack, preserves_flags, readonly)
        );
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = at;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd as _;

    #[test]
    fn lists_of_processors_are_counted() {
        assert_eq!((count("0"), count("0-1"), count("0-3,8,10-11"), count("nonsense")), (1, 2, 7, 1));
        assert!(usable() >= 1 && online() >= 1);
    }

    #[test]
    fn without_sys_a_thread_has_the_processors_that_it_may_use() {
        let own = rustix::thread::sched_getaffinity(None).unwrap().count();
        assert_eq!(listed_in(c"/sys/there/is/no/such/file"), own);
    }

    #[test]
    fn tasks_are_counted_by_a_descriptor_that_is_kept_and_without_it() {
        assert_eq!(runnable_in(b"0.20 0.18 0.12 3/80 11206\n"), Some(3));
        assert_eq!((runnable_in(b"0.20 0.18"), runnable_in(b"\xff")), (None, None));
        assert!(runnable() >= Some(1));
        let kept = open_load().unwrap();
        assert_eq!(read_load_from(kept.as_raw_fd()), -1);
        assert!(runnable() >= Some(1) && runnable() >= Some(1));
        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(read_load_from(null.as_raw_fd()), kept.as_raw_fd());
        assert!(runnable() >= Some(1));
        assert_eq!(read_load_from(-1), null.as_raw_fd());
    }
}
