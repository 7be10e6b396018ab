//! Processes: fork(2) in its forms, exec, spawn, exit, and sandboxes.
//!
//! fork(3) itself needs no hook: pthread_atfork(3) handlers see it ([`crate::fork`]).

use core::ffi::{c_char, c_int, c_ulong, c_void};

use libc::{pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};
use madrigal_report::Reason;

use super::guarded_or;
use crate::{fork, process, real, sock, table};

/// vfork(2), as a fork: a child that closes or duplicates descriptors must not do so in the parent's tables.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn vfork() -> pid_t {
    // SAFETY: no arguments; POSIX allows vfork to be fork.
    unsafe { real::fork()() }
}

/// _Fork(3): no handlers run, so ours are called here.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _Fork() -> pid_t {
    // SAFETY: no arguments.
    forked(|| unsafe { real::_Fork()() })
}

/// A fork that runs no pthread_atfork(3) handlers.
pub(super) fn forked(fork: impl FnOnce() -> pid_t) -> pid_t {
    guarded_or((), fork::before);
    let pid = fork();
    guarded_or((), if pid == 0 { fork::after_in_child } else { fork::after_in_parent });
    pid
}

/// posix_spawn(3)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn posix_spawn(
    pid: *mut pid_t,
    path: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    argv: *const *mut c_char,
    envp: *const *mut c_char,
) -> c_int {
    guarded_or((), fork::before_spawn);
    // SAFETY: the program's arguments, passed on unchanged; so in every hook below.
    unsafe { real::posix_spawn()(pid, path, actions, attributes, argv, envp) }
}

/// posix_spawnp(3)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn posix_spawnp(
    pid: *mut pid_t,
    file: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    argv: *const *mut c_char,
    envp: *const *mut c_char,
) -> c_int {
    guarded_or((), fork::before_spawn);
    // SAFETY: see `posix_spawn`.
    unsafe { real::posix_spawnp()(pid, file, actions, attributes, argv, envp) }
}

/// posix_spawn_file_actions_adddup2(3): the child will have this descriptor whatever its close-on-exec flag says.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn posix_spawn_file_actions_adddup2(
    actions: *mut posix_spawn_file_actions_t,
    fd: c_int,
    new: c_int,
) -> c_int {
    if table::get(fd).is_some() {
        guarded_or((), || fork::give_away(fd));
    }
    // SAFETY: see `posix_spawn`.
    unsafe { real::posix_spawn_file_actions_adddup2()(actions, fd, new) }
}

/// system(3)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn system(command: *const c_char) -> c_int {
    guarded_or((), fork::before_spawn);
    // SAFETY: see `posix_spawn`.
    unsafe { real::system()(command) }
}

/// popen(3)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn popen(command: *const c_char, mode: *const c_char) -> *mut c_void {
    guarded_or((), fork::before_spawn);
    // SAFETY: see `posix_spawn`.
    unsafe { real::popen()(command, mode) }
}

fn exec(real: impl FnOnce() -> c_int) -> c_int {
    guarded_or((), fork::before_exec);
    let failed = real();
    let saved = crate::outcome::errno();
    guarded_or((), fork::exec_failed);
    crate::outcome::restore_errno(saved);
    failed
}

/// execve(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn execve(
    path: *const c_char,
    argv: *const *const c_char,
    envp: *const *const c_char,
) -> c_int {
    // SAFETY: see `posix_spawn`.
    exec(|| unsafe { real::execve()(path, argv, envp) })
}

/// execv(3)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn execv(path: *const c_char, argv: *const *const c_char) -> c_int {
    // SAFETY: see `posix_spawn`.
    exec(|| unsafe { real::execv()(path, argv) })
}

/// execvp(3)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn execvp(file: *const c_char, argv: *const *const c_char) -> c_int {
    // SAFETY: see `posix_spawn`.
    exec(|| unsafe { real::execvp()(file, argv) })
}

/// execvpe(3)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn execvpe(
    file: *const c_char,
    argv: *const *const c_char,
    envp: *const *const c_char,
) -> c_int {
    // SAFETY: see `posix_spawn`.
    exec(|| unsafe { real::execvpe()(file, argv, envp) })
}

/// execveat(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn execveat(
    dir: c_int,
    path: *const c_char,
    argv: *const *const c_char,
    envp: *const *const c_char,
    flags: c_int,
) -> c_int {
    // SAFETY: see `posix_spawn`.
    exec(|| unsafe { real::execveat()(dir, path, argv, envp, flags) })
}

/// fexecve(3)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fexecve(fd: c_int, argv: *const *const c_char, envp: *const *const c_char) -> c_int {
    // SAFETY: see `posix_spawn`.
    exec(|| unsafe { real::fexecve()(fd, argv, envp) })
}

/// _exit(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _exit(status: c_int) -> ! {
    guarded_or((), fork::before_exit);
    // SAFETY: see `posix_spawn`.
    unsafe { real::_exit()(status) };
    loop {
        core::hint::spin_loop();
    }
}

/// _Exit(3)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _Exit(status: c_int) -> ! {
    // SAFETY: see `posix_spawn`.
    unsafe { _exit(status) }
}

/// prctl(2): a process that enters a seccomp sandbox keeps to the calls it makes itself.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int {
    if option == libc::PR_SET_SECCOMP {
        enter_sandbox();
    }
    // SAFETY: see `posix_spawn`.
    unsafe { real::prctl()(option, a, b, c, d) }
}

/// Every connection goes back to the kernel, and no hook makes a call of its own any more.
pub(super) fn enter_sandbox() {
    guarded_or((), || leave_all(Reason::Seccomp));
    process::go_plain();
}

/// No connection of this process moves any more.
pub(super) fn leave_all(reason: Reason) {
    process::turn_off(reason);
    for (fd, _) in table::range(0, u32::MAX) {
        if let Some(s) = sock::enter(fd) {
            crate::leave::leave_for_good(&s, fd, reason, true);
        }
    }
}
