//! Locks that are held from before a fork until behind it, in the parent and in the child, so that the child finds what they guard at
//! rest.
//!
//! A lock that the forking thread holds already (it forks in a signal handler, on top of the part that took it) stays that part's, in
//! both processes.

use core::sync::atomic::{AtomicUsize, Ordering};

use super::lock::Lock;

/// Locks that were held before; a thread holds few at a time.
static OWN: [AtomicUsize; 8] = [const { AtomicUsize::new(0) }; 8];

/// Takes a lock for the time of a fork.
pub(crate) fn hold(lock: &Lock) {
    let guard = lock.lock();
    if guard.nested() {
        let free = OWN.iter().find(|cell| cell.load(Ordering::Relaxed) == 0);
        free.inspect(|cell| cell.store(address(lock), Ordering::Relaxed));
    }
    core::mem::forget(guard);
}

/// In the parent: gives it back.
pub(crate) fn let_go(lock: &Lock) {
    if !take_own(lock) {
        lock.release();
    }
}

/// In the child: it is nobody's, or goes on being that of the part below.
pub(crate) fn reset(lock: &Lock) {
    if take_own(lock) {
        lock.inherit();
    } else {
        lock.reset();
    }
}

fn take_own(lock: &Lock) -> bool {
    let own = OWN.iter().find(|cell| cell.load(Ordering::Relaxed) == address(lock));
    own.inspect(|cell| cell.store(0, Ordering::Relaxed)).is_some()
}

fn address(lock: &Lock) -> usize {
    core::ptr::from_ref(lock).addr()
}
