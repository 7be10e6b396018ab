//! The signals that the process ignores, and those that may be blocked.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::raw;

/// The signals that the process ignores; they are never blocked. The kernel drops an ignored signal when it comes. A blocked one it keeps,
/// and wakes another thread for it, whose call ends with `EINTR` though no handler ran.
static IGNORED: AtomicU64 = AtomicU64::new(0);

/// The C library's own.
pub const OF_LIBC: [c_int; 2] = [32, 33];

/// The process is about to set something for `signal`, which may be a handler.
pub fn may_handle(signal: c_int) {
    IGNORED.fetch_and(!bit(signal), Ordering::SeqCst);
}

/// Checks what is set for `signal`.
pub fn check(signal: c_int) {
    // Their default action is to do nothing.
    let by_default = [libc::SIGCHLD, libc::SIGCONT, libc::SIGURG, libc::SIGWINCH].contains(&signal);
    let is_ignored = |handler| handler == libc::SIG_IGN || handler == libc::SIG_DFL && by_default;
    if raw::handler_of(signal).is_ok_and(is_ignored) {
        IGNORED.fetch_or(bit(signal), Ordering::SeqCst);
        // Another thread may have set something meanwhile.
        if !raw::handler_of(signal).is_ok_and(is_ignored) {
            may_handle(signal);
        }
    }
}

/// The same for all signals.
pub fn check_all() {
    (1..65).for_each(check);
}

fn bit(signal: c_int) -> u64 {
    1u64.checked_shl(signal.wrapping_sub(1) as u32).unwrap_or(0)
}

/// Those that may be blocked, but for these.
pub(crate) fn all_but(others: &[c_int]) -> u64 {
    // The thread's own faults stay as they are: blocked, they would kill the process where a handler might mend them.
    let faults = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];
    let free = faults.iter().chain(others).fold(IGNORED.load(Ordering::SeqCst), |free, &signal| free | bit(signal));
    !free
}
