//! What every call of libfabric's goes through: no panic passes it, and a lock that one left behind can be taken.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs what libfabric called; a panic becomes `failed`.
pub(crate) fn guard<T>(failed: T, run: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or(failed)
}

/// The lock, whatever happened to who had it before: what he left is whole, for panics happen in code of ours that changes nothing.
pub(crate) fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
