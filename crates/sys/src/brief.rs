//! A lock around data, for critical parts of a few nanoseconds on hot paths: taking it costs one atomic operation, opening it none.
//!
//! The price is paid by whoever finds it taken: nobody wakes it, it looks again, first at once, then between ever longer naps. So it
//! is for data two threads seldom want at the same moment. It is not re-entrant, and a thread that panics inside leaves it open.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};

/// Looks before the first nap.
const SPINS: u32 = 200;
/// The first nap and the longest, in nanoseconds.
const NAPS: (u64, u64) = (1_000, 100_000);

/// The lock and what it guards.
#[derive(Default)]
pub struct Brief<T> {
    taken: AtomicBool,
    data: UnsafeCell<T>,
}

// SAFETY: the data is only reached through a guard, of which there is one at a time; it moves between threads, so it must be `Send`.
unsafe impl<T: Send> Sync for Brief<T> {}

/// Proof of holding a [`Brief`]; opens it on drop.
pub struct BriefGuard<'a, T>(&'a Brief<T>);

impl<T> Brief<T> {
    /// An open lock around `data`.
    pub const fn new(data: T) -> Self {
        Self { taken: AtomicBool::new(false), data: UnsafeCell::new(data) }
    }

    /// Takes the lock, waiting as long as it needs.
    #[inline]
    pub fn lock(&self) -> BriefGuard<'_, T> {
        // SYNC: Acquire pairs with the Release in `drop`.
        if self.taken.swap(true, Ordering::Acquire) {
            self.lock_slowly();
        }
        BriefGuard(self)
    }

    #[cold]
    fn lock_slowly(&self) {
        let (mut looks, mut nap) = (0, NAPS.0);
        while self.taken.load(Ordering::Relaxed) || self.taken.swap(true, Ordering::Acquire) {
            looks += 1;
            if looks < SPINS {
                core::hint::spin_loop();
                continue;
            }
            let time = rustix::time::Timespec { tv_sec: 0, tv_nsec: nap as i64 };
            // Interrupted early is as good.
            let _ = rustix::thread::nanosleep(&time);
            nap = (2 * nap).min(NAPS.1);
        }
    }
}

impl<T> Deref for BriefGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: we hold the lock, so nobody else has a reference.
        unsafe { &*self.0.data.get() }
    }
}

impl<T> DerefMut for BriefGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and `self` is borrowed exclusively.
        unsafe { &mut *self.0.data.get() }
    }
}

impl<T> Drop for BriefGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // SYNC: Release pairs with the Acquire in `lock`.
        self.0.taken.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excludes_other_threads_however_long_it_is_held() {
        let count = Brief::new(0u64);
        std::thread::scope(|scope| {
            for i in 0..4 {
                let count = &count;
                scope.spawn(move || {
                    for round in 0..20_000u32 {
                        let mut guard = count.lock();
                        let seen = *guard;
                        if round.is_multiple_of(5_000 + i) {
                            std::thread::yield_now();
                        }
                        *guard = seen + 1;
                    }
                });
            }
        });
        assert_eq!(*count.lock(), 80_000);
    }
}
