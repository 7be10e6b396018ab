//! The sleepers of an engine: the words by which threads call each other.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::thread::futex;

/// The sleepers of an engine.
#[derive(Default)]
pub(super) struct Sleepers {
    /// Whether some thread is the leader.
    pub(super) leader: AtomicBool,
    /// Whether the leader is, or is about to be, in the kernel.
    pub(super) asleep: AtomicBool,
    /// How many followers sleep or are about to.
    pub(super) followers: AtomicU32,
    /// Changes whenever followers must check again.
    pub(super) calls: AtomicU32,
    /// How many sleepers wait for any work at all to be done, by whatever thread.
    pub(super) for_any: AtomicU32,
}

impl Sleepers {
    pub(super) fn call(&self, how_many: u32) {
        // SYNC: SeqCst, so that a follower between its last check and its sleep sees `calls` changed; pairs with `follow`.
        self.calls.fetch_add(1, Ordering::SeqCst);
        let _ = futex::wake(&self.calls, futex::Flags::PRIVATE, how_many);
    }
}
