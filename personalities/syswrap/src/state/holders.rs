//! Who else holds a socket: counters shared by a family of processes.
//!
//! A socket known to one process only needs none. At fork every connected socket (and event set) gets one, in memory the child
//! inherits; close, exec and exit take one away. At 1 the socket is its holder's alone again and may move. A process that dies
//! without a word leaves a count too high, which only means that the socket stays with TCP.

use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use madrigal_sys::mem::SharedMap;

use super::slab::zeroed_pages;

/// Counters of a family.
const COUNTERS: usize = 64 * 1024;

static TABLE: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());
static HINT: AtomicU32 = AtomicU32::new(0);

/// Stands for a socket whose holders cannot be counted.
const UNKNOWN: u32 = u32::MAX;

fn counter(cell: &AtomicU32) -> Option<&'static AtomicU32> {
    let index = cell.load(Ordering::Relaxed).checked_sub(1)? as usize;
    let table = TABLE.load(Ordering::Acquire);
    if table.is_null() || index >= COUNTERS {
        return None;
    }
    // SAFETY: the table is a shared mapping of COUNTERS words that is never unmapped.
    Some(unsafe { &*table.add(index) })
}

/// Makes the counters, before the first fork of the family.
fn make() -> bool {
    if !TABLE.load(Ordering::Acquire).is_null() {
        return true;
    }
    let Ok(map) = SharedMap::anonymous(COUNTERS * size_of::<AtomicU32>()) else { return false };
    let Some(place) = zeroed_pages(size_of::<SharedMap>()) else { return false };
    let place = place.cast::<SharedMap>();
    // SAFETY: fresh pages nobody else knows, never unmapped: the mapping lives for ever.
    let map = unsafe {
        place.write(map);
        &*place
    };
    let Some(table) = map.at(0, map.len()) else { return false };
    TABLE.store(table.cast(), Ordering::Release);
    true
}

/// A fork is coming: the child will be one more holder. `cell` is the object's `holders` word.
pub(crate) fn share(cell: &AtomicU32) {
    if let Some(counter) = counter(cell) {
        counter.fetch_add(1, Ordering::AcqRel);
        return;
    }
    if cell.load(Ordering::Relaxed) == UNKNOWN || !make() {
        cell.store(UNKNOWN, Ordering::Relaxed);
        return;
    }
    let first = HINT.load(Ordering::Relaxed);
    for i in 0..COUNTERS as u32 {
        let index = first.wrapping_add(i) % COUNTERS as u32;
        cell.store(index + 1, Ordering::Relaxed);
        let free = counter(cell).is_some_and(|c| c.compare_exchange(0, 2, Ordering::AcqRel, Ordering::Relaxed).is_ok());
        if free {
            HINT.store(index + 1, Ordering::Relaxed);
            return;
        }
    }
    cell.store(UNKNOWN, Ordering::Relaxed);
}

/// This process holds it no longer. True: it was shared, and this was the last one.
pub(crate) fn drop_one(cell: &AtomicU32) -> bool {
    counter(cell).is_some_and(|counter| {
        cell.store(0, Ordering::Relaxed);
        counter.fetch_sub(1, Ordering::AcqRel) == 1
    })
}

/// From now on its holders cannot be counted; as [`drop_one`].
pub(crate) fn lose_count(cell: &AtomicU32) -> bool {
    let last = drop_one(cell);
    cell.store(UNKNOWN, Ordering::Relaxed);
    last
}

/// Whether nobody but this process holds what `cell` belongs to.
pub(crate) fn sole(cell: &AtomicU32) -> bool {
    match cell.load(Ordering::Relaxed) {
        0 => true,
        UNKNOWN => false,
        _ => counter(cell).is_some_and(|c| {
            let alone = c.load(Ordering::Acquire) == 1;
            if alone && c.compare_exchange(1, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                // Nobody else can add to it any more: the counter is free.
                cell.store(0, Ordering::Relaxed);
            }
            alone
        }),
    }
}

/// Whether holders of a socket can be counted at all.
pub(crate) fn unknown(cell: &AtomicU32) -> bool {
    cell.load(Ordering::Relaxed) == UNKNOWN
}
