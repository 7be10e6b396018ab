//! System calls of recent kernels that a tool around this process may not know: valgrind returns `ENOSYS` for them, with a warning on
//! standard error each time. Their callers work without them, as on an older kernel.

use core::sync::atomic::{AtomicBool, Ordering};

use crate::Errno;

/// Set once they must not even be tried.
static SHUNNED: AtomicBool = AtomicBool::new(false);

/// From now on they fail with `ENOSYS` without a system call.
pub fn shun() {
    SHUNNED.store(true, Ordering::Relaxed);
}

/// `ENOSYS` after [`shun`].
#[inline]
pub(crate) fn tried() -> Result<(), Errno> {
    if SHUNNED.load(Ordering::Relaxed) { Err(Errno::NOSYS) } else { Ok(()) }
}
