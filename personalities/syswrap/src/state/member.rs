//! One socket in one event set: what the program registered, and whose the kernel's registration is.
//!
//! ```text
//!   unused --add--> PLAIN --adopt--> OURS --restore--> PLAIN --del--> unused
//!                     |               |  \--del--> OURS + DETACHED (stays in the kernel, reports nothing) --add--> OURS
//!                     +----orphan-----+------> ORPHAN: the descriptor it was registered by is closed, the socket lives on; the kernel
//!                                              keeps what it had, and it cannot be changed any more
//!                                     OURS --lend--> LENT: before a fork
//! ```
//! A registration is lent if its socket's peer has gone, or if its socket's ring is not read to its end. In the first case it is also lent
//! before it becomes ORPHAN. An exception is one whose edges have reported everything: it stays OURS, and reports what is new to it.
//!
//! A PLAIN edge-triggered registration becomes OURS once what has come is read, for the kernel reports a modified entry again.
//!
//! It is not known what the kernel has reported of a PLAIN one-shot registration, so neither is whether it is armed. It becomes OURS as the
//! program arms it, unless it was SPENT when it was restored.
//!
//! Every step is made under the socket's `registering` lock, with signals blocked ([`super::registration`]). The bits decide what is
//! reported meanwhile; every thread may read them. Exception: the wanted events of a member that is OURS, and DETACHED, change under the
//! lock of its set alone. So a step from or to OURS, and the end of a member, are made under both locks.

mod edge;

use madrigal_base::sync::{AtomicI32, AtomicU32, AtomicU64, Ordering};

pub(crate) use edge::{ENDED, READABLE, Stamps, URGENT, WRITABLE};

/// A member. All-zero: unused.
#[derive(Default)]
pub(crate) struct Member {
    /// The set plus one; 0: unused.
    set: AtomicU32,
    pub(crate) fd: AtomicI32,
    /// The program's events and data.
    pub(crate) events: AtomicU32,
    pub(crate) data: AtomicU64,
    state: AtomicU32,
    /// Neighbours on the set's active list: member ids plus one. Under the set's lock.
    pub(crate) next: AtomicU32,
    pub(crate) prev: AtomicU32,
    /// What was reported last, for edge triggering.
    pub(crate) seen_in: AtomicU64,
    pub(crate) seen_out: AtomicU64,
    /// Fruitless scans in a row.
    pub(crate) idle: AtomicU32,
    /// The wait in which it was reported last.
    pub(crate) round: AtomicU32,
    /// How often in a row the adoption of the registration was deferred.
    pub(crate) put_off: AtomicU32,
    /// Its place in the order in which members of the set became ready; 0: the last scan did not find it ready.
    pub(crate) order: AtomicU64,
}

pub(crate) mod bit {
    /// The kernel's registration is ours.
    pub(crate) const OURS: u32 = 1;
    /// On the active list.
    pub(crate) const ACTIVE: u32 = 2;
    /// One-shot and reported.
    pub(crate) const SPENT: u32 = 4;
    /// Deleted by the program while the registration was ours: it stays in the kernel, in case the program adds it again, as event
    /// loops do that switch between reading and writing. Nothing of it is reported.
    pub(crate) const DETACHED: u32 = 8;
    /// The kernel socket was polled and had nothing to read: the kernel reports the next byte.
    pub(crate) const IDLE_IN: u32 = 16;
    /// The same for room to write.
    pub(crate) const IDLE_OUT: u32 = 32;
    /// The descriptor it was registered by is closed.
    pub(crate) const ORPHAN: u32 = 64;
    /// A session waits for the program to arm it.
    pub(crate) const AWAITED: u32 = 128;
    /// One-shot and reported while the registration was ours, or both ends were reported by an edge before a fork. The kernel has no such
    /// state, so the program's registration is not in the kernel until the program modifies it.
    pub(crate) const ABSENT: u32 = 256;
    /// The kernel's registration is what the program asks for. The kernel reports when there is an event, to whichever process waits. We
    /// know better what the event is, for the peer has gone, or bytes are in a ring (`registration/lent.rs`).
    pub(crate) const LENT: u32 = 512;
    /// What the kernel reports next is no edge: the member became OURS because of it, or a wake of our own has made it.
    pub(crate) const REPORTED: u32 = 1024;
    /// Its set was shared by a fork: another process may have changed it.
    pub(crate) const SHARED: u32 = 2048;
    /// The kernel has been made to wake the waiters, which is an edge, and has not reported that yet.
    pub(crate) const WOKEN: u32 = 4096;
}

impl Member {
    pub(crate) fn clear(&self) {
        self.set.store(0, Ordering::Release);
        self.state.store(0, Ordering::Relaxed);
    }

    /// Becomes member of a set, with the program's event; in state `bits`.
    pub(crate) fn begin(&self, set: u32, fd: i32, event: libc::epoll_event, bits: u32) {
        self.fd.store(fd, Ordering::Relaxed);
        self.state.store(bits, Ordering::Relaxed);
        self.round.store(0, Ordering::Relaxed);
        self.order.store(0, Ordering::Relaxed);
        self.put_off.store(0, Ordering::Relaxed);
        self.ask(event);
        self.set.store(set + 1, Ordering::Release);
    }

    pub(crate) fn is_used(&self) -> bool {
        self.set.load(Ordering::Relaxed) != 0
    }

    /// The set it is in.
    pub(crate) fn set(&self) -> Option<u32> {
        self.set.load(Ordering::Acquire).checked_sub(1)
    }

    pub(crate) fn is_in(&self, set: u32) -> bool {
        self.set.load(Ordering::Acquire) == set + 1
    }

    #[inline]
    pub(crate) fn has(&self, bit: u32) -> bool {
        self.state.load(Ordering::Relaxed) & bit != 0
    }

    pub(crate) fn set_bit(&self, bit: u32, on: bool) {
        if on {
            self.state.fetch_or(bit, Ordering::SeqCst);
        } else {
            self.state.fetch_and(!bit, Ordering::SeqCst);
        }
    }

    /// Whether rings decide what is reported of it, and something may be.
    pub(crate) fn is_live(&self) -> bool {
        self.state.load(Ordering::Relaxed) & (bit::OURS | bit::SPENT | bit::DETACHED) == bit::OURS
    }

    /// Takes what the program asks for: the member is armed, and not deleted any more. The next scan reports whatever is there. Called
    /// under the set's lock where the member is ours, for a scan under way must not disarm what is armed now.
    pub(crate) fn ask(&self, event: libc::epoll_event) {
        self.events.store(event.events, Ordering::Relaxed);
        self.data.store(event.u64, Ordering::Relaxed);
        self.seen_in.store(u64::MAX, Ordering::Relaxed);
        self.seen_out.store(u64::MAX, Ordering::Relaxed);
        let stale = bit::SPENT | bit::DETACHED | bit::IDLE_IN | bit::IDLE_OUT;
        if self.has(stale) {
            self.set_bit(stale, false);
        }
    }

    /// Whether the kernel may have reported and disarmed it, unseen.
    pub(crate) fn may_have_fired(&self) -> bool {
        let one_shot = self.events.load(Ordering::Relaxed) & libc::EPOLLONESHOT as u32 != 0;
        one_shot && !self.has(bit::OURS | bit::SPENT)
    }

    /// Forgets what was reported: the next scan reports what is there.
    pub(crate) fn forget_edges(&self) {
        self.seen_in.store(u64::MAX, Ordering::Relaxed);
        self.seen_out.store(u64::MAX, Ordering::Relaxed);
        self.set_bit(bit::IDLE_IN | bit::IDLE_OUT, false);
    }

    /// Whether it is reported as long as it is ready.
    pub(crate) fn reports_again(&self) -> bool {
        self.events.load(Ordering::Relaxed) & (libc::EPOLLET | libc::EPOLLONESHOT) as u32 == 0
    }

    pub(crate) fn is_exclusive(&self) -> bool {
        self.events.load(Ordering::Relaxed) & libc::EPOLLEXCLUSIVE as u32 != 0
    }
}
