//! Options: getsockopt(2), setsockopt(2), ioctl(2).

use core::ffi::{c_int, c_long, c_ulong, c_void};
use core::sync::atomic::Ordering;

use libc::socklen_t;
use madrigal_report::Reason;
use madrigal_sys::raw;

use super::fds::{kernel_only, set_nonblocking};
use super::{guarded_or, is_socket};
use crate::sock::{flag, mode};
use crate::{plain, real, recv, route, send, session, sock};

/// Options of level `SOL_SOCKET` that only the kernel can honour (asm-generic/socket.h).
const KERNEL_SOCKET: &[c_int] = &[
    libc::SO_ATTACH_FILTER,
    libc::SO_ATTACH_BPF,
    libc::SO_TIMESTAMP,
    libc::SO_TIMESTAMPNS,
    libc::SO_TIMESTAMPING,
    libc::SO_ZEROCOPY,
    libc::SO_MARK,
    SO_TIMESTAMP_NEW,
    SO_TIMESTAMPNS_NEW,
    SO_TIMESTAMPING_NEW,
];
const SO_TIMESTAMP_NEW: c_int = 63;
const SO_TIMESTAMPNS_NEW: c_int = 64;
const SO_TIMESTAMPING_NEW: c_int = 65;
/// The same of level `IPPROTO_TCP` (linux/tcp.h).
const KERNEL_TCP: &[c_int] = &[libc::TCP_REPAIR, libc::TCP_ULP, TCP_INQ, libc::TCP_MD5SIG, TCP_FASTOPEN_CONNECT];
/// ioctl of sockatmark(3) (asm-generic/sockios.h).
const SIOCATMARK: c_ulong = 0x8905;
/// getpeername(2) by another name (asm-generic/socket.h).
const SO_PEERNAME: c_int = 28;
const TCP_INQ: c_int = 36;
const TCP_FASTOPEN_CONNECT: c_int = 30;

/// getsockopt(2): options we hold on the program's behalf during a session are answered as the program set them.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    if name == SO_PEERNAME && level == libc::SOL_SOCKET && route::is_routed(fd) {
        // SAFETY: as for getpeername(2), which it is.
        return unsafe { super::names::getpeername(fd, value.cast(), len) };
    }
    // SAFETY: the program's arguments, passed on unchanged; so in every hook below.
    let result = unsafe { real::getsockopt()(fd, level, name, value, len) };
    if result == 0 && level == libc::SOL_SOCKET && name == libc::SO_ERROR && is_socket(fd) {
        // SAFETY: the kernel has just written an int there; it may be unaligned.
        unsafe { tell_error(fd, value.cast()) };
    }
    if result == 0 && level == libc::IPPROTO_TCP && matches!(name, libc::TCP_NODELAY | libc::TCP_CORK) && is_socket(fd)
    {
        let kept = guarded_or(None, || {
            let s = sock::enter(fd).filter(|s| s.mode() == mode::SESSION)?;
            Some(if name == libc::TCP_CORK {
                u32::from(s.has(flag::CORK))
            } else {
                s.session.nodelay.load(Ordering::Relaxed)
            })
        });
        if let Some(kept) = kept
            // SAFETY: the kernel has just written an int of this length there.
            && unsafe { *len } as usize >= size_of::<c_int>()
        {
            // SAFETY: as above; it may be unaligned.
            unsafe { value.cast::<c_int>().write_unaligned(kept as c_int) };
        }
    }
    result
}

/// `SO_ERROR` of an error that a look of ours has taken from the kernel.
///
/// # Safety
/// `value` points to an int.
unsafe fn tell_error(fd: c_int, value: *mut c_int) {
    // SAFETY: the caller's contract.
    let told = unsafe { value.read_unaligned() };
    if told != 0 {
        if route::is_on()
            && let Some(code) = guarded_or(None, || route::error(fd))
        {
            // SAFETY: the caller's contract.
            unsafe { value.write_unaligned(code) };
        }
        return;
    }
    if let Some(e) = guarded_or(None, || sock::enter(fd)?.owed_error()) {
        // SAFETY: the caller's contract.
        unsafe { value.write_unaligned(e.raw_os_error() as c_int) };
    }
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
        if len as usize >= at + size_of::<c_int>() {
            // SAFETY: the program vouches for `len` bytes; they may be unaligned.
            unsafe { value.cast::<u8>().add(at).cast::<c_int>().read_unaligned() }
        } else {
            0
        }
    };
    if (len as usize) < size_of::<c_int>() {
        return real();
    }
    let change = Change { fd, level, name, first: word(0), second: word(4), third: word(8) };
    if guarded_or(true, || before(&change)) {
        return 0;
    }
    let result = real();
    if result == 0 {
        guarded_or((), || after(&change));
    }
    result
}

/// What a setsockopt(2) says: the option and the first words of its value.
struct Change {
    fd: c_int,
    level: c_int,
    name: c_int,
    first: c_int,
    second: c_int,
    third: c_int,
}

/// Before the kernel hears of it. True: it must not, for now; the value is kept.
fn before(change: &Change) -> bool {
    let Some(s) = sock::enter(change.fd) else { return false };
    let reason = match (change.level, change.name) {
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT) if is_low_water(change.first) => Reason::LowWater,
        (libc::SOL_SOCKET, name) if KERNEL_SOCKET.contains(&name) => Reason::Option,
        (libc::IPPROTO_TCP, name) if KERNEL_TCP.contains(&name) => Reason::Option,
        (libc::IPPROTO_TCP, libc::TCP_NODELAY | libc::TCP_CORK) => return hold_back(&s, change),
        _ => return false,
    };
    kernel_only(change.fd, reason);
    false
}

/// `TCP_NODELAY` and `TCP_CORK`. Ring bytes go at once, which both permit; in the kernel they would hold doorbells back, so it hears of
/// them only while it carries what the program sends. True: it has heard what it may.
fn hold_back(s: &sock::Sock, change: &Change) -> bool {
    let in_session = s.mode() == mode::SESSION;
    // So that the direction does not move in between.
    let _guard = in_session.then(|| s.wlock.lock());
    if change.name == libc::TCP_CORK {
        s.set_flag(flag::CORK, change.first != 0);
    } else if in_session {
        s.session.nodelay.store(u32::from(change.first != 0), Ordering::Relaxed);
    }
    if in_session && !plain::session_sends(s) {
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
            session::tell_linger(&s);
        }
        libc::SO_RCVLOWAT => s.set_flag(flag::LOW_WATER, is_low_water(change.first)),
        libc::SO_REUSEPORT => s.set_flag(flag::SHARES_PORT, change.first != 0),
        _ => {}
    }
}

/// Whether a receive waits for more than one byte; less than none means as many as can be.
fn is_low_water(value: c_int) -> bool {
    !matches!(value, 0 | 1)
}

/// Gets to know what was set on a listener before we saw it: its connections have that, too.
pub(super) fn learn(fd: c_int) {
    let Some(s) = sock::enter(fd) else { return };
    let limited = |name| {
        let mut time = libc::timeval { tv_sec: 0, tv_usec: 0 };
        raw::sockopt(fd, libc::SOL_SOCKET, name, &mut time).is_ok() && (time.tv_sec, time.tv_usec) != (0, 0)
    };
    s.set_flag(flag::RCVTIMEO, limited(libc::SO_RCVTIMEO));
    s.set_flag(flag::SNDTIMEO, limited(libc::SO_SNDTIMEO));
    let mut linger = libc::linger { l_onoff: 0, l_linger: 0 };
    let known = raw::sockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &mut linger).is_ok();
    s.set_flag(flag::LINGER0, known && linger.l_onoff != 0 && linger.l_linger == 0);
    s.set_flag(flag::CORK, raw::sockopt_int(fd, libc::IPPROTO_TCP, libc::TCP_CORK).is_ok_and(|on| on != 0));
    if raw::sockopt_int(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT).is_ok_and(is_low_water) {
        s.set_flag(flag::LOW_WATER, true);
        s.set_never(Reason::LowWater);
    }
}

/// ioctl(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, arg: c_long) -> c_int {
    // SAFETY: see `getsockopt`.
    let real = || unsafe { real::ioctl()(fd, request, arg) };
    if !is_socket(fd) {
        return real();
    }
    let answer = |n: Option<usize>| {
        // SAFETY: these requests write an int where the program says.
        n.map(|n| unsafe { (arg as *mut c_int).write_unaligned(n.min(c_int::MAX as usize) as c_int) })
    };
    // SAFETY: these requests read an int where the program says.
    let given = || unsafe { (arg as *const c_int).read_unaligned() };
    match request {
        libc::FIONREAD if answer(session_of(fd, |s| recv::readable(s, fd))).is_some() => 0,
        libc::TIOCOUTQ if answer(session_of(fd, |s| Some(send::unread(s)? + kernel_unsent(fd)))).is_some() => 0,
        SIOCATMARK => {
            // Doorbells before the mark are no bytes of the program's.
            guarded_or((), || _ = session_of(fd, |s| recv::clear_bells(s, fd)));
            real()
        }
        libc::FIONBIO => {
            let result = real();
            if result == 0 {
                guarded_or((), || set_nonblocking(fd, given() != 0));
            }
            result
        }
        libc::FIOASYNC => {
            guarded_or((), || kernel_only(fd, Reason::AsyncIo));
            real()
        }
        _ => real(),
    }
}

fn kernel_unsent(fd: c_int) -> usize {
    raw::ioctl_int(fd, libc::TIOCOUTQ).unwrap_or(0).max(0) as usize
}

fn session_of(fd: c_int, f: impl FnOnce(&sock::Sock) -> Option<usize>) -> Option<usize> {
    guarded_or(None, || sock::enter(fd).filter(|s| s.mode() == mode::SESSION).and_then(|s| f(&s)))
}
