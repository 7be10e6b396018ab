//! Locks that are held across a fork, in the parent and in the child. So the child finds what they guard in a consistent state.
//!
//! The forking thread may hold a lock already, if it forks in a signal handler on top of the code that took the lock. Then the lock stays
//! with that code, in both processes.

use core::sync::atomic::{AtomicUsize, Ordering};

use super::lock::Lock;

/// Locks that were held before; a thread holds few at a time.
static OWN: [AtomicUsize; 8] = [const { AtomicUsize::new(0) }; 8];

/// Takes a lock for the time of a fork.
pub(crate) fn acquire(lock: &Lock) {
    let guard = lock.lock();
    if guard.nested() {
        let free = OWN.iter().find(|cell| cell.load(Ordering::Relaxed) == 0);
        free.inspect(|cell| cell.store(address(lock), Ordering::Relaxed));
    }
    core::mem::forget(guard);
}

/// In the parent: releases it.
pub(crate) fn release(lock: &Lock) {
    if !take_own(lock) {
        lock.release();
    }
}

/// In the child: the lock is free, or stays with the code below the handler.
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
