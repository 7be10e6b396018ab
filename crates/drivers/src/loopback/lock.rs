//! The lock of what both sides share.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks; a thread that panicked inside left the data whole, for nothing inside calls out.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
