//! A lock around data that threads rarely want at the same time: taking it is one compare-exchange, opening it one store.
//!
//! The cost falls on a thread that finds it taken: no wake-up comes. It tries again, at first at once, then after yielding the processor,
//! then between ever longer sleeps. It is not re-entrant, and a thread that panics inside leaves it open.
//!
//! Only the holder can access the data, and a guard gives other threads no more than a borrow of the data would:
//!
//! ```compile_fail
//! # use madrigal_sys::spin_lock::SpinLock;
//! let lock = SpinLock::new(core::cell::Cell::new(0));
//! let guard = lock.lock();
//! // A `Cell` must not be shared, however it is reached.
//! std::thread::scope(|scope| drop(scope.spawn(|| guard.set(1))));
//! ```

use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
#[cfg(not(feature = "shuttle"))]
use core::sync::atomic::{AtomicBool, Ordering};
#[cfg(feature = "shuttle")]
use shuttle::sync::atomic::{AtomicBool, Ordering};

/// Something only one thread uses at a time.
#[derive(Default)]
pub struct SpinLock<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only reached through a `SpinGuard`. There is one at a time, ordered by `taken`. The value moves between threads, so
// it must be `Send`.
unsafe impl<T: Send> Sync for SpinLock<T> {}

/// The lock is held; opened when this is dropped. Threads may share it as far as they may share the value.
pub struct SpinGuard<'a, T> {
    lock: &'a SpinLock<T>,
    _value: PhantomData<&'a mut T>,
}

impl<T> SpinLock<T> {
    /// A lock that is not taken.
    pub const fn new(value: T) -> Self {
        Self { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock. A thread that holds it already would wait for ever.
    #[inline]
    pub fn lock(&self) -> SpinGuard<'_, T> {
        self.try_lock().unwrap_or_else(|| self.wait())
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<SpinGuard<'_, T>> {
        // SYNC: Acquire pairs with the Release in `SpinGuard::drop`.
        let ours = self.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok();
        // Made only then: dropping one opens the lock.
        ours.then(|| SpinGuard { lock: self, _value: PhantomData })
    }

    #[cold]
    fn wait(&self) -> SpinGuard<'_, T> {
        let mut tries = 0u32;
        loop {
            if !self.taken.load(Ordering::Relaxed)
                && let Some(taken) = self.try_lock()
            {
                return taken;
            }
            pause(tries);
            tries = tries.saturating_add(1);
        }
    }
}

/// The pause between two tries.
#[cfg(not(feature = "shuttle"))]
fn pause(tries: u32) {
    /// Tries before the processor is yielded for the first time, and yields before the first sleep.
    const SPINS: u32 = 100;
    const YIELDS: u32 = 32;
    /// The first sleep and the longest, in nanoseconds.
    const SLEEPS: (u64, u64) = (1_000, 100_000);
    if tries < SPINS {
        core::hint::spin_loop();
    } else if tries < SPINS + YIELDS {
        rustix::thread::sched_yield();
    } else {
        let ns = (SLEEPS.0 << (tries - SPINS - YIELDS).min(16)).min(SLEEPS.1);
        // Interrupted early is as good.
        let _ = rustix::thread::nanosleep(&rustix::time::Timespec { tv_sec: 0, tv_nsec: ns as i64 });
    }
}

#[cfg(feature = "shuttle")]
fn pause(_: u32) {
    shuttle::thread::yield_now();
}

impl<T> Deref for SpinGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this is the only `SpinGuard`, so no thread writes meanwhile.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for SpinGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this is the only `SpinGuard`, borrowed exclusively.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for SpinGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // SYNC: Release pairs with the Acquire in `try_lock`.
        self.lock.taken.store(false, Ordering::Release);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time() {
        let lock = SpinLock::new(0u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..20_000).for_each(|_| *lock.lock() += 1));
            }
        });
        assert_eq!(*lock.lock(), 80_000);
    }

    #[test]
    fn excludes_others_however_long_it_is_held() {
        let lock = SpinLock::new(0u64);
        std::thread::scope(|scope| {
            for i in 0..4 {
                let lock = &lock;
                scope.spawn(move || {
                    for round in 0..20_000u32 {
                        let mut guard = lock.lock();
                        let seen = *guard;
                        if round.is_multiple_of(5_000 + i) {
                            std::thread::yield_now();
                        }
                        *guard = seen + 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), 80_000);
    }

    #[test]
    fn a_try_that_fails_leaves_it_taken() {
        let lock = SpinLock::new(());
        let guard = lock.lock();
        assert!(lock.try_lock().is_none());
        assert!(lock.try_lock().is_none());
        drop(guard);
        assert!(lock.try_lock().is_some());
    }

    #[test]
    fn a_panic_leaves_it_open() {
        let lock = SpinLock::new(std::panic::AssertUnwindSafe(1));
        let inside = std::panic::AssertUnwindSafe(|| {
            let _guard = lock.lock();
            panic!("on purpose");
        });
        assert!(std::panic::catch_unwind(inside).is_err());
        assert!(lock.try_lock().is_some());
    }
}

/// Under a scheduler that tries interleavings: `cargo test -p madrigal-sys --features shuttle lock`.
#[cfg(all(test, feature = "shuttle"))]
mod explored {
    use shuttle::sync::Arc;
    use shuttle::thread;

    use super::SpinLock;

    /// Adds one in two steps between which others may run.
    fn add(taken: &mut u32) {
        let seen = *taken;
        thread::yield_now();
        *taken = seen + 1;
    }

    /// Adds one if the lock is free; how often it did.
    fn try_add(lock: &SpinLock<u32>) -> u32 {
        lock.try_lock().map_or(0, |mut taken| {
            add(&mut taken);
            1
        })
    }

    /// Every interleaving of three threads that try: two are never inside together, and each that got in counts.
    #[test]
    fn tries_of_three_threads_exhaustively() {
        let run = || {
            let lock = Arc::new(SpinLock::new(0));
            let others: Vec<_> = (0..2)
                .map(|_| {
                    let lock = Arc::clone(&lock);
                    thread::spawn(move || try_add(&lock))
                })
                .collect();
            let mine = try_add(&lock);
            let counted = others.into_iter().map(|other| other.join().unwrap()).sum::<u32>() + mine;
            let there = *lock.try_lock().expect("everybody left");
            assert!(counted >= 1 && there == counted);
        };
        shuttle::check_dfs(run, None);
    }

    #[test]
    fn four_threads() {
        let run = || {
            let lock = Arc::new(SpinLock::new(0));
            let others: Vec<_> = (0..3)
                .map(|_| {
                    let lock = Arc::clone(&lock);
                    thread::spawn(move || (0..3).for_each(|_| add(&mut lock.lock())))
                })
                .collect();
            (0..3).for_each(|_| add(&mut lock.lock()));
            others.into_iter().for_each(|other| other.join().unwrap());
            assert_eq!(*lock.lock(), 12);
        };
        shuttle::check_random(run, 2_000);
        shuttle::check_pct(run, 1_000, 3);
    }
}
