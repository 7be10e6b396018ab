//! The word of a descriptor's number, and the time in which it is closed. From the moment when we no longer track it to the kernel's close,
//! doorbells of ours may lie in its queue, so a call on it meanwhile waits.
//!
//! ```text
//!   nothing --set--> a word --begin, by the closing thread--> closing --end, by the same--> nothing
//!                       ^                                        |
//!                       +---- set, by the thread to which -------+     (the kernel's close is made by then)
//!                             the kernel gives the number next
//! ```
//! `take` goes to nothing at once: for a number that the kernel has closed already.

use madrigal_base::sync::{AtomicU32, Ordering};

/// Marks a number that a thread is closing; below it the thread's id, and [`IN_KERNEL`].
const CLOSING: u32 = 6 << 29;
/// The kernel's close is being made.
const IN_KERNEL: u32 = 1 << 28;
/// The kernel's highest thread id has 22 bits.
const THREAD: u32 = IN_KERNEL - 1;

/// The word. Zeroed memory: nothing.
#[repr(transparent)]
#[derive(Default)]
pub(super) struct Number(AtomicU32);

/// How far a close is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Closing {
    /// The thread that closes.
    pub(crate) thread: u32,
    /// It is behind all that is ours: what is left is the kernel's close.
    pub(crate) in_kernel: bool,
}

/// The close that a word records.
#[inline]
pub(super) fn closing(word: u32) -> Option<Closing> {
    let is_closing = word >> 29 == CLOSING >> 29;
    is_closing.then_some(Closing { thread: word & THREAD, in_kernel: word & IN_KERNEL != 0 })
}

impl Number {
    #[inline]
    pub(super) fn word(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    pub(super) fn set(&self, word: u32) {
        self.0.store(word, Ordering::Release);
    }

    /// Nothing from now on; what it was.
    pub(super) fn take(&self) -> Option<u32> {
        if self.0.load(Ordering::Relaxed) == 0 {
            return None;
        }
        Some(self.0.swap(0, Ordering::AcqRel)).filter(|&word| word != 0 && closing(word).is_none())
    }

    /// This thread closes it; what it was. `None`: nothing, or another thread closes it.
    pub(super) fn begin(&self, thread: u32) -> Option<u32> {
        let closing_by = CLOSING | thread & THREAD;
        let known = |word: u32| (word != 0 && closing(word).is_none()).then_some(closing_by);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, known).ok()
    }

    /// The thread that closes it is about to make the kernel's close.
    pub(super) fn to_kernel(&self, thread: u32) {
        let by = CLOSING | thread & THREAD;
        let _ = self.0.compare_exchange(by, by | IN_KERNEL, Ordering::Release, Ordering::Relaxed);
    }

    /// It has made it, or will not.
    pub(super) fn end(&self, thread: u32) {
        let own = |word: u32| closing(word).is_some_and(|c| c.thread == thread & THREAD).then_some(0);
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, own);
    }

    /// Who closed it is no more: the child after fork(2).
    pub(super) fn abandon(&self) {
        if closing(self.word()).is_some() {
            self.set(0);
        }
    }
}

#[cfg(all(test, feature = "shuttle"))]
mod explored {
    use shuttle::sync::{Arc, Mutex};
    use shuttle::thread;

    use super::*;

    /// What the kernel has behind the number.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum File {
        Old,
        New,
        None,
    }

    struct World {
        number: Number,
        kernel: Mutex<File>,
        /// The old file's bytes are not the program's any more.
        left: AtomicU32,
    }

    const OLD: u32 = 1 << 29 | 7;
    const NEW: u32 = 1 << 29 | 8;

    /// A program's close, with all that is ours before it.
    fn close(world: &World, thread: u32) {
        if world.number.begin(thread).is_some() {
            world.left.store(1, Ordering::SeqCst);
            world.number.to_kernel(thread);
        }
        {
            let mut kernel = world.kernel.lock().unwrap();
            if *kernel == File::Old {
                *kernel = File::None;
            }
        }
        world.number.end(thread);
    }

    /// A call on the number: by our way while it is known, else by the kernel's.
    fn call(world: &World, thread: u32) {
        let word = loop {
            let word = world.number.word();
            match closing(word) {
                Some(by) if by.thread != thread => thread::yield_now(),
                _ => break word,
            }
        };
        if word == 0 {
            let file = *world.kernel.lock().unwrap();
            assert!(file != File::Old || world.left.load(Ordering::SeqCst) == 0, "a call found what is ours");
        }
    }

    /// The number is given to another file as soon as it is free.
    fn open(world: &World) {
        for _ in 0..4 {
            let free = {
                let mut kernel = world.kernel.lock().unwrap();
                let free = *kernel == File::None;
                if free {
                    *kernel = File::New;
                }
                free
            };
            if free {
                // It was closed, and the closing thread may not have recorded that yet.
                assert!(world.number.take().is_none_or(|word| word != NEW));
                world.number.set(NEW);
                return;
            }
            thread::yield_now();
        }
    }

    /// One thread closes a number, two call on it, and one is given it next.
    #[test]
    fn no_call_finds_what_is_ours_behind_a_close() {
        let run = || {
            let world =
                Arc::new(World { number: Number::default(), kernel: Mutex::new(File::Old), left: AtomicU32::new(0) });
            world.number.set(OLD);
            let spawn = |work: fn(&World)| {
                let world = Arc::clone(&world);
                thread::spawn(move || work(&world))
            };
            let threads = [
                spawn(|w| close(w, 1)),
                spawn(|w| call(w, 2)),
                spawn(|w| (0..3).for_each(|_| call(w, 3))),
                spawn(open),
            ];
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            let expected = if *world.kernel.lock().unwrap() == File::New { NEW } else { 0 };
            assert_eq!(world.number.word(), expected);
        };
        shuttle::check_random(run, 20_000);
        shuttle::check_pct(run, 5_000, 3);
    }
}
