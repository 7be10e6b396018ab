//! Options: getsockopt(2), setsockopt(2), ioctl(2).

use core::ffi::{c_int, c_long, c_ulong, c_void};

use libc::socklen_t;
use madrigal_base::sync::Ordering;
use madrigal_report::Reason;
use madrigal_sys::{Errno, fault, raw};

use super::{aside, get, guarded_or, is_socket, kernel_only, kernel_soon};
use crate::io::recv;
use crate::lifecycle::earn;
use crate::state::registration;
use crate::state::session::phase;
use crate::state::sock::options::{is_kernels, is_low_water};
use crate::state::sock::{self, Sock, flag, mode};
use crate::state::socket::view;
use crate::{real, remote};

/// ioctl of sockatmark(3) (asm-generic/sockios.h).
const SIOCATMARK: c_ulong = 0x8905;
/// getpeername(2) by another name (asm-generic/socket.h).
const SO_PEERNAME: c_int = 28;
const TCP_CLOSE: u8 = 7;
const TCP_CLOSE_WAIT: u8 = 8;
/// A getsockopt(2) that receives.
const TCP_ZEROCOPY_RECEIVE: c_int = 35;

/// getsockopt(2): options we hold on the program's behalf during a session are answered as the program set them.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    if name == SO_PEERNAME && level == libc::SOL_SOCKET && remote::is_routed(fd) {
        // SAFETY: as for getpeername(2), which it is.
        return unsafe { super::names::getpeername(fd, value.cast(), len) };
    }
    if (level, name) == (libc::IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE) {
        kernel_only(fd, Reason::Option);
    }
    // SAFETY: the program's arguments, passed on unchanged; so in every hook below.
    let result = unsafe { real::getsockopt()(fd, level, name, value, len) };
    if result == 0 && is_socket(fd) {
        // SAFETY: the kernel has just written the value.
        if let Some(reported) = guarded_or(None, || unsafe { instead(fd, (level, name), value) }) {
            // SAFETY: as above: so many bytes of it.
            unsafe { write_value(&reported.to_ne_bytes(), value, len) };
        } else if (level, name) == (libc::IPPROTO_TCP, libc::TCP_INFO)
            && let Some(state) = guarded_or(None, || state(fd))
        {
            // SAFETY: as above: `struct tcp_info` begins with it.
            unsafe { write_value(&[state], value, len) };
        }
    }
    result
}

/// What the program gets instead of what the kernel returned.
///
/// # Safety
/// As for getsockopt(2), but for addresses that are bad.
unsafe fn instead(fd: c_int, option: (c_int, c_int), value: *const c_void) -> Option<c_int> {
    match option {
        (libc::SOL_SOCKET, libc::SO_ERROR) => {
            // SAFETY: the caller's contract.
            let reported = unsafe { get(value.cast::<c_int>()) }?;
            so_error(fd, reported)
        }
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => {
            let s = sock::enter(fd).filter(|s| s.mode() == mode::SESSION)?;
            Some(s.nodelay.load(core::sync::atomic::Ordering::Relaxed) as c_int)
        }
        (libc::IPPROTO_TCP, libc::TCP_CORK) => {
            let s = sock::enter(fd).filter(|s| s.mode() == mode::SESSION)?;
            Some(s.session.corked.load(Ordering::Relaxed) as c_int)
        }
        _ => None,
    }
}

/// `SO_ERROR` of an error that a call of ours has taken from the kernel, or of one that the daemon knows better.
fn so_error(fd: c_int, reported: c_int) -> Option<c_int> {
    let Some(s) = sock::enter(fd) else {
        return if reported != 0 && remote::is_on() { remote::error(fd) } else { None };
    };
    if let Some(v) = view(&s, fd).filter(|_| s.mode() == mode::SESSION) {
        // What the kernel reported is the program's if the peer meant it.
        match reported {
            0 => v.learn(),
            _ => v.saw_error(madrigal_sys::errno_from(reported)),
        }
        return Some(s.session.take_so_error().map_or(0, Errno::raw_os_error));
    }
    if reported != 0 {
        s.session.note_error(madrigal_sys::errno_from(reported));
        return if remote::is_on() { remote::error(fd) } else { None };
    }
    s.session.take_so_error().map(Errno::raw_os_error)
}

/// The state TCP's socket would be in (linux/tcp_states.h) if the peer has gone otherwise than the kernel's socket shows.
fn state(fd: c_int) -> Option<u8> {
    let s = sock::enter(fd).filter(|s| s.mode() == mode::SESSION)?;
    view(&s, fd)?.learn();
    let state = if s.session.seems_connected() { TCP_CLOSE_WAIT } else { TCP_CLOSE };
    s.session.is_gone().then_some(state)
}

/// Writes where getsockopt(2) has written.
///
/// # Safety
/// As for getsockopt(2), but for addresses that are bad.
unsafe fn write_value(bytes: &[u8], value: *mut c_void, len: *const socklen_t) {
    // SAFETY: the caller's contract.
    let room = unsafe { get(len) }.unwrap_or(0) as usize;
    // SAFETY: as above; the source is our own.
    unsafe { fault::copy(value.cast(), bytes.as_ptr(), room.min(bytes.len())) };
}

/// setsockopt(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    // SAFETY: see `getsockopt`.
    let real = || unsafe { real::setsockopt()(fd, level, name, value, len) };
    if !is_socket(fd) || value.is_null() {
        return real();
    }
    let word = |at: usize| {
        let inside = len as usize >= at + size_of::<c_int>();
        // SAFETY: the program vouches for `len` bytes, if they are mapped.
        inside.then(|| unsafe { get(value.cast::<u8>().wrapping_add(at).cast::<c_int>()) }).flatten()
    };
    let first = match word(0) {
        Some(first) => first,
        // A name may be shorter than a word.
        None if (level, name) == (libc::IPPROTO_TCP, libc::TCP_ULP) => 0,
        // Too short, or with a bad address: the kernel returns the error.
        None => return real(),
    };
    let change = Change { fd, level, name, first, second: word(4).unwrap_or(0), third: word(8).unwrap_or(0) };
    if guarded_or(true, || before(&change)) {
        return 0;
    }
    let result = real();
    if result == 0 {
        guarded_or((), || after(&change));
    }
    result
}

/// What a setsockopt(2) sets: the option and the first words of its value.
struct Change {
    fd: c_int,
    level: c_int,
    name: c_int,
    first: c_int,
    second: c_int,
    third: c_int,
}

/// Before the kernel gets it. True: it must not, for now; the value is stored.
fn before(change: &Change) -> bool {
    let Some(s) = sock::enter(change.fd) else { return false };
    let reason = match (change.level, change.name) {
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT) if is_low_water(change.first) => Reason::LowWater,
        (level, name) if is_kernels(level, name, change.first) => Reason::Option,
        (libc::IPPROTO_TCP, libc::TCP_NODELAY | libc::TCP_CORK) => return hold_back(&s, change),
        (libc::SOL_SOCKET, libc::SO_SNDBUF | libc::SO_SNDBUFFORCE) | (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT) => {
            // First, for the kernel wakes sleeping threads at once.
            s.session.note_room();
            return false;
        }
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) => {
            // What the kernel has dropped of urgent bytes that came before, it has dropped by what was set then.
            if s.mode() == mode::SESSION {
                recv::clear_bells(&s, change.fd);
            }
            return false;
        }
        _ => return false,
    };
    kernel_soon(change.fd, reason);
    false
}

/// `TCP_NODELAY` and `TCP_CORK`: shows what a ring has held back. In the kernel they would hold doorbells back, so they are set there only
/// while it carries what the program sends. True: nothing more has to be set.
fn hold_back(s: &Sock, change: &Change) -> bool {
    // So that neither a session begins nor the direction moves in between.
    let _guard = s.session.wlock.lock();
    let in_session = s.mode() == mode::SESSION;
    let on = u32::from(change.first != 0);
    if change.name == libc::TCP_CORK {
        s.session.corked.store(on, Ordering::Relaxed);
    } else if in_session {
        s.nodelay.store(on, core::sync::atomic::Ordering::Relaxed);
    }
    let shows = (on == 0) == (change.name == libc::TCP_CORK);
    if shows {
        s.session.send_unsent();
    }
    if shows
        && in_session
        && s.session.sends()
        && let Some(v) = view(s, change.fd)
    {
        v.show();
    }
    if in_session && !s.session.sends() {
        let _ = raw::set_sockopt(change.fd, change.level, change.name, &change.first);
    }
    in_session
}

fn after(change: &Change) {
    let Some(s) = sock::enter(change.fd) else { return };
    if change.level != libc::SOL_SOCKET {
        return;
    }
    let (seconds, micros) = (change.first != 0 || change.second != 0, change.third != 0);
    match change.name {
        libc::SO_RCVTIMEO => s.set_flag(flag::RCVTIMEO, seconds || micros),
        libc::SO_SNDTIMEO => s.set_flag(flag::SNDTIMEO, seconds || micros),
        libc::SO_LINGER => {
            s.set_flag(flag::LINGER0, change.first != 0 && change.second == 0);
            earn::publish_linger(&s);
        }
        libc::SO_RCVLOWAT => {
            s.set_flag(flag::LOW_WATER, is_low_water(change.first));
            // Linux reports what is there again (tcp_set_rcvlowat). It does not know what is in a ring.
            if view(&s, change.fd).is_some_and(|v| v.reads_ring_bytes()) {
                registration::report_bytes_again(&*s);
            }
        }
        libc::SO_REUSEPORT => s.set_flag(flag::SHARES_PORT, change.first != 0),
        _ => {}
    }
}

/// The program changed `O_NONBLOCK`.
pub(super) fn set_nonblocking(fd: c_int, on: bool) {
    aside(|| {
        if let Some(s) = sock::enter(fd) {
            s.set_flag(flag::NONBLOCK, on);
        }
    });
}

/// ioctl(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, arg: c_long) -> c_int {
    // SAFETY: see `getsockopt`.
    let real = || unsafe { real::ioctl()(fd, request, arg) };
    if !is_socket(fd) {
        return real();
    }
    let counted = match request {
        libc::FIONREAD => session_of(fd, |s| recv::readable(s, fd)),
        // What the peer can reach is as good as acknowledged; the kernel's own count has doorbells in it.
        libc::TIOCOUTQ => session_of(fd, |s| {
            let v = view(s, fd).filter(|_| s.session.tx() == phase::RING)?;
            usize::try_from(v.held()).ok()
        }),
        _ => None,
    };
    if let Some(n) = counted {
        let n = n.min(c_int::MAX as usize) as c_int;
        // SAFETY: these requests write an int where the program says, if it is mapped.
        return if unsafe { fault::write(arg as *mut c_int, n) } { 0 } else { super::fail(Errno::FAULT) };
    }
    match request {
        SIOCATMARK => {
            // Doorbells before the mark are no bytes of the program's.
            let _ = session_of(fd, |s| {
                recv::clear_bells(s, fd);
                None
            });
            real()
        }
        libc::FIONBIO => {
            // SAFETY: it reads an int where the program says.
            let on = unsafe { get(arg as *const c_int) };
            let result = real();
            if result == 0
                && let Some(on) = on
            {
                set_nonblocking(fd, on != 0);
            }
            result
        }
        libc::FIOASYNC => {
            kernel_soon(fd, Reason::AsyncIo);
            real()
        }
        _ => real(),
    }
}

/// sockatmark(3), which asks inside the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sockatmark(fd: c_int) -> c_int {
    let mut at: c_int = 0;
    // SAFETY: the request writes an int.
    match unsafe { ioctl(fd, SIOCATMARK, (&raw mut at).expose_provenance() as c_long) } {
        0 => at,
        failed => failed,
    }
}

fn session_of(fd: c_int, f: impl FnOnce(&Sock) -> Option<usize>) -> Option<usize> {
    guarded_or(None, || sock::enter(fd).filter(|s| s.mode() == mode::SESSION).and_then(|s| f(&s)))
}
