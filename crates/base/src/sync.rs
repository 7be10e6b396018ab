//! Atomics for memory that two parties share: the real ones, or those of a scheduler that explores their interleavings.
//!
//! Under the feature `shuttle` every operation is also a point at which the process of the calling thread may be killed
//! (`explored::mortal`).

#[cfg(not(feature = "shuttle"))]
pub use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(feature = "shuttle")]
pub use explored::{AtomicI32, AtomicU32, AtomicU64};
#[cfg(feature = "shuttle")]
pub use shuttle::sync::atomic::{Ordering, fence};

#[cfg(feature = "shuttle")]
pub mod explored {
    //! Atomics under shuttle, and processes that are killed between any two of them.

    use shuttle::sync::atomic::{self, Ordering};

    macro_rules! atomics {
        ($($name:ident: $word:ty;)*) => {
            $(
                #[doc = concat!("`", stringify!($name), "` of the standard library.")]
                #[derive(Debug, Default)]
                pub struct $name(atomic::$name);

                #[expect(missing_docs, reason = "the standard library's names")]
                impl $name {
                    pub const fn new(value: $word) -> Self {
                        Self(atomic::$name::new(value))
                    }

                    pub fn load(&self, order: Ordering) -> $word {
                        mortal::point();
                        self.0.load(order)
                    }

                    pub fn store(&self, value: $word, order: Ordering) {
                        if mortal::point() {
                            self.0.store(value, order);
                        }
                    }

                    pub fn swap(&self, value: $word, order: Ordering) -> $word {
                        if mortal::point() { self.0.swap(value, order) } else { self.0.load(Ordering::SeqCst) }
                    }

                    pub fn compare_exchange(
                        &self,
                        from: $word,
                        to: $word,
                        order: Ordering,
                        failure: Ordering,
                    ) -> Result<$word, $word> {
                        if mortal::point() { self.0.compare_exchange(from, to, order, failure) } else { Ok(from) }
                    }

                    pub fn fetch_update(
                        &self,
                        order: Ordering,
                        failure: Ordering,
                        change: impl FnMut($word) -> Option<$word>,
                    ) -> Result<$word, $word> {
                        mortal::point();
                        self.0.fetch_update(order, failure, change)
                    }

                    pub fn fetch_add(&self, value: $word, order: Ordering) -> $word {
                        if mortal::point() { self.0.fetch_add(value, order) } else { 0 }
                    }

                    pub fn fetch_sub(&self, value: $word, order: Ordering) -> $word {
                        if mortal::point() { self.0.fetch_sub(value, order) } else { 0 }
                    }

                    pub fn fetch_or(&self, value: $word, order: Ordering) -> $word {
                        if mortal::point() { self.0.fetch_or(value, order) } else { 0 }
                    }

                    pub fn fetch_and(&self, value: $word, order: Ordering) -> $word {
                        if mortal::point() { self.0.fetch_and(value, order) } else { 0 }
                    }

                    pub fn fetch_max(&self, value: $word, order: Ordering) -> $word {
                        if mortal::point() { self.0.fetch_max(value, order) } else { 0 }
                    }
                }
            )*
        };
    }

    atomics! {
        AtomicI32: i32;
        AtomicU32: u32;
        AtomicU64: u64;
    }

    pub mod mortal {
        //! Processes of a model, with their threads. One of them may be killed: all its threads end where they are, and write nothing any
        //! more.

        use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
        use std::sync::Arc;
        use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

        use core::cell::{Cell, RefCell};

        /// A process of a model.
        #[derive(Clone, Debug)]
        pub struct Process(Arc<State>);

        #[derive(Debug)]
        struct State {
            dead: AtomicBool,
            /// Operations until it is killed; 0: never.
            left: AtomicU64,
        }

        struct Killed;

        shuttle::thread_local! {
            static OWN: RefCell<Option<Process>> = RefCell::new(None);
            /// This thread ends: its frames must not do anything on their way out.
            static ENDS: Cell<bool> = Cell::new(false);
        }

        impl Process {
            /// One that lives for ever.
            pub fn immortal() -> Self {
                Self::killed_after(0)
            }

            /// One that is killed before its operation of this number; 0: never.
            pub fn killed_after(operations: u64) -> Self {
                Self(Arc::new(State { dead: AtomicBool::new(false), left: AtomicU64::new(operations) }))
            }

            /// Whether it was killed.
            pub fn is_dead(&self) -> bool {
                self.0.dead.load(Ordering::SeqCst)
            }

            /// Runs a thread of it; `None`: it was killed.
            pub fn run<T>(&self, thread: impl FnOnce() -> T) -> Option<T> {
                OWN.with(|own| *own.borrow_mut() = Some(self.clone()));
                match catch_unwind(AssertUnwindSafe(thread)) {
                    Ok(value) => Some(value),
                    Err(reason) if reason.is::<Killed>() => None,
                    Err(reason) => resume_unwind(reason),
                }
            }
        }

        /// Whether the calling thread's process will be killed at some time: then it must not sleep where no other process can wake it.
        pub fn may_die() -> bool {
            let own = OWN.try_with(|own| own.borrow().clone()).ok().flatten();
            own.is_some_and(|process| process.0.left.load(Ordering::SeqCst) != 0 || process.is_dead())
        }

        /// Before an operation: whether to do it. Does not return in a dead process, except for what runs while it ends.
        pub fn point() -> bool {
            let own = OWN.try_with(|own| own.borrow().clone()).ok().flatten();
            let Some(process) = own else { return true };
            let state = &process.0;
            if !state.dead.load(Ordering::SeqCst) {
                if state.left.load(Ordering::SeqCst) != 1 {
                    state
                        .left
                        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                            left.checked_sub(1).map(|left| left.max(1))
                        })
                        .ok();
                    return true;
                }
                state.dead.store(true, Ordering::SeqCst);
            }
            if !ENDS.with(|ends| ends.replace(true)) {
                resume_unwind(Box::new(Killed));
            }
            false
        }
    }
}
