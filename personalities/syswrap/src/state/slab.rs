//! Objects that live outside malloc: hooks run in signal handlers and in the middle of anything, so they may not allocate.
//!
//! Chunks are mapped on demand and never given back. An object keeps its address for ever, so a thread may read one that another thread is
//! closing.

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use super::lock::Lock;

/// Objects a chunk holds.
const CHUNK: usize = 64;
/// Chunks a slab can have.
const CHUNKS: usize = 2048;

/// An object of a slab: a link for the free list. All-zero bytes must be a valid object.
///
/// # Safety
/// The type consists of integers, atomics and structs of them.
pub(crate) unsafe trait Object: 'static {
    /// The free list's link.
    fn next_free(&self) -> &AtomicU32;
}

/// A growing table of `T`.
pub(crate) struct Slab<T> {
    chunks: [AtomicPtr<T>; CHUNKS],
    /// First free object plus one.
    free: AtomicU32,
    /// Objects ever handed out.
    used: AtomicU32,
    lock: Lock,
}

impl<T: Object> Slab<T> {
    pub(crate) const fn new() -> Self {
        Self {
            chunks: [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS],
            free: AtomicU32::new(0),
            used: AtomicU32::new(0),
            lock: Lock::new(),
        }
    }

    /// The object with this index, if there ever was one.
    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&'static T> {
        let chunk = self.chunks.get(index as usize / CHUNK)?.load(Ordering::Acquire);
        if chunk.is_null() {
            return None;
        }
        // SAFETY: a chunk is a mapping of CHUNK zeroed objects (valid, see `Object`) that is never unmapped.
        Some(unsafe { &*chunk.add(index as usize % CHUNK) })
    }

    /// A free object. It holds what its last user left, or zeros. `None`: out of memory, or called by a signal handler that
    /// interrupted this very function.
    pub(crate) fn take(&self) -> Option<(u32, &'static T)> {
        let guard = self.lock.lock();
        if guard.nested() {
            return None;
        }
        let first = self.free.load(Ordering::Relaxed);
        if first != 0 {
            let object = self.get(first - 1)?;
            self.free.store(object.next_free().load(Ordering::Relaxed), Ordering::Relaxed);
            return Some((first - 1, object));
        }
        let index = self.used.load(Ordering::Relaxed);
        self.grow(index as usize / CHUNK)?;
        self.used.store(index + 1, Ordering::Relaxed);
        Some((index, self.get(index)?))
    }

    /// Puts an object back.
    pub(crate) fn put(&self, index: u32) {
        let guard = self.lock.lock();
        let Some(object) = self.get(index) else { return };
        // On top of an interrupted `take` or `put` of the same thread the list is in no state to touch: the object is lost, once.
        if !guard.nested() {
            object.next_free().store(self.free.load(Ordering::Relaxed), Ordering::Relaxed);
            self.free.store(index + 1, Ordering::Relaxed);
        }
    }

    /// Every object ever handed out, free ones included.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u32, &'static T)> {
        (0..self.used.load(Ordering::Acquire)).filter_map(|i| Some((i, self.get(i)?)))
    }

    /// What no object begins or ends without.
    pub(crate) fn lock(&self) -> &Lock {
        &self.lock
    }

    fn grow(&self, chunk: usize) -> Option<()> {
        let slot = self.chunks.get(chunk)?;
        if slot.load(Ordering::Relaxed).is_null() {
            slot.store(zeroed_pages(CHUNK * size_of::<T>())?.cast(), Ordering::Release);
        }
        Some(())
    }
}

/// Fresh zeroed memory of this process, never given back.
pub(crate) fn zeroed_pages(bytes: usize) -> Option<*mut u8> {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing.
    let memory = unsafe {
        mmap_anonymous(
            ptr::null_mut(),
            bytes,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    };
    memory.ok().map(|p| p.cast())
}
