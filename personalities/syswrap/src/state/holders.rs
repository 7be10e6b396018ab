//! Who else holds a socket: counters shared by a family of processes.
//!
//! A socket known to one process only needs none. At fork every connected socket (and event set) gets one, in memory the child
//! inherits; close, exec and exit take one away. At 1 the socket is its holder's alone again and may move. A process that dies
//! without a word leaves a count too high, which only means that the socket stays with TCP.
//!
//! ```text
//!   the family's counter:  0 (free) --share--> 2, 3 .. --let_go--> 1 --sole--> 0        --let_go by the last one--> 0
//!                          any --pass_on--> the same, LOST: somebody holds it whom nobody counts, so nobody is alone with it
//!   a process's word:      0 (its own) --share--> counted --let_go, pass_on--> UNKNOWN    counted --sole--> 0
//!                          counted --leave_for_exec--> counted, AWAY --come_back--> counted
//! ```

use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use madrigal_sys::mem::SharedMap;

use super::slab::zeroed_pages;

/// Counters of a family.
const COUNTERS: usize = 64 * 1024;

static TABLE: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());
static HINT: AtomicU32 = AtomicU32::new(0);

/// In a process's word: its holders cannot be counted.
const UNKNOWN: u32 = u32::MAX;
/// In a process's word: it is not counted, for it is about to become another program.
const AWAY: u32 = 1 << 30;
/// In a counter: there are holders that are not counted.
const LOST: u32 = 1 << 31;

/// Who holds a socket that this process has given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rest {
    /// Others of the family.
    Family,
    /// Nobody who is counted.
    Uncounted,
    Nobody,
}

fn counter(cell: &AtomicU32) -> Option<&'static AtomicU32> {
    // UNKNOWN and AWAY are far out of range.
    at(cell.load(Ordering::Relaxed).checked_sub(1)? as usize)
}

fn at(index: usize) -> Option<&'static AtomicU32> {
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
    // Two threads may fork at once: those of the first one count.
    let _ = TABLE.compare_exchange(core::ptr::null_mut(), table.cast(), Ordering::AcqRel, Ordering::Acquire);
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
    let free = |index: &u32| {
        at(*index as usize).is_some_and(|c| c.compare_exchange(0, 2, Ordering::AcqRel, Ordering::Relaxed).is_ok())
    };
    let index = (0..COUNTERS as u32).map(|i| first.wrapping_add(i) % COUNTERS as u32).find(free);
    HINT.store(index.map_or(first, |index| index + 1), Ordering::Relaxed);
    cell.store(index.map_or(UNKNOWN, |index| index + 1), Ordering::Relaxed);
}

/// This process holds it no longer.
pub(crate) fn let_go(cell: &AtomicU32) -> Rest {
    let rest = count_off(cell);
    cell.store(UNKNOWN, Ordering::Relaxed);
    rest
}

/// It goes to somebody who is not counted, and this process counts itself no more, either.
pub(crate) fn pass_on(cell: &AtomicU32) -> Rest {
    if let Some(counter) = counter(cell) {
        counter.fetch_or(LOST, Ordering::AcqRel);
    }
    match let_go(cell) {
        Rest::Nobody => Rest::Uncounted,
        rest => rest,
    }
}

/// This process is about to become a program that will not hold it.
pub(crate) fn leave_for_exec(cell: &AtomicU32) -> Rest {
    let rest = count_off(cell);
    if rest == Rest::Family && cell.load(Ordering::Relaxed) != UNKNOWN {
        cell.fetch_or(AWAY, Ordering::Relaxed);
    } else if counter(cell).is_some() {
        // The counter is free; whatever comes, nobody else has it.
        cell.store(if rest == Rest::Nobody { 0 } else { UNKNOWN }, Ordering::Relaxed);
    }
    rest
}

/// It has not become another program. False: another process may have taken it for its own meanwhile.
pub(crate) fn come_back(cell: &AtomicU32) -> bool {
    let word = cell.load(Ordering::Relaxed);
    if word == UNKNOWN || word & AWAY == 0 {
        return true;
    }
    cell.store(word & !AWAY, Ordering::Relaxed);
    let counted = counter(cell).is_some_and(|counter| {
        let more = |n: u32| (n & !LOST != 0).then_some(n + 1);
        counter.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    });
    if !counted {
        cell.store(UNKNOWN, Ordering::Relaxed);
    }
    counted
}

/// One holder less.
fn count_off(cell: &AtomicU32) -> Rest {
    let Some(counter) = counter(cell) else {
        return if cell.load(Ordering::Relaxed) == 0 { Rest::Nobody } else { Rest::Family };
    };
    match counter.fetch_sub(1, Ordering::AcqRel) {
        1 => Rest::Nobody,
        n if n == LOST | 1 => {
            // Nobody counts here any more: it is free.
            counter.store(0, Ordering::Release);
            Rest::Uncounted
        }
        _ => Rest::Family,
    }
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
    cell.load(Ordering::Relaxed) >= AWAY || counter(cell).is_some_and(|c| c.load(Ordering::Relaxed) & LOST != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A socket's word in this process, and the one its child would have.
    fn family() -> (AtomicU32, AtomicU32) {
        let parent = AtomicU32::new(0);
        share(&parent);
        let child = AtomicU32::new(parent.load(Ordering::Relaxed));
        (parent, child)
    }

    #[test]
    fn the_last_holder_is_alone() {
        let (parent, child) = family();
        assert!(!sole(&parent) && !sole(&child));
        assert_eq!(let_go(&child), Rest::Family);
        assert!(sole(&parent));
        assert_eq!(let_go(&parent), Rest::Nobody);
    }

    #[test]
    fn nobody_is_alone_with_what_was_passed_on() {
        let (parent, child) = family();
        assert_eq!(pass_on(&parent), Rest::Family);
        assert!(!sole(&child) && unknown(&child));
        assert_eq!(let_go(&child), Rest::Uncounted);
        assert_eq!(pass_on(&AtomicU32::new(0)), Rest::Uncounted);
    }

    #[test]
    fn an_exec_that_fails_counts_again() {
        let (parent, child) = family();
        assert_eq!(leave_for_exec(&child), Rest::Family);
        assert!(come_back(&child));
        assert!(!sole(&parent) && !sole(&child));
        assert_eq!(leave_for_exec(&child), Rest::Family);
        assert!(sole(&parent));
        assert!(!come_back(&child) && !sole(&child));
        let own = AtomicU32::new(0);
        assert_eq!(leave_for_exec(&own), Rest::Nobody);
        assert!(come_back(&own) && sole(&own));
    }
}
