//! Bytes in and out: read(2), recv(2), write(2), send(2) and their relatives.

use core::ffi::{c_int, c_uint, c_void};
use core::ptr;

use libc::{iovec, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t, timespec};
use madrigal_report::Reason;
use madrigal_sys::{Errno, raw};

use super::{finish, guarded, guarded_or, is_socket};
use crate::buffers::Buffers;
use crate::outcome::{Nap, Outcome};
use crate::recv::{self, Receive};
use crate::send::{self, Send};
use crate::{close, fork, leave, real, sock, table};

/// `msg_flags` value that no kernel writes: tells a receive from a ring, which leaves it, from one that asked the kernel.
const UNTOUCHED: c_int = c_int::MIN;

#[inline]
unsafe fn receive(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int) -> Outcome {
    let piece = [iovec { iov_base: buf, iov_len: n }];
    let op = Receive::new(fd, Buffers::of(&piece), flags);
    // SAFETY: the program vouches for its buffer.
    received(&op, |extra| unsafe { raw::recv(fd, buf, n, flags | extra) })
}

#[inline]
unsafe fn transmit(fd: c_int, buf: *const c_void, n: size_t, flags: c_int) -> Outcome {
    let piece = [iovec { iov_base: buf.cast_mut(), iov_len: n }];
    let op = Send::new(fd, Buffers::of(&piece), flags);
    // SAFETY: the program vouches for its buffer.
    sent(&op, || unsafe { raw::send(fd, buf, n, flags) })
}

/// A receive, with its sleeps where a thread can be cancelled: outside the panic guard, through which nothing may unwind.
fn received(op: &Receive<'_>, call: impl Fn(c_int) -> Result<usize, Errno>) -> Outcome {
    loop {
        match guarded(|| recv::receive(op, &call)) {
            Outcome::Await(nap) => {
                let result = sleep(op.fd(), nap);
                if let Some(outcome) = guarded_or(Some(Outcome::Pass), || recv::woken(op, nap, result)) {
                    return outcome;
                }
            }
            outcome => return outcome,
        }
    }
}

/// Sleeps in the C library until `fd` has a byte, an end or an error.
fn sleep(fd: c_int, nap: Nap) -> Result<usize, Errno> {
    let mut byte = 0u8;
    let got = if nap.left == 0 {
        // SAFETY: one byte of our own.
        unsafe { real::recv()(fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK) }
    } else {
        let mut poll = libc::pollfd { fd, events: libc::POLLIN | libc::POLLRDHUP, revents: 0 };
        let left = madrigal_sys::time::timespec(nap.left);
        // SAFETY: one entry and a time of our own, no mask.
        unsafe { real::ppoll()(&raw mut poll, 1, &raw const left, ptr::null()) as ssize_t }
    };
    usize::try_from(got).map_err(|_| Errno::from_raw_os_error(crate::outcome::errno()))
}

/// A send; between its sleeps a thread can be cancelled.
fn sent(op: &Send<'_>, call: impl Fn() -> Result<usize, Errno>) -> Outcome {
    loop {
        match guarded(|| send::send(op, &call)) {
            Outcome::Again => super::cancellation_point(),
            outcome => return outcome,
        }
    }
}

/// read(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn read(fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t {
    // SAFETY: the program's arguments, passed on unchanged; so in every hook below.
    let real = || unsafe { real::read()(fd, buf, n) };
    if !is_socket(fd) || n == 0 {
        return real();
    }
    // SAFETY: as above.
    finish(unsafe { receive(fd, buf, n, 0) }, real)
}

/// `read` with a checked buffer size (`_FORTIFY_SOURCE`).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __read_chk(fd: c_int, buf: *mut c_void, n: size_t, size: size_t) -> ssize_t {
    if n > size {
        // SAFETY: the C library reports the overflow and ends the program.
        return unsafe { real::__read_chk()(fd, buf, n, size) };
    }
    // SAFETY: see `read`.
    unsafe { read(fd, buf, n) }
}

/// recv(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recv(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int) -> ssize_t {
    // SAFETY: see `read`.
    let real = || unsafe { real::recv()(fd, buf, n, flags) };
    if !is_socket(fd) {
        return real();
    }
    // SAFETY: see `read`.
    finish(unsafe { receive(fd, buf, n, flags) }, real)
}

/// `recv` with a checked buffer size.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __recv_chk(
    fd: c_int,
    buf: *mut c_void,
    n: size_t,
    size: size_t,
    flags: c_int,
) -> ssize_t {
    if n > size {
        // SAFETY: the C library reports the overflow and ends the program.
        return unsafe { real::__recv_chk()(fd, buf, n, size, flags) };
    }
    // SAFETY: see `read`.
    unsafe { recv(fd, buf, n, flags) }
}

/// recvfrom(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvfrom(
    fd: c_int,
    buf: *mut c_void,
    n: size_t,
    flags: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> ssize_t {
    // SAFETY: see `read`.
    let real = move || unsafe { real::recvfrom()(fd, buf, n, flags, addr, len) };
    if !is_socket(fd) {
        return real();
    }
    // SAFETY: see `read`.
    let outcome = unsafe { receive(fd, buf, n, flags) };
    if matches!(outcome, Outcome::Done(_)) && !addr.is_null() && !len.is_null() {
        // TCP names no sender: the kernel writes length 0.
        // SAFETY: the program's own length.
        unsafe { *len = 0 };
    }
    finish(outcome, real)
}

/// `recvfrom` with a checked buffer size.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __recvfrom_chk(
    fd: c_int,
    buf: *mut c_void,
    n: size_t,
    size: size_t,
    flags: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> ssize_t {
    if n > size {
        // SAFETY: the C library reports the overflow and ends the program.
        return unsafe { real::__recvfrom_chk()(fd, buf, n, size, flags, addr, len) };
    }
    // SAFETY: see `read`.
    unsafe { recvfrom(fd, buf, n, flags, addr, len) }
}

/// readv(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: see `read`.
    let real = || unsafe { real::readv()(fd, iov, count) };
    // SAFETY: the program's own array.
    let Some(buffers) = (unsafe { Buffers::from_raw(iov, count.max(0) as usize) }) else { return real() };
    if !is_socket(fd) || count <= 0 || buffers.total() == 0 {
        return real();
    }
    let op = Receive::new(fd, buffers, 0);
    let call = |extra| {
        let mut msg = message(iov, count as usize);
        // SAFETY: see `read`.
        unsafe { raw::recvmsg(fd, &mut msg, extra) }
    };
    finish(received(&op, call), real)
}

fn message(iov: *const iovec, count: usize) -> msghdr {
    // SAFETY: an all-zero msghdr is valid.
    let mut msg: msghdr = unsafe { core::mem::zeroed() };
    msg.msg_iov = iov.cast_mut();
    msg.msg_iovlen = count;
    msg
}

/// recvmsg(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: see `read`.
    let real = move || unsafe { real::recvmsg()(fd, msg, flags) };
    if msg.is_null() || !is_socket(fd) {
        let got = real();
        if got >= 0 && !msg.is_null() {
            // SAFETY: the kernel just filled it.
            for_each_right(unsafe { &*msg }, fds_received);
        }
        return got;
    }
    // SAFETY: the program's own header.
    let header = unsafe { &mut *msg };
    // SAFETY: the program's own array.
    let Some(buffers) = (unsafe { Buffers::from_raw(header.msg_iov, header.msg_iovlen) }) else { return real() };
    let kept = core::mem::replace(&mut header.msg_flags, UNTOUCHED);
    let op = Receive::new(fd, buffers, flags);
    // SAFETY: see `read`.
    let outcome = received(&op, |extra| unsafe { raw::recvmsg(fd, msg, flags | extra) });
    if header.msg_flags == UNTOUCHED {
        header.msg_flags = kept;
        if matches!(outcome, Outcome::Done(_)) {
            (header.msg_flags, header.msg_controllen, header.msg_namelen) = (0, 0, 0);
        }
    }
    finish(outcome, real)
}

/// recvmmsg(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvmmsg(
    fd: c_int,
    msgs: *mut mmsghdr,
    n: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    if !is_socket(fd) || msgs.is_null() {
        // SAFETY: see `read`.
        return unsafe { real::recvmmsg()(fd, msgs, n, flags, timeout) };
    }
    let first_only = flags & libc::MSG_WAITFORONE != 0;
    let mut flags = flags & !libc::MSG_WAITFORONE;
    let one = |i: usize, flags: c_int| {
        // SAFETY: the program vouches for `n` headers.
        let entry = unsafe { &mut *msgs.add(i) };
        // SAFETY: see `read`.
        let got = unsafe { recvmsg(fd, &mut entry.msg_hdr, flags) };
        entry.msg_len = got.max(0) as c_uint;
        got
    };
    let mut done = 0;
    while done < n as usize {
        let got = one(done, flags);
        if got < 0 || got == 0 && done > 0 {
            break;
        }
        done += 1;
        if first_only {
            flags |= libc::MSG_DONTWAIT;
        }
        if got == 0 {
            break;
        }
    }
    if done == 0 && n > 0 { -1 } else { done as c_int }
}

/// write(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn write(fd: c_int, buf: *const c_void, n: size_t) -> ssize_t {
    // SAFETY: see `read`.
    let real = || unsafe { real::write()(fd, buf, n) };
    if !is_socket(fd) || n == 0 {
        return real();
    }
    // SAFETY: see `read`.
    finish(unsafe { transmit(fd, buf, n, 0) }, real)
}

/// send(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn send(fd: c_int, buf: *const c_void, n: size_t, flags: c_int) -> ssize_t {
    // SAFETY: see `read`.
    let real = || unsafe { real::send()(fd, buf, n, flags) };
    if !is_socket(fd) || n == 0 {
        return real();
    }
    // SAFETY: see `read`.
    finish(unsafe { transmit(fd, buf, n, flags) }, real)
}

/// sendto(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    buf: *const c_void,
    n: size_t,
    flags: c_int,
    addr: *const sockaddr,
    len: socklen_t,
) -> ssize_t {
    // SAFETY: see `read`.
    let real = || unsafe { real::sendto()(fd, buf, n, flags, addr, len) };
    if !is_socket(fd) || n == 0 || !addr.is_null() && flags & libc::MSG_FASTOPEN != 0 {
        return real();
    }
    // SAFETY: see `read`.
    finish(unsafe { transmit(fd, buf, n, flags) }, real)
}

/// writev(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: see `read`.
    let real = || unsafe { real::writev()(fd, iov, count) };
    // SAFETY: the program's own array.
    let Some(buffers) = (unsafe { Buffers::from_raw(iov, count.max(0) as usize) }) else { return real() };
    if !is_socket(fd) || count <= 0 || buffers.total() == 0 {
        return real();
    }
    let op = Send::new(fd, buffers, 0);
    // SAFETY: see `read`.
    let call = || unsafe { raw::sendmsg(fd, &message(iov, count as usize), 0) };
    finish(sent(&op, call), real)
}

/// sendmsg(2). A message that carries descriptors away makes plain sockets of them first.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: see `read`.
    let real = || unsafe { real::sendmsg()(fd, msg, flags) };
    if msg.is_null() {
        return real();
    }
    // SAFETY: the program's own header.
    let header = unsafe { &*msg };
    if !is_socket(fd) {
        for_each_right(header, |sent| guarded_or((), || fork::give_away(sent)));
        return real();
    }
    // SAFETY: the program's own array.
    let Some(buffers) = (unsafe { Buffers::from_raw(header.msg_iov, header.msg_iovlen) }) else { return real() };
    if buffers.total() == 0 {
        return real();
    }
    if header.msg_controllen > 0 {
        // Control messages on TCP set options for these bytes: the kernel's business.
        guarded_or((), || kernel_only(fd));
        return real();
    }
    let op = Send::new(fd, buffers, flags);
    // SAFETY: see `read`.
    finish(sent(&op, || unsafe { raw::sendmsg(fd, msg, flags) }), real)
}

fn kernel_only(fd: c_int) {
    if let Some(s) = sock::enter(fd) {
        leave::leave_for_good(&s, fd, Reason::Option, false);
    }
}

/// sendmmsg(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmmsg(fd: c_int, msgs: *mut mmsghdr, n: c_uint, flags: c_int) -> c_int {
    if !is_socket(fd) || msgs.is_null() {
        // SAFETY: see `read`.
        return unsafe { real::sendmmsg()(fd, msgs, n, flags) };
    }
    let mut done = 0;
    while done < n as usize {
        // SAFETY: the program vouches for `n` headers.
        let entry = unsafe { &mut *msgs.add(done) };
        // SAFETY: see `read`.
        let sent = unsafe { sendmsg(fd, &entry.msg_hdr, flags) };
        if sent < 0 {
            break;
        }
        entry.msg_len = sent as c_uint;
        done += 1;
    }
    if done == 0 && n > 0 { -1 } else { done as c_int }
}

/// Calls `f` for every descriptor an `SCM_RIGHTS` message carries (unix(7), cmsg(3)).
fn for_each_right(msg: &msghdr, f: impl Fn(c_int)) {
    if msg.msg_control.is_null() || msg.msg_controllen < size_of::<libc::cmsghdr>() {
        return;
    }
    // SAFETY: the header describes a control buffer the program (or the kernel) has filled; the macros stay inside it.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(msg) };
    while !next.is_null() {
        // SAFETY: as above.
        let cmsg = unsafe { &*next };
        if cmsg.cmsg_level == libc::SOL_SOCKET && cmsg.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: as above.
            let data = unsafe { libc::CMSG_DATA(next) };
            // SAFETY: only arithmetic.
            let bytes = cmsg.cmsg_len.saturating_sub(unsafe { libc::CMSG_LEN(0) } as usize);
            for i in 0..bytes / size_of::<c_int>() {
                // SAFETY: inside the message; it may be unaligned.
                f(unsafe { data.cast::<c_int>().add(i).read_unaligned() });
            }
        }
        // SAFETY: as above.
        next = unsafe { libc::CMSG_NXTHDR(ptr::from_ref(msg).cast_mut(), next) };
    }
}

/// A descriptor that arrived from another process: if it is a TCP connection its holders cannot be counted, but it may spin.
fn fds_received(fd: c_int) {
    guarded_or((), || super::fds::adopt_connection(fd));
}

/// close(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    if table::get(fd).is_some() {
        guarded_or((), || close::forget(fd));
    } else if fd >= 0 && fd == crate::process::report_fd() {
        return super::fail(madrigal_sys::Errno::BADF);
    }
    // SAFETY: see `read`.
    unsafe { real::close()(fd) }
}
