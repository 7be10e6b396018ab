//! How many system calls a part of a check makes.
#![allow(unsafe_code)]

use madrigal_tests::net;

/// A check in a process of its own, which calls what it is given twice: the system calls between.
pub(crate) fn system_calls(check: impl FnOnce(&dyn Fn())) -> u32 {
    let child = net::fork(|| {
        // SAFETY: no pointers; its parent traces it.
        unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) };
        check(&|| {
            // SAFETY: no pointers.
            unsafe { libc::raise(libc::SIGSTOP) };
        });
        0
    });
    let (mut status, mut stops, mut marks) = (0, 0, 0);
    loop {
        // SAFETY: our own child, and a place for what became of it.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        if !libc::WIFSTOPPED(status) {
            break;
        }
        let mut signal = 0;
        match libc::WSTOPSIG(status) {
            libc::SIGSTOP => marks += 1,
            libc::SIGTRAP => stops += u32::from(marks == 1),
            other => signal = other,
        }
        let on = if marks == 1 { libc::PTRACE_SYSCALL } else { libc::PTRACE_CONT };
        // SAFETY: it is stopped.
        assert_eq!(unsafe { libc::ptrace(on, child, 0, signal) }, 0);
    }
    assert_eq!((status, marks), (0, 2));
    // One before a call and one behind it.
    stops / 2
}
