//! New processes: what fork, exec, spawn and exit mean for the sockets of this one.
//!
//! Before a fork the gate is closed, every session is left, and every lock that guards what the child inherits is taken. So the child finds
//! everything in a consistent state. Every connected socket is counted for one more holder. What is unread in a ring is handed back, if that
//! is done at once: parent and child share the kernel's queue. Else it stays where it is, and parent and child both read on. A child that
//! execs gives its close-on-exec sockets up. A socket that survives exec cannot be counted any more.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::os::fd::BorrowedFd;

use madrigal_report::Reason;
use madrigal_sys::critical::{self, Critical};
use madrigal_sys::fd;
use madrigal_sys::{process as proc, raw};

use super::close;
use super::leave::{Back, leave, leave_for_good};
use crate::remote;
use crate::state::lock::Lock;
use crate::state::session::Wire;
use crate::state::sock::{self, Ref, SOCKS, Sock, flag};
use crate::state::socket::{Socket, view};
use crate::state::table::{self, Kind};
use crate::state::{arenas, callers, fork_locks, gate, offers, process, registration, sets};

static PARENT: AtomicU32 = AtomicU32::new(0);
/// pthread_atfork(3) handlers are in place.
static WATCHED: AtomicBool = AtomicBool::new(false);
/// One fork, or spawn, at a time.
static ONE: Lock = Lock::new();
/// Set between [`before`] and the end of the fork.
static UNDER_WAY: AtomicBool = AtomicBool::new(false);

/// Makes fork(2) call us, once this process has something to lose.
pub(crate) fn watch() {
    if !WATCHED.swap(true, Ordering::Relaxed) {
        // SAFETY: plain functions without arguments that live as long as the program (the library is never unloaded).
        unsafe { libc::pthread_atfork(Some(before_c), Some(after_in_parent_c), Some(after_in_child_c)) };
    }
}

/// From here to the end of the fork no handler runs.
extern "C" fn before_c() {
    core::mem::forget(Critical::enter());
    before();
}

extern "C" fn after_in_parent_c() {
    let _critical = Critical::resume();
    after_in_parent();
}

extern "C" fn after_in_child_c() {
    let _critical = Critical::resume();
    critical::leave_to_parent();
    after_in_child();
}

/// The sockets of this process, by a descriptor each.
fn sockets() -> impl Iterator<Item = (c_int, Ref)> {
    let known = table::range(0, u32::MAX).filter(|(_, word)| word.is_socket());
    known.filter_map(|(fd, _)| Some((fd, sock::enter(fd)?)))
}

/// In the parent, before the child exists.
pub(crate) fn before() {
    if process::is_plain() {
        return;
    }
    let one = ONE.lock();
    let nested = one.nested();
    core::mem::forget(one);
    if nested {
        // A signal handler forks on top of a fork of its own thread.
        return;
    }
    UNDER_WAY.store(true, Ordering::Relaxed);
    process::fork_step();
    gate::close();
    PARENT.store(proc::own_pid(), Ordering::Relaxed);
    for (fd, s) in sockets() {
        leave(&s, fd, Reason::Forked, Back::IfPossible);
        registration::forget_detached(&*s);
        registration::lend(&*s);
    }
    for (_, s) in SOCKS.all() {
        s.locks().into_iter().for_each(fork_locks::acquire);
        if !s.is_closed() && s.may_carry() {
            s.share();
        } else {
            s.set_flag(flag::OPTIONS_UNKNOWN, true);
        }
    }
    sets::share_all();
    sets::quiesce();
    fork_locks::acquire(SOCKS.lock());
    fork_locks::acquire(callers::lock());
    table::quiesce();
    arenas::quiesce();
    offers::before_fork();
    offers::quiesce();
    process::quiesce();
    remote::quiesce();
}

/// In the parent, when the child exists (or could not be made: then counts stay too high, and those sockets with TCP).
pub(crate) fn after_in_parent() {
    if !UNDER_WAY.swap(false, Ordering::Relaxed) {
        return;
    }
    remote::resume();
    process::resume();
    offers::resume();
    arenas::resume();
    table::resume();
    fork_locks::release(callers::lock());
    fork_locks::release(SOCKS.lock());
    sets::resume();
    for (_, s) in SOCKS.all() {
        s.locks().into_iter().rev().for_each(fork_locks::release);
    }
    gate::open();
    process::fork_step();
    // What ended meanwhile.
    for (index, _) in SOCKS.all().filter(|(_, s)| s.uses.is_due()) {
        drop(sock::by_index(index));
    }
    ONE.release();
}

/// In the child, whose only thread is this one.
pub(crate) fn after_in_child() {
    if !UNDER_WAY.swap(false, Ordering::Relaxed) {
        return;
    }
    madrigal_sys::lock::forget_thread_id();
    ONE.reset();
    fork_locks::reset(SOCKS.lock());
    fork_locks::reset(callers::lock());
    callers::after_fork();
    table::after_fork();
    process::after_fork();
    sets::after_fork();
    arenas::after_fork();
    remote::after_fork();
    for (_, s) in SOCKS.all() {
        s.after_fork();
    }
    offers::after_fork(PARENT.load(Ordering::Relaxed));
    gate::after_fork();
    process::fork_step();
    // The calls that went on by them are the parent's.
    sockets().for_each(|(_, s)| close::release(&s));
}

/// Before a call that makes a child which shares our memory until it execs (posix_spawn(3), system(3), popen(3)): it inherits what is not
/// close-on-exec. [`after_spawn`] follows.
pub(crate) fn before_spawn() {
    process::spawn_step(true);
    if process::is_plain() {
        return;
    }
    for (fd, s) in sockets() {
        if !closes_on_exec(fd) {
            // It hardly knows of the socket, and this process goes on with it.
            give_away_held(fd, &s, Back::Beside);
            if leaves_bytes(&s, fd) {
                withhold(&s);
            }
        }
    }
    give_sets_away();
}

/// The child has been made, or could not be.
pub(crate) fn after_spawn() {
    process::spawn_step(false);
    if process::is_plain() {
        return;
    }
    let withheld = || sockets().filter(|(_, s)| s.has(flag::WITHHELD));
    withheld().for_each(|(fd, s)| _ = s.while_open(fd, || raw::fcntl(fd, libc::F_SETFD, 0)));
    // Behind all of its descriptors.
    withheld().for_each(|(_, s)| s.set_flag(flag::WITHHELD, false));
}

/// Keeps a socket from the child, if it has no descriptor that is closed on exec anyway: afterwards it would be unknown which one is.
#[cold]
fn withhold(s: &Ref) {
    let own = || sockets().filter(|(_, other)| core::ptr::eq(&**other, &**s)).map(|(fd, _)| fd);
    // A child without one of the standard descriptors would write into the next file it opens.
    if !own().any(|fd| closes_on_exec(fd) || fd <= libc::STDERR_FILENO) {
        s.set_flag(flag::WITHHELD, true);
        for fd in own() {
            s.while_open(fd, || raw::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC as usize));
        }
    }
}

/// Whether unread bytes could not be put into the kernel: a reader without our hooks would take doorbells for them, or miss them.
fn leaves_bytes(s: &Sock, fd: c_int) -> bool {
    view(s, fd).is_some_and(|v| !v.is_handed_back())
}

/// A descriptor goes where its readers and writers cannot be seen: it is an ordinary socket from now on.
pub(crate) fn give_away(fd: c_int) {
    if let Some(s) = sock::enter(fd) {
        give_away_held(fd, &s, Back::IntoKernel);
    } else if let Some(set) = sets::enter(fd) {
        give_away_set(&set);
    }
}

fn give_away_held(fd: c_int, s: &sock::Sock, back: Back) {
    if s.may_carry() {
        leave_for_good(s, fd, Reason::Passed, back);
        s.pass_on();
    }
}

/// Gives away event sets that survive exec: from now on no process is taken for the only holder of one.
fn give_sets_away() {
    for (epfd, _) in table::range(0, u32::MAX).filter(|(_, word)| word.kind() == Kind::EventSet) {
        if let Some(set) = sets::enter(epfd).filter(|_| !closes_on_exec(epfd)) {
            give_away_set(&set);
        }
    }
}

/// Another process will get what the kernel reports of this set: nothing of ours may be in it.
fn give_away_set(set: &sets::Set) {
    // First, for other threads may put sockets into it, and rings.
    set.pass_on();
    for (fd, s) in sockets() {
        if s.members.iter().any(|member| member.is_in(set.index())) {
            leave_for_good(&s, fd, Reason::EventSet, Back::Beside);
            // One whose peer has gone still has ours.
            registration::restore(&*s);
        }
    }
}

fn closes_on_exec(fd: c_int) -> bool {
    raw::fcntl(fd, libc::F_GETFD, 0).is_ok_and(|flags| flags & libc::FD_CLOEXEC != 0)
}

/// Before this process becomes another program. `reports_failure`: [`exec_failed`] follows if it does not.
pub(crate) fn before_exec(reports_failure: bool) {
    if process::is_plain() {
        return;
    }
    for (fd, s) in sockets() {
        if !closes_on_exec(fd) {
            // The next program surely reads its standard input. Any other may be the parent's, inherited by accident.
            let read = close::is_standard(fd) || s.is_sole();
            give_away_held(fd, &s, if read { Back::IntoKernel } else { Back::Beside });
            if leaves_bytes(&s, fd) {
                s.while_open(fd, || displace(&s, fd));
            }
            continue;
        }
        leave(&s, fd, Reason::SharedUnknown, Back::IfPossible);
        if reports_failure {
            s.leave_for_exec();
        } else {
            // It may go on, and hold the socket, uncounted.
            s.pass_on();
        }
    }
    give_sets_away();
    sets::leave_for_exec();
    offers::leave();
}

/// The next program finds a reset: the bytes are the other holder's. [`put_back`] undoes it. While the descriptor is open.
#[cold]
fn displace(s: &Sock, fd: c_int) {
    if s.displaced.load(Ordering::Relaxed) == 0 {
        let Ok(copy) = fd::copy_high(fd) else { return };
        s.displaced.store(copy.into_number() as u32 + 1, Ordering::Relaxed);
    }
    let _ = fd::reset_socket().and_then(|reset| fd::replace(fd, reset));
}

/// What was displaced is where it was.
fn put_back() {
    for (fd, s) in sockets().filter(|&(fd, _)| !closes_on_exec(fd)) {
        s.while_open(fd, || {
            if let Some(copy) = s.displaced.load(Ordering::Relaxed).checked_sub(1) {
                // SAFETY: taken away below, or by a thread that closes the last descriptor, which this one is not.
                let _ = fd::replace(fd, unsafe { BorrowedFd::borrow_raw(copy as c_int) });
            }
        });
    }
    for (_, s) in sockets() {
        drop(s.take_displaced());
    }
}

/// exec failed: the program goes on.
pub(crate) fn exec_failed() {
    if process::is_plain() {
        return;
    }
    put_back();
    for (fd, s) in sockets() {
        if !s.come_back() {
            // Another process of the family may have moved it to a ring, of which this one knows nothing.
            let _sending = s.session.wlock.lock();
            if let Some(fd) = s.open_fd(fd) {
                Socket { s: &s, fd }.cut_off();
            }
        }
    }
    sets::come_back();
    offers::come_back();
}

/// This process ends.
pub(crate) fn before_exit() {
    if process::is_plain() {
        return;
    }
    close::end_all();
    sets::drop_all();
    offers::leave();
}
