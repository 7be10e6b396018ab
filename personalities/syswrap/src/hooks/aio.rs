//! Asynchronous I/O: its reads and writes are made where no hook sees them, so every socket among them is a plain one first.

use core::ffi::{c_int, c_long, c_uint, c_void};

use libc::size_t;
use madrigal_report::Reason;

use super::processes::leave_all;
use super::{get, guarded_or, kernel_only};
use crate::real;

/// More requests than one call takes.
const MOST: usize = 1 << 16;

/// A request of aio(7), or of io_submit(2): the descriptor is its first field, or the sixth word.
fn plainly(request: *mut c_void, at: usize) {
    // SAFETY: the program's request, if it is mapped: an int at that place.
    if let Some(fd) = unsafe { get(request.wrapping_byte_add(at).cast::<c_int>()) } {
        kernel_only(fd, Reason::AsyncIo);
    }
}

/// The descriptor's place in a request of io_submit(2) (linux/aio_abi.h).
const IOCB_FD: usize = 20;

/// The same for each of a list.
///
/// # Safety
/// What is mapped of `n` pointers at `list` is the program's.
unsafe fn all_plainly(list: *const *mut c_void, n: usize, at: usize) {
    for i in 0..n.min(MOST) {
        // SAFETY: the caller's contract.
        match unsafe { get(list.wrapping_add(i)) } {
            Some(request) if !request.is_null() => plainly(request, at),
            _ => {}
        }
    }
}

macro_rules! before_request {
    ($($(#[doc = $doc:literal])* $name:ident;)*) => {
        $(
            $(#[doc = $doc])*
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $name(request: *mut c_void) -> c_int {
                plainly(request, 0);
                // SAFETY: the program's argument, passed on unchanged.
                unsafe { real::$name()(request) }
            }
        )*
    };
}

before_request! {
    /// aio_read(3)
    aio_read;
    /// aio_read(3) with 64-bit offsets.
    aio_read64;
    /// aio_write(3)
    aio_write;
    /// aio_write(3) with 64-bit offsets.
    aio_write64;
}

/// lio_listio(3)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn lio_listio(
    mode: c_int,
    list: *const *mut c_void,
    n: c_int,
    event: *mut c_void,
) -> c_int {
    // SAFETY: the program's arguments; so below.
    unsafe { all_plainly(list, n.max(0) as usize, 0) };
    // SAFETY: passed on unchanged; so in every hook below.
    unsafe { real::lio_listio()(mode, list, n, event) }
}

/// lio_listio(3) with 64-bit offsets.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn lio_listio64(
    mode: c_int,
    list: *const *mut c_void,
    n: c_int,
    event: *mut c_void,
) -> c_int {
    // SAFETY: see `lio_listio`.
    unsafe { all_plainly(list, n.max(0) as usize, 0) };
    // SAFETY: see `lio_listio`.
    unsafe { real::lio_listio64()(mode, list, n, event) }
}

/// io_submit(2), as libaio calls it.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn io_submit(context: *mut c_void, n: c_long, list: *mut *mut c_void) -> c_int {
    // SAFETY: see `lio_listio`.
    unsafe { before_submit(n, list) };
    // SAFETY: see `lio_listio`.
    unsafe { real::io_submit()(context, n, list) }
}

/// Before io_submit(2).
///
/// # Safety
/// What is mapped of `n` pointers at `list` is the program's.
pub(super) unsafe fn before_submit(n: c_long, list: *const *mut c_void) {
    // SAFETY: the caller's contract.
    unsafe { all_plainly(list, n.max(0) as usize, IOCB_FD) };
}

/// A program that uses io_uring(7): its reads and writes cannot be seen.
pub(super) fn before_uring() {
    guarded_or((), || leave_all(Reason::IoUring));
}

/// io_uring_queue_init(3): liburing makes its system calls itself.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint) -> c_int {
    before_uring();
    // SAFETY: see `lio_listio`.
    unsafe { real::io_uring_queue_init()(entries, ring, flags) }
}

/// io_uring_queue_init_params(3)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn io_uring_queue_init_params(
    entries: c_uint,
    ring: *mut c_void,
    params: *mut c_void,
) -> c_int {
    before_uring();
    // SAFETY: see `lio_listio`.
    unsafe { real::io_uring_queue_init_params()(entries, ring, params) }
}

/// io_uring_queue_init_mem(3)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn io_uring_queue_init_mem(
    entries: c_uint,
    ring: *mut c_void,
    params: *mut c_void,
    memory: *mut c_void,
    size: size_t,
) -> c_int {
    before_uring();
    // SAFETY: see `lio_listio`.
    unsafe { real::io_uring_queue_init_mem()(entries, ring, params, memory, size) }
}

/// io_uring_setup(2), as liburing exports it.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn io_uring_setup(entries: c_uint, params: *mut c_void) -> c_int {
    before_uring();
    // SAFETY: see `lio_listio`.
    unsafe { real::io_uring_setup()(entries, params) }
}
