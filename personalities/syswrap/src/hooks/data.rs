//! Bytes in and out: read(2), recv(2), write(2), send(2) and their relatives.

use core::ffi::{c_int, c_void};
use core::ptr;

use libc::{iovec, msghdr, off64_t, size_t, sockaddr, socklen_t, ssize_t};
use madrigal_report::Reason;
use madrigal_sys::signals::as_set;
use madrigal_sys::{Errno, fault, raw, time};

use super::{
    cancellable, cancellation_point, checked, closing, fail, finish, finish_whole, forgetting, guarded, guarded_or,
    is_known, is_socket, kernel_only, leaving,
};
use crate::io::buffers::{Buffers, message};
use crate::io::recv::{self, Receive};
use crate::io::send::{self, Send};
use crate::io::{file_wait, handlers, quick};
use crate::outcome::{CSleep, Outcome};
use crate::real;
use crate::state::table;

/// A receive, with its sleeps where a thread can be cancelled: outside the panic guard, through which nothing may unwind.
pub(super) fn received(op: &Receive, call: impl Fn(c_int, c_int) -> Result<usize, Errno>) -> Outcome {
    let outcome = received_held(op, call);
    op.signals().release();
    guarded_or((), || op.target().leave());
    outcome
}

/// The same, which may hold signals back.
fn received_held(op: &Receive, call: impl Fn(c_int, c_int) -> Result<usize, Errno>) -> Outcome {
    loop {
        match guarded(|| recv::receive(op, &call)) {
            Outcome::Again => cancellable(op.signals(), op.target(), cancellation_point),
            Outcome::Await(asleep) => {
                let sleep = || leaving(&asleep, recv::left, || sleep(op.fd(), asleep));
                let result = cancellable(op.signals(), op.target(), sleep);
                if let Some(outcome) = guarded_or(Some(Outcome::Pass), || recv::woken(op, asleep, result)) {
                    return outcome;
                }
            }
            outcome => return outcome,
        }
    }
}

/// Sleeps in the C library until `fd` has an event.
pub(super) fn sleep(fd: c_int, asleep: CSleep) -> Result<usize, Errno> {
    let Some(events) = asleep.poll else {
        let mut byte = 0u8;
        // SAFETY: one byte of our own.
        return checked(unsafe { real::recv()(fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK) });
    };
    let Some(set) = guarded_or(None, || file_wait::set_of(fd, events)) else {
        return sleep_in_poll((fd, events), asleep);
    };
    let result = closing(set, || sleep_in_poll((set, libc::POLLIN), asleep));
    let result = result.map(|n| if n > 0 { file_wait::reported_by(set, events) } else { 0 });
    handlers::close_own(set);
    result
}

fn sleep_in_poll((fd, events): (c_int, i16), asleep: CSleep) -> Result<usize, Errno> {
    let left = asleep.left.map(time::timespec);
    if asleep.restarts {
        return handlers::sleep((fd, events), left, asleep.mask, |poll, left, mask| {
            let left = left.as_ref().map_or(ptr::null(), ptr::from_ref);
            closing(poll[1].fd, || {
                // SAFETY: entries, a time and a mask of our own.
                checked(unsafe { real::ppoll()(poll.as_mut_ptr(), 2, left, mask) as ssize_t })
            })
        });
    }
    let mask = asleep.mask.map(as_set);
    let mask = mask.as_ref().map_or(ptr::null(), ptr::from_ref);
    let mut poll = libc::pollfd { fd, events, revents: 0 };
    let left = left.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: one entry, a time and a mask of our own.
    checked(unsafe { real::ppoll()(&raw mut poll, 1, left, mask) as ssize_t })
}

/// A send; between its sleeps a thread can be cancelled.
pub(super) fn sent(op: &Send, call: impl Fn(c_int) -> Result<usize, Errno>) -> Outcome {
    let outcome = sent_held(op, call);
    op.signals().release();
    guarded_or((), || op.target().leave());
    outcome
}

/// The same, which may hold signals back.
fn sent_held(op: &Send, call: impl Fn(c_int) -> Result<usize, Errno>) -> Outcome {
    loop {
        match guarded(|| send::send(op, &call)) {
            Outcome::Again => cancellable(op.signals(), op.target(), cancellation_point),
            Outcome::Await(asleep) => {
                let sleep = || leaving(&asleep, send::left, || sleep(op.fd(), asleep));
                let result = cancellable(op.signals(), op.target(), sleep);
                if let Some(outcome) = guarded_or(Some(Outcome::Pass), || send::woken(op, asleep, result)) {
                    return outcome;
                }
            }
            outcome => return outcome,
        }
    }
}

#[inline]
unsafe fn receive(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int) -> Outcome {
    // SAFETY: the program vouches for its buffer.
    match guarded_or(None, || unsafe { quick::receive(fd, buf.cast(), n, flags) }) {
        Some(result) => result.into(),
        // SAFETY: as above.
        None => unsafe { receive_in_full(fd, buf, n, flags) },
    }
}

#[inline(never)]
unsafe fn receive_in_full(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int) -> Outcome {
    let op = Receive::new(fd, Buffers::one(buf, n), flags);
    // SAFETY: the program vouches for its buffer.
    received(&op, |fd, extra| unsafe { raw::recv(fd, buf, n, flags | extra) })
}

#[inline]
unsafe fn transmit(fd: c_int, buf: *const c_void, n: size_t, flags: c_int) -> Outcome {
    // SAFETY: the program vouches for its buffer.
    match guarded_or(None, || unsafe { quick::send(fd, buf.cast(), n, flags) }) {
        Some(n) => Outcome::Done(n),
        // SAFETY: as above.
        None => unsafe { transmit_in_full(fd, buf, n, flags) },
    }
}

#[inline(never)]
unsafe fn transmit_in_full(fd: c_int, buf: *const c_void, n: size_t, flags: c_int) -> Outcome {
    let op = Send::new(fd, Buffers::one(buf.cast_mut(), n), flags);
    // SAFETY: the program vouches for its buffer.
    sent(&op, |fd| unsafe { raw::send(fd, buf, n, flags) })
}

// --- in ---------------------------------------------------------------------------------------------------------------------------

/// read(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn read(fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t {
    // SAFETY: the program's arguments, passed on unchanged; so in every hook below.
    let real = || unsafe { real::read()(fd, buf, n) };
    if !is_socket(fd) || n == 0 {
        return real();
    }
    // SAFETY: as above.
    finish(fd, unsafe { receive(fd, buf, n, 0) }, real)
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
    finish(fd, unsafe { receive(fd, buf, n, flags) }, real)
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
    // TCP names no sender: the kernel writes length 0.
    // SAFETY: the program's own length, if anything.
    let write_sender = || addr.is_null() || unsafe { fault::write(len, 0) };
    if matches!(outcome, Outcome::Done(_)) && !write_sender() {
        return fail(Errno::FAULT) as ssize_t;
    }
    finish_whole(fd, outcome, real, write_sender)
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
    // SAFETY: see `read`.
    unsafe { receive_many(fd, (iov, count), 0) }.map_or_else(real, |outcome| finish(fd, outcome, real))
}

/// Receives into many pieces. `None`: the kernel judges the call.
///
/// # Safety
/// As for readv(2), but for addresses that are bad.
unsafe fn receive_many(fd: c_int, (iov, count): (*const iovec, c_int), flags: c_int) -> Option<Outcome> {
    let count = usize::try_from(count).ok().filter(|_| is_socket(fd))?;
    // SAFETY: the caller's contract.
    let buffers = unsafe { Buffers::many(iov, count) }.filter(|buffers| buffers.total() > 0)?;
    let op = Receive::new(fd, buffers, flags);
    let call = |fd, extra| {
        let mut msg = of_pieces(iov, count);
        // SAFETY: the caller's contract.
        unsafe { raw::recvmsg(fd, &mut msg, flags | extra) }
    };
    Some(received(&op, call))
}

fn of_pieces(iov: *const iovec, count: usize) -> msghdr {
    let mut msg = message(&mut []);
    msg.msg_iov = iov.cast_mut();
    msg.msg_iovlen = count;
    msg
}

/// preadv2(2): on a socket, where there is no offset, readv(2) with flags.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn preadv2(
    fd: c_int,
    iov: *const iovec,
    count: c_int,
    at: off64_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: see `read`.
    let real = || unsafe { real::preadv2()(fd, iov, count, at, flags) };
    let Some(wait) = without_offset(fd, at, flags) else { return real() };
    // SAFETY: see `read`.
    unsafe { receive_many(fd, (iov, count), wait) }.map_or_else(real, |outcome| finish(fd, outcome, real))
}

/// preadv2(2) by its other name.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn preadv64v2(
    fd: c_int,
    iov: *const iovec,
    count: c_int,
    at: off64_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: see `read`.
    unsafe { preadv2(fd, iov, count, at, flags) }
}

/// The flags of recv(2) or send(2) that preadv2(2) or pwritev2(2) of a socket means. `None`: the kernel handles the call; a socket has
/// left its ring then if `flags` are the reason.
fn without_offset(fd: c_int, at: off64_t, flags: c_int) -> Option<c_int> {
    if !is_socket(fd) || at != -1 {
        return None;
    }
    match flags {
        0 | libc::RWF_HIPRI => Some(0),
        libc::RWF_NOWAIT => Some(libc::MSG_DONTWAIT),
        _ => {
            kernel_only(fd, Reason::Option);
            None
        }
    }
}

// --- out --------------------------------------------------------------------------------------------------------------------------

/// write(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn write(fd: c_int, buf: *const c_void, n: size_t) -> ssize_t {
    // SAFETY: see `read`.
    let real = || unsafe { real::write()(fd, buf, n) };
    if !is_socket(fd) {
        return real();
    }
    // SAFETY: see `read`.
    finish(fd, unsafe { transmit(fd, buf, n, 0) }, real)
}

/// eventfd_read(3), which reads eight bytes of any descriptor.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn eventfd_read(fd: c_int, value: *mut u64) -> c_int {
    // SAFETY: see `read`.
    whole(unsafe { read(fd, value.cast(), size_of::<u64>()) })
}

/// eventfd_write(3), which writes eight bytes to any descriptor.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn eventfd_write(fd: c_int, value: u64) -> c_int {
    // SAFETY: see `write`.
    whole(unsafe { write(fd, (&raw const value).cast(), size_of::<u64>()) })
}

fn whole(count: ssize_t) -> c_int {
    if usize::try_from(count) == Ok(size_of::<u64>()) { 0 } else { -1 }
}

/// send(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn send(fd: c_int, buf: *const c_void, n: size_t, flags: c_int) -> ssize_t {
    // SAFETY: see `read`.
    let real = || unsafe { real::send()(fd, buf, n, flags) };
    if !is_socket(fd) {
        return real();
    }
    // SAFETY: see `read`.
    finish(fd, unsafe { transmit(fd, buf, n, flags) }, real)
}

/// sendto(2). On a connected stream the address is ignored.
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
    if !is_socket(fd) || !addr.is_null() && flags & libc::MSG_FASTOPEN != 0 {
        return real();
    }
    // SAFETY: see `read`.
    finish(fd, unsafe { transmit(fd, buf, n, flags) }, real)
}

/// writev(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: see `read`.
    let real = || unsafe { real::writev()(fd, iov, count) };
    // SAFETY: see `read`.
    unsafe { transmit_many(fd, (iov, count), 0) }.map_or_else(real, |outcome| finish(fd, outcome, real))
}

/// Sends many pieces. `None`: the kernel judges the call.
///
/// # Safety
/// As for writev(2), but for addresses that are bad.
unsafe fn transmit_many(fd: c_int, (iov, count): (*const iovec, c_int), flags: c_int) -> Option<Outcome> {
    let count = usize::try_from(count).ok().filter(|_| is_socket(fd))?;
    // SAFETY: the caller's contract.
    let buffers = unsafe { Buffers::many(iov, count) }.filter(|buffers| buffers.total() > 0)?;
    let op = Send::new(fd, buffers, flags);
    // SAFETY: the caller's contract.
    Some(sent(&op, |fd| unsafe { raw::sendmsg(fd, &of_pieces(iov, count), flags) }))
}

/// pwritev2(2): on a socket, where there is no offset, writev(2) with flags.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pwritev2(
    fd: c_int,
    iov: *const iovec,
    count: c_int,
    at: off64_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: see `read`.
    let real = || unsafe { real::pwritev2()(fd, iov, count, at, flags) };
    let Some(wait) = without_offset(fd, at, flags) else { return real() };
    // SAFETY: see `read`.
    unsafe { transmit_many(fd, (iov, count), wait) }.map_or_else(real, |outcome| finish(fd, outcome, real))
}

/// pwritev2(2) by its other name.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pwritev64v2(
    fd: c_int,
    iov: *const iovec,
    count: c_int,
    at: off64_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: see `read`.
    unsafe { pwritev2(fd, iov, count, at, flags) }
}

/// close(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    if table::is_hidden(fd) {
        return fail(Errno::BADF);
    }
    // SAFETY: see `read`.
    let real = || unsafe { real::close()(fd) };
    if is_known(fd) { forgetting(fd, real) } else { real() }
}
