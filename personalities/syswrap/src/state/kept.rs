//! The descriptor of our own by which a socket lives on behind its last close, while calls sleep on it (`guests.rs`).
//!
//! ```text
//!   none --keep, by who closes: then it looks for guests again--> kept --release, by whoever leaves or closes and finds no guest--> none
//! ```

use madrigal_base::sync::{AtomicU32, Ordering};

/// The descriptor of our own by which a socket lives on, plus one. Zeroed memory: none.
#[derive(Default)]
pub(crate) struct Kept(AtomicU32);

impl Kept {
    /// By this one; [`Kept::release`] follows.
    pub(crate) fn keep(&self, fd: u32) {
        // SYNC: SeqCst: whoever leaves from now on sees it, and of who has left before `release` knows.
        self.0.store(fd + 1, Ordering::SeqCst);
    }

    pub(crate) fn fd(&self) -> Option<u32> {
        self.0.load(Ordering::SeqCst).checked_sub(1)
    }

    /// The descriptor, if nobody is in a call any more: to be closed by the caller, and nobody else. `has_guests`: behind the caller's own
    /// leave.
    pub(crate) fn release(&self, has_guests: impl FnOnce() -> bool) -> Option<u32> {
        if self.fd().is_none() || has_guests() {
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
            guests: AtomicU32,
            kept: Kept,
            closed: AtomicU32,
        }
        impl Thing {
            fn release(&self) {
                let has_guests = || self.guests.load(Ordering::SeqCst) > 0;
                if self.kept.release(has_guests).is_some() {
                    assert_eq!(self.guests.load(Ordering::SeqCst), 0);
                    self.closed.fetch_add(1, Ordering::SeqCst);
                }
            }
        }
        let run = || {
            let thing = Arc::new(Thing::default());
            thing.guests.store(2, Ordering::SeqCst);
            let calls = [(), ()].map(|()| {
                let thing = Arc::clone(&thing);
                thread::spawn(move || {
                    thing.guests.fetch_sub(1, Ordering::SeqCst);
                    thing.release();
                })
            });
            thing.kept.keep(7);
            thing.release();
            calls.into_iter().for_each(|call| call.join().unwrap());
            assert_eq!(thing.closed.load(Ordering::SeqCst), 1);
        };
        shuttle::check_random(run, 20_000);
        shuttle::check_pct(run, 5_000, 3);
    }
}
