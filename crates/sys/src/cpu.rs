//! Processors: how many this process may use, which one it is on, and how many tasks want them.

use rustix::fs::{Mode, OFlags};

/// The processor the calling thread runs on (vDSO getcpu(2), no system call).
#[inline]
pub fn current() -> u32 {
    rustix::thread::sched_getcpu() as u32
}

/// How many processors this process may use: its affinity mask, lowered by a cgroup v2 quota (`cpu.max`). At least 1.
pub fn usable() -> u32 {
    let affinity = rustix::thread::sched_getaffinity(None).map_or(1, |set| set.count()).max(1);
    quota().map_or(affinity, |q| q.min(affinity)).max(1)
}

/// Whole processors granted by the cgroup v2 quota as seen from inside a container; `None` without one.
fn quota() -> Option<u32> {
    let mut buf = [0u8; 64];
    let text = crate::process::read_small(c"/sys/fs/cgroup/cpu.max", &mut buf).ok()?;
    let mut words = core::str::from_utf8(text).ok()?.split_whitespace();
    let (max, period) = (words.next()?.parse::<u64>().ok()?, words.next()?.parse::<u64>().ok()?);
    Some((max / period.max(1)) as u32)
}

/// How many tasks want a processor right now on the whole machine, this one included (`/proc/loadavg`, proc(5)).
pub fn runnable() -> Option<u32> {
    let file = rustix::fs::open(c"/proc/loadavg", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let file = crate::fd::Fd::from(file.ok()?);
    let mut buf = [0u8; 64];
    let n = rustix::io::read(&file, &mut buf[..]).ok()?;
    let text = core::str::from_utf8(buf.get(..n)?).ok()?;
    text.split_whitespace().nth(3)?.split('/').next()?.parse().ok()
}

/// Asks for the cache line `at` begins in, to be written soon. Only a hint, and nothing where the processor has none.
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
