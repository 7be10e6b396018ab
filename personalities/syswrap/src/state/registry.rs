//! The registry of an event set: the number of its members, and the *active list* of those that may have something to report.
//!
//! The list is doubly linked through the members, under the set's lock. It is changed with signal handlers blocked. Numbers name members;
//! the caller maps a number to its member and socket.

use madrigal_base::sync::{AtomicU32, AtomicU64, Ordering};

use super::lock::{Blocked, Lock};
use super::member::{Member, bit};

/// How many registrations that are left behind are remembered, with what they report.
const LEFT: usize = 4;

/// What an event set counts and lists. All-zero: no members.
#[derive(Default)]
pub(crate) struct Registry {
    /// TCP sockets and nested sets in it.
    pub(crate) tcp: AtomicU32,
    /// Members whose registration is ours, and nested sets.
    pub(crate) ours: AtomicU32,
    /// Threads asleep on it.
    pub(crate) sleepers: AtomicU32,
    /// The active list (member ids plus one) and its length; under `lock`.
    first: AtomicU32,
    last: AtomicU32,
    pub(crate) length: AtomicU32,
    /// The last place in the order of readiness that a member got; under `lock`.
    last_order: AtomicU64,
    /// How often a member became active: the edges of a set nested in another.
    pub(crate) activations: AtomicU32,
    /// How many peers had been found killed when the kernel was last asked.
    pub(crate) deaths: AtomicU32,
    /// Set once the descriptor was polled or nested: reports of our registrations must not linger in it.
    pub(crate) watched: AtomicU32,
    /// What the kernel may report with the program's data. 1: an end, behind a session whose peer may leave doorbells unread. 2: another
    /// process has the set, too, and peers have gone.
    pub(crate) may_report_gone: AtomicU32,
    /// Members that are lent.
    pub(crate) lent: AtomicU32,
    /// The data of registrations that are left behind, and their number. This process has closed their sockets, and another one has them.
    left: [AtomicU64; LEFT],
    left_count: AtomicU32,
    pub(crate) lock: Lock,
}

impl Registry {
    /// It is a new set's.
    pub(crate) fn begin(&self) {
        let counts = [&self.tcp, &self.ours, &self.sleepers, &self.first, &self.last, &self.length];
        let more =
            [&self.activations, &self.deaths, &self.watched, &self.may_report_gone, &self.lent, &self.left_count];
        counts.into_iter().chain(more).for_each(|count| count.store(0, Ordering::Relaxed));
    }

    /// A registration is left behind. Its socket's peer has ended, which the kernel takes for a reset.
    pub(crate) fn leave(&self, data: u64) {
        let _lock = self.lock.lock();
        let count = self.left_count.load(Ordering::Relaxed);
        if let Some(place) = self.left.get(count as usize) {
            place.store(data, Ordering::Relaxed);
            self.left_count.store(count + 1, Ordering::Release);
        }
    }

    /// Whether such a one has this data.
    pub(crate) fn is_left(&self, data: u64) -> bool {
        let count = self.left_count.load(Ordering::Acquire) as usize;
        count > 0 && self.left.iter().take(count).any(|left| left.load(Ordering::Relaxed) == data)
    }

    /// Something else is registered with this data.
    pub(crate) fn is_used_again(&self, data: u64) {
        if !self.is_left(data) {
            return;
        }
        let _lock = self.lock.lock();
        let count = self.left_count.load(Ordering::Relaxed);
        let all = self.left.get(..count as usize).unwrap_or_default();
        if let (Some(place), Some(last)) = (all.iter().find(|left| left.load(Ordering::Relaxed) == data), all.last()) {
            place.store(last.load(Ordering::Relaxed), Ordering::Relaxed);
            self.left_count.store(count - 1, Ordering::Release);
        }
    }

    /// Changes a member and puts it on the active list, with no scan in between. If the change returns false, the member is not put there.
    #[inline]
    pub(crate) fn activate<'m, A>(
        &self,
        (id, member): (u32, &Member),
        of: impl Fn(u32) -> Option<(A, &'m Member)>,
        change: impl FnOnce() -> bool,
    ) {
        let _lock = self.lock.lock();
        if change() {
            self.activate_locked((id, member), of);
        }
    }

    /// The same under the lock.
    #[inline]
    pub(crate) fn activate_locked<'m, A>(
        &self,
        (id, member): (u32, &Member),
        of: impl Fn(u32) -> Option<(A, &'m Member)>,
    ) {
        self.activations.fetch_add(1, Ordering::Relaxed);
        member.idle.store(0, Ordering::Relaxed);
        if !member.has(bit::ACTIVE) {
            self.push(id, member, of);
        }
    }

    /// Takes a member off the active list, if it is on it. Under the lock.
    pub(crate) fn deactivate<'m, A>(&self, member: &Member, of: impl Fn(u32) -> Option<(A, &'m Member)>) {
        if !member.has(bit::ACTIVE) {
            return;
        }
        let _blocked = Blocked::handlers();
        // A signal handler may have come before that.
        if !member.has(bit::ACTIVE) {
            return;
        }
        let (next, prev) = (member.next.load(Ordering::Relaxed), member.prev.load(Ordering::Relaxed));
        match prev.checked_sub(1).and_then(&of) {
            Some((_, before)) => before.next.store(next, Ordering::Relaxed),
            None => self.first.store(next, Ordering::Relaxed),
        }
        match next.checked_sub(1).and_then(&of) {
            Some((_, after)) => after.prev.store(prev, Ordering::Relaxed),
            None => self.last.store(prev, Ordering::Relaxed),
        }
        member.set_bit(bit::ACTIVE, false);
        self.length.fetch_sub(1, Ordering::SeqCst);
    }

    fn push<'m, A>(&self, id: u32, member: &Member, of: impl Fn(u32) -> Option<(A, &'m Member)>) {
        let _blocked = Blocked::handlers();
        // A signal handler may have come before that, and put it there, or closed its socket.
        if member.has(bit::ACTIVE) || !member.is_used() {
            return;
        }
        member.set_bit(bit::ACTIVE, true);
        let last = self.last.swap(id + 1, Ordering::Relaxed);
        member.next.store(0, Ordering::Relaxed);
        member.prev.store(last, Ordering::Relaxed);
        match last.checked_sub(1).and_then(&of) {
            Some((_, before)) => before.next.store(id + 1, Ordering::Relaxed),
            None => self.first.store(id + 1, Ordering::Relaxed),
        }
        self.length.fetch_add(1, Ordering::SeqCst);
    }

    /// The active members, first to last. Under the lock; the current one may be taken off meanwhile.
    pub(crate) fn active<'m, A>(
        &self,
        of: impl Fn(u32) -> Option<(A, &'m Member)>,
    ) -> impl Iterator<Item = (u32, A, &'m Member)> {
        let mut next = self.first.load(Ordering::Relaxed);
        // A list cannot be longer than this: a loop would be our own bug, and must not hang a program.
        let mut left = self.length.load(Ordering::Relaxed);
        core::iter::from_fn(move || {
            left = left.checked_sub(1)?;
            let id = next.checked_sub(1)?;
            let (s, member) = of(id)?;
            next = member.next.load(Ordering::Relaxed);
            Some((id, s, member))
        })
    }

    /// The next place in the order of readiness. Under the lock.
    pub(crate) fn next_order(&self) -> u64 {
        let order = self.last_order.load(Ordering::Relaxed) + 1;
        self.last_order.store(order, Ordering::Relaxed);
        order
    }

    /// Makes the member behind `last` (an id plus one) the first of the list. Under the lock.
    pub(crate) fn rotate<'m, A>(&self, last: u32, of: impl Fn(u32) -> Option<(A, &'m Member)>) {
        let Some((_, member)) = last.checked_sub(1).and_then(&of) else { return };
        let next = member.next.load(Ordering::Relaxed);
        let (Some((_, new_first)), true) = (next.checked_sub(1).and_then(&of), member.has(bit::ACTIVE)) else {
            return;
        };
        let _blocked = Blocked::handlers();
        let (first, end) = (self.first.load(Ordering::Relaxed), self.last.load(Ordering::Relaxed));
        if let (Some((_, a)), Some((_, z))) = (first.checked_sub(1).and_then(&of), end.checked_sub(1).and_then(&of)) {
            z.next.store(first, Ordering::Relaxed);
            a.prev.store(end, Ordering::Relaxed);
            member.next.store(0, Ordering::Relaxed);
            new_first.prev.store(0, Ordering::Relaxed);
            self.first.store(next, Ordering::Relaxed);
            self.last.store(last, Ordering::Relaxed);
        }
    }

    /// Checks that list, length and bits agree: for models.
    #[cfg(all(test, feature = "shuttle"))]
    pub(crate) fn check<'m, A>(&self, of: impl Fn(u32) -> Option<(A, &'m Member)>) -> Vec<u32> {
        let _lock = self.lock.lock();
        let (mut listed, mut before) = (Vec::new(), 0);
        let mut next = self.first.load(Ordering::SeqCst);
        while let Some(id) = next.checked_sub(1) {
            assert!(!listed.contains(&id), "member {id} is on the active list twice");
            let (_, member) = of(id).expect("a member that is none is on the active list");
            assert!(member.has(bit::ACTIVE), "member {id} is on the active list and does not know");
            assert_eq!(member.prev.load(Ordering::SeqCst), before, "member {id} has another before it");
            listed.push(id);
            before = next;
            next = member.next.load(Ordering::SeqCst);
        }
        assert_eq!(self.last.load(Ordering::SeqCst), before, "the last one of the active list");
        assert_eq!(self.length.load(Ordering::SeqCst) as usize, listed.len(), "the length of the active list");
        listed
    }
}
