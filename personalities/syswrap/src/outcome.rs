//! How a hook's logic ends.

use core::ffi::c_int;

use madrigal_sys::Errno;

/// What the hook does after its logic.
#[derive(Clone, Copy)]
pub(crate) enum Outcome {
    /// Return this.
    Done(usize),
    /// Return -1 with this errno.
    Fail(Errno),
    /// Call the next function in line as if we were not there.
    Pass,
    /// The same, for a call that may sleep long; then tell [`crate::plain::after_sleep`].
    Sleep(Ticket),
    /// Sleep in the C library, where a thread can be cancelled, until the socket has something to tell; then
    /// [`crate::recv::woken`], and the logic again.
    Await(Nap),
    /// A point where a thread can be cancelled; then the logic again.
    Again,
}

/// A receive about to sleep for a ring.
#[derive(Clone, Copy)]
pub(crate) struct Nap {
    /// The socket, held until the thread is back.
    pub(crate) sock: u32,
    /// When the wait began.
    pub(crate) since: u64,
    /// Nanoseconds it may last, 0 for ever.
    pub(crate) left: u64,
}

/// A blocking call handed to the C library.
#[derive(Clone, Copy)]
pub(crate) struct Ticket {
    /// The socket, held until the call returns.
    pub(crate) sock: u32,
    /// True for a receive, false for a send.
    pub(crate) receiving: bool,
    /// When the wait began.
    pub(crate) since: u64,
}

impl From<Result<usize, Errno>> for Outcome {
    fn from(result: Result<usize, Errno>) -> Self {
        match result {
            Ok(n) => Outcome::Done(n),
            Err(e) => Outcome::Fail(e),
        }
    }
}

/// Sets this thread's errno as a failing C function does.
pub(crate) fn set_errno(e: Errno) {
    // SAFETY: the C library's errno of this thread.
    unsafe { *libc::__errno_location() = e.raw_os_error() as c_int };
}

/// This thread's errno as a number, to be put back with [`restore_errno`].
pub(crate) fn errno() -> c_int {
    // SAFETY: the C library's errno of this thread.
    unsafe { *libc::__errno_location() }
}

/// Puts errno back after work of our own.
pub(crate) fn restore_errno(saved: c_int) {
    // SAFETY: the C library's errno of this thread.
    unsafe { *libc::__errno_location() = saved };
}
