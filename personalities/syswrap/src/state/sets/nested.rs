//! A set inside a set: what the program asked for there.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::{Set, SetRef, by_index};

/// A set inside a set. All-zero: none. Of a one-shot entry that was told of, [`Nested::events`] asks for nothing any more.
#[derive(Default)]
pub(crate) struct Nested {
    /// The inner set plus one; 0: unused.
    pub(crate) set: AtomicU32,
    pub(crate) events: AtomicU32,
    pub(crate) data: AtomicU64,
    pub(crate) seen: AtomicU32,
    /// The wait in which the kernel told of it last.
    pub(crate) round: AtomicU32,
}

impl Nested {
    pub(crate) fn is_one_shot(&self) -> bool {
        self.events.load(Ordering::Relaxed) & libc::EPOLLONESHOT as u32 != 0
    }

    /// It was told of; true: it is one-shot, and asks for nothing until the program changes it.
    pub(crate) fn spend(&self) -> bool {
        if self.is_one_shot() {
            self.events.store(libc::EPOLLONESHOT as u32, Ordering::Relaxed);
        }
        self.is_one_shot()
    }
}

impl Set {
    /// The kernel has put set `inner` into this one, changed it there (`Some`), or taken it out.
    pub(crate) fn nest(&self, inner: u32, event: Option<libc::epoll_event>) {
        let place = |set: u32| self.nested.iter().find(|nested| nested.set.load(Ordering::Relaxed) == set);
        // Without a place the kernel's reports still come; those of rings only with the doorbells.
        let (Some(event), Some(nested)) = (event, place(inner + 1).or_else(|| place(0))) else {
            return self.forget_nested(inner);
        };
        nested.events.store(event.events, Ordering::Relaxed);
        nested.data.store(event.u64, Ordering::Relaxed);
        nested.seen.store(u32::MAX, Ordering::Relaxed);
        nested.round.store(0, Ordering::Relaxed);
        if nested.set.swap(inner + 1, Ordering::Release) == 0 {
            self.roll.tcp.fetch_add(1, Ordering::AcqRel);
            self.roll.ours.fetch_add(1, Ordering::AcqRel);
        }
    }

    pub(super) fn forget_nested(&self, inner: u32) {
        for nested in &self.nested {
            if nested.set.compare_exchange(inner + 1, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                self.roll.tcp.fetch_sub(1, Ordering::AcqRel);
                self.roll.ours.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    /// The sets inside this one.
    pub(crate) fn inner(&self) -> impl Iterator<Item = (&Nested, SetRef)> {
        self.nested.iter().filter_map(|nested| {
            let set = by_index(nested.set.load(Ordering::Acquire).checked_sub(1)?)?;
            // Closed meanwhile, or another one by now.
            let same = nested.set.load(Ordering::Acquire) == set.index() + 1;
            same.then_some((nested, set))
        })
    }
}
