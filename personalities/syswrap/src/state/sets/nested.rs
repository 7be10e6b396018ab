//! A set inside a set: what the program asked for there.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A set inside a set. All-zero: none. For a one-shot entry that was reported, [`Nested::events`] has no wanted events left.
#[derive(Default)]
pub(crate) struct Nested {
    /// The inner set plus one; 0: unused.
    pub(crate) set: AtomicU32,
    pub(crate) events: AtomicU32,
    pub(crate) data: AtomicU64,
    pub(crate) seen: AtomicU32,
    /// The wait in which the kernel reported it last.
    pub(crate) round: AtomicU32,
}

impl Nested {
    pub(crate) fn is_one_shot(&self) -> bool {
        self.events.load(Ordering::Relaxed) & libc::EPOLLONESHOT as u32 != 0
    }

    /// It was reported; true: it is one-shot, and wants nothing until the program changes it.
    pub(crate) fn spend(&self) -> bool {
        if self.is_one_shot() {
            self.events.store(libc::EPOLLONESHOT as u32, Ordering::Relaxed);
        }
        self.is_one_shot()
    }
}
