//! Event sets: what epoll(7) would tell of sockets whose bytes travel in rings.
//!
//! The kernel's registration of a socket becomes ours while a session can receive doorbells: edge-triggered, all events, and a key
//! of ours as data ([`mod@adopt`]). Whatever it reports only puts the member on the set's *active list* ([`list`]); what the program is
//! told is computed from ring and kernel state, by the rules of level, edge and one-shot triggering ([`ready`]). A member
//! leaves a long active list once its writer will ring and it has had nothing to tell for a while; before a thread sleeps on the set
//! it arms the whole list ([`sleep`]).
//!
//! ```text
//!   control  epoll_ctl(2)         wait    epoll_wait(2): look, spin, sleep
//!      |                            |
//!   adopt    registrations        list -> ready   who may have something to tell; what
//!                                 sleep, nested   arming; sets inside sets and in poll(2)
//! ```
//! Locks: a set's lock may be taken under a socket's; under a set's lock a socket's locks are only tried.

mod adopt;
mod control;
mod list;
mod nested;
mod ready;
mod sleep;
mod wait;

use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use madrigal_netaccess::wait::Waiter;
use madrigal_sys::lock::Lock;
use madrigal_sys::process;

pub(crate) use adopt::{adopt, drop_members, restore, settle, stir};
pub(crate) use control::control;
pub(crate) use nested::{Polled, polled};
pub(crate) use ready::{readiness, relieve};
pub(crate) use sleep::note_missed;
pub(crate) use wait::{Limits, Waited, after_sleep, wait};

use crate::slab::{Object, Slab};
use crate::sock::{self, MEMBERS, Ref, SOCKS, Sock};
use crate::table::{self, Kind, Word};
use crate::{close, holders};

/// All event sets of this process.
static SETS: Slab<Set> = Slab::new();
/// High half of the keys we register with the kernel; random, so that no program's data looks like one.
static KEY: AtomicU32 = AtomicU32::new(0);

const READABLE: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
const WRITABLE: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
const ENDED: u32 = (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) as u32;
const URGENT: u32 = libc::EPOLLPRI as u32;

/// One socket in one set.
#[derive(Default)]
pub(crate) struct Member {
    /// The set plus one; 0: unused.
    set: AtomicU32,
    fd: AtomicI32,
    /// The program's events and data.
    events: AtomicU32,
    data: AtomicU64,
    state: AtomicU32,
    /// Neighbours on the active list: member ids plus one. Under the set's lock.
    next: AtomicU32,
    prev: AtomicU32,
    /// What was reported last, for edge triggering.
    seen_in: AtomicU64,
    seen_out: AtomicU64,
    /// Fruitless looks in a row.
    quiet: AtomicU32,
    /// The wait in which it was reported last.
    round: AtomicU32,
}

mod bit {
    /// The kernel's registration is ours.
    pub(super) const ADOPTED: u32 = 1;
    /// On the active list.
    pub(super) const ACTIVE: u32 = 2;
    /// One-shot and reported.
    pub(super) const SPENT: u32 = 4;
    /// Deleted by the program while the registration was ours: it stays in the kernel, in case the program adds it again, as event
    /// loops do that switch between reading and writing. Nothing of it is reported.
    pub(super) const DETACHED: u32 = 8;
    /// The kernel socket was asked and had nothing to read: it will tell when it has.
    pub(super) const QUIET_IN: u32 = 16;
    /// The same for room to write.
    pub(super) const QUIET_OUT: u32 = 32;
}

impl Member {
    pub(crate) fn clear(&self) {
        self.set.store(0, Ordering::Relaxed);
        self.state.store(0, Ordering::Relaxed);
    }

    pub(crate) fn is_used(&self) -> bool {
        self.set.load(Ordering::Relaxed) != 0
    }

    /// Whether this membership is no obstacle to a session.
    pub(crate) fn may_move(&self) -> bool {
        match self.set.load(Ordering::Relaxed).checked_sub(1) {
            None => true,
            Some(set) => SETS.get(set).is_some_and(|s| holders::sole(&s.holders)),
        }
    }

    fn is_in(&self, set: u32) -> bool {
        self.set.load(Ordering::Acquire) == set + 1
    }

    fn has(&self, bit: u32) -> bool {
        self.state.load(Ordering::Relaxed) & bit != 0
    }

    fn set_bit(&self, bit: u32, on: bool) {
        if on {
            self.state.fetch_or(bit, Ordering::SeqCst);
        } else {
            self.state.fetch_and(!bit, Ordering::SeqCst);
        }
    }

    /// Whether rings decide what is reported of it, and something may be.
    fn is_live(&self) -> bool {
        self.state.load(Ordering::Relaxed) & (bit::ADOPTED | bit::SPENT | bit::DETACHED) == bit::ADOPTED
    }

    /// Takes the program's wishes; the next look reports whatever is there.
    fn ask(&self, event: libc::epoll_event) {
        self.events.store(event.events, Ordering::Relaxed);
        self.data.store(event.u64, Ordering::Relaxed);
        self.set_bit(bit::SPENT, false);
        self.forget_edges();
    }

    /// Forgets what was reported: the next look reports what is there.
    fn forget_edges(&self) {
        self.seen_in.store(u64::MAX, Ordering::Relaxed);
        self.seen_out.store(u64::MAX, Ordering::Relaxed);
        self.set_bit(bit::QUIET_IN | bit::QUIET_OUT, false);
    }
}

/// An epoll descriptor's set.
pub(crate) struct Set {
    next_free: AtomicU32,
    generation: AtomicU32,
    refs: AtomicU32,
    holders: AtomicU32,
    /// A descriptor of it, if it still is one.
    epfd: AtomicI32,
    /// TCP sockets and nested sets in it.
    tcp: AtomicU32,
    /// Members whose registration is ours, and nested sets.
    adopted: AtomicU32,
    /// Threads asleep on it.
    sleepers: AtomicU32,
    /// The active list (member ids plus one) and its length; under `lock`.
    first: AtomicU32,
    last: AtomicU32,
    length: AtomicU32,
    /// Numbers the waits.
    rounds: AtomicU32,
    /// When the kernel was last asked, and ring answers since.
    kernel_at: AtomicU64,
    answers: AtomicU32,
    /// 1: the kernel's last answer told of other descriptors than ring sockets.
    mixed: AtomicU32,
    /// How often a member became active: the edges of a set nested in another.
    activations: AtomicU32,
    /// Set once the descriptor was polled or nested: reports of our registrations must not linger in it.
    watched: AtomicU32,
    nested: [nested::Nested; MEMBERS],
    lock: Lock,
    waiter: Waiter,
}

// SAFETY: atomics and structs of atomics only; all-zero is an empty set.
unsafe impl Object for Set {
    fn next_free(&self) -> &AtomicU32 {
        &self.next_free
    }
}

/// Begins to know the epoll descriptor `fd`.
pub(crate) fn track(fd: c_int) {
    if crate::process::is_plain() {
        return;
    }
    close::forget(fd);
    let Some((index, set)) = SETS.take() else { return };
    let zero = [
        &set.holders,
        &set.tcp,
        &set.adopted,
        &set.sleepers,
        &set.first,
        &set.last,
        &set.length,
        &set.answers,
        &set.activations,
        &set.watched,
        &set.mixed,
    ];
    for field in zero {
        field.store(0, Ordering::Relaxed);
    }
    for nested in &set.nested {
        nested.clear();
    }
    set.epfd.store(fd, Ordering::Relaxed);
    set.waiter.forget();
    set.refs.store(1, Ordering::Release);
    if !table::set(fd, set.word(index)) {
        SETS.put(index);
    }
}

/// One more descriptor of a set.
pub(crate) fn hold(index: u32) {
    if let Some(set) = SETS.get(index) {
        set.refs.fetch_add(1, Ordering::AcqRel);
    }
}

/// One descriptor less.
pub(crate) fn close(index: u32) {
    let Some(set) = SETS.get(index) else { return };
    if set.refs.fetch_sub(1, Ordering::AcqRel) == 1 {
        holders::drop_one(&set.holders);
        set.generation.fetch_add(1, Ordering::Relaxed);
        for (_, s) in SOCKS.all().filter(|(_, s)| s.refs.load(Ordering::Relaxed) > 0) {
            for member in s.members.iter().filter(|m| m.is_in(index)) {
                // The list goes with the set.
                member.clear();
            }
        }
        SETS.put(index);
    }
}

/// A fork is coming: the child will hold every set too.
pub(crate) fn share_all() {
    for (_, set) in SETS.all().filter(|(_, s)| s.refs.load(Ordering::Relaxed) > 0) {
        holders::share(&set.holders);
    }
}

/// This process leaves: see [`holders`].
pub(crate) fn drop_all() {
    for (_, set) in SETS.all().filter(|(_, s)| s.refs.load(Ordering::Relaxed) > 0) {
        holders::lose_count(&set.holders);
    }
}

/// The child after fork(2).
pub(crate) fn after_fork() {
    SETS.after_fork();
    for (_, set) in SETS.all() {
        set.lock.reset();
        set.sleepers.store(0, Ordering::Relaxed);
    }
}

impl Set {
    fn word(&self, index: u32) -> Word {
        Word::new(Kind::EventSet, self.generation.load(Ordering::Relaxed), index)
    }

    /// Whether the kernel's set tells everything.
    fn is_plain(&self) -> bool {
        self.adopted.load(Ordering::Acquire) == 0
    }
}

fn set_of(epfd: c_int) -> Option<(u32, &'static Set)> {
    let word = table::get(epfd).filter(|w| w.kind() == Kind::EventSet)?;
    Some((word.index(), SETS.get(word.index())?))
}

/// A descriptor of a set.
fn descriptor_of(index: u32) -> Option<c_int> {
    let set = SETS.get(index)?;
    let (word, known) = (set.word(index), set.epfd.load(Ordering::Relaxed));
    if table::get(known) == Some(word) {
        return Some(known);
    }
    let (fd, _) = table::range(0, u32::MAX).find(|&(_, w)| w == word)?;
    set.epfd.store(fd, Ordering::Relaxed);
    Some(fd)
}

// --- names of members -------------------------------------------------------------------------------------------------------------

fn id(s: &Sock, m: usize) -> u32 {
    s.index() * MEMBERS as u32 + m as u32
}

/// The member with this id. Its socket's session stays as long as the set's lock is held and the member is adopted by that set:
/// both [`restore`] and [`drop_members`] take the lock before a session is released.
fn member_of(id: u32) -> Option<(&'static Sock, &'static Member)> {
    let s = SOCKS.get(id / MEMBERS as u32)?;
    Some((s, &s.members[id as usize % MEMBERS]))
}

/// The key of a member: our secret, the socket's generation, its place.
fn key(s: &Sock, m: usize) -> u64 {
    let mut secret = KEY.load(Ordering::Relaxed);
    if secret == 0 {
        let fresh = process::random() as u32 | 1 << 31;
        secret =
            KEY.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed).map_or_else(|seen| seen, |_| fresh);
    }
    u64::from(secret) << 32 | u64::from(s.generation() & 0xff) << 24 | u64::from(id(s, m) & 0xff_ffff)
}

/// The socket and member a key names; `None`: the program's own data. A key of an earlier use of the object is ours, but names
/// nothing any more.
fn by_key(data: u64) -> Option<Option<(Ref, usize)>> {
    let secret = KEY.load(Ordering::Relaxed);
    if secret == 0 || (data >> 32) as u32 != secret {
        return None;
    }
    let place = data as u32 & 0xff_ffff;
    let named = sock::by_index(place / MEMBERS as u32).filter(|s| s.generation() & 0xff == data as u32 >> 24);
    Some(named.map(|s| (s, place as usize % MEMBERS)))
}
