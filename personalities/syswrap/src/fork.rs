//! New processes: what fork, exec and exit mean for the sockets of this one.
//!
//! Before a fork every session is left (the child's copies must be plain sockets), and every connected socket is counted for one
//! more holder. A child that execs gives its close-on-exec sockets up; a socket that survives exec cannot be counted any more.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use madrigal_report::Reason;
use madrigal_sys::{lock, process as proc, raw};

use crate::sock::{self, SOCKS, role};
use crate::table::{self, Kind};
use crate::{arenas, close, epoll, holders, leave, offers, process, route};

static PARENT: AtomicU32 = AtomicU32::new(0);
/// pthread_atfork(3) handlers are in place.
static WATCHED: AtomicBool = AtomicBool::new(false);

/// Makes fork(2) call us, once this process has something to lose.
pub(crate) fn watch() {
    if !WATCHED.swap(true, Ordering::Relaxed) {
        // SAFETY: plain functions without arguments that live as long as the program (the library is never unloaded).
        unsafe { libc::pthread_atfork(Some(before_c), Some(after_in_parent_c), Some(after_in_child_c)) };
    }
}

extern "C" fn before_c() {
    before();
}

extern "C" fn after_in_parent_c() {
    after_in_parent();
}

extern "C" fn after_in_child_c() {
    after_in_child();
}

/// In the parent, before the child exists.
pub(crate) fn before() {
    process::fork_step();
    PARENT.store(proc::own_pid(), Ordering::Relaxed);
    for (fd, word) in table::range(0, u32::MAX) {
        if word.kind() == Kind::Socket
            && let Some(s) = sock::enter(fd)
        {
            leave::leave(&s, fd, Reason::Forked, true);
        }
    }
    for (_, s) in SOCKS.all() {
        if s.refs.load(Ordering::Relaxed) > 0 && matches!(s.role(), role::CLIENT | role::SERVER | role::FRESH) {
            holders::share(&s.holders);
        }
    }
    epoll::share_all();
    offers::before_fork();
}

/// In the parent, when the child exists (or could not be made: then counts stay too high, and those sockets with TCP).
pub(crate) fn after_in_parent() {
    process::fork_step();
}

/// In the child, whose only thread is this one.
pub(crate) fn after_in_child() {
    lock::forget_thread_id();
    SOCKS.after_fork();
    process::after_fork();
    epoll::after_fork();
    arenas::after_fork();
    route::after_fork();
    for (_, s) in SOCKS.all() {
        s.after_fork();
    }
    offers::after_fork(PARENT.load(Ordering::Relaxed));
    process::fork_step();
}

/// Before a child that shares our memory execs (posix_spawn(3), system(3), popen(3)): it inherits what is not close-on-exec.
pub(crate) fn before_spawn() {
    for (fd, word) in table::range(0, u32::MAX) {
        if word.kind() == Kind::Socket && !closes_on_exec(fd) {
            give_away(fd);
        }
    }
}

/// A descriptor goes where its readers and writers cannot be seen: it is an ordinary socket from now on.
pub(crate) fn give_away(fd: i32) {
    if let Some(s) = sock::enter(fd).filter(|s| matches!(s.role(), role::CLIENT | role::SERVER)) {
        leave::leave_for_good(&s, fd, Reason::Passed, true);
        holders::lose_count(&s.holders);
    }
}

fn closes_on_exec(fd: i32) -> bool {
    raw::fcntl(fd, libc::F_GETFD, 0).is_ok_and(|flags| flags & libc::FD_CLOEXEC != 0)
}

/// Before this process becomes another program.
pub(crate) fn before_exec() {
    before_spawn();
    for (fd, word) in table::range(0, u32::MAX) {
        if word.kind() == Kind::Socket
            && closes_on_exec(fd)
            && let Some(s) = sock::enter(fd)
        {
            // Should exec fail, the socket is counted by nobody any more and stays with TCP.
            leave::leave(&s, fd, Reason::SharedUnknown, true);
            holders::lose_count(&s.holders);
        }
    }
    epoll::drop_all();
    offers::leave();
}

/// exec failed: the program goes on.
pub(crate) fn exec_failed() {
    offers::come_back();
}

/// This process ends.
pub(crate) fn before_exit() {
    close::end_all();
    epoll::drop_all();
    offers::leave();
}
