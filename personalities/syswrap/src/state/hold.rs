//! How many hooks are at work on an object, and the moment when none is.
//!
//! ```text
//!   hooks at work:  0 <--enter / leave--> 1 <--enter / leave--> 2 ...
//!                   |                     |
//!                   +---- exclusive ------+     nobody else is at work: what they might look at can be taken away
//! ```
//! Whoever enters meanwhile waits until the exclusive part is over, which is a few system calls long; signals are blocked in it, so
//! nobody waits for a frame below its own. Something that has to be done by the last one is marked as *due*: either whoever marks it
//! gets the exclusive part, or the last one to leave is told of it.
//!
//! A thread that is about to sleep is not at work: it *parks* its hold, which keeps the object from being freed and nothing else.

use madrigal_base::sync::{AtomicU32, Ordering};

const EXCLUSIVE: u32 = 1 << 31;
const DUE: u32 = 1 << 30;
const COUNT: u32 = DUE - 1;

/// The count. Zeroed memory: nobody.
#[derive(Default)]
pub(crate) struct Hold {
    word: AtomicU32,
    parked: AtomicU32,
}

impl Hold {
    /// One more hook is at work.
    #[inline]
    pub(crate) fn enter(&self) {
        // SYNC: SeqCst, so that who closes a descriptor and then looks at the count sees us, or we see it closed. Acquire pairs with
        // `share`.
        if self.word.fetch_add(1, Ordering::SeqCst) & EXCLUSIVE != 0 {
            self.await_share();
        }
    }

    #[cold]
    fn await_share(&self) {
        while self.word.load(Ordering::SeqCst) & EXCLUSIVE != 0 {
            super::lock::pause();
        }
    }

    /// One hook less; true: it was the last, and something is due.
    #[inline]
    #[must_use]
    pub(crate) fn leave(&self) -> bool {
        // SYNC: AcqRel, so that the last one sees all others' work.
        let seen = self.word.fetch_sub(1, Ordering::AcqRel);
        if seen & COUNT == 0 {
            // The hold of a part below a signal handler that forked, in the child: it was forgotten.
            self.word.fetch_add(1, Ordering::AcqRel);
        }
        seen & (COUNT | DUE) == DUE | 1
    }

    /// The caller's hold goes on while it sleeps; as [`Hold::leave`].
    #[must_use]
    pub(crate) fn park(&self) -> bool {
        self.parked.fetch_add(1, Ordering::SeqCst);
        self.leave()
    }

    /// The thread is back and at work again.
    pub(crate) fn unpark(&self) {
        self.enter();
        self.parked.fetch_sub(1, Ordering::SeqCst);
    }

    /// Hooks at work.
    pub(crate) fn at_work(&self) -> u32 {
        // SYNC: SeqCst: behind what the caller has taken away, who enters from now on sees that.
        self.word.load(Ordering::SeqCst) & COUNT
    }

    /// Whether threads sleep that are to come back.
    pub(crate) fn has_parked(&self) -> bool {
        self.parked.load(Ordering::SeqCst) > 0
    }

    /// Something is to be done as soon as nobody else is at work.
    pub(crate) fn set_due(&self) {
        self.word.fetch_or(DUE, Ordering::SeqCst);
    }

    /// Whether something is.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.word.load(Ordering::Relaxed) & DUE != 0
    }

    /// Takes the exclusive part if something is due, which nobody else has done meanwhile, and nobody but the caller's `own` holds are at
    /// work. With signals blocked; ended by [`Hold::share`].
    #[must_use]
    pub(crate) fn exclusive(&self, own: u32) -> bool {
        let mut seen = self.word.load(Ordering::SeqCst);
        while seen == own | DUE {
            // SYNC: Acquire pairs with `leave`: we see what the others did.
            match self.word.compare_exchange(seen, own | EXCLUSIVE, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }

    /// Ends the exclusive part.
    pub(crate) fn share(&self) {
        self.word.fetch_and(!EXCLUSIVE, Ordering::SeqCst);
    }

    /// The child after fork(2), whose only thread is at work on nothing.
    pub(crate) fn after_fork(&self) {
        self.word.store(0, Ordering::Relaxed);
        self.parked.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, feature = "shuttle"))]
mod explored {
    use shuttle::sync::Arc;
    use shuttle::thread;
    use std::sync::atomic::{AtomicU64 as Word, Ordering as Order};

    use super::*;

    /// Three threads look at something that one of them has taken away when nobody looks: it happens once, and nobody looks then.
    #[test]
    fn what_is_due_is_done_once_and_alone() {
        struct Thing {
            hold: Hold,
            looking: Word,
            taken: Word,
        }
        impl Thing {
            fn settle(&self, own: u32) {
                if self.hold.exclusive(own) {
                    assert_eq!(self.looking.load(Order::SeqCst), 0);
                    self.taken.fetch_add(1, Order::SeqCst);
                    thread::yield_now();
                    assert_eq!(self.looking.load(Order::SeqCst), 0);
                    self.hold.share();
                }
            }
            fn look(&self, end: bool, sleep: bool) {
                self.hold.enter();
                self.looking.fetch_add(1, Order::SeqCst);
                thread::yield_now();
                self.looking.fetch_sub(1, Order::SeqCst);
                if end {
                    self.hold.set_due();
                    self.settle(1);
                }
                if sleep {
                    if self.hold.park() {
                        self.settle(0);
                    }
                    thread::yield_now();
                    self.hold.unpark();
                }
                if self.hold.leave() {
                    self.settle(0);
                }
            }
        }
        let run = || {
            let thing = Arc::new(Thing { hold: Hold::default(), looking: Word::new(0), taken: Word::new(0) });
            let threads = [(false, true), (true, false), (false, false)].map(|(end, sleep)| {
                let thing = Arc::clone(&thing);
                thread::spawn(move || thing.look(end, sleep))
            });
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!(thing.taken.load(Order::SeqCst), 1);
            assert!(!thing.hold.has_parked());
        };
        shuttle::check_random(run, 20_000);
        shuttle::check_pct(run, 5_000, 4);
    }
}
