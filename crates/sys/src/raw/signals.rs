//! Calls about signals: masks as the kernel has them, one bit for each signal.

use core::ffi::c_int;

use rustix::io::Errno;

use super::{SIGSET, check, syscall6};
use crate::fd::Fd;

/// rt_sigprocmask(2): blocks exactly the signals of `mask`; returns those that were blocked.
pub fn signal_mask(mask: u64) -> Result<u64, Errno> {
    change_mask(libc::SIG_SETMASK, mask)
}

/// rt_sigprocmask(2): blocks the signals of `mask` as well; returns those that were blocked before.
pub fn block_signals(mask: u64) -> Result<u64, Errno> {
    change_mask(libc::SIG_BLOCK, mask)
}

fn change_mask(how: c_int, mask: u64) -> Result<u64, Errno> {
    let mut old = 0u64;
    let (new, old_at) = (&raw const mask as usize, &raw mut old as usize);
    // SAFETY: both masks are our own, of the stated size.
    check(unsafe { syscall6(libc::SYS_rt_sigprocmask, [how as usize, new, old_at, SIGSET, 0, 0]) })?;
    Ok(old)
}

/// rt_sigpending(2): the blocked signals that are pending for this thread.
pub fn pending_signals() -> u64 {
    let mut pending = 0u64;
    // SAFETY: a mask of our own, of the stated size.
    let result = check(unsafe { syscall6(libc::SYS_rt_sigpending, [(&raw mut pending) as usize, SIGSET, 0, 0, 0, 0]) });
    result.map_or(0, |_| pending)
}

/// signalfd(2): a descriptor that is readable while a signal of `mask` is pending for the thread that polls.
pub fn signal_fd(mask: u64) -> Result<Fd, Errno> {
    let flags = (libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) as usize;
    // SAFETY: a mask of our own, of the stated size.
    let fd =
        check(unsafe { syscall6(libc::SYS_signalfd4, [usize::MAX, (&raw const mask) as usize, SIGSET, flags, 0, 0]) })?;
    // SAFETY: the kernel just made this descriptor for us.
    Ok(unsafe { Fd::from_number(fd as c_int) })
}

/// rt_sigtimedwait(2) without a time-out: the signal and `si_code` (not above 0 when a process sent it).
pub fn wait_signal(mask: u64) -> Result<(c_int, c_int), Errno> {
    // `siginfo_t`: signal, errno and code at its front.
    let mut info = [0 as c_int; 32];
    let (mask_at, info_at) = (&raw const mask as usize, &raw mut info as usize);
    // SAFETY: mask and information are our own, the latter of the 128 bytes the kernel writes.
    let signal = check(unsafe { syscall6(libc::SYS_rt_sigtimedwait, [mask_at, info_at, 0, SIGSET, 0, 0]) })?;
    Ok((signal as c_int, info[2]))
}

/// rt_sigaction(2) for dispositions that run no code: `SIG_IGN` and `SIG_DFL`.
pub fn signal_disposition(signal: c_int, disposition: usize) -> Result<(), Errno> {
    if disposition != libc::SIG_IGN && disposition != libc::SIG_DFL {
        return Err(Errno::INVAL);
    }
    // The kernel's own structure: handler, flags, restorer, mask.
    let action = [disposition as u64, 0, 0, 0];
    // SAFETY: the structure is our own; neither disposition runs code.
    check(unsafe { syscall6(libc::SYS_rt_sigaction, [signal as usize, (&raw const action) as usize, 0, SIGSET, 0, 0]) })
        .map(drop)
}

/// rt_sigaction(2): what is set for a signal, `SIG_DFL`, `SIG_IGN` or the address of a handler.
pub fn handler_of(signal: c_int) -> Result<usize, Errno> {
    // The kernel's own structure, as above.
    let mut action = [0u64; 4];
    // SAFETY: the structure is our own, of the size the kernel writes.
    check(unsafe { syscall6(libc::SYS_rt_sigaction, [signal as usize, 0, (&raw mut action) as usize, SIGSET, 0, 0]) })
        .map(|_| action[0] as usize)
}
