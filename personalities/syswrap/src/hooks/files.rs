//! Files into sockets: sendfile(2) and splice(2).

use core::ffi::{c_int, c_uint};

use libc::{off_t, off64_t, size_t, ssize_t};
use madrigal_report::Reason;
use madrigal_sys::raw;

use super::{finish, guarded, guarded_or, is_socket};
use crate::outcome::Outcome;
use crate::{leave, plain, real, send, sock};

/// sendfile(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendfile(out: c_int, file: c_int, offset: *mut off_t, n: size_t) -> ssize_t {
    // SAFETY: see `read`.
    let real = || unsafe { real::sendfile()(out, file, offset, n) };
    // SAFETY: see `read`.
    if is_socket(out) { finish(guarded(|| unsafe { send_file(out, file, offset, n) }), real) } else { real() }
}

/// sendfile(2) with 64-bit offsets.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendfile64(out: c_int, file: c_int, offset: *mut off64_t, n: size_t) -> ssize_t {
    // SAFETY: see `read`.
    let real = || unsafe { real::sendfile64()(out, file, offset, n) };
    // SAFETY: see `read`.
    if is_socket(out) { finish(guarded(|| unsafe { send_file(out, file, offset, n) }), real) } else { real() }
}

/// Reads the file straight into the ring. Its offset moves by what was published, never by what was only read.
///
/// # Safety
/// `offset` is null or points to the program's offset.
unsafe fn send_file(out: c_int, file: c_int, offset: *mut off64_t, n: usize) -> Outcome {
    let Some(mut s) = sock::enter(out) else { return Outcome::Pass };
    crate::upgrade::step(&s, out);
    loop {
        if s.mode() == sock::mode::SESSION {
            // SAFETY: the caller's contract.
            let at = if offset.is_null() { raw::seek(file, 0, libc::SEEK_CUR) } else { Ok(unsafe { *offset }) };
            let Ok(at) = at else { return Outcome::Pass };
            // SAFETY: `send::file` gives free ring space.
            let read =
                |ptr: *mut u8, len: usize, from: usize| unsafe { raw::pread(file, ptr, len, at + from as off64_t) };
            // 2 GiB less a page is what the kernel moves in one call.
            if let Some(outcome) = send::file(&s, out, read, n.min(0x7fff_f000)) {
                if let Outcome::Done(sent) = outcome {
                    move_offset(file, offset, at + sent as off64_t);
                }
                return outcome;
            }
        }
        match plain::send(s, out, false, || Ok(0)) {
            Ok(outcome) => return outcome,
            Err(back) => s = back,
        }
    }
}

fn move_offset(file: c_int, offset: *mut off64_t, at: off64_t) {
    if offset.is_null() {
        let _ = raw::seek(file, at, libc::SEEK_SET);
    } else {
        // SAFETY: the program's offset, by the contract of sendfile(2).
        unsafe { *offset = at };
    }
}

/// splice(2): a socket in it is a plain one from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splice(
    from: c_int,
    from_at: *mut off64_t,
    to: c_int,
    to_at: *mut off64_t,
    n: size_t,
    flags: c_uint,
) -> ssize_t {
    guarded_or((), || {
        for fd in [from, to] {
            if let Some(s) = sock::enter(fd) {
                leave::leave_for_good(&s, fd, Reason::Splice, true);
            }
        }
    });
    // SAFETY: see `read`.
    unsafe { real::splice()(from, from_at, to, to_at, n, flags) }
}
