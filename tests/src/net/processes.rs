//! Processes, and what they may do.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd};

use super::done;

/// fork(2): runs `child` in the child, which ends with its answer as exit status (101 for a panic); the parent gets the pid.
pub fn fork(child: impl FnOnce() -> c_int) -> i32 {
    // SAFETY: the programs that call this are single-threaded at that point, or touch nothing of other threads in the child.
    match unsafe { libc::fork() } {
        0 => {
            let status = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(101);
            // SAFETY: ends the process.
            unsafe { libc::_exit(status) }
        }
        pid => done(pid).expect("fork"),
    }
}

/// close(2) in a forked child, where the owner's drop never runs.
pub fn close_in_child(fd: &OwnedFd) {
    // SAFETY: the child ends without dropping the owner.
    unsafe { libc::close(fd.as_raw_fd()) };
}

/// waitpid(2): the exit status, or 128 + signal.
pub fn wait(pid: i32) -> c_int {
    let mut status = 0;
    // SAFETY: room for the status.
    done(unsafe { libc::waitpid(pid, &raw mut status, 0) }).expect("waitpid");
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 128 + libc::WTERMSIG(status) }
}

/// kill(2)
pub fn kill(pid: i32, signal: c_int) -> Result<(), c_int> {
    // SAFETY: no pointers.
    done(unsafe { libc::kill(pid, signal) }).map(drop)
}

/// Sets a resource limit, soft and hard as far as allowed.
pub fn limit_files(n: u64) {
    let limit = libc::rlimit { rlim_cur: n, rlim_max: n };
    // SAFETY: our own limit.
    done(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }).expect("setrlimit");
}

/// From now on this process may copy no descriptors of those that refuse it, as where `kernel.yama.ptrace_scope` is 1.
pub fn forgo_copies() {
    const VERSION_3: u32 = 0x2008_0522;
    const CAP_SYS_PTRACE: u32 = 19;
    let (header, mut sets) = ([VERSION_3, 0], [0u32; 6]);
    let (header, sets) = (header.as_ptr(), sets.as_mut_ptr());
    // SAFETY: capget(2) with a header and two times three words of our own.
    assert_eq!(unsafe { libc::syscall(libc::SYS_capget, header, sets) }, 0);
    for set in [0, 1] {
        // SAFETY: the first two of the six words: the effective and the permitted set.
        unsafe { *sets.add(set) &= !(1 << CAP_SYS_PTRACE) };
    }
    // SAFETY: capset(2), as capget(2).
    assert_eq!(unsafe { libc::syscall(libc::SYS_capset, header, sets) }, 0);
}

/// Others may copy this process's descriptors only where they may do so with all processes.
pub fn refuse_copies() {
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) }, 0);
}
