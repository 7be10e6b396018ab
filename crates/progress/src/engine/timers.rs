//! Times at which sources become runnable. Few and coarse: set-up deadlines, not messages.

use core::cmp::Reverse;
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::BinaryHeap;
use std::sync::Mutex;

use madrigal_sys::time;

use super::queue::lock;

/// No timer is set.
const NEVER: u64 = u64::MAX;

/// The timers of an engine.
pub(super) struct Timers {
    first: AtomicU64,
    heap: Mutex<BinaryHeap<Reverse<(u64, u64)>>>,
}

impl Default for Timers {
    fn default() -> Self {
        Self { first: AtomicU64::new(NEVER), heap: Mutex::default() }
    }
}

impl Timers {
    /// Sets a timer for the entry `key`.
    pub(super) fn add(&self, at: u64, key: u64) {
        let mut heap = lock(&self.heap);
        heap.push(Reverse((at, key)));
        self.note(&heap);
    }

    /// When the first timer is due; read under the lock, so that a thread that adds one later sees what the caller did before.
    pub(super) fn first(&self) -> Option<u64> {
        lock(&self.heap).peek().map(|Reverse((at, _))| *at)
    }

    /// Takes out every timer that is due. Without any timer not even the clock is read.
    pub(super) fn due(&self, mut fire: impl FnMut(u64)) {
        let first = self.first.load(Ordering::Acquire);
        if first == NEVER {
            return;
        }
        let now = time::now_ns();
        if now < first {
            return;
        }
        let mut heap = lock(&self.heap);
        let mut keys = Vec::new();
        while let Some(Reverse((_, key))) = heap.peek().copied().filter(|Reverse((at, _))| *at <= now) {
            heap.pop();
            keys.push(key);
        }
        self.note(&heap);
        drop(heap);
        keys.into_iter().for_each(&mut fire);
    }

    fn note(&self, heap: &BinaryHeap<Reverse<(u64, u64)>>) {
        self.first.store(heap.peek().map_or(NEVER, |Reverse((at, _))| *at), Ordering::Release);
    }
}
