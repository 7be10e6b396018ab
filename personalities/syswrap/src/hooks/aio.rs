//! Asynchronous I/O: its reads and writes are made where no hook sees them, so every socket among them is a plain one first. What the ring
//! of a peer that is gone still holds cannot be had in the kernel: such a read is made at once ([`request`]).

mod request;

use core::ffi::{c_int, c_long, c_uint, c_void};
use core::ptr;

use libc::size_t;
use madrigal_report::Reason;

use super::processes::leave_all;
use super::{get, guarded_or, kernel_only};
use crate::real;

/// More requests than one call takes.
const MOST: usize = 1 << 16;

/// A request of io_submit(2).
fn plainly(request: *mut c_void) {
    // SAFETY: the program's request, if it is mapped: an int at that place.
    if let Some(fd) = unsafe { get(request.wrapping_byte_add(IOCB_FD).cast::<c_int>()) } {
        kernel_only(fd, Reason::AsyncIo);
    }
}

/// The descriptor's place in a request of io_submit(2) (linux/aio_abi.h).
const IOCB_FD: usize = 20;

macro_rules! before_request {
    ($($(#[doc = $doc:literal])* $name:ident, $reads:literal;)*) => {
        $(
            $(#[doc = $doc])*
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $name(request: *mut c_void) -> c_int {
                // SAFETY: the program's request.
                if unsafe { request::before(request, $reads) } {
                    return 0;
                }
                // SAFETY: the program's argument, passed on unchanged.
                unsafe { real::$name()(request) }
            }
        )*
    };
}

before_request! {
    /// aio_read(3)
    aio_read, true;
    /// aio_read(3) with 64-bit offsets.
    aio_read64, true;
    /// aio_write(3)
    aio_write, false;
    /// aio_write(3) with 64-bit offsets.
    aio_write64, false;
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
    let rest = unsafe { request::before_all(list, n) };
    let list = rest.as_ref().map_or(list, request::Rest::list);
    // SAFETY: passed on, but for what is done already; so in every hook below.
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
    let rest = unsafe { request::before_all(list, n) };
    let list = rest.as_ref().map_or(list, request::Rest::list);
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
    for i in 0..(n.max(0) as usize).min(MOST) {
        // SAFETY: the caller's contract.
        let request = unsafe { get(list.wrapping_add(i)) }.unwrap_or(ptr::null_mut());
        if !request.is_null() {
            plainly(request);
        }
    }
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
