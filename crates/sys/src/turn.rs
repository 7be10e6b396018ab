//! A lock for data that threads rarely want at the same time: taking it is one compare-exchange, opening it one store.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};

/// How often a taken lock is looked at before the processor is given away.
const SPINS: u32 = 100;

/// Something only one thread uses at a time.
#[derive(Default)]
pub struct Turn<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only reached through a `Taken`, of which there is one at a time, ordered by `taken`.
unsafe impl<T: Send> Sync for Turn<T> {}

/// Whose turn it is; over when this is dropped.
pub struct Taken<'a, T>(&'a Turn<T>);

impl<T> Turn<T> {
    /// Nobody has it.
    pub const fn new(value: T) -> Self {
        Self { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Waits for the turn. A thread that has it already would wait for ever.
    #[inline]
    pub fn take(&self) -> Taken<'_, T> {
        self.try_take().unwrap_or_else(|| self.wait())
    }

    /// Takes it if nobody has it.
    #[inline]
    pub fn try_take(&self) -> Option<Taken<'_, T>> {
        // SYNC: Acquire pairs with the Release in `Taken::drop`.
        let ours = self.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok();
        // Made only then: dropping one ends a turn.
        ours.then(|| Taken(self))
    }

    #[cold]
    fn wait(&self) -> Taken<'_, T> {
        let mut looks = 0u32;
        loop {
            if !self.taken.load(Ordering::Relaxed)
                && let Some(taken) = self.try_take()
            {
                return taken;
            }
            looks += 1;
            if looks.is_multiple_of(SPINS) {
                rustix::thread::sched_yield();
            } else {
                core::hint::spin_loop();
            }
        }
    }
}

impl<T> Deref for Taken<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this is the only `Taken`, so nobody writes meanwhile.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Taken<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this is the only `Taken`, borrowed exclusively.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Taken<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // SYNC: Release pairs with the Acquire in `try_take`.
        self.0.taken.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time() {
        let turn = Turn::new(0u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..20_000).for_each(|_| *turn.take() += 1));
            }
        });
        assert_eq!(*turn.take(), 80_000);
        let taken = turn.take();
        assert!(turn.try_take().is_none());
        drop(taken);
        assert!(turn.try_take().is_some());
    }
}
