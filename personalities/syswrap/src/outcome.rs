//! How a hook's logic ends.

use core::ffi::c_int;

use madrigal_sys::Errno;

use crate::state::sock::Parked;

/// What the hook does after its logic.
#[derive(Clone, Copy)]
pub(crate) enum Outcome {
    /// Return this.
    Done(usize),
    /// Return -1 with this errno.
    Fail(Errno),
    /// Call the next function in line as if we were not there.
    Pass,
    /// The same, for a call that may sleep long, or for the rest of one; then call [`crate::io::plain::after_sleep`].
    Sleep(Ticket),
    /// Sleep in the C library, where a thread can be cancelled, until the socket has an event; then
    /// [`crate::io::recv::woken`] or [`crate::io::send::woken`], and the logic again.
    Await(CSleep),
    /// A point where a thread can be cancelled; then the logic again.
    Again,
}

/// A call about to sleep until the kernel socket has an event.
#[derive(Clone, Copy)]
pub(crate) struct CSleep {
    /// The socket.
    pub(crate) sock: Parked,
    /// When the wait began.
    pub(crate) since: u64,
    /// Nanoseconds it may last; `None` for ever.
    pub(crate) left: Option<u64>,
    /// The call goes on when they are over; otherwise it ends, too.
    pub(crate) cut: bool,
    /// A signal handler with `SA_RESTART` does not end it.
    pub(crate) restarts: bool,
    /// The signals it blocks, where the call holds back more of them; by poll(2) then.
    pub(crate) mask: Option<u64>,
    /// By poll(2), for these events; otherwise by a receive that leaves what it finds.
    pub(crate) poll: Option<i16>,
}

/// A blocking call handed to the C library.
#[derive(Clone, Copy)]
pub(crate) struct Ticket {
    /// The socket.
    pub(crate) sock: Parked,
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
