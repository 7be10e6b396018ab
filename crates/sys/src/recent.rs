//! System calls of recent kernels, which a tool around this process may not know: valgrind answers them with `ENOSYS`, and a warning
//! on standard error each time. What uses them gets along without, as on an older kernel.

use core::sync::atomic::{AtomicBool, Ordering};

use crate::Errno;

/// Set once they are not even tried.
static SHUNNED: AtomicBool = AtomicBool::new(false);

/// From now on they fail with `ENOSYS`, and nobody is asked.
pub fn shun() {
    SHUNNED.store(true, Ordering::Relaxed);
}

/// `ENOSYS` after [`shun`].
#[inline]
pub(crate) fn tried() -> Result<(), Errno> {
    if SHUNNED.load(Ordering::Relaxed) { Err(Errno::NOSYS) } else { Ok(()) }
}
