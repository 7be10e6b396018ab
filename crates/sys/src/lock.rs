//! A lock for short critical parts inside a host program: futex-based, re-entrant by its owner (a signal handler may interrupt
//! its own thread inside one), and put right in the child after fork(2).

use core::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::futex;

/// Set in the lock word while a thread sleeps on it.
const WAITERS: u32 = 1 << 31;
/// How often a taken lock is checked before sleeping; the critical parts are copies of at most a ring's size.
const SPINS: u32 = 100;

/// The lock. Zeroed memory is an open lock.
#[derive(Default)]
pub struct Lock(AtomicU32);

/// Proof of holding a [`Lock`]; opens it on drop unless an outer frame of the same thread already held it.
pub struct Guard<'a> {
    lock: &'a Lock,
    nested: bool,
}

impl Guard<'_> {
    /// True when the same thread held the lock already: we run in a signal handler on top of the critical part.
    pub fn nested(&self) -> bool {
        self.nested
    }
}

impl Lock {
    /// An open lock.
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Takes the lock, waiting as long as it needs.
    #[inline]
    pub fn lock(&self) -> Guard<'_> {
        self.try_lock().unwrap_or_else(|| self.lock_slow(thread_id()))
    }

    /// Takes the lock if it is open or already ours.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_>> {
        let me = thread_id();
        // SYNC: Acquire pairs with the Release in `Guard::drop`.
        match self.0.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Some(Guard { lock: self, nested: false }),
            Err(word) if word & !WAITERS == me => Some(Guard { lock: self, nested: true }),
            Err(_) => None,
        }
    }

    /// Opens the lock on behalf of a guard that was forgotten on purpose.
    pub fn release(&self) {
        drop(Guard { lock: self, nested: false });
    }

    /// The child after fork(2) goes on with what this thread held in the parent.
    pub fn inherit(&self) {
        self.0.store(thread_id(), Ordering::Relaxed);
    }

    /// Opens the lock, whichever thread held it. Only for the child after fork(2), where the holder does not exist.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    #[cold]
    fn lock_slow(&self, me: u32) -> Guard<'_> {
        for _ in 0..SPINS {
            if let Some(guard) = self.try_lock() {
                return guard;
            }
            core::hint::spin_loop();
        }
        loop {
            let seen = self.0.load(Ordering::Relaxed);
            if seen & !WAITERS == 0 {
                // SYNC: Acquire pairs with the Release in `Guard::drop`. Taking it with WAITERS set wakes one sleeper too many at worst.
                if self.0.compare_exchange(seen, me | WAITERS, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                    return Guard { lock: self, nested: false };
                }
                continue;
            }
            // By exchange: a bit set in a word opened in between would stand for a lock without a holder. A signal handler that came before
            // the bit was cleared would then wait for its own thread.
            let marked = self.0.compare_exchange(seen, seen | WAITERS, Ordering::Relaxed, Ordering::Relaxed).is_ok();
            if marked {
                let _ = futex::wait(&self.0, futex::Flags::PRIVATE, seen | WAITERS, None);
            }
        }
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.nested {
            return;
        }
        // SYNC: Release pairs with the Acquire in `try_lock` and `lock_slow`.
        if self.lock.0.swap(0, Ordering::Release) & WAITERS != 0 {
            let _ = futex::wake(&self.lock.0, futex::Flags::PRIVATE, 1);
        }
    }
}

/// The kernel's id of the calling thread, remembered per thread.
#[inline]
pub fn thread_id() -> u32 {
    let known = TID.get();
    if known != 0 { known } else { learn_thread_id() }
}

/// Forgets the remembered id: the child after fork(2) is another thread.
pub fn forget_thread_id() {
    TID.set(0);
}

#[cold]
fn learn_thread_id() -> u32 {
    let id = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    TID.set(id);
    id
}

thread_local! {
    static TID: core::cell::Cell<u32> = const { core::cell::Cell::new(0) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn excludes_other_threads() {
        struct Shared(Lock, core::cell::UnsafeCell<u64>);
        // SAFETY: the cell is only touched under the lock; that is what the test checks.
        unsafe impl Sync for Shared {}
        let shared = Arc::new(Shared(Lock::default(), core::cell::UnsafeCell::new(0)));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || {
                    for _ in 0..20_000 {
                        let _guard = shared.0.lock();
                        // SAFETY: we hold the lock.
                        unsafe { *shared.1.get() += 1 };
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        let _guard = shared.0.lock();
        // SAFETY: we hold the lock.
        assert_eq!(unsafe { *shared.1.get() }, 80_000);
    }

    #[test]
    fn is_reentrant_for_its_owner() {
        let lock = Lock::default();
        let outer = lock.lock();
        assert!(!outer.nested() && lock.lock().nested());
        assert!(std::thread::scope(|s| s.spawn(|| lock.try_lock().is_none()).join().unwrap()));
        drop(outer);
        assert!(std::thread::scope(|s| s.spawn(|| lock.try_lock().is_some()).join().unwrap()));
    }
}
