//! Descriptors: made, connected, accepted, duplicated, closed.

use core::ffi::{c_int, c_long, c_uint};

use libc::{sockaddr, socklen_t};
use madrigal_report::{Path, Reason};
use madrigal_sys::critical::Critical;
use madrigal_sys::{Errno, raw, tcp};

use super::{aside, fail, guarded_or, is_known};
use crate::lifecycle::{close, fork};
use crate::outcome::errno;
use crate::state::sock::{self, Sock, flag, role};
use crate::state::table::{self, Kind, Word};
use crate::state::{arenas, load, offers, process, sets};
use crate::{real, remote};

const SOCK_TYPE_MASK: c_int = 0xf;

/// Descriptors made while a child was made: the child may have an uncounted copy of each.
#[derive(Clone, Copy)]
struct Children {
    closes_on_exec: bool,
    before: Option<u32>,
}

impl Children {
    /// Before a descriptor is made.
    fn before(closes_on_exec: bool) -> Self {
        Self { closes_on_exec, before: process::children(closes_on_exec) }
    }

    /// It is made.
    fn count(self, fd: c_int) {
        if self.before.is_none() || process::children(self.closes_on_exec) != self.before {
            if let Some(s) = sock::enter(fd) {
                s.pass_on();
            } else if let Some(set) = sets::enter(fd) {
                set.pass_on();
            }
        }
    }
}

/// Begins to know a socket that the kernel has just made.
fn track(fd: c_int, role: u32, nonblocking: bool, children: Children) {
    super::signals::arm();
    fork::watch();
    close::forget(fd);
    sock::track(fd, role, nonblocking);
    children.count(fd);
    if close::is_standard(fd)
        && let Some(s) = sock::enter(fd)
    {
        s.set_never(Reason::Stdio);
    }
}

/// socket(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let children = Children::before(kind & libc::SOCK_CLOEXEC != 0);
    // SAFETY: the program's arguments, passed on unchanged; so in every hook below.
    let fd = with_descriptors(|| unsafe { real::socket()(domain, kind, protocol) });
    let tcp = matches!(domain, libc::AF_INET | libc::AF_INET6)
        && kind & SOCK_TYPE_MASK == libc::SOCK_STREAM
        && matches!(protocol, 0 | libc::IPPROTO_TCP);
    if fd >= 0 && tcp && !process::is_plain() {
        aside(|| track(fd, role::FRESH, kind & libc::SOCK_NONBLOCK != 0, children));
    } else if fd >= 0 && is_known(fd) {
        // The number was closed behind our back.
        aside(|| close::forget(fd));
    }
    fd
}

/// A call that makes a descriptor: if the process has no number left, those we hold are given up first.
fn with_descriptors(call: impl Fn() -> c_int) -> c_int {
    let fd = call();
    if fd >= 0 || errno() != libc::EMFILE {
        return fd;
    }
    let give_up = || process::give_up_report_fd() | arenas::give_up_fds() | offers::give_up_fd() | load::give_up_fd();
    if guarded_or(false, give_up) { call() } else { fd }
}

/// listen(2): the port is marked as one where a wrapped program accepts.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn listen(fd: c_int, backlog: c_int) -> c_int {
    // SAFETY: see `socket`.
    let result = unsafe { real::listen()(fd, backlog) };
    if result == 0 && is_known(fd) {
        aside(|| {
            if let Some(s) = sock::enter(fd) {
                s.set_role(role::LISTENER);
                mark(&s, fd);
            }
        });
    }
    result
}

fn mark(s: &Sock, fd: c_int) {
    if process::off().is_none() && !s.has(flag::MARKED) && offers::mark(fd).is_ok() {
        s.set_flag(flag::MARKED, true);
    }
}

/// connect(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    if remote::is_on() && is_known(fd) {
        // SAFETY: see `socket`.
        match guarded_or(None, || unsafe { remote::redirect(fd, addr, len) }) {
            None => {}
            Some(remote::Redirect::Fail(e)) => return fail(e),
            Some(remote::Redirect::To(name)) => {
                let (addr, len) = name.pointer();
                // SAFETY: an address of our own, alive through the call.
                let result = unsafe { real::connect()(fd, addr, len) };
                return guarded_or(result, || remote::after(fd, result));
            }
        }
    }
    // SAFETY: see `socket`.
    let result = unsafe { real::connect()(fd, addr, len) };
    if is_known(fd) && (result == 0 || errno() == libc::EINPROGRESS) {
        aside(|| {
            if let Some(s) = sock::enter(fd).filter(|s| s.role() == role::FRESH) {
                // SAFETY: see `socket`.
                let answers = unsafe { answers(&s, fd, addr, len) };
                s.connected(fd, if answers { role::SERVER } else { role::CLIENT });
                // During the connect the kernel does not report the address.
                // SAFETY: see `socket`.
                if result < 0 && process::wants_some_ports() && unsafe { goes_elsewhere(addr, len) } {
                    s.record_path(Path::Tcp, Some(Reason::PortOff));
                }
            }
        });
    }
    result
}

/// Whether an address has a port that the user does not want looked after.
///
/// # Safety
/// `addr` is readable for `len` bytes, as for connect(2).
unsafe fn goes_elsewhere(addr: *const sockaddr, len: socklen_t) -> bool {
    // SAFETY: the caller's contract.
    unsafe { remote::port_of(addr, len) }.is_some_and(|port| !process::port_wanted(port))
}

/// Whether a connecting socket is the accepting end, because it shares the port of a listener: both ends open the connection at once
/// (RFC 9293, 3.5), and the one whose port others connect to accepts. If both have such a port, each is a client, as usual.
///
/// # Safety
/// `addr` is readable for `len` bytes, as for connect(2).
unsafe fn answers(s: &Sock, fd: c_int, addr: *const sockaddr, len: socklen_t) -> bool {
    s.has(flag::SHARES_PORT)
        && offers::is_from_marked(fd)
        // SAFETY: the caller's contract.
        && unsafe { remote::port_of(addr, len) }.is_some_and(|port| !offers::is_marked(fd, port).unwrap_or(true))
}

/// accept(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let children = before_accept(fd, false);
    // SAFETY: see `socket`.
    let new = with_descriptors(|| unsafe { real::accept()(fd, addr, len) });
    if new >= 0 && !process::is_plain() {
        aside(|| accepted(fd, new, false, children));
    }
    new
}

/// accept4(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
    let children = before_accept(fd, flags & libc::SOCK_CLOEXEC != 0);
    // SAFETY: see `socket`.
    let new = with_descriptors(|| unsafe { real::accept4()(fd, addr, len, flags) });
    if new >= 0 && !process::is_plain() {
        aside(|| accepted(fd, new, flags & libc::SOCK_NONBLOCK != 0, children));
    }
    new
}

/// Gets to know a listener that was inherited, once.
fn before_accept(fd: c_int, closes_on_exec: bool) -> Children {
    if !process::is_plain() && fd >= 0 {
        guarded_or((), || get_to_know(fd));
    }
    Children::before(closes_on_exec)
}

fn get_to_know(fd: c_int) {
    if table::get(fd).is_none() {
        if is_tcp(fd) {
            track(fd, role::LISTENER, false, Children::before(true));
            if let Some(s) = sock::enter(fd) {
                // Its connections have what is set on it, too.
                s.learn_options(fd);
            }
        } else {
            table::set(fd, Word::new(Kind::Foreign, 0, 0));
        }
    }
    if offers::register_child() {
        // There is another table by now: our listeners must be entered there.
        for (fd, s) in listeners() {
            s.set_flag(flag::MARKED, false);
            mark(&s, fd);
        }
    }
    if let Some(s) = sock::enter(fd).filter(|s| !s.has(flag::MARKED)) {
        mark(&s, fd);
    }
}

fn listeners() -> impl Iterator<Item = (c_int, sock::Ref)> {
    let known = table::range(0, u32::MAX).filter(|(_, word)| word.kind() == Kind::Socket);
    known.filter_map(|(fd, _)| Some((fd, sock::enter(fd).filter(|s| s.role() == role::LISTENER)?)))
}

fn is_tcp(fd: c_int) -> bool {
    let option = |name| raw::sockopt_int(fd, libc::SOL_SOCKET, name);
    matches!(option(libc::SO_DOMAIN), Ok(libc::AF_INET | libc::AF_INET6))
        && option(libc::SO_PROTOCOL) == Ok(libc::IPPROTO_TCP)
}

fn accepted(listener: c_int, fd: c_int, nonblocking: bool, children: Children) {
    let Some(listener) = sock::enter(listener) else { return close::forget(fd) };
    track(fd, role::FRESH, nonblocking, children);
    if let Some(s) = sock::enter(fd) {
        s.connected(fd, role::SERVER);
        s.inherit(&listener);
    }
}

/// A connection that came from another process (`SCM_RIGHTS`): its holders cannot be counted, so it only spins.
pub(super) fn adopt_connection(fd: c_int) {
    close::forget(fd);
    if process::is_plain() || !is_tcp(fd) || raw::socket_name(fd, true).is_err() {
        return;
    }
    let nonblocking = raw::fcntl(fd, libc::F_GETFL, 0).is_ok_and(|f| f & libc::O_NONBLOCK != 0);
    track(fd, role::FRESH, nonblocking, Children { closes_on_exec: true, before: None });
    if let Some(s) = sock::enter(fd) {
        s.connected(fd, role::SERVER);
        s.set_never(Reason::SharedUnknown);
    }
}

/// dup(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup(old: c_int) -> c_int {
    let children = Children::before(false);
    // SAFETY: see `socket`.
    let new = with_descriptors(|| unsafe { real::dup()(old) });
    duplicated(old, new, children);
    new
}

/// pidfd_getfd(2): another descriptor of a socket of ours, or a connection of another process.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pidfd_getfd(of: c_int, number: c_int, flags: c_uint) -> c_int {
    let children = Children::before(true);
    // SAFETY: see `socket`.
    let new = with_descriptors(|| unsafe { real::pidfd_getfd()(of, number, flags) });
    if new >= 0 && !process::is_plain() {
        aside(|| match socket_of(new) {
            Some(old) => duplicate(old, new, children),
            None => adopt_connection(new),
        });
    }
    new
}

/// The descriptor by which we know a socket that `fd` is, too.
fn socket_of(fd: c_int) -> Option<c_int> {
    let cookie = tcp::cookie(fd).ok()?;
    let mut sockets = table::range(0, u32::MAX).filter(|(_, word)| word.kind() == Kind::Socket);
    sockets.find_map(|(known, _)| (known != fd && tcp::cookie(known) == Ok(cookie)).then_some(known))
}

/// The kernel has made `new` another descriptor of `old`.
fn duplicated(old: c_int, new: c_int, children: Children) {
    if new >= 0 && (is_known(old) || is_known(new)) {
        aside(|| duplicate(old, new, children));
    }
}

fn duplicate(old: c_int, new: c_int, children: Children) {
    close::forget(new);
    close::duplicate(old, new);
    children.count(new);
}

/// dup2(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup2(old: c_int, new: c_int) -> c_int {
    // SAFETY: see `socket`.
    onto(old, new, false, || unsafe { real::dup2()(old, new) })
}

/// dup3(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    // SAFETY: see `socket`.
    let real = || unsafe { real::dup3()(old, new, flags) };
    // Of other flags the kernel closes nothing.
    if flags & !libc::O_CLOEXEC != 0 { real() } else { onto(old, new, flags != 0, real) }
}

/// Duplicates onto a number, which is closed thereby if it was open.
fn onto(old: c_int, new: c_int, closes_on_exec: bool, real: impl FnOnce() -> c_int) -> c_int {
    if table::is_hidden(old) {
        return fail(Errno::BADF);
    }
    if old == new || !is_known(old) && !is_known(new) {
        return real();
    }
    if is_another_of(old, new) {
        // It stays what it is, and what is registered by it, too.
        let children = Children::before(closes_on_exec);
        let result = real();
        if result >= 0 {
            aside(|| children.count(new));
        }
        return result;
    }
    let _critical = Critical::enter();
    if raw::fcntl(old, libc::F_GETFD, 0).is_ok() && may_have(new) {
        guarded_or((), || {
            if table::is_hidden(new) {
                let ours = process::yield_report_fd(new)
                    || offers::yield_fd(new)
                    || arenas::yield_fd(new)
                    || load::yield_fd(new);
                if !ours {
                    close::yield_retained(new);
                    // Of a call that sleeps, which has it open, whatever becomes of the number.
                    table::unhide(new);
                }
            } else {
                close::begin(new);
            }
        });
    }
    let children = Children::before(closes_on_exec);
    let result = real();
    if result >= 0 {
        aside(|| {
            close::duplicate(old, new);
            children.count(new);
        });
    }
    guarded_or((), || close::end(new));
    result
}

/// Whether both are descriptors of one socket, or of one event set.
fn is_another_of(old: c_int, new: c_int) -> bool {
    let ours = |word: &Word| matches!(word.kind(), Kind::Socket | Kind::EventSet);
    table::get(old).filter(ours).is_some_and(|word| table::get(new) == Some(word))
}

/// Whether dup2(2) may make that number: the kernel closes none above the limit, though one may be open.
fn may_have(number: c_int) -> bool {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.is_none_or(|limit| (number as u64) < limit)
}

/// close_range(2), around the descriptors of ours.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    // Only the process's other threads keep the old table then.
    const UNSHARE: c_int = 2;
    // SAFETY: see `socket`.
    let real = |first, last| unsafe { real::close_range()(first, last, flags) };
    if flags & !UNSHARE != 0 || first > last || process::is_plain() {
        return real(first, last);
    }
    let _critical = Critical::enter();
    guarded_or((), || close::begin_range(first, last));
    let result = close_around_ours(first, last, real);
    guarded_or((), || close::end_range(first, last));
    result
}

fn close_around_ours(first: c_uint, last: c_uint, real: impl Fn(c_uint, c_uint) -> c_int) -> c_int {
    let mut from = Some(first);
    for (hidden, _) in table::range(first, last).filter(|(_, word)| word.is_hidden()) {
        let hidden = hidden as c_uint;
        if let Some(from) = from.filter(|&from| from < hidden) {
            let result = real(from, hidden - 1);
            if result != 0 {
                return result;
            }
        }
        from = hidden.checked_add(1).filter(|&next| next <= last);
    }
    from.map_or(0, |from| real(from, last))
}

/// closefrom(3)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn closefrom(lowest: c_int) {
    // SAFETY: see `socket`.
    if unsafe { close_range(lowest.max(0) as c_uint, c_uint::MAX, 0) } != 0 {
        // A kernel without that call. What was ours is forgotten, and our own descriptors only serve to be found.
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

fn control(fd: c_int, cmd: c_int, arg: c_long, real: impl Fn() -> c_int) -> c_int {
    if !is_known(fd) {
        return real();
    }
    match cmd {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
            let children = Children::before(cmd == libc::F_DUPFD_CLOEXEC);
            let new = with_descriptors(real);
            duplicated(fd, new, children);
            new
        }
        libc::F_SETFL => {
            if arg as c_int & libc::O_ASYNC != 0 {
                super::kernel_soon(fd, Reason::AsyncIo);
            }
            let result = real();
            if result == 0 {
                super::options::set_nonblocking(fd, arg as c_int & libc::O_NONBLOCK != 0);
            }
            result
        }
        _ => real(),
    }
}

/// epoll_create(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_create(size: c_int) -> c_int {
    // SAFETY: see `socket`.
    event_set(false, || unsafe { real::epoll_create()(size) })
}

/// epoll_create1(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: see `socket`.
    event_set(flags & libc::EPOLL_CLOEXEC != 0, || unsafe { real::epoll_create1()(flags) })
}

fn event_set(closes_on_exec: bool, real: impl Fn() -> c_int) -> c_int {
    let children = Children::before(closes_on_exec);
    let fd = with_descriptors(real);
    if fd >= 0 && !process::is_plain() {
        aside(|| {
            super::signals::arm();
            fork::watch();
            close::forget(fd);
            sets::track(fd);
            children.count(fd);
        });
    }
    fd
}
