//! Event sets: one for each epoll descriptor of the program.
//!
//! A set lives from epoll_create(2) to the last close of its descriptors in this process, and as long as a hook is at work on it or a
//! thread sleeps in it. Locks: a set's lock may be taken under a socket's; under a set's lock a socket's locks are only tried.

mod nested;

use core::ffi::c_int;
use core::ops::Deref;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use madrigal_progress::wait::Waiter;
use madrigal_sys::process;

use super::holders::Holders;
use super::member::Member;
use super::registry::Registry;
use super::slab::{Object, Slab};
use super::sock::{self, MEMBERS, Ref, SOCKS, Sock};
use super::table::{self, Kind, Word};
use super::use_count::UseCount;
use super::{fork_locks, gate, key};
pub(crate) use nested::Nested;

/// All event sets of this process.
static SETS: Slab<Set> = Slab::new();
/// The secret in the keys we register with the kernel. 0 until the first is needed.
static KEY: AtomicU32 = AtomicU32::new(0);

/// An epoll descriptor's set.
pub(crate) struct Set {
    index: AtomicU32,
    next_free: AtomicU32,
    generation: AtomicU32,
    /// Hooks at work on it; threads asleep in it are parked. Never reset.
    uses: UseCount,
    refs: AtomicU32,
    holders: Holders,
    /// A descriptor of it, if it still is one.
    epfd: AtomicI32,
    /// Its members.
    pub(crate) registry: Registry,
    /// Numbers the waits.
    pub(crate) rounds: AtomicU32,
    /// 1: the last wait had no room for what the kernel may report.
    pub(crate) crowded: AtomicU32,
    /// When the kernel was last asked, and ring answers since.
    pub(crate) kernel_at: AtomicU64,
    pub(crate) answers: AtomicU32,
    /// 1: the kernel's last answer had other descriptors than ring sockets.
    pub(crate) mixed: AtomicU32,
    pub(crate) nested: [Nested; MEMBERS],
    pub(crate) waiter: Waiter,
}

// SAFETY: atomics and structs of atomics only; all-zero is an empty set.
unsafe impl Object for Set {
    fn next_free(&self) -> &AtomicU32 {
        &self.next_free
    }
}

/// A hook at work on a set.
pub(crate) struct SetRef(&'static Set);

impl Deref for SetRef {
    type Target = Set;

    #[inline]
    fn deref(&self) -> &Set {
        self.0
    }
}

impl Drop for SetRef {
    #[inline]
    fn drop(&mut self) {
        if self.0.uses.leave() {
            self.0.free_if_unused();
        }
    }
}

/// A set in which a thread of the program is about to sleep: it is not freed, and that is all.
#[derive(Clone, Copy)]
pub(crate) struct ParkedSet(u32);

impl SetRef {
    /// The thread is about to sleep.
    pub(crate) fn park(self) -> ParkedSet {
        let (parked, set) = (ParkedSet(self.index()), self.0);
        let due = set.uses.park();
        core::mem::forget(self);
        if due {
            set.free_if_unused();
        }
        parked
    }
}

impl ParkedSet {
    /// The thread is back. A thread that is cancelled in between never is: the object is lost, nothing else.
    pub(crate) fn unpark(self) -> Option<SetRef> {
        let set = SETS.get(self.0)?;
        set.uses.unpark();
        if set.is_closed() {
            set.uses.set_due();
        }
        Some(SetRef(set))
    }
}

/// Begins to track the epoll descriptor `fd`, which was unknown.
pub(crate) fn track(fd: c_int) {
    if super::process::is_plain() {
        return;
    }
    let Some((index, set)) = SETS.take() else { return };
    set.holders.begin();
    set.registry.begin();
    for field in [&set.answers, &set.mixed, &set.crowded] {
        field.store(0, Ordering::Relaxed);
    }
    for nested in &set.nested {
        nested.set.store(0, Ordering::Relaxed);
    }
    set.index.store(index, Ordering::Relaxed);
    set.epfd.store(fd, Ordering::Relaxed);
    set.waiter.forget();
    set.refs.store(1, Ordering::Release);
    if !table::set(fd, set.word()) {
        set.refs.store(0, Ordering::Relaxed);
        SETS.put(index);
    }
}

/// The set behind a descriptor.
pub(crate) fn enter(epfd: c_int) -> Option<SetRef> {
    loop {
        let word = table::get(epfd).filter(|word| word.kind() == Kind::EventSet)?;
        let set = SETS.get(word.index())?;
        set.uses.enter();
        let held = SetRef(set);
        // SYNC: behind the count: as `sock::enter`.
        if table::peek(epfd) == Some(word) {
            return Some(held);
        }
    }
}

/// The set with this index, which a member or a nested set names.
pub(crate) fn by_index(index: u32) -> Option<SetRef> {
    let set = SETS.get(index)?;
    set.uses.enter();
    Some(SetRef(set))
}

/// One more descriptor of a set.
pub(crate) fn add_descriptor(index: u32) {
    if let Some(set) = SETS.get(index) {
        set.refs.fetch_add(1, Ordering::AcqRel);
    }
}

/// One descriptor less.
pub(crate) fn drop_descriptor(index: u32) {
    let Some(set) = by_index(index) else { return };
    if set.refs.fetch_sub(1, Ordering::AcqRel) == 1 {
        set.holders.let_go();
        super::registration::set_closed(&*set);
        open_sets().for_each(|(_, outer)| outer.forget_nested(index));
        set.uses.set_due();
    }
}

/// A fork is coming: the child will hold every set too.
pub(crate) fn share_all() {
    for (_, set) in open_sets() {
        set.holders.share();
    }
}

/// This process ends: see [`Holders`].
pub(crate) fn drop_all() {
    for (_, set) in open_sets() {
        set.holders.let_go();
    }
}

/// This process is about to become another program.
pub(crate) fn leave_for_exec() {
    for (_, set) in open_sets() {
        set.holders.leave_for_exec();
    }
}

/// It has not.
pub(crate) fn come_back() {
    for (_, set) in open_sets() {
        set.holders.come_back();
    }
}

fn open_sets() -> impl Iterator<Item = (u32, &'static Set)> {
    SETS.all().filter(|(_, set)| set.refs.load(Ordering::Relaxed) > 0)
}

/// Before a fork: no list of members changes, and no set begins or ends, until the fork is over.
pub(crate) fn quiesce() {
    SETS.all().for_each(|(_, set)| fork_locks::acquire(&set.registry.lock));
    fork_locks::acquire(SETS.lock());
}

/// In the parent, when the fork is over: undoes [`quiesce`].
pub(crate) fn resume() {
    fork_locks::release(SETS.lock());
    SETS.all().for_each(|(_, set)| fork_locks::release(&set.registry.lock));
}

/// The child after fork(2).
pub(crate) fn after_fork() {
    fork_locks::reset(SETS.lock());
    for (_, set) in SETS.all() {
        fork_locks::reset(&set.registry.lock);
        set.uses.after_fork();
        set.registry.sleepers.store(0, Ordering::Relaxed);
    }
}

impl Set {
    pub(crate) fn index(&self) -> u32 {
        self.index.load(Ordering::Relaxed)
    }

    fn word(&self) -> Word {
        Word::new(Kind::EventSet, self.generation.load(Ordering::Relaxed), self.index())
    }

    /// The kernel may have an event for what the program has just requested: the next wait queries it, whatever the rings have.
    pub(crate) fn ask_kernel_soon(&self) {
        self.kernel_at.store(0, Ordering::Relaxed);
    }

    /// Whether the kernel's set reports everything.
    pub(crate) fn is_plain(&self) -> bool {
        self.registry.ours.load(Ordering::Acquire) == 0
    }

    /// Whether no other process has it.
    pub(crate) fn is_sole(&self) -> bool {
        self.holders.sole()
    }

    /// An uncounted process holds it from now on.
    pub(crate) fn pass_on(&self) {
        self.holders.pass_on();
    }

    /// A descriptor of it.
    pub(crate) fn descriptor(&self) -> Option<c_int> {
        let (word, known) = (self.word(), self.epfd.load(Ordering::Relaxed));
        if table::peek(known) == Some(word) {
            return Some(known);
        }
        let (fd, _) = table::range(0, u32::MAX).find(|&(_, w)| w == word)?;
        self.epfd.store(fd, Ordering::Relaxed);
        Some(fd)
    }

    /// Whether its last descriptor is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.refs.load(Ordering::SeqCst) == 0
    }

    fn free_if_unused(&self) {
        let Some(_pass) = gate::pass() else { return };
        if !self.uses.exclusive(0) {
            return;
        }
        if self.is_closed() && !self.uses.has_parked() {
            self.generation.fetch_add(1, Ordering::Relaxed);
            SETS.put(self.index());
        }
        self.uses.share();
    }
}

// --- sets in sets ------------------------------------------------------------------------------------------------------------------

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
            self.registry.tcp.fetch_add(1, Ordering::AcqRel);
            self.registry.ours.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn forget_nested(&self, inner: u32) {
        for nested in &self.nested {
            if nested.set.compare_exchange(inner + 1, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                self.registry.tcp.fetch_sub(1, Ordering::AcqRel);
                self.registry.ours.fetch_sub(1, Ordering::AcqRel);
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

// --- names of members --------------------------------------------------------------------------------------------------------------

/// The number of a member among all.
pub(crate) fn id(s: &Sock, m: usize) -> u32 {
    s.index() * MEMBERS as u32 + m as u32
}

/// The member with this id. Its socket's session stays as long as the set's lock is held and the member is ours in that set: it is
/// taken off the list, under the lock, before a session is released.
pub(crate) fn member_of(id: u32) -> Option<(&'static Sock, &'static Member)> {
    let s = SOCKS.get(id / MEMBERS as u32)?;
    Some((s, &s.members[id as usize % MEMBERS]))
}

/// The key of a member.
pub(crate) fn key(s: &Sock, m: usize) -> u64 {
    let mut secret = KEY.load(Ordering::Relaxed);
    if secret == 0 {
        let fresh = process::random() as u32 | 1 << 31;
        secret =
            KEY.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed).map_or_else(|seen| seen, |_| fresh);
    }
    key::make(secret, s.generation(), id(s, m))
}

/// Whether any key was ever made: before that, no data reported by the kernel can be one.
#[inline]
pub(crate) fn has_keys() -> bool {
    KEY.load(Ordering::Relaxed) != 0
}

/// The socket and member a key names; `None`: the program's own data. A key of an earlier use of the object is ours, but names
/// nothing any more.
pub(crate) fn by_key(data: u64) -> Option<Option<(Ref, usize)>> {
    let id = key::id(KEY.load(Ordering::Relaxed), data)?;
    let named = sock::by_index(id / MEMBERS as u32).filter(|s| key::is_of(data, s.generation()));
    Some(named.map(|s| (s, id as usize % MEMBERS)))
}
