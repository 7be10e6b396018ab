//! How many hooks are at work on an object, and the moment when none is.
//!
//! ```text
//!   hooks at work:  0 <--enter / leave--> 1 <--enter / leave--> 2 ...
//!                   |                     |
//!                   +---- exclusive ------+     no other hook is at work: what it might use can be taken away
//! ```
//! A hook that enters meanwhile waits until the exclusive part is over, which is a few system calls long. Signals are blocked in it, so no
//! thread waits for a frame below its own. Work for the last hook is marked as *due*: either the marking hook gets the exclusive part, or
//! [`UseCount::leave`] notifies the last one.
//!
//! A thread that is about to sleep is not at work: it *parks* its use. A parked use keeps the object from being freed, and does nothing
//! else.

use madrigal_base::sync::{AtomicU32, Ordering};

const EXCLUSIVE: u32 = 1 << 31;
const DUE: u32 = 1 << 30;
const COUNT: u32 = DUE - 1;

/// The count. Zeroed memory: none.
#[derive(Default)]
pub(crate) struct UseCount {
    word: AtomicU32,
    parked: AtomicU32,
}

impl UseCount {
    /// One more hook is at work.
    #[inline]
    pub(crate) fn enter(&self) {
        // SYNC: SeqCst: a thread that closes a descriptor and then reads the count sees us, or we see it closed. Acquire pairs with `share`.
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
            // In the child of a signal handler that forked: the use of the code below the handler was forgotten.
            self.word.fetch_add(1, Ordering::AcqRel);
        }
        seen & (COUNT | DUE) == DUE | 1
    }

    /// The caller's use goes on while it sleeps; as [`UseCount::leave`].
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
        // SYNC: SeqCst: a hook that enters from now on sees what the caller has taken away before.
        self.word.load(Ordering::SeqCst) & COUNT
    }

    /// Whether threads sleep that are to come back.
    pub(crate) fn has_parked(&self) -> bool {
        self.parked.load(Ordering::SeqCst) > 0
    }

    /// Something must be done as soon as no other hook is at work.
    pub(crate) fn set_due(&self) {
        self.word.fetch_or(DUE, Ordering::SeqCst);
    }

    /// Whether something is.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.word.load(Ordering::Relaxed) & DUE != 0
    }

    /// Takes the exclusive part if something is still due and no uses but the caller's `own` are counted. Called with signals blocked;
    /// [`UseCount::share`] ends it.
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

    /// Three threads use an object. One of them has it taken away when no thread uses it: this happens once, and no thread uses it then.
    #[test]
    fn what_is_due_is_done_once_and_alone() {
        struct Thing {
            uses: UseCount,
            inside: Word,
            taken: Word,
        }
        impl Thing {
            fn finish(&self, own: u32) {
                if self.uses.exclusive(own) {
                    assert_eq!(self.inside.load(Order::SeqCst), 0);
                    self.taken.fetch_add(1, Order::SeqCst);
                    thread::yield_now();
                    assert_eq!(self.inside.load(Order::SeqCst), 0);
                    self.uses.share();
                }
            }
            fn visit(&self, end: bool, sleep: bool) {
                self.uses.enter();
                self.inside.fetch_add(1, Order::SeqCst);
                thread::yield_now();
                self.inside.fetch_sub(1, Order::SeqCst);
                if end {
                    self.uses.set_due();
                    self.finish(1);
                }
                if sleep {
                    if self.uses.park() {
                        self.finish(0);
                    }
                    thread::yield_now();
                    self.uses.unpark();
                }
                if self.uses.leave() {
                    self.finish(0);
                }
            }
        }
        let run = || {
            let thing = Arc::new(Thing { uses: UseCount::default(), inside: Word::new(0), taken: Word::new(0) });
            let threads = [(false, true), (true, false), (false, false)].map(|(end, sleep)| {
                let thing = Arc::clone(&thing);
                thread::spawn(move || thing.visit(end, sleep))
            });
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!(thing.taken.load(Order::SeqCst), 1);
            assert!(!thing.uses.has_parked());
        };
        shuttle::check_random(run, 20_000);
        shuttle::check_pct(run, 5_000, 4);
    }
}
