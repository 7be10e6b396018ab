//! The lock of a direction, a set or a registration: [`madrigal_sys::lock`], or a scheduler's where interleavings are explored; and a part
//! in which signals are blocked.

#[cfg(not(feature = "shuttle"))]
pub(crate) use madrigal_sys::lock::{Guard, Lock};
#[cfg(not(feature = "shuttle"))]
pub(crate) use madrigal_sys::signals::Blocked;

#[cfg(feature = "shuttle")]
pub(crate) use explored::{Blocked, Guard, Lock};

/// A moment of waiting for another thread that is about to be done.
pub(crate) fn pause() {
    #[cfg(not(feature = "shuttle"))]
    {
        core::hint::spin_loop();
        rustix::thread::sched_yield();
    }
    #[cfg(feature = "shuttle")]
    shuttle::thread::yield_now();
}

#[cfg(feature = "shuttle")]
mod explored {
    use std::panic::Location;
    use std::sync::Mutex;

    use madrigal_base::sync::{AtomicU32, Ordering};

    /// As `madrigal_sys::lock::Lock`; threads of a model have no signal handlers, so nothing nests.
    #[derive(Default)]
    pub(crate) struct Lock(AtomicU32, Mutex<Option<&'static Location<'static>>>);

    pub(crate) struct Guard<'a>(&'a Lock);

    /// As `madrigal_sys::signals::Blocked`.
    pub(crate) struct Blocked;

    impl Blocked {
        pub(crate) fn all() -> Self {
            Self
        }

        pub(crate) fn handlers() -> Self {
            Self
        }
    }

    impl Guard<'_> {
        pub(crate) fn nested(&self) -> bool {
            false
        }
    }

    impl Lock {
        #[track_caller]
        pub(crate) fn lock(&self) -> Guard<'_> {
            // A model's threads hold a lock for some steps only.
            for _ in 0..20_000 {
                if let Some(guard) = self.try_lock() {
                    return guard;
                }
                shuttle::thread::yield_now();
            }
            panic!("a lock is held for ever, taken at {:?}", self.1.lock().unwrap());
        }

        #[track_caller]
        pub(crate) fn try_lock(&self) -> Option<Guard<'_>> {
            self.0.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst).ok()?;
            *self.1.lock().unwrap() = Some(Location::caller());
            Some(Guard(self))
        }

        pub(crate) fn reset(&self) {
            self.0.store(0, Ordering::SeqCst);
        }
    }

    impl Drop for Guard<'_> {
        fn drop(&mut self) {
            self.0.0.store(0, Ordering::SeqCst);
        }
    }
}
