//! One socket in one event set: what the program registered, and whose the kernel's registration is.
//!
//! ```text
//!   unused --add--> PLAIN --adopt--> OURS --restore--> PLAIN --del--> unused
//!                     |               |  \--del--> OURS + DETACHED (kept in the kernel, tells nothing) --add--> OURS
//!                     +----orphan-----+------> ORPHAN: the descriptor it was registered by is closed, the socket lives on; the kernel
//!                                              keeps what it had, and nobody can change it any more
//!                                     OURS --lend--> LENT: before a fork a registration of a socket whose peer has gone, or whose ring
//!                                              is not read to its end; of the first kind also before it becomes ORPHAN, but for one
//!                                              that was told of everything by edges: that stays OURS, and tells of what is news to it
//! ```
//! A PLAIN edge-triggered registration becomes OURS once what has come is read: the kernel tells anew of an entry that is modified.
//!
//! What the kernel has told of a PLAIN one-shot registration nobody knows, so nobody knows whether it is armed: it becomes OURS as the
//! program arms it, unless it was SPENT when it was restored.
//!
//! Every step is made under the socket's `registering` lock, with signals blocked ([`super::registration`]); what is reported meanwhile
//! is decided by the bits, which everybody may read. Of one that is OURS what is asked for, and DETACHED, change under the lock of its set,
//! which is enough for that: so a step from or to OURS, and the end of a member, are made under both.

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
    /// Fruitless looks in a row.
    pub(crate) quiet: AtomicU32,
    /// The wait in which it was reported last.
    pub(crate) round: AtomicU32,
    /// How often in a row it was put off that the registration becomes ours.
    pub(crate) put_off: AtomicU32,
    /// Since which turn it has been ready, among the members of its set; 0: it was not, when last looked at.
    pub(crate) turn: AtomicU64,
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
    /// The kernel socket was asked and had nothing to read: it will tell when it has.
    pub(crate) const QUIET_IN: u32 = 16;
    /// The same for room to write.
    pub(crate) const QUIET_OUT: u32 = 32;
    /// The descriptor it was registered by is closed.
    pub(crate) const ORPHAN: u32 = 64;
    /// A session waits for the program to arm it.
    pub(crate) const AWAITED: u32 = 128;
    /// One-shot and reported while the registration was ours, or told of both ends by an edge before a fork: the program's is not in the
    /// kernel, which could not be told that, until the program modifies it.
    pub(crate) const ABSENT: u32 = 256;
    /// The kernel's registration is what the program asks for: the kernel says when there is something to tell, to whichever process waits,
    /// and what it is we know better, for the peer has gone, or bytes are in a ring (`registration/lent.rs`).
    pub(crate) const LENT: u32 = 512;
    /// What the kernel tells next is no edge: it became OURS because of that, or a wake of our own has made it.
    pub(crate) const TOLD: u32 = 1024;
    /// Its set was shared by a fork: what is known of it another process may have changed.
    pub(crate) const SHARED: u32 = 2048;
    /// The kernel has been made to wake whoever waits for it, which is an edge, and has not told of that yet.
    pub(crate) const WOKEN: u32 = 4096;
}

impl Member {
    pub(crate) fn clear(&self) {
        self.set.store(0, Ordering::Release);
        self.state.store(0, Ordering::Relaxed);
    }

    /// Becomes member of a set, as the program said; in state `bits`.
    pub(crate) fn begin(&self, set: u32, fd: i32, event: libc::epoll_event, bits: u32) {
        self.fd.store(fd, Ordering::Relaxed);
        self.state.store(bits, Ordering::Relaxed);
        self.round.store(0, Ordering::Relaxed);
        self.turn.store(0, Ordering::Relaxed);
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

    /// Takes the program's wishes: it is armed, and not deleted any more. The next look reports whatever is there. Under the set's lock where
    /// it is ours, for a look that is just being made must not disarm what is armed now.
    pub(crate) fn ask(&self, event: libc::epoll_event) {
        self.events.store(event.events, Ordering::Relaxed);
        self.data.store(event.u64, Ordering::Relaxed);
        self.seen_in.store(u64::MAX, Ordering::Relaxed);
        self.seen_out.store(u64::MAX, Ordering::Relaxed);
        let looked_at = bit::SPENT | bit::DETACHED | bit::QUIET_IN | bit::QUIET_OUT;
        if self.has(looked_at) {
            self.set_bit(looked_at, false);
        }
    }

    /// Whether the kernel may have told of it, and disarmed it, unseen.
    pub(crate) fn may_have_fired(&self) -> bool {
        let one_shot = self.events.load(Ordering::Relaxed) & libc::EPOLLONESHOT as u32 != 0;
        one_shot && !self.has(bit::OURS | bit::SPENT)
    }

    /// Forgets what was reported: the next look reports what is there.
    pub(crate) fn forget_edges(&self) {
        self.seen_in.store(u64::MAX, Ordering::Relaxed);
        self.seen_out.store(u64::MAX, Ordering::Relaxed);
        self.set_bit(bit::QUIET_IN | bit::QUIET_OUT, false);
    }

    /// Whether it is told of as long as it is ready.
    pub(crate) fn tells_again(&self) -> bool {
        self.events.load(Ordering::Relaxed) & (libc::EPOLLET | libc::EPOLLONESHOT) as u32 == 0
    }

    pub(crate) fn is_exclusive(&self) -> bool {
        self.events.load(Ordering::Relaxed) & libc::EPOLLEXCLUSIVE as u32 != 0
    }
}
