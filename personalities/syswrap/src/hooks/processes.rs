//! Processes: fork(2) in its forms, exec, spawn, exit, and sandboxes.
//!
//! fork(3) itself needs no hook: pthread_atfork(3) handlers see it ([`crate::lifecycle::fork`]).

use core::ffi::{c_char, c_int, c_ulong, c_void};

use libc::{pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};
use madrigal_report::Reason;
use madrigal_sys::critical::{self, Critical};
use madrigal_sys::fd::Fd;
use madrigal_sys::{Errno, raw};
use rustix::fs::{Mode, OFlags};

use super::{aside, fail, fds, guarded_or, is_known};
use crate::lifecycle::fork;
use crate::lifecycle::leave::{Back, leave_for_good};
use crate::real;
use crate::state::{process, record, sets, sock, table};

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
    let _critical = Critical::enter();
    guarded_or((), fork::before);
    let pid = fork();
    if pid == 0 {
        critical::leave_to_parent();
    }
    guarded_or((), if pid == 0 { fork::after_in_child } else { fork::after_in_parent });
    pid
}

/// daemon(3): the C library's makes calls that no hook sees.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn daemon(stays: c_int, keeps: c_int) -> c_int {
    // SAFETY: no arguments.
    match unsafe { real::fork()() } {
        -1 => return -1,
        0 => {}
        // SAFETY: the program asked for it.
        _ => unsafe { _exit(0) },
    }
    if let Err(e) = rustix::process::setsid() {
        return fail(e);
    }
    if stays == 0
        && let Err(e) = rustix::process::chdir(c"/")
    {
        return fail(e);
    }
    if keeps == 0
        && let Err(e) = read_and_write_nothing()
    {
        return fail(e);
    }
    0
}

/// /dev/null is all that the standard descriptors are.
fn read_and_write_nothing() -> Result<(), Errno> {
    let null = rustix::fs::open(c"/dev/null", OFlags::RDWR, Mode::empty()).map(Fd::from)?.into_number();
    for standard in 0..3 {
        // SAFETY: numbers only.
        if null != standard && unsafe { fds::dup2(null, standard) } < 0 {
            return Err(madrigal_sys::errno_from(crate::outcome::errno()));
        }
    }
    if null > 2 {
        raw::close(null);
    }
    Ok(())
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
    // SAFETY: the program's arguments, passed on unchanged; so in every hook below.
    spawning(|| unsafe { real::posix_spawn()(pid, path, actions, attributes, argv, envp) })
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
    // SAFETY: see `posix_spawn`.
    spawning(|| unsafe { real::posix_spawnp()(pid, file, actions, attributes, argv, envp) })
}

/// posix_spawn_file_actions_adddup2(3): the child will have this descriptor, whatever its close-on-exec flag.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn posix_spawn_file_actions_adddup2(
    actions: *mut posix_spawn_file_actions_t,
    fd: c_int,
    new: c_int,
) -> c_int {
    if is_known(fd) {
        guarded_or((), || fork::give_away(fd));
    }
    // SAFETY: see `posix_spawn`.
    unsafe { real::posix_spawn_file_actions_adddup2()(actions, fd, new) }
}

/// system(3)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn system(command: *const c_char) -> c_int {
    // SAFETY: see `posix_spawn`.
    spawning(|| unsafe { real::system()(command) })
}

/// popen(3)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn popen(command: *const c_char, mode: *const c_char) -> *mut c_void {
    // SAFETY: see `posix_spawn`.
    spawning(|| unsafe { real::popen()(command, mode) })
}

/// Runs a call that makes a child which execs at once.
fn spawning<T>(spawn: impl FnOnce() -> T) -> T {
    guarded_or((), fork::before_spawn);
    let result = spawn();
    aside(fork::after_spawn);
    result
}

fn exec(real: impl FnOnce() -> c_int) -> c_int {
    guarded_or((), || fork::before_exec(true));
    let failed = real();
    aside(fork::exec_failed);
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
    guarded_or((), || {
        leave_all(Reason::Seccomp);
        stop_counting();
    });
    process::go_plain();
}

/// What other processes have, too, this one has uncounted from now on: no hook will see it close anything, or end.
fn stop_counting() {
    if process::is_plain() {
        return;
    }
    for (fd, _) in table::range(0, u32::MAX) {
        if let Some(s) = sock::enter(fd) {
            s.pass_on();
        } else if let Some(set) = sets::enter(fd) {
            set.pass_on();
        }
    }
}

/// No connection of this process moves any more.
pub(super) fn leave_all(reason: Reason) {
    if process::is_plain() {
        return;
    }
    // Made now, for a sandbox would not let us.
    process::report();
    process::disable(reason);
    record::list_all();
    for (fd, _) in table::range(0, u32::MAX) {
        if let Some(s) = sock::enter(fd) {
            leave_for_good(&s, fd, reason, Back::IntoKernel);
        }
    }
}
