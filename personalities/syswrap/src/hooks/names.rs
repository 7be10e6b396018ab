//! Names: getpeername(2) and getsockname(2) of sockets that go through the daemon; hosts of the grid by name.

use core::ffi::{c_char, c_int};

use libc::{addrinfo, hostent, size_t, sockaddr, socklen_t};

use madrigal_sys::{Errno, fault, raw};

use super::{get, guarded_or, is_socket};
use crate::outcome::errno;
use crate::real;
use crate::remote::{self, Addresses};
use crate::state::sock::{self, flag, mode};
use crate::state::socket::view;

/// getpeername(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the program's arguments, passed on unchanged; so in every hook below.
    unsafe { name(fd, true, addr, len, || real::getpeername()(fd, addr, len)) }
}

/// getsockname(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn getsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: see `getpeername`.
    unsafe { name(fd, false, addr, len, || real::getsockname()(fd, addr, len)) }
}

/// # Safety
/// As for getpeername(2), which `real` is, or getsockname(2).
unsafe fn name(fd: c_int, peer: bool, addr: *mut sockaddr, len: *mut socklen_t, real: impl FnOnce() -> c_int) -> c_int {
    if !remote::is_routed(fd) || addr.is_null() || len.is_null() {
        // SAFETY: the caller's contract.
        return unsafe { ours_or(fd, peer, addr, len, real) };
    }
    // SAFETY: the program's own length.
    let room = unsafe { *len };
    let result = real();
    if result == 0 {
        // SAFETY: the kernel has just filled both.
        guarded_or((), || unsafe { remote::rename(fd, peer, addr, len, room) });
    }
    result
}

/// What the kernel returns, except for a socket that has other names than the program knows, or none any more.
///
/// # Safety
/// As for [`name`].
unsafe fn ours_or(
    fd: c_int,
    peer: bool,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    real: impl FnOnce() -> c_int,
) -> c_int {
    if peer && is_socket(fd) && is_reset(fd) {
        return super::fail(Errno::NOTCONN);
    }
    // SAFETY: the program's own length.
    let room = unsafe { get(len) };
    let result = real();
    if !is_socket(fd) || result < 0 && !(peer && errno() == libc::ENOTCONN) {
        return result;
    }
    let (Some(room), Some(name)) = (room, guarded_or(None, || known_name(fd, peer, result == 0))) else {
        return result;
    };
    // SAFETY: the caller's contract.
    if unsafe { write_name(&name, addr, len, room) } { 0 } else { result }
}

/// Writes a name where there is room for so many bytes.
///
/// # Safety
/// As for getpeername(2), but for addresses that are bad.
unsafe fn write_name(name: &libc::sockaddr_storage, addr: *mut sockaddr, len: *mut socklen_t, room: socklen_t) -> bool {
    let size = if c_int::from(name.ss_family) == libc::AF_INET {
        size_of::<libc::sockaddr_in>()
    } else {
        size_of::<libc::sockaddr_in6>()
    };
    // SAFETY: the program vouches for so many bytes, if they are mapped; the source is our own.
    unsafe { fault::copy(addr.cast(), core::ptr::from_ref(name).cast(), size.min(room as usize)) };
    // SAFETY: as above.
    unsafe { fault::write(len, size as socklen_t) }
}

/// Whether the peer has reset the connection, or would have: the kernel's own socket may have its name still.
fn is_reset(fd: c_int) -> bool {
    guarded_or(false, || {
        let Some(s) = sock::enter(fd).filter(|s| s.mode() == mode::SESSION) else { return false };
        let Some(v) = view(&s, fd) else { return false };
        v.learn();
        s.session.is_gone() && !s.session.seems_connected()
    })
}

/// A name that the kernel does not return: of a reconnected socket, or, where it returns none (`reported` is false), of a peer that has
/// ended while only the kernel's own socket is broken.
fn known_name(fd: c_int, peer: bool, reported: bool) -> Option<libc::sockaddr_storage> {
    let s = sock::enter(fd)?;
    let ours = || {
        view(&s, fd).filter(|_| s.mode() == mode::SESSION)?.learn();
        Some(s.session.seems_connected())
    };
    let known = if reported { s.has(flag::RECONNECTED) } else { ours()? };
    if !known || !s.tuple.is_known() {
        return None;
    }
    let own = raw::socket_name(fd, false).ok()?;
    let connects = s.session.side() == 0;
    Some(s.tuple.peer_of(own, connects == peer))
}

/// getaddrinfo(3)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const addrinfo,
    answer: *mut *mut addrinfo,
) -> c_int {
    // SAFETY: see `getpeername`.
    let real = |node, hints| unsafe { real::getaddrinfo()(node, service, hints, answer) };
    // SAFETY: the program's text.
    let Some(known) = (unsafe { known(node) }) else { return real(node, hints) };
    // SAFETY: all-zero hints mean anything: AF_UNSPEC, no flags.
    let mut wanted: addrinfo = unsafe { core::mem::zeroed() };
    if !hints.is_null() {
        // SAFETY: the program's hints.
        wanted = unsafe { *hints };
    }
    if wanted.ai_flags & libc::AI_NUMERICHOST != 0 {
        return real(node, hints);
    }
    if known.own {
        let result = real(node, hints);
        if result == 0 {
            return result;
        }
    }
    wanted.ai_flags = (wanted.ai_flags & !libc::AI_ADDRCONFIG) | libc::AI_NUMERICHOST;
    let (four, six) = (known.four.as_c_str(), known.six.as_c_str());
    let text = match wanted.ai_family {
        libc::AF_INET => four,
        libc::AF_INET6 if six.is_empty() => {
            wanted.ai_flags |= libc::AI_V4MAPPED;
            four
        }
        libc::AF_INET6 => six,
        _ if known.six_only => six,
        _ => four,
    };
    if text.is_empty() { real(node, hints) } else { real(text.as_ptr(), &raw const wanted) }
}

/// The addresses of a host of the grid of that name.
///
/// # Safety
/// `name` is null or a text that ends with a null byte.
unsafe fn known(name: *const c_char) -> Option<Addresses> {
    if !remote::is_on() {
        return None;
    }
    // SAFETY: the caller's contract.
    guarded_or(None, || unsafe { remote::addresses(name) })
}

/// An old function that knows IPv4 by name: `real` with the name as it is, or with the address that the grid knows.
///
/// # Safety
/// `name` is a text that ends with a null byte.
unsafe fn by_name<T>(name: *const c_char, failed: impl Fn(&T) -> bool, real: impl Fn(*const c_char) -> T) -> T {
    // SAFETY: the caller's contract.
    match unsafe { known(name) } {
        None => real(name),
        Some(known) if known.own => {
            let answer = real(name);
            if failed(&answer) { real(known.four.as_c_str().as_ptr()) } else { answer }
        }
        Some(known) => real(known.four.as_c_str().as_ptr()),
    }
}

/// gethostbyname(3)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gethostbyname(name: *const c_char) -> *mut hostent {
    // SAFETY: see `getpeername`.
    unsafe { by_name(name, |answer: &*mut hostent| answer.is_null(), |name| real::gethostbyname()(name)) }
}

/// gethostbyname2(3)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gethostbyname2(name: *const c_char, family: c_int) -> *mut hostent {
    if family != libc::AF_INET {
        // SAFETY: see `getpeername`.
        return unsafe { real::gethostbyname2()(name, family) };
    }
    // SAFETY: see `getpeername`.
    unsafe { by_name(name, |answer: &*mut hostent| answer.is_null(), |name| real::gethostbyname2()(name, family)) }
}

/// gethostbyname_r(3)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gethostbyname_r(
    name: *const c_char,
    into: *mut hostent,
    buf: *mut c_char,
    len: size_t,
    found: *mut *mut hostent,
    error: *mut c_int,
) -> c_int {
    // ERANGE: the buffer is too short, which is answer to the program.
    // SAFETY: the program's own result.
    let failed = |answer: &c_int| *answer != libc::ERANGE && unsafe { found.is_null() || (*found).is_null() };
    // SAFETY: see `getpeername`.
    unsafe { by_name(name, failed, |name| real::gethostbyname_r()(name, into, buf, len, found, error)) }
}
