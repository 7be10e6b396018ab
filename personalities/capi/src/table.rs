//! Handles: the numbers of our objects in C. A number that is out of date, invented, or of another kind finds nothing.
//!
//! ```text
//!   handle = kind (7 bits) | age of the place (36) | place (20)          never 0, never negative as a signed number
//!
//!          reserve                    fill                  take                    reap
//!   FREE ----------> RESERVED (age + 1) ----> LIVE (handle) -----> CLOSED (handle) -----> FREE; after the last age WORN
//!     ^                 | dropped
//!     +-----------------+
//! ```
//! | state | `handle` | `closed` | the object | who may touch it |
//! |---|---|---|---|---|
//! | FREE, on the list | 0 | 0 | none | no thread |
//! | RESERVED | 0 | 0 | none, or being written | the one thread that took the place off the list |
//! | LIVE | its handle | 0 | there | every thread inside, by reference |
//! | CLOSED | 0 | its handle | there | every thread that was inside before, by reference |
//! | reaped: emptied, then FREE | 0 | 0 | being dropped | the one thread that took the handle out of `closed` |
//! | WORN: every age was used | 0 | 0 | none | no thread, ever: no handle comes twice |
//!
//! | step | who | by what |
//! |---|---|---|
//! | reserve | one thread: it takes the place off the list, under the list's lock | |
//! | fill | that thread | writes the object, then `handle`: from then on it is found |
//! | take | one of all that try, a closed runtime among them | exchanges `handle` for 0: then it is not found; then writes `closed` |
//! | reap | one of all that try: the one that took the handle, the last to leave, a later open or close | exchanges `closed` for 0, once nobody is inside |
//!
//! The closing thread writes `closed` last. The thread that takes it out reaps: only that one drops the object and frees the place.
//!
//! A lookup takes no lock: the thread first notes that it is *inside* the place, then compares the place's handle. A closing thread first
//! takes the handle away, then checks whether a thread is inside. So the object stays as long as a thread is inside that saw its handle. A
//! thread that leaves a place whose handle has changed reaps what is closed there: its own object, or a later one that its stay kept from
//! being reaped. That check has no fence, so it may miss a close of the same moment. Such a place is on a second list (*lingering*), which
//! every open and every close checks.
//!
//! One of the threads inside in each *lane* has a word of its own, which costs it one exchange and a store; the others are counted. A
//! link's readers and writers have different lanes, so they do not contend.
//!
//! All of it is memory of one process, and ends with it. A forked child does not read it ([`crate::fork`]).

use core::cell::{Cell, UnsafeCell};
use core::ops::Deref;
#[cfg(not(feature = "shuttle"))]
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
#[cfg(not(feature = "shuttle"))]
use std::sync::{Mutex, MutexGuard};
use std::sync::{OnceLock, PoisonError};

#[cfg(feature = "shuttle")]
use shuttle::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
#[cfg(feature = "shuttle")]
use shuttle::sync::{Mutex, MutexGuard};

/// Places in a chunk, and chunks: 2^20 handles. A scheduler has few, so that they are soon used again.
const CHUNK: usize = if cfg!(feature = "shuttle") { 2 } else { 1 << 10 };
const CHUNKS: usize = if cfg!(feature = "shuttle") { 2 } else { 1 << 10 };
const PLACE_BITS: u32 = 20;
const AGE_BITS: u32 = 36;
/// The last age of a place.
const LAST_AGE: u64 = (1 << AGE_BITS) - 1;

/// A way into a place. Each has a word of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lane {
    Main = 0,
    Second = 1,
}

/// There is no room for another handle.
#[derive(Debug)]
pub(crate) struct Full;

/// The kind in a handle.
#[inline]
pub(crate) fn kind_of(handle: u64) -> u8 {
    (handle >> (PLACE_BITS + AGE_BITS)) as u8
}

/// A table of objects.
pub(crate) struct Table<T> {
    chunks: [OnceLock<Box<[Place<T>]>>; CHUNKS],
    free: Mutex<Free>,
    /// How many places have an entry in `Free::lingering`.
    lingering: AtomicUsize,
}

/// Places that are not in use.
struct Free {
    /// The first place that was never used; none behind it was.
    next: usize,
    /// Used before. The last one freed is taken first.
    places: Vec<usize>,
    /// The handles of places that were closed while a thread was inside.
    lingering: Vec<u64>,
}

/// A place for an object. Two lines of a cache: what every lookup writes, and the rest.
#[repr(align(64))]
struct Place<T> {
    handle: AtomicU64,
    inside: [AtomicU32; 2],
    more: AtomicU32,
    /// The handle that was taken away while its object is still there; else 0. The thread that takes it out frees the place.
    closed: AtomicU64,
    /// How often the place was reserved. Written by the thread that has it reserved.
    age: AtomicU64,
    object: UnsafeCell<Option<T>>,
}

// SAFETY: the thread that reserved the place writes the object, and the thread that took `closed` out drops it, each of them alone with it.
// It is shared only in between: it is `Sync` for that, and `Send` for being dropped elsewhere.
unsafe impl<T: Send + Sync> Sync for Place<T> {}

impl<T> Place<T> {
    fn new() -> Self {
        Self {
            handle: AtomicU64::new(0),
            inside: [const { AtomicU32::new(0) }; 2],
            more: AtomicU32::new(0),
            closed: AtomicU64::new(0),
            age: AtomicU64::new(0),
            object: UnsafeCell::new(None),
        }
    }

    /// Takes the handle away: one thread of all that try does.
    fn take(&self, handle: u64) -> bool {
        let taken = self.handle.compare_exchange(handle, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if taken {
            self.closed.store(handle, Ordering::SeqCst);
        }
        taken
    }

    fn nobody_is_inside(&self) -> bool {
        // SYNC: SeqCst, after the handle was taken away; pairs with `Table::enter`.
        self.inside.iter().all(|word| word.load(Ordering::SeqCst) == 0) && self.more.load(Ordering::SeqCst) == 0
    }
}

impl<T> Table<T> {
    /// A table without anything in it.
    pub(crate) const fn new() -> Self {
        let free = Free { next: 0, places: Vec::new(), lingering: Vec::new() };
        Self { chunks: [const { OnceLock::new() }; CHUNKS], free: Mutex::new(free), lingering: AtomicUsize::new(0) }
    }

    /// Reserves a place for an object that will be made, or that must not be lost when it arrives.
    pub(crate) fn reserve(&self) -> Result<Reserved<'_, T>, Full> {
        self.sweep();
        let mut free = self.free();
        let at = match free.places.pop() {
            Some(at) => at,
            None if free.next < CHUNK * CHUNKS => {
                free.next += 1;
                free.next - 1
            }
            None => return Err(Full),
        };
        drop(free);
        let chunk = self.chunks.get(at / CHUNK).ok_or(Full)?;
        let places = chunk.get_or_init(|| (0..CHUNK).map(|_| Place::new()).collect());
        let place = places.get(at % CHUNK).ok_or(Full)?;
        Ok(Reserved { table: self, place, at, is_filled: false })
    }

    /// The object of that handle, which stays while the result is kept.
    #[inline]
    pub(crate) fn enter(&self, handle: u64, lane: Lane) -> Option<Inside<'_, T>> {
        // A place that is not in use has the handle 0.
        let place = self.place(handle).filter(|_| kind_of(handle) != 0)?;
        // SYNC: SeqCst here and in `take`: either that sees us inside, or we see that the handle is gone.
        let counted = place.inside[lane as usize].swap(1, Ordering::SeqCst) != 0;
        if counted {
            place.more.fetch_add(1, Ordering::SeqCst);
        }
        let way = if counted { None } else { Some(lane) };
        let entry = Entry { table: self, place, handle, way, is_closer: Cell::new(false) };
        if place.handle.load(Ordering::SeqCst) != handle {
            return None;
        }
        // SAFETY: the handle was there after we were inside, so no thread drops or replaces the object before the entry is dropped.
        let object = unsafe { (*place.object.get()).as_ref() }?;
        Some(Inside { object, entry })
    }

    /// Takes a handle away. True: this call did. The object is dropped once no thread is inside.
    pub(crate) fn take(&self, handle: u64) -> bool {
        self.sweep();
        let Some(place) = self.place(handle).filter(|_| kind_of(handle) != 0) else { return false };
        if !place.take(handle) {
            return false;
        }
        self.reap_or_linger(place, handle);
        true
    }

    /// Every handle there is now.
    pub(crate) fn handles(&self) -> Vec<u64> {
        let places = self.chunks.iter().filter_map(OnceLock::get).flatten();
        places.map(|place| place.handle.load(Ordering::SeqCst)).filter(|handle| *handle != 0).collect()
    }

    #[inline]
    fn place(&self, handle: u64) -> Option<&Place<T>> {
        let at = handle as usize & ((1 << PLACE_BITS) - 1);
        self.chunks.get(at / CHUNK)?.get()?.get(at % CHUNK)
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops the object of a handle that was taken away, unless a thread is inside. True: it is gone, by this thread or another.
    fn reap(&self, place: &Place<T>, handle: u64) -> bool {
        if place.closed.load(Ordering::SeqCst) != handle {
            return true;
        }
        if !place.nobody_is_inside() {
            return false;
        }
        // The handle, not a flag: after it the place may be in use again.
        if place.closed.compare_exchange(handle, 0, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            return true;
        }
        // SAFETY: no thread that saw the handle is inside, none can see it any more, and of the threads that found that out only we took it
        // out of `closed`; the place is on no list yet.
        let object = unsafe { (*place.object.get()).take() };
        self.give_back(place, handle as usize & ((1 << PLACE_BITS) - 1));
        // Last, and without the lock: it may take long, and may close handles itself.
        drop(object);
        true
    }

    /// Drops the object of a handle that was taken away; while a thread is inside, that is tried again later.
    fn reap_or_linger(&self, place: &Place<T>, handle: u64) {
        if !self.reap(place, handle) {
            let mut free = self.free();
            free.lingering.push(handle);
            self.lingering.store(free.lingering.len(), Ordering::Relaxed);
        }
    }

    /// What is closed there, be it that handle or a later one, is dropped unless a thread is inside.
    #[cold]
    fn reap_whatever(&self, place: &Place<T>) {
        let closed = place.closed.load(Ordering::SeqCst);
        if closed != 0 {
            self.reap(place, closed);
        }
    }

    /// The place is on the list again, unless the next handle of it would be the first once more.
    fn give_back(&self, place: &Place<T>, at: usize) {
        if place.age.load(Ordering::Relaxed) < LAST_AGE {
            self.free().places.push(at);
        }
    }

    /// Tries again to reap places that were closed while a thread was inside: a thread that left during the close may have missed it.
    fn sweep(&self) {
        if self.lingering.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut free = self.free();
        let lingering = core::mem::take(&mut free.lingering);
        self.lingering.store(0, Ordering::Relaxed);
        drop(free);
        let still = |handle: &u64| self.place(*handle).is_some_and(|place| !self.reap(place, *handle));
        let left: Vec<_> = lingering.into_iter().filter(still).collect();
        if !left.is_empty() {
            let mut free = self.free();
            free.lingering.extend(left);
            self.lingering.store(free.lingering.len(), Ordering::Relaxed);
        }
    }
}

/// A place reserved by one thread, for an object that is being made. If this is dropped before, the place is free again.
pub(crate) struct Reserved<'t, T> {
    table: &'t Table<T>,
    place: &'t Place<T>,
    at: usize,
    is_filled: bool,
}

impl<T> Reserved<'_, T> {
    /// Puts an object of that kind (1 to 127) there: its handle.
    pub(crate) fn fill(mut self, kind: u8, object: T) -> u64 {
        let place = self.place;
        let age = place.age.load(Ordering::Relaxed) + 1;
        place.age.store(age, Ordering::Relaxed);
        let handle = u64::from(kind & 0x7f) << (PLACE_BITS + AGE_BITS) | age << PLACE_BITS | self.at as u64;
        // SAFETY: we have reserved the place, so no other thread writes it; a thread inside with an old handle does not use the object.
        unsafe { *place.object.get() = Some(object) };
        // SYNC: SeqCst covers the Release that pairs with the load in `enter`: a thread that sees the handle sees the object.
        place.handle.store(handle, Ordering::SeqCst);
        self.is_filled = true;
        handle
    }
}

impl<T> Drop for Reserved<'_, T> {
    fn drop(&mut self) {
        if !self.is_filled {
            self.table.give_back(self.place, self.at);
        }
    }
}

/// Being inside a place.
struct Entry<'t, T> {
    table: &'t Table<T>,
    place: &'t Place<T>,
    handle: u64,
    /// The lane whose word it set; `None`: it is counted.
    way: Option<Lane>,
    /// The thread inside took the handle away, and reaps the object when it leaves.
    is_closer: Cell<bool>,
}

impl<T> Drop for Entry<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // SYNC: Release: what we did with the object comes before its drop; pairs with `nobody_is_inside`.
        match self.way {
            Some(lane) => self.place.inside[lane as usize].store(0, Ordering::Release),
            None => {
                self.place.more.fetch_sub(1, Ordering::SeqCst);
            }
        }
        if self.is_closer.get() {
            self.table.reap_or_linger(self.place, self.handle);
        } else if self.place.handle.load(Ordering::Relaxed) != self.handle {
            self.table.reap_whatever(self.place);
        }
    }
}

/// An object that is there as long as this is kept.
pub(crate) struct Inside<'t, T> {
    object: &'t T,
    entry: Entry<'t, T>,
}

impl<T> Inside<'_, T> {
    /// As [`Table::take`] of its handle, by a thread inside: the object is dropped when the last thread leaves.
    pub(crate) fn take(&self) -> bool {
        let taken = self.entry.place.take(self.entry.handle);
        if taken {
            self.entry.is_closer.set(true);
        }
        taken
    }
}

impl<T> Deref for Inside<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.object
    }
}

#[cfg(all(test, feature = "shuttle"))]
mod explored;

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
