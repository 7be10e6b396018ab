//! The counters of this process's family: a mapping that its children inherit.

use core::sync::atomic::AtomicPtr;

use madrigal_base::sync::{AtomicU32, Ordering};
use madrigal_sys::mem::SharedMap;

use super::{Family, Holders, Rest};
use crate::state::slab::zeroed_pages;

/// Counters of a family.
const COUNTERS: usize = 64 * 1024;

static TABLE: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());
static HINT: AtomicU32 = AtomicU32::new(0);

impl Holders {
    /// It is a new object's.
    pub(crate) fn begin(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Whether others held it when that was looked at last.
    pub(crate) fn was_shared(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// A fork is coming: the child will be one more holder.
    pub(crate) fn share(&self) {
        make();
        family().share(self);
    }

    /// This process holds it no longer.
    pub(crate) fn let_go(&self) -> Rest {
        family().let_go(self)
    }

    /// It goes to an uncounted process, and this process no longer counts itself, either.
    pub(crate) fn pass_on(&self) -> Rest {
        family().pass_on(self)
    }

    /// This process is about to become a program that will not hold it.
    pub(crate) fn leave_for_exec(&self) -> Rest {
        family().leave_for_exec(self)
    }

    /// It has not become another program. False: another process may have taken it for its own meanwhile.
    pub(crate) fn come_back(&self) -> bool {
        family().come_back(self)
    }

    /// Whether only this process holds it.
    pub(crate) fn sole(&self) -> bool {
        family().sole(self)
    }

    /// Whether its holders can be counted at all.
    pub(crate) fn unknown(&self) -> bool {
        family().unknown(self)
    }
}

/// The counters there are, if there are any.
fn family() -> Family<'static> {
    let table = TABLE.load(Ordering::Acquire);
    let counters = if table.is_null() {
        &[]
    } else {
        // SAFETY: the table is a shared mapping of COUNTERS words that is never unmapped.
        unsafe { core::slice::from_raw_parts(table, COUNTERS) }
    };
    Family { counters, hint: &HINT }
}

/// Makes the counters, before the first fork of the family.
fn make() {
    if !TABLE.load(Ordering::Acquire).is_null() {
        return;
    }
    let Ok(map) = SharedMap::anonymous(COUNTERS * size_of::<AtomicU32>()) else { return };
    let Some(place) = zeroed_pages(size_of::<SharedMap>()) else { return };
    let place = place.cast::<SharedMap>();
    // SAFETY: fresh pages that no other code knows, never unmapped: the mapping lives for ever.
    let map = unsafe {
        place.write(map);
        &*place
    };
    let Some(table) = map.at(0, map.len()) else { return };
    // Two threads may fork at once: those of the first one count.
    let _ = TABLE.compare_exchange(core::ptr::null_mut(), table.cast(), Ordering::AcqRel, Ordering::Acquire);
}
