//! Descriptors: made, connected, accepted, duplicated, closed.

use core::ffi::{c_int, c_long, c_uint};

use libc::{sockaddr, socklen_t};
use madrigal_report::Reason;
use madrigal_sys::raw;

use super::guarded_or;
use crate::sock::{flag, role};
use crate::table::{self, Kind, Word};
use crate::{close, epoll, fork, holders, leave, offers, process, real, route, sock};

const SOCK_TYPE_MASK: c_int = 0xf;

/// socket(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let forks = process::fork_count();
    // SAFETY: the program's arguments, passed on unchanged; so in every hook below.
    let fd = with_descriptors(|| unsafe { real::socket()(domain, kind, protocol) });
    let tcp = matches!(domain, libc::AF_INET | libc::AF_INET6)
        && kind & SOCK_TYPE_MASK == libc::SOCK_STREAM
        && matches!(protocol, 0 | libc::IPPROTO_TCP);
    if fd >= 0 && tcp {
        guarded_or((), || {
            fork::watch();
            sock::track(fd, role::FRESH, kind & libc::SOCK_NONBLOCK != 0);
            count_holders(fd, forks);
        });
    } else if fd >= 0 && table::get(fd).is_some() {
        // The number was closed behind our back.
        guarded_or((), || close::forget(fd));
    }
    fd
}

/// A call that makes a descriptor: if the process has no number left, those we hold are given up first.
fn with_descriptors(call: impl Fn() -> c_int) -> c_int {
    let fd = call();
    if fd >= 0 || crate::outcome::errno() != libc::EMFILE {
        return fd;
    }
    let freed = guarded_or(false, || process::give_up_report_fd() | crate::arenas::give_up_fds());
    if freed { call() } else { fd }
}

/// A descriptor made while a fork was under way may have a copy in the child that nobody counted.
fn count_holders(fd: c_int, forks_before: u32) {
    if (forks_before & 1 != 0 || process::fork_count() != forks_before)
        && let Some(s) = sock::enter(fd)
    {
        holders::lose_count(&s.holders);
    }
}

/// listen(2): the port is marked as one where a wrapped program accepts.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn listen(fd: c_int, backlog: c_int) -> c_int {
    // SAFETY: see `socket`.
    let result = unsafe { real::listen()(fd, backlog) };
    if result == 0 {
        guarded_or((), || {
            if let Some(s) = sock::enter(fd) {
                s.role.store(role::LISTENER, core::sync::atomic::Ordering::Relaxed);
                mark(&s, fd);
            }
        });
    }
    result
}

fn mark(s: &sock::Sock, fd: c_int) {
    if process::off().is_none() && !s.has(flag::MARKED) && offers::mark(fd).is_ok() {
        s.set_flag(flag::MARKED, true);
    }
}

/// connect(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    if route::is_on() && table::get(fd).is_some() {
        // SAFETY: see `socket`.
        match guarded_or(None, || unsafe { route::turn(fd, addr, len) }) {
            None => {}
            Some(route::Turn::Fail(e)) => return super::fail(e),
            Some(route::Turn::To(name)) => {
                let (addr, len) = name.pointer();
                // SAFETY: an address of our own, alive through the call.
                let result = unsafe { real::connect()(fd, addr, len) };
                return guarded_or(result, || route::after(fd, result));
            }
        }
    }
    // SAFETY: see `socket`.
    let result = unsafe { real::connect()(fd, addr, len) };
    if table::get(fd).is_some() && (result == 0 || crate::outcome::errno() == libc::EINPROGRESS) {
        let saved = crate::outcome::errno();
        guarded_or((), || {
            if let Some(s) = sock::enter(fd).filter(|s| s.role() == role::FRESH) {
                // SAFETY: see `socket`.
                let answers = unsafe { answers(&s, fd, addr, len) };
                s.connected(fd, if answers { role::SERVER } else { role::CLIENT });
            }
        });
        crate::outcome::restore_errno(saved);
    }
    result
}

/// Whether a socket that connects stands for a listener, whose port it shares: both ends open the connection at once (RFC 9293, 3.5), and
/// the one that comes from where others are to connect to is its accepting end. Where both do, each is a client, as of any connection.
///
/// # Safety
/// `addr` is readable for `len` bytes, as for connect(2).
unsafe fn answers(s: &sock::Sock, fd: c_int, addr: *const sockaddr, len: socklen_t) -> bool {
    s.has(flag::SHARES_PORT)
        && offers::is_from_marked(fd)
        // SAFETY: the caller's contract.
        && unsafe { route::port_of(addr, len) }.is_some_and(|port| !offers::is_marked(fd, port).unwrap_or(true))
}

/// accept(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let forks = guarded_or(1, || before_accept(fd));
    // SAFETY: see `socket`.
    let new = with_descriptors(|| unsafe { real::accept()(fd, addr, len) });
    if new >= 0 {
        guarded_or((), || accepted(fd, new, false, forks));
    }
    new
}

/// accept4(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
    let forks = guarded_or(1, || before_accept(fd));
    // SAFETY: see `socket`.
    let new = with_descriptors(|| unsafe { real::accept4()(fd, addr, len, flags) });
    if new >= 0 {
        guarded_or((), || accepted(fd, new, flags & libc::SOCK_NONBLOCK != 0, forks));
    }
    new
}

/// Gets to know a listener that was inherited, once.
fn before_accept(fd: c_int) -> u32 {
    if table::get(fd).is_none() && !process::is_plain() && fd >= 0 {
        if is_tcp(fd) {
            fork::watch();
            sock::track(fd, role::LISTENER, false);
            super::options::learn(fd);
        } else {
            table::set(fd, Word::new(Kind::Foreign, 0, 0));
        }
    }
    if let Some(s) = sock::enter(fd).filter(|s| !s.has(flag::MARKED)) {
        mark(&s, fd);
    }
    process::fork_count()
}

fn is_tcp(fd: c_int) -> bool {
    let option = |name| raw::sockopt_int(fd, libc::SOL_SOCKET, name);
    matches!(option(libc::SO_DOMAIN), Ok(libc::AF_INET | libc::AF_INET6))
        && option(libc::SO_PROTOCOL) == Ok(libc::IPPROTO_TCP)
}

fn accepted(listener: c_int, fd: c_int, nonblocking: bool, forks: u32) {
    if table::get(listener).is_none_or(|w| w.kind() != Kind::Socket) {
        return close::forget(fd);
    }
    sock::track(fd, role::FRESH, nonblocking);
    count_holders(fd, forks);
    if let Some(s) = sock::enter(fd) {
        s.connected(fd, role::SERVER);
        if let Some(listener) = sock::enter(listener) {
            s.inherit(&listener);
        }
    }
}

/// A connection that came from another process (`SCM_RIGHTS`): its holders cannot be counted, so it only spins.
pub(super) fn adopt_connection(fd: c_int) {
    close::forget(fd);
    if process::is_plain() || !is_tcp(fd) || raw::socket_name(fd, true).is_err() {
        return;
    }
    fork::watch();
    let nonblocking = raw::fcntl(fd, libc::F_GETFL, 0).is_ok_and(|f| f & libc::O_NONBLOCK != 0);
    sock::track(fd, role::FRESH, nonblocking);
    if let Some(s) = sock::enter(fd) {
        s.connected(fd, role::SERVER);
        s.set_never(Reason::SharedUnknown);
        holders::lose_count(&s.holders);
    }
}

/// dup(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup(old: c_int) -> c_int {
    // SAFETY: see `socket`.
    let new = with_descriptors(|| unsafe { real::dup()(old) });
    duplicated(old, new);
    new
}

fn duplicated(old: c_int, new: c_int) {
    if new >= 0 {
        guarded_or((), || {
            close::forget(new);
            close::duplicate(old, new);
        });
    }
}

/// dup2(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup2(old: c_int, new: c_int) -> c_int {
    make_way(old, new);
    // SAFETY: see `socket`.
    let result = unsafe { real::dup2()(old, new) };
    if result >= 0 && old != new {
        guarded_or((), || close::duplicate(old, new));
    }
    result
}

/// dup3(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    make_way(old, new);
    // SAFETY: see `socket`.
    let result = unsafe { real::dup3()(old, new, flags) };
    if result >= 0 {
        guarded_or((), || close::duplicate(old, new));
    }
    result
}

/// `new` is about to be closed by a duplication onto it, if `old` is open.
fn make_way(old: c_int, new: c_int) {
    if old == new {
        return;
    }
    if table::get(new).is_some() && raw::fcntl(old, libc::F_GETFD, 0).is_ok() {
        guarded_or((), || close::forget(new));
    } else if new >= 0 && new == process::report_fd() {
        guarded_or((), process::yield_report_fd);
    }
}

/// close_range(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    const CLOEXEC: c_int = 4;
    // SAFETY: see `socket`.
    let real = |first, last| unsafe { real::close_range()(first, last, flags) };
    let ours = process::report_fd();
    if flags & CLOEXEC != 0 || first > last {
        return real(first, last);
    }
    guarded_or((), || close::forget_range(first, last));
    let inside = ours >= 0 && (first..=last).contains(&(ours as c_uint));
    if !inside {
        return real(first, last);
    }
    // Around the descriptor of our report.
    let ours = ours as c_uint;
    let below = if first < ours { real(first, ours - 1) } else { 0 };
    if below != 0 || ours == last {
        return below;
    }
    real(ours + 1, last)
}

/// closefrom(3)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn closefrom(lowest: c_int) {
    // SAFETY: see `socket`.
    if unsafe { close_range(lowest.max(0) as c_uint, c_uint::MAX, 0) } != 0 {
        // SAFETY: see `socket`.
        unsafe { real::closefrom()(lowest) };
    }
}

/// fcntl(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fcntl(fd: c_int, cmd: c_int, arg: c_long) -> c_int {
    // SAFETY: see `socket`.
    control(fd, cmd, arg, || unsafe { real::fcntl()(fd, cmd, arg) })
}

/// fcntl(2) with 64-bit offsets.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fcntl64(fd: c_int, cmd: c_int, arg: c_long) -> c_int {
    // SAFETY: see `socket`.
    control(fd, cmd, arg, || unsafe { real::fcntl64()(fd, cmd, arg) })
}

fn control(fd: c_int, cmd: c_int, arg: c_long, real: impl FnOnce() -> c_int) -> c_int {
    if !matches!(cmd, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC | libc::F_SETFL) || table::get(fd).is_none() {
        return real();
    }
    if cmd == libc::F_SETFL && arg as c_int & libc::O_ASYNC != 0 {
        guarded_or((), || kernel_only(fd, Reason::AsyncIo));
    }
    let result = real();
    if cmd == libc::F_SETFL && result == 0 {
        set_nonblocking(fd, arg as c_int & libc::O_NONBLOCK != 0);
    } else if cmd != libc::F_SETFL {
        duplicated(fd, result);
    }
    result
}

/// The program changed `O_NONBLOCK`.
pub(super) fn set_nonblocking(fd: c_int, on: bool) {
    if let Some(s) = sock::enter(fd) {
        s.set_flag(flag::NONBLOCK, on);
    }
}

/// From now on only the kernel carries this socket's bytes; nothing stays in a ring.
pub(super) fn kernel_only(fd: c_int, reason: Reason) {
    if let Some(s) = sock::enter(fd) {
        leave::leave_for_good(&s, fd, reason, true);
    }
}

/// epoll_create(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_create(size: c_int) -> c_int {
    // SAFETY: see `socket`.
    let fd = unsafe { real::epoll_create()(size) };
    if fd >= 0 {
        guarded_or((), || epoll::track(fd));
    }
    fd
}

/// epoll_create1(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: see `socket`.
    let fd = unsafe { real::epoll_create1()(flags) };
    if fd >= 0 {
        guarded_or((), || epoll::track(fd));
    }
    fd
}

/// shutdown(2): what was sent is drained from the ring, the rest goes by TCP.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn shutdown(fd: c_int, how: c_int) -> c_int {
    if table::get(fd).is_some() {
        guarded_or((), || {
            if let Some(s) = sock::enter(fd) {
                leave::leave_for_good(&s, fd, Reason::HalfClosed, how != libc::SHUT_WR);
            }
        });
    }
    // SAFETY: see `socket`.
    unsafe { real::shutdown()(fd, how) }
}
