//! recvmsg(2), sendmsg(2), and several of them in one call.

use core::ffi::{c_int, c_uint};

use libc::{cmsghdr, mmsghdr, msghdr, ssize_t, timespec};
use madrigal_report::Reason;
use madrigal_sys::{Errno, fault, raw, time};

use super::data::{received, sent};
use super::signals::is_awake;
use super::{fail, finish, finish_whole, get, guarded_or, is_socket, sends_by_kernel};
use crate::io::buffers::Buffers;
use crate::io::recv::{self, Receive};
use crate::io::send::Send;
use crate::lifecycle::fork;
use crate::outcome::{Outcome, errno};
use crate::real;
use crate::state::{process, sock};

/// `msg_flags` value that no kernel writes. A receive from a ring leaves it, a receive that asked the kernel does not.
const UNTOUCHED: c_int = c_int::MIN;
/// More messages than the kernel takes in one call.
const MOST: c_uint = libc::UIO_MAXIOV as c_uint;

/// recvmsg(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the program's arguments, passed on unchanged; so in every hook below.
    let real = move || unsafe { real::recvmsg()(fd, msg, flags) };
    if !is_socket(fd) {
        let got = real();
        if got >= 0 {
            // SAFETY: the kernel just filled it.
            unsafe { get(msg) }.inspect(rights_received);
        }
        return got;
    }
    // SAFETY: see above.
    let Some(outcome) = (unsafe { receive(fd, msg, flags) }) else { return real() };
    // SAFETY: as above.
    let write_end = || unsafe { get(msg).is_some_and(|header| fault::write(msg, from_nobody(header, flags))) };
    finish_whole(fd, outcome, real, write_end)
}

/// What the kernel makes of a message's header where it returns nothing but bytes, or the end.
fn from_nobody(mut header: msghdr, flags: c_int) -> msghdr {
    (header.msg_flags, header.msg_controllen) = (flags & libc::MSG_CMSG_CLOEXEC, 0);
    if !header.msg_name.is_null() {
        header.msg_namelen = 0;
    }
    header
}

/// recvmsg(2) of a socket. `None`: the kernel judges the call.
///
/// # Safety
/// As for recvmsg(2), but for addresses that are bad.
unsafe fn receive(fd: c_int, msg: *mut msghdr, flags: c_int) -> Option<Outcome> {
    // SAFETY: the caller's contract.
    let header = unsafe { get(msg) }?;
    // SAFETY: as above.
    let buffers = unsafe { Buffers::many(header.msg_iov, header.msg_iovlen) }?;
    let own = core::cell::Cell::new(msghdr { msg_flags: UNTOUCHED, ..header });
    let op = Receive::new(fd, buffers, flags);
    let outcome = received(&op, |fd, extra| {
        // SAFETY: as above; the header is our own.
        unsafe { raw::recvmsg(fd, own.as_ptr(), flags | extra) }
    });
    if matches!(outcome, Outcome::Done(_)) {
        let mut header = own.get();
        if header.msg_flags == UNTOUCHED {
            header = from_nobody(header, flags);
        }
        // SAFETY: as above.
        if !unsafe { fault::write(msg, header) } {
            return Some(Outcome::Fail(Errno::FAULT));
        }
    }
    Some(outcome)
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
    if !is_socket(fd) {
        // SAFETY: see `recvmsg`.
        let got = unsafe { real::recvmmsg()(fd, msgs, n, flags, timeout) };
        for i in 0..got.max(0) as usize {
            // SAFETY: the kernel just filled them.
            unsafe { get(msgs.wrapping_add(i)) }.inspect(|entry| rights_received(&entry.msg_hdr));
        }
        return got;
    }
    // SAFETY: see `recvmsg`.
    let Some(limit) = (unsafe { Limit::read(timeout) }) else {
        // SAFETY: see `recvmsg`.
        return unsafe { real::recvmmsg()(fd, msgs, n, flags, timeout) };
    };
    if flags & libc::MSG_ERRQUEUE == 0
        && let Some(e) = guarded_or(None, || recv::error_first(fd))
    {
        return fail(e);
    }
    let mut more = flags & !libc::MSG_WAITFORONE;
    let (mut done, meant) = (0, identity(fd));
    while done < n.min(MOST) as usize {
        if done > 0 && identity(fd) != meant {
            break;
        }
        let entry = msgs.wrapping_add(done);
        // SAFETY: see `recvmsg`; only the address is computed.
        let got = unsafe { recvmsg(fd, &raw mut (*entry).msg_hdr, more) };
        if got < 0 {
            if done > 0 {
                keep_error(fd);
            }
            break;
        }
        // SAFETY: as above.
        if !unsafe { fault::write(&raw mut (*entry).msg_len, got as c_uint) } {
            return if done == 0 { fail(Errno::FAULT) } else { done as c_int };
        }
        done += 1;
        if flags & libc::MSG_WAITFORONE != 0 {
            more |= libc::MSG_DONTWAIT;
        }
        // SAFETY: as above; what was just written is read again.
        let urgent =
            unsafe { get(&raw const (*entry).msg_hdr.msg_flags) }.is_some_and(|flags| flags & libc::MSG_OOB != 0);
        // SAFETY: as above.
        if urgent || unsafe { limit.is_over(timeout) } {
            break;
        }
    }
    if done == 0 && n > 0 { -1 } else { done as c_int }
}

/// Which socket a number stands for: a call of many messages ends where another thread has closed it between two.
fn identity(fd: c_int) -> Option<(u32, u32)> {
    guarded_or(None, || sock::enter(fd).map(|s| (s.index(), s.generation())))
}

/// The time-out of recvmmsg(2), which is checked behind each message.
struct Limit(Option<u64>);

impl Limit {
    /// `None`: the kernel judges it.
    ///
    /// # Safety
    /// As for [`get`].
    unsafe fn read(timeout: *const timespec) -> Option<Self> {
        if timeout.is_null() {
            return Some(Self(None));
        }
        // SAFETY: the caller's contract.
        let given = unsafe { get(timeout) }?;
        let legal = given.tv_sec >= 0 && (0..1_000_000_000).contains(&given.tv_nsec);
        let ns = (given.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(given.tv_nsec as u64);
        legal.then(|| Self(Some(time::now_ns().saturating_add(ns))))
    }

    /// Says what is left of it.
    ///
    /// # Safety
    /// As for [`get`].
    unsafe fn is_over(&self, timeout: *mut timespec) -> bool {
        let Some(end) = self.0 else { return false };
        let left = end.saturating_sub(time::now_ns());
        // SAFETY: the caller's contract.
        unsafe { fault::write(timeout, time::timespec(left)) };
        left == 0
    }
}

/// An error behind messages that were received is the next call's.
fn keep_error(fd: c_int) {
    let code = errno();
    if code == libc::EAGAIN || code == libc::EINTR {
        return;
    }
    guarded_or((), || {
        if let Some(s) = sock::enter(fd) {
            s.session.restore_pending_error(madrigal_sys::errno_from(code));
        }
    });
}

/// sendmsg(2). A message that carries descriptors away makes plain sockets of them first.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: see `recvmsg`.
    let real = || unsafe { real::sendmsg()(fd, msg, flags) };
    if !is_awake() {
        return real();
    }
    // SAFETY: see `recvmsg`.
    let Some(header) = (unsafe { get(msg) }) else { return real() };
    if !is_socket(fd) {
        give_rights_away(&header);
        return real();
    }
    // SAFETY: see `recvmsg`.
    let buffers = unsafe { Buffers::many(header.msg_iov, header.msg_iovlen) };
    let Some(buffers) = buffers else { return real() };
    if header.msg_controllen > 0 {
        // Control messages on TCP set options for these bytes: the kernel's business.
        sends_by_kernel(fd, Reason::Option);
    }
    let op = Send::new(fd, buffers, flags);
    // SAFETY: see `recvmsg`.
    finish(fd, sent(&op, |fd| unsafe { raw::sendmsg(fd, msg, flags) }), real)
}

/// sendmmsg(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmmsg(fd: c_int, msgs: *mut mmsghdr, n: c_uint, flags: c_int) -> c_int {
    if !is_socket(fd) {
        for i in 0..if is_awake() { n.min(MOST) as usize } else { 0 } {
            // SAFETY: see `recvmsg`.
            unsafe { get(msgs.wrapping_add(i)) }.inspect(|entry| give_rights_away(&entry.msg_hdr));
        }
        // SAFETY: see `recvmsg`.
        return unsafe { real::sendmmsg()(fd, msgs, n, flags) };
    }
    let (mut done, meant) = (0, identity(fd));
    while done < n.min(MOST) as usize {
        if done > 0 && identity(fd) != meant {
            break;
        }
        let entry = msgs.wrapping_add(done);
        // SAFETY: see `recvmsg`; only the address is computed.
        let sent = unsafe { sendmsg(fd, &raw const (*entry).msg_hdr, flags) };
        // SAFETY: as above.
        if sent < 0 || !unsafe { fault::write(&raw mut (*entry).msg_len, sent as c_uint) } {
            break;
        }
        done += 1;
    }
    if done == 0 && n > 0 { -1 } else { done as c_int }
}

// --- descriptors in messages ------------------------------------------------------------------------------------------------------

fn give_rights_away(msg: &msghdr) {
    if !process::is_plain() {
        guarded_or((), || each_right(msg, fork::give_away));
    }
}

/// Descriptors that arrived from another process: the holders of a TCP connection among them cannot be counted, but it may spin.
fn rights_received(msg: &msghdr) {
    if !process::is_plain() {
        super::aside(|| each_right(msg, super::fds::adopt_connection));
    }
}

/// Calls `f` for every descriptor an `SCM_RIGHTS` message carries (unix(7), cmsg(3)).
fn each_right(msg: &msghdr, f: impl Fn(c_int)) {
    let (control, len) = (msg.msg_control.cast::<u8>(), msg.msg_controllen);
    let mut at = 0;
    while !control.is_null() && len - at >= size_of::<cmsghdr>() {
        // SAFETY: the program's own memory, if anything; it may be unaligned for us, which a copy does not mind.
        let Some(cmsg) = (unsafe { get(control.wrapping_add(at).cast::<cmsghdr>()) }) else { return };
        let size = cmsg.cmsg_len;
        if size < size_of::<cmsghdr>() || size > len - at {
            return;
        }
        if (cmsg.cmsg_level, cmsg.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            let rights = control.wrapping_add(at + size_of::<cmsghdr>()).cast::<c_int>();
            for i in 0..(size - size_of::<cmsghdr>()) / size_of::<c_int>() {
                // SAFETY: as above.
                unsafe { get(rights.wrapping_add(i)) }.into_iter().for_each(&f);
            }
        }
        let step = size.next_multiple_of(size_of::<usize>());
        if step >= len - at {
            return;
        }
        at += step;
    }
}

const _: () = assert!(size_of::<cmsghdr>().is_multiple_of(size_of::<usize>()));
