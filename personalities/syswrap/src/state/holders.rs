//! Which other processes hold a socket: counters shared by a family of processes.
//!
//! A socket known to one process only needs none. At fork every connected socket (and event set) gets one, in memory the child inherits;
//! close, exec and exit decrement it. At 1 the socket is its holder's alone again and may move. A process that is killed leaves a count too
//! high, which only means that the socket stays with TCP. One that enters a seccomp sandbox marks it LOST, for no hook sees what it does
//! there.
//!
//! ```text
//!   the family's counter:  0 (free) --share--> 2, 3 .. --let_go--> 1 --sole--> 0        --let_go by the last one--> 0
//!                          any --pass_on--> the same, LOST: an uncounted process holds it, so no process is alone with it
//!   a process's word:      0 (its own) --share--> counted --let_go, pass_on--> UNKNOWN    counted --sole--> 0
//!                          counted --leave_for_exec--> counted, AWAY --come_back--> counted, or UNKNOWN
//! ```
//! A counter that is free may become another object's. Each use of it has a number, stored in the words, too. A process that was away and
//! comes back to a counter of another use is not counted.

#[cfg(not(feature = "shuttle"))]
mod shared;

use madrigal_base::sync::{AtomicU32, Ordering};

/// In a process's word: its holders cannot be counted.
const UNKNOWN: u32 = u32::MAX;
/// In a process's word: it is not counted, for it is about to become another program.
const AWAY: u32 = 1 << 30;
/// In a counter: there are holders that are not counted.
const LOST: u32 = 1 << 31;
/// Holders, in a counter; one more than the counter's index, in a process's word.
const COUNT: u32 = (1 << 17) - 1;
/// The use of a counter, in both.
const USE: u32 = (AWAY - 1) & !COUNT;

/// Who holds a socket that this process has given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rest {
    /// Others of the family.
    Family,
    /// No counted process.
    Uncounted,
    Nobody,
}

/// What a process knows of the holders of an object. All-zero: it is its own.
#[derive(Default)]
pub(crate) struct Holders(AtomicU32);

/// The counters that all processes of a family have.
#[derive(Clone, Copy)]
struct Family<'a> {
    counters: &'a [AtomicU32],
    /// Where to search for a free one.
    hint: &'a AtomicU32,
}

impl<'a> Family<'a> {
    fn counter(self, holders: &Holders) -> Option<&'a AtomicU32> {
        let word = holders.0.load(Ordering::Relaxed);
        // One that is away is not counted.
        let index = if word >= AWAY { None } else { (word & COUNT).checked_sub(1) };
        self.counters.get(index? as usize)
    }

    fn unknown(self, holders: &Holders) -> bool {
        holders.0.load(Ordering::Relaxed) >= AWAY
            || self.counter(holders).is_some_and(|counter| counter.load(Ordering::Relaxed) & LOST != 0)
    }

    fn share(self, holders: &Holders) {
        if let Some(counter) = self.counter(holders) {
            counter.fetch_add(1, Ordering::AcqRel);
        } else if holders.0.load(Ordering::Relaxed) == 0 {
            holders.0.store(self.take().unwrap_or(UNKNOWN), Ordering::Relaxed);
        } else {
            holders.0.store(UNKNOWN, Ordering::Relaxed);
        }
    }

    /// A free counter, for two holders; the word of each.
    fn take(self) -> Option<u32> {
        let (first, all) = (self.hint.load(Ordering::Relaxed), self.counters.len() as u32);
        for index in (0..all).map(|i| first.wrapping_add(i) % all) {
            let counter = self.counters.get(index as usize)?;
            let seen = counter.load(Ordering::Relaxed);
            let next = seen.wrapping_add(COUNT + 1) & USE;
            let free = seen & !USE == 0;
            if free && counter.compare_exchange(seen, next | 2, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                self.hint.store(index + 1, Ordering::Relaxed);
                return Some(next | (index + 1));
            }
        }
        None
    }

    fn let_go(self, holders: &Holders) -> Rest {
        let rest = self.count_off(holders);
        holders.0.store(UNKNOWN, Ordering::Relaxed);
        rest
    }

    fn pass_on(self, holders: &Holders) -> Rest {
        if let Some(counter) = self.counter(holders) {
            counter.fetch_or(LOST, Ordering::AcqRel);
        }
        match self.let_go(holders) {
            Rest::Nobody => Rest::Uncounted,
            rest => rest,
        }
    }

    fn leave_for_exec(self, holders: &Holders) -> Rest {
        let counted = self.counter(holders).is_some();
        let rest = self.count_off(holders);
        match rest {
            _ if !counted => {}
            Rest::Family => _ = holders.0.fetch_or(AWAY, Ordering::Relaxed),
            Rest::Uncounted => holders.0.store(UNKNOWN, Ordering::Relaxed),
            // The counter is free; no other process has the object, whatever comes.
            Rest::Nobody => holders.0.store(0, Ordering::Relaxed),
        }
        rest
    }

    fn come_back(self, holders: &Holders) -> bool {
        let word = holders.0.load(Ordering::Relaxed);
        if word == UNKNOWN || word & AWAY == 0 {
            return true;
        }
        holders.0.store(word & !AWAY, Ordering::Relaxed);
        let counted = self.counter(holders).is_some_and(|counter| {
            let more = |n: u32| (n & USE == word & USE && n & COUNT != 0).then_some(n + 1);
            counter.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
        });
        if !counted {
            holders.0.store(UNKNOWN, Ordering::Relaxed);
        }
        counted
    }

    /// One holder less.
    fn count_off(self, holders: &Holders) -> Rest {
        let Some(counter) = self.counter(holders) else {
            return if holders.0.load(Ordering::Relaxed) == 0 { Rest::Nobody } else { Rest::Family };
        };
        // SYNC: in one step with the mark, for a counter without holders may be another object's at once.
        let less = |n: u32| Some(if n & COUNT == 1 { n & USE } else { n - 1 });
        match counter.fetch_update(Ordering::AcqRel, Ordering::Acquire, less) {
            Ok(n) if n & COUNT != 1 => Rest::Family,
            Ok(n) if n & LOST != 0 => Rest::Uncounted,
            _ => Rest::Nobody,
        }
    }

    fn sole(self, holders: &Holders) -> bool {
        match holders.0.load(Ordering::Relaxed) {
            0 => true,
            UNKNOWN => false,
            word => self.counter(holders).is_some_and(|counter| {
                let (one, free) = (word & USE | 1, word & USE);
                // Nobody else can add to it: the counter is free.
                let alone = counter.compare_exchange(one, free, Ordering::AcqRel, Ordering::Relaxed).is_ok();
                if alone {
                    holders.0.store(0, Ordering::Relaxed);
                }
                alone
            }),
        }
    }
}

/// A family of a test.
#[cfg(test)]
mod few {
    use super::*;

    /// Counters, of which few are enough.
    pub(super) struct Table {
        counters: [AtomicU32; 2],
        hint: AtomicU32,
    }

    impl Table {
        pub(super) fn new() -> Self {
            Self { counters: [const { AtomicU32::new(0) }; 2], hint: AtomicU32::new(0) }
        }

        pub(super) fn family(&self, counters: usize) -> Family<'_> {
            Family { counters: &self.counters[..counters], hint: &self.hint }
        }
    }

    pub(super) fn child_of(parent: &Holders) -> Holders {
        Holders(AtomicU32::new(parent.0.load(Ordering::Relaxed)))
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::few::{Table, child_of};
    use super::*;

    /// A socket's word in this process, and the one its child would have.
    fn two(f: Family<'_>) -> (Holders, Holders) {
        let parent = Holders::default();
        f.share(&parent);
        let child = child_of(&parent);
        (parent, child)
    }

    #[test]
    fn the_last_holder_is_alone() {
        let table = Table::new();
        let f = table.family(2);
        let (parent, child) = two(f);
        assert!(!f.sole(&parent) && !f.sole(&child));
        assert_eq!(f.let_go(&child), Rest::Family);
        assert!(f.sole(&parent));
        assert_eq!(f.let_go(&parent), Rest::Nobody);
    }

    #[test]
    fn nobody_is_alone_with_what_was_passed_on() {
        let table = Table::new();
        let f = table.family(2);
        let (parent, child) = two(f);
        assert_eq!(f.pass_on(&parent), Rest::Family);
        assert!(!f.sole(&child));
        assert_eq!(f.let_go(&child), Rest::Uncounted);
        assert_eq!(f.pass_on(&Holders::default()), Rest::Uncounted);
    }

    #[test]
    fn an_exec_that_fails_counts_again() {
        let table = Table::new();
        let f = table.family(2);
        let (parent, child) = two(f);
        assert_eq!(f.leave_for_exec(&child), Rest::Family);
        assert!(f.come_back(&child));
        assert!(!f.sole(&parent) && !f.sole(&child));
        assert_eq!(f.leave_for_exec(&child), Rest::Family);
        assert!(f.sole(&parent));
        assert!(!f.come_back(&child) && !f.sole(&child));
        let own = Holders::default();
        assert_eq!(f.leave_for_exec(&own), Rest::Nobody);
        assert!(f.come_back(&own) && f.sole(&own));
    }

    #[test]
    fn who_comes_back_is_not_counted_for_another_object() {
        let table = Table::new();
        let f = table.family(2);
        let (parent, child) = two(f);
        assert_eq!(f.leave_for_exec(&child), Rest::Family);
        assert!(f.sole(&parent));
        // Both counters are in use, one of them that of before.
        let others = [two(f), two(f)];
        assert!(!f.come_back(&child) && !f.sole(&child));
        for (one, other) in &others {
            assert_eq!(f.let_go(one), Rest::Family);
            assert!(f.sole(other));
        }
    }

    #[test]
    fn without_a_free_counter_nobody_is_alone() {
        let table = Table::new();
        let f = table.family(2);
        let (_first, _second, (parent, child)) = (two(f), two(f), two(f));
        assert!(!f.sole(&parent) && !f.sole(&child));
        assert_eq!(f.let_go(&child), Rest::Family);
        assert!(!f.sole(&parent));
    }
}

#[cfg(all(test, feature = "shuttle"))]
mod explored;
