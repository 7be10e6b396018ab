//! System calls made by hand, which no preloaded library sees: steps are handed over, and sockets inspected, without disturbing what is
//! tested.
#![allow(unsafe_code)]

use core::sync::atomic::AtomicU32;

/// Makes a system call; the kernel's answer, negative for an error.
///
/// # Safety
/// The arguments are what the call of this number wants.
#[cfg(target_arch = "x86_64")]
pub unsafe fn call(number: i64, a: [usize; 6]) -> isize {
    let answer: isize;
    // SAFETY: the x86-64 Linux convention: number in rax, arguments in rdi..r9, rcx and r11 clobbered. The rest is the caller's.
    unsafe {
        core::arch::asm!("syscall", inlateout("rax") number as isize => answer, in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
            in("r10") a[3], in("r8") a[4], in("r9") a[5], lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    answer
}

/// Makes a system call; the kernel's answer, negative for an error.
///
/// # Safety
/// The arguments are what the call of this number wants.
#[cfg(target_arch = "aarch64")]
pub unsafe fn call(number: i64, a: [usize; 6]) -> isize {
    let answer: isize;
    // SAFETY: the AArch64 Linux convention: number in x8, arguments in x0..x5, result in x0. The rest is the caller's.
    unsafe {
        core::arch::asm!("svc 0", in("x8") number, inlateout("x0") a[0] as isize => answer, in("x1") a[1], in("x2") a[2],
            in("x3") a[3], in("x4") a[4], in("x5") a[5], options(nostack));
    }
    answer
}

/// Sleeps until this word is woken, at most `ns` nanoseconds (0: for ever), if it still is `seen`.
pub fn futex_wait(word: &AtomicU32, seen: u32, ns: u64) {
    let time = libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 };
    let until = if ns == 0 { 0 } else { &raw const time as usize };
    let wait = libc::FUTEX_WAIT as usize;
    // SAFETY: a word that lives, and a time of our own.
    unsafe { call(libc::SYS_futex, [word.as_ptr() as usize, wait, seen as usize, until, 0, 0]) };
}

/// Wakes threads that sleep on this word.
pub fn futex_wake(word: &AtomicU32) {
    // SAFETY: a word that lives.
    unsafe { call(libc::SYS_futex, [word.as_ptr() as usize, libc::FUTEX_WAKE as usize, i32::MAX as usize, 0, 0, 0]) };
}

/// This thread.
pub fn thread() -> i32 {
    // SAFETY: no arguments.
    unsafe { call(libc::SYS_gettid, [0; 6]) as i32 }
}

/// This process.
pub fn process() -> i32 {
    // SAFETY: no arguments.
    unsafe { call(libc::SYS_getpid, [0; 6]) as i32 }
}

/// The signals that the calling thread blocks.
pub fn blocked_signals() -> u64 {
    let mut mask = 0u64;
    // SAFETY: no new mask, and room for the old one.
    unsafe {
        call(libc::SYS_rt_sigprocmask, [libc::SIG_BLOCK as usize, 0, &raw mut mask as usize, size_of::<u64>(), 0, 0])
    };
    mask
}

/// Lets this process be killed when its parent ends: one that the sequencer started must not stay behind.
pub fn die_with_parent() {
    // SAFETY: no memory is passed.
    unsafe { call(libc::SYS_prctl, [libc::PR_SET_PDEATHSIG as usize, libc::SIGKILL as usize, 0, 0, 0, 0]) };
}

/// Ends this process if that one is gone.
pub fn die_without(process: i32) {
    // SAFETY: no memory is passed, and no signal sent.
    unsafe {
        if call(libc::SYS_kill, [process as usize, 0, 0, 0, 0, 0]) == -(libc::ESRCH as isize) {
            call(libc::SYS_exit_group, [1, 0, 0, 0, 0, 0]);
        }
    }
}

/// Nanoseconds since some moment.
pub fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a time of our own.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Sleeps for so many microseconds.
pub fn sleep_us(us: u64) {
    let time = libc::timespec { tv_sec: (us / 1_000_000) as i64, tv_nsec: (us % 1_000_000 * 1000) as i64 };
    // SAFETY: a time of our own.
    unsafe { call(libc::SYS_nanosleep, [&raw const time as usize, 0, 0, 0, 0, 0]) };
}

/// The ports of a connected socket, its own and its peer's; 0 where there is none.
pub fn ports(fd: i32) -> (u16, u16) {
    let name = |number| {
        let mut address = [0u8; 32];
        let mut len = address.len() as u32;
        // SAFETY: memory of our own of the length that is told.
        let done =
            unsafe { call(number, [fd as usize, address.as_mut_ptr() as usize, &raw mut len as usize, 0, 0, 0]) };
        // `sin_port` and `sin6_port` lie at the same place.
        if done < 0 { 0 } else { u16::from_be_bytes([address[2], address[3]]) }
    };
    (name(libc::SYS_getsockname), name(libc::SYS_getpeername))
}

/// Whether a socket is connected both ways.
pub fn is_established(fd: i32) -> bool {
    const ESTABLISHED: u8 = 1;
    let mut info = [0u8; 8];
    let mut len = info.len() as u32;
    let (level, name) = (libc::IPPROTO_TCP as usize, libc::TCP_INFO as usize);
    let at = info.as_mut_ptr() as usize;
    // SAFETY: memory of our own of the length that is told.
    let done = unsafe { call(libc::SYS_getsockopt, [fd as usize, level, name, at, &raw mut len as usize, 0]) };
    done == 0 && info[0] == ESTABLISHED
}
