//! A descriptor of our own that retains a socket after its last close, while calls sleep on it (`callers.rs`).
//!
//! ```text
//!   none --retain--> retained --release--> none
//! ```
//! The closing thread retains, and then checks for callers again. A thread that leaves or closes releases if it finds no caller.

use madrigal_base::sync::{AtomicU32, Ordering};

/// The descriptor of our own that retains a socket, plus one. Zeroed memory: none.
#[derive(Default)]
pub(crate) struct Retained(AtomicU32);

impl Retained {
    /// This descriptor retains the socket; [`Retained::release`] follows.
    pub(crate) fn retain(&self, fd: u32) {
        // SYNC: SeqCst. A call that leaves from now on sees it; `release` sees each call that has left before.
        self.0.store(fd + 1, Ordering::SeqCst);
    }

    pub(crate) fn fd(&self) -> Option<u32> {
        self.0.load(Ordering::SeqCst).checked_sub(1)
    }

    /// The descriptor, if no thread is in a call any more. Only the thread that gets it closes it. `has_callers` is read after this thread's
    /// own call has left.
    pub(crate) fn release(&self, has_callers: impl FnOnce() -> bool) -> Option<u32> {
        if self.fd().is_none() || has_callers() {
            return None;
        }
        self.0.swap(0, Ordering::SeqCst).checked_sub(1)
    }
}

#[cfg(all(test, feature = "shuttle"))]
mod explored {
    use shuttle::sync::Arc;
    use shuttle::thread;

    use super::*;

    /// Two calls end while their socket's last descriptor is closed: it is closed once, when both are over and not before.
    #[test]
    fn what_is_kept_is_closed_once_and_by_the_last() {
        #[derive(Default)]
        struct Thing {
            callers: AtomicU32,
            retained: Retained,
            closed: AtomicU32,
        }
        impl Thing {
            fn release(&self) {
                let has_callers = || self.callers.load(Ordering::SeqCst) > 0;
                if self.retained.release(has_callers).is_some() {
                    assert_eq!(self.callers.load(Ordering::SeqCst), 0);
                    self.closed.fetch_add(1, Ordering::SeqCst);
                }
            }
        }
        let run = || {
            let thing = Arc::new(Thing::default());
            thing.callers.store(2, Ordering::SeqCst);
            let calls = [(), ()].map(|()| {
                let thing = Arc::clone(&thing);
                thread::spawn(move || {
                    thing.callers.fetch_sub(1, Ordering::SeqCst);
                    thing.release();
                })
            });
            thing.retained.retain(7);
            thing.release();
            calls.into_iter().for_each(|call| call.join().unwrap());
            assert_eq!(thing.closed.load(Ordering::SeqCst), 1);
        };
        shuttle::check_random(run, 20_000);
        shuttle::check_pct(run, 5_000, 3);
    }
}
