//! The wrapper of every call of libfabric's: no panic passes it, and a lock that a panic left behind can be taken.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a call of libfabric's; a panic becomes `failed`.
pub(crate) fn guard<T>(failed: T, run: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or(failed)
}

/// Takes a lock, even if its last owner panicked: the state is whole, since only code of ours that changes nothing panics.
pub(crate) fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
