//! Event sets: what epoll(7) would tell of sockets whose bytes travel in rings.
//!
//! The kernel's registration of a socket becomes ours while a session can receive doorbells: edge-triggered, all events, and a key
//! of ours as data ([`adopt`]). Whatever it reports only puts the member on the set's *active list*; what the program is told is
//! computed from ring and kernel state, by the rules of level, edge and one-shot triggering. A member leaves the active list when
//! it is armed (its writer will ring) and has nothing to tell; before a thread sleeps on the set it arms the whole list.
//!
//! Token rule: who takes a doorbell out of the kernel, or finds one reported, arms the direction again at once if anybody else may
//! be asleep on the socket ([`View::others_may_sleep`]); only a set without sleepers goes unarmed while it is at work.

use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use libc::{
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLERR, EPOLLET, EPOLLHUP, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLPRI,
    EPOLLRDHUP, EPOLLRDNORM, EPOLLWRNORM, epoll_event,
};
use madrigal_drivers::shm::layout::state;
use madrigal_netaccess::wait::{Peer, Waiter};
use madrigal_report::Reason;
use madrigal_sys::lock::Lock;
use madrigal_sys::{Errno, process, raw, time};

use crate::process::{POLICY, report};
use crate::session::{self, View, phase};
use crate::slab::{Object, Slab};
use crate::sock::{self, MEMBERS, Ref, Sock, mode};
use crate::table::{self, Kind, Word};
use crate::{close, holders, leave, plain, send};

/// All event sets of this process.
static SETS: Slab<Set> = Slab::new();
/// High half of the keys we register with the kernel; random, so that no program's data looks like one.
static KEY: AtomicU32 = AtomicU32::new(0);

/// A sleep is cut after this long, and the rings looked at: the net below the token rule.
const CUT_NS: u64 = 1_000_000_000;
/// The kernel is asked at least this often while rings keep answering, so that pipes and timers in the set are not starved.
const KERNEL_NS: u64 = 50_000;
const KERNEL_ANSWERS: u32 = 64;
/// Fruitless looks at a member before it is taken off a long active list, and how long is long.
const QUIET: u32 = 64;
const LONG: u32 = 64;

/// Our registration. While the kernel still carries what the socket sends, `EPOLLOUT` belongs to it; later it only serves to wake
/// a sleeper by a modification.
const OURS: u32 = (EPOLLIN | EPOLLPRI | EPOLLRDHUP | EPOLLET) as u32;
const OURS_OUT: u32 = OURS | EPOLLOUT as u32;
const READABLE: u32 = (EPOLLIN | EPOLLRDNORM) as u32;
const WRITABLE: u32 = (EPOLLOUT | EPOLLWRNORM) as u32;
const ENDED: u32 = (EPOLLRDHUP | EPOLLHUP | EPOLLERR) as u32;

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
    /// Next on the active list: member id plus one.
    next: AtomicU32,
    /// What was reported last, for edge triggering.
    seen_in: AtomicU64,
    seen_out: AtomicU64,
    quiet: AtomicU32,
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

    fn has(&self, bit: u32) -> bool {
        self.state.load(Ordering::Relaxed) & bit != 0
    }

    fn set_bit(&self, bit: u32, on: bool) {
        if on {
            self.state.fetch_or(bit, Ordering::Relaxed);
        } else {
            self.state.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// Whether rings decide what is reported of it, and something may be.
    fn is_live(&self) -> bool {
        self.state.load(Ordering::Relaxed) & (bit::ADOPTED | bit::SPENT | bit::DETACHED) == bit::ADOPTED
    }

    /// Forgets what was reported: the next look reports what is there.
    fn forget_edges(&self) {
        self.seen_in.store(u64::MAX, Ordering::Relaxed);
        self.seen_out.store(u64::MAX, Ordering::Relaxed);
    }
}

/// An epoll descriptor's set.
pub(crate) struct Set {
    next_free: AtomicU32,
    generation: AtomicU32,
    refs: AtomicU32,
    holders: AtomicU32,
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
    /// When the kernel was last asked, and ring answers since.
    kernel_at: AtomicU64,
    answers: AtomicU32,
    /// How often a member became active: the edges of a set nested in another.
    activations: AtomicU32,
    /// Set once the descriptor was polled or nested: reports of our registrations must not linger in it.
    watched: AtomicU32,
    nested: [Nested; MEMBERS],
    lock: Lock,
    waiter: Waiter,
}

/// A set inside a set.
#[derive(Default)]
struct Nested {
    /// The inner set plus one; 0: unused.
    set: AtomicU32,
    events: AtomicU32,
    data: AtomicU64,
    seen: AtomicU32,
}

// SAFETY: atomics and structs of atomics only; all-zero is an empty set.
unsafe impl Object for Set {
    fn next_free(&self) -> &AtomicU32 {
        &self.next_free
    }
}

// --- descriptors ---------------------------------------------------------------------------------------------------------------

/// Begins to know the epoll descriptor `fd`.
pub(crate) fn track(fd: c_int) {
    if crate::process::is_plain() {
        return;
    }
    close::forget(fd);
    let Some((index, set)) = SETS.take() else { return };
    let zero = [
        &set.holders, &set.tcp, &set.adopted, &set.sleepers, &set.first, &set.last, &set.length, &set.answers, &set.activations,
        &set.watched,
    ];
    for field in zero {
        field.store(0, Ordering::Relaxed);
    }
    for nested in &set.nested {
        nested.set.store(0, Ordering::Relaxed);
    }
    set.waiter.forget();
    set.refs.store(1, Ordering::Release);
    if !table::set(fd, Word::new(Kind::EventSet, set.generation.load(Ordering::Relaxed), index)) {
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
        for (_, s) in sock::SOCKS.all().filter(|(_, s)| s.refs.load(Ordering::Relaxed) > 0) {
            for member in s.members.iter().filter(|m| m.set.load(Ordering::Relaxed) == index + 1) {
                // The list goes with the set.
                member.clear();
            }
        }
        SETS.put(index);
    }
}

fn set_of(epfd: c_int) -> Option<(u32, &'static Set)> {
    let word = table::get(epfd).filter(|w| w.kind() == Kind::EventSet)?;
    Some((word.index(), SETS.get(word.index())?))
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

// --- epoll_ctl ------------------------------------------------------------------------------------------------------------------

/// epoll_ctl(2); `call` is the kernel's.
pub(crate) fn control(epfd: c_int, op: c_int, fd: c_int, event: Option<epoll_event>, call: impl Fn() -> c_int) -> c_int {
    let (Some((index, set)), Some(s)) = (set_of(epfd), sock::enter(fd)) else {
        return control_other(epfd, op, fd, event, call);
    };
    let member = s.members.iter().find(|m| {
        m.set.load(Ordering::Relaxed) == index + 1 && m.fd.load(Ordering::Relaxed) == fd
    });
    match (op, member, event) {
        (EPOLL_CTL_ADD, Some(member), Some(event)) if member.has(bit::DETACHED) => {
            member.set_bit(bit::DETACHED, false);
            modify_adopted(set, &s, member, epfd, event)
        }
        (EPOLL_CTL_MOD | EPOLL_CTL_DEL, Some(member), _) if member.has(bit::DETACHED) => {
            crate::outcome::set_errno(Errno::NOENT);
            -1
        }
        (EPOLL_CTL_MOD, Some(member), Some(event)) if member.has(bit::ADOPTED) => modify_adopted(set, &s, member, epfd, event),
        (EPOLL_CTL_DEL, Some(member), _) if member.has(bit::ADOPTED) => {
            member.set_bit(bit::DETACHED, true);
            0
        }
        (EPOLL_CTL_ADD, None, Some(event)) => add(index, set, &s, epfd, fd, event, call),
        (EPOLL_CTL_MOD, Some(member), Some(event)) => {
            let result = call();
            if result == 0 {
                member.events.store(event.events, Ordering::Relaxed);
                member.data.store(event.u64, Ordering::Relaxed);
            }
            result
        }
        (EPOLL_CTL_DEL, Some(member), _) => {
            let result = call();
            if result == 0 {
                forget_member(set, member);
            }
            result
        }
        _ => call(),
    }
}

/// A descriptor that is no TCP socket of ours, or a set we do not know.
fn control_other(epfd: c_int, op: c_int, fd: c_int, event: Option<epoll_event>, call: impl Fn() -> c_int) -> c_int {
    if let Some(s) = sock::enter(fd) {
        // A set nobody told us about would show doorbells.
        leave::leave_for_good(&s, fd, Reason::EventSet, true);
    }
    let result = call();
    if let (0, Some((_, outer)), Some((inner, set))) = (result, set_of(epfd), set_of(fd)) {
        watch(inner, set);
        nest(outer, inner + 1, op, event);
    }
    result
}

fn nest(outer: &Set, inner: u32, op: c_int, event: Option<epoll_event>) {
    let place = |index: u32| outer.nested.iter().find(|n| n.set.load(Ordering::Relaxed) == index);
    let known = place(inner);
    match (op, known.or_else(|| place(0)), event) {
        (EPOLL_CTL_DEL, ..) => {
            if let Some(nested) = known {
                nested.set.store(0, Ordering::Release);
                outer.tcp.fetch_sub(1, Ordering::AcqRel);
                outer.adopted.fetch_sub(1, Ordering::AcqRel);
            }
        }
        (_, Some(nested), Some(event)) => {
            nested.events.store(event.events, Ordering::Relaxed);
            nested.data.store(event.u64, Ordering::Relaxed);
            nested.seen.store(u32::MAX, Ordering::Relaxed);
            if nested.set.swap(inner, Ordering::Release) == 0 {
                outer.tcp.fetch_add(1, Ordering::AcqRel);
                outer.adopted.fetch_add(1, Ordering::AcqRel);
            }
        }
        // No place: the kernel's reports still come, those of rings only with the doorbells.
        _ => {}
    }
}

/// The set's own descriptor is being watched: from now on our registrations in it tell of doorbells only.
fn watch(index: u32, set: &Set) {
    if set.watched.swap(1, Ordering::AcqRel) != 0 {
        return;
    }
    for (_, s) in sock::SOCKS.all().filter(|(_, s)| s.refs.load(Ordering::Relaxed) > 0) {
        if s.members.iter().any(|m| m.set.load(Ordering::Relaxed) == index + 1) {
            settle(s);
        }
    }
}

/// The socket's sending side is in the ring: in watched sets the kernel need not tell that its own is writable.
pub(crate) fn settle(s: &Sock) {
    for (m, member) in s.members.iter().enumerate().filter(|(_, m)| m.is_used() && m.has(bit::ADOPTED)) {
        let index = member.set.load(Ordering::Relaxed) - 1;
        let watched = SETS.get(index).is_some_and(|set| set.watched.load(Ordering::Relaxed) != 0);
        if watched && s.session.tx() == phase::RING && let Some(epfd) = descriptor_of(index) {
            let _ = raw::epoll_ctl(epfd, EPOLL_CTL_MOD, member.fd.load(Ordering::Relaxed), OURS, key(s, m));
        }
    }
}

fn add(index: u32, set: &Set, s: &Ref, epfd: c_int, fd: c_int, event: epoll_event, call: impl Fn() -> c_int) -> c_int {
    let Some((m, member)) = s.members.iter().enumerate().find(|(_, m)| !m.is_used()) else {
        leave::leave_for_good(s, fd, Reason::EventSet, true);
        return call();
    };
    let _receiving = s.rlock.lock();
    let adopted = plain::session_receives(s);
    let result = if adopted { register(epfd, EPOLL_CTL_ADD, fd, key(s, m)) } else { call() };
    if result != 0 {
        return result;
    }
    member.fd.store(fd, Ordering::Relaxed);
    member.events.store(event.events, Ordering::Relaxed);
    member.data.store(event.u64, Ordering::Relaxed);
    member.state.store(if adopted { bit::ADOPTED } else { 0 }, Ordering::Relaxed);
    member.forget_edges();
    member.set.store(index + 1, Ordering::Release);
    set.tcp.fetch_add(1, Ordering::AcqRel);
    if adopted {
        set.adopted.fetch_add(1, Ordering::AcqRel);
        activate(set, id(s, m), member);
    }
    result
}

fn register(epfd: c_int, op: c_int, fd: c_int, key: u64) -> c_int {
    match raw::epoll_ctl(epfd, op, fd, OURS_OUT, key) {
        Ok(()) => 0,
        Err(e) => {
            crate::outcome::set_errno(e);
            -1
        }
    }
}

/// The kernel's registration stays ours; a thread asleep on the set is made to look again.
fn modify_adopted(set: &Set, s: &Ref, member: &Member, epfd: c_int, event: epoll_event) -> c_int {
    member.events.store(event.events, Ordering::Relaxed);
    member.data.store(event.u64, Ordering::Relaxed);
    member.set_bit(bit::SPENT, false);
    member.forget_edges();
    let Some(m) = s.members.iter().position(|x| core::ptr::eq(x, member)) else { return 0 };
    activate(set, id(s, m), member);
    // SYNC: SeqCst with `sleep_on`: a sleeper counts itself and then looks at the list.
    if set.sleepers.load(Ordering::SeqCst) > 0 {
        // A modified entry that is writable, as this one always is, is reported at once.
        return register(epfd, EPOLL_CTL_MOD, member.fd.load(Ordering::Relaxed), key(s, m));
    }
    0
}

fn forget_member(set: &Set, member: &Member) {
    if member.has(bit::ADOPTED) {
        set.adopted.fetch_sub(1, Ordering::AcqRel);
    }
    set.tcp.fetch_sub(1, Ordering::AcqRel);
    let _lock = set.lock.lock();
    if member.has(bit::ACTIVE) {
        unlink(set, member);
        member.set_bit(bit::ACTIVE, false);
    }
    member.set.store(0, Ordering::Release);
}

/// The socket's last descriptor is closing: the kernel drops its registrations.
pub(crate) fn drop_members(s: &Sock) {
    for member in s.members.iter().filter(|m| m.is_used()) {
        match SETS.get(member.set.load(Ordering::Relaxed) - 1) {
            Some(set) => forget_member(set, member),
            None => member.clear(),
        }
    }
}

// --- registrations ----------------------------------------------------------------------------------------------------------------

fn id(s: &Sock, m: usize) -> u32 {
    s.index() * MEMBERS as u32 + m as u32
}

/// The key of a member: our secret, the socket's generation, its place.
fn key(s: &Sock, m: usize) -> u64 {
    let mut secret = KEY.load(Ordering::Relaxed);
    if secret == 0 {
        let fresh = process::random() as u32 | 1 << 31;
        secret = KEY.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed).map_or_else(|seen| seen, |_| fresh);
    }
    u64::from(secret) << 32 | u64::from(s.generation() & 0xff) << 24 | u64::from(id(s, m) & 0xff_ffff)
}

/// The socket and member a key names.
fn by_key(data: u64) -> Option<(Ref, usize)> {
    let secret = KEY.load(Ordering::Relaxed);
    if secret == 0 || (data >> 32) as u32 != secret {
        return None;
    }
    let place = data as u32 & 0xff_ffff;
    let s = sock::by_index(place / MEMBERS as u32)?;
    Some((s, place as usize % MEMBERS))
}

/// Makes every registration of the socket ours, before the first doorbell can come. Under the receive lock.
pub(crate) fn adopt(s: &Sock) -> bool {
    for (m, member) in s.members.iter().enumerate().filter(|(_, m)| m.is_used() && !m.has(bit::ADOPTED)) {
        let Some(set) = SETS.get(member.set.load(Ordering::Relaxed) - 1) else { continue };
        let Some(epfd) = descriptor_of(member.set.load(Ordering::Relaxed) - 1) else { return false };
        let fd = member.fd.load(Ordering::Relaxed);
        let exclusive = member.events.load(Ordering::Relaxed) & libc::EPOLLEXCLUSIVE as u32 != 0;
        let changed = if exclusive {
            raw::epoll_ctl(epfd, EPOLL_CTL_DEL, fd, 0, 0).and_then(|()| raw::epoll_ctl(epfd, EPOLL_CTL_ADD, fd, OURS_OUT, key(s, m)))
        } else {
            raw::epoll_ctl(epfd, EPOLL_CTL_MOD, fd, OURS_OUT, key(s, m))
        };
        if changed.is_err() {
            s.set_never(Reason::EventSet);
            return false;
        }
        member.forget_edges();
        member.set_bit(bit::ADOPTED, true);
        set.adopted.fetch_add(1, Ordering::AcqRel);
        activate(set, id(s, m), member);
    }
    true
}

/// Gives every registration back to the program.
pub(crate) fn restore(s: &Sock, _fd: c_int) {
    for member in s.members.iter().filter(|m| m.is_used() && m.has(bit::ADOPTED)) {
        let index = member.set.load(Ordering::Relaxed) - 1;
        let Some(set) = SETS.get(index) else { continue };
        if member.has(bit::DETACHED) {
            if let Some(epfd) = descriptor_of(index) {
                let _ = raw::epoll_ctl(epfd, EPOLL_CTL_DEL, member.fd.load(Ordering::Relaxed), 0, 0);
            }
            forget_member(set, member);
            continue;
        }
        let events = if member.has(bit::SPENT) { EPOLLONESHOT as u32 } else { member.events.load(Ordering::Relaxed) };
        if let Some(epfd) = descriptor_of(index) {
            let (fd, data) = (member.fd.load(Ordering::Relaxed), member.data.load(Ordering::Relaxed));
            let events = events & !(libc::EPOLLEXCLUSIVE as u32);
            let _ = raw::epoll_ctl(epfd, EPOLL_CTL_MOD, fd, events, data);
        }
        member.set_bit(bit::ADOPTED, false);
        set.adopted.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A descriptor of a set.
fn descriptor_of(index: u32) -> Option<c_int> {
    let set = SETS.get(index)?;
    let word = Word::new(Kind::EventSet, set.generation.load(Ordering::Relaxed), index);
    table::range(0, u32::MAX).find(|&(_, w)| w == word).map(|(fd, _)| fd)
}

// --- the active list --------------------------------------------------------------------------------------------------------------

fn member_of(id: u32) -> Option<(Ref, usize)> {
    Some((sock::by_index(id / MEMBERS as u32)?, id as usize % MEMBERS))
}

/// Puts a member on its set's active list.
fn activate(set: &Set, id: u32, member: &Member) {
    let _lock = set.lock.lock();
    set.activations.fetch_add(1, Ordering::Relaxed);
    member.quiet.store(0, Ordering::Relaxed);
    if member.has(bit::ACTIVE) {
        return;
    }
    member.set_bit(bit::ACTIVE, true);
    push(set, id, member);
}

fn push(set: &Set, id: u32, member: &Member) {
    member.next.store(0, Ordering::Relaxed);
    match set.last.swap(id + 1, Ordering::Relaxed) {
        0 => set.first.store(id + 1, Ordering::Relaxed),
        last => {
            if let Some((s, m)) = member_of(last - 1) {
                s.members[m].next.store(id + 1, Ordering::Relaxed);
            }
        }
    }
    set.length.fetch_add(1, Ordering::SeqCst);
}

/// Takes a member off the list, wherever it stands.
fn unlink(set: &Set, member: &Member) {
    for _ in 0..set.length.load(Ordering::SeqCst) {
        let Some((id, s, m)) = pop(set) else { return };
        if !core::ptr::eq(&raw const s.members[m], member) {
            push(set, id, &s.members[m]);
        }
    }
}

/// Takes the first member off the list.
fn pop(set: &Set) -> Option<(u32, Ref, usize)> {
    let id = set.first.load(Ordering::Relaxed).checked_sub(1)?;
    let (s, m) = member_of(id)?;
    let next = s.members[m].next.load(Ordering::Relaxed);
    set.first.store(next, Ordering::Relaxed);
    if next == 0 {
        set.last.store(0, Ordering::Relaxed);
    }
    set.length.fetch_sub(1, Ordering::SeqCst);
    Some((id, s, m))
}

/// Looks at every active member once and reports what is ready, at most `max` events.
fn collect(index: u32, set: &Set, out: &mut [epoll_event]) -> usize {
    if set.length.load(Ordering::SeqCst) == 0 {
        return 0;
    }
    let guard = set.lock.lock();
    if guard.nested() {
        return 0;
    }
    let (mut n, mut left) = (0, set.length.load(Ordering::SeqCst));
    while left > 0 && n < out.len() {
        left -= 1;
        let Some((id, s, m)) = pop(set) else { break };
        let member = &s.members[m];
        if member.set.load(Ordering::Acquire) != index + 1 || !member.is_live() {
            member.set_bit(bit::ACTIVE, false);
            continue;
        }
        if let Some(event) = report_of(&s, member) {
            out[n] = event;
            n += 1;
            member.quiet.store(0, Ordering::Relaxed);
            if member.has(bit::SPENT) {
                member.set_bit(bit::ACTIVE, false);
                continue;
            }
        } else if member.quiet.fetch_add(1, Ordering::Relaxed) > QUIET && set.length.load(Ordering::Relaxed) > LONG && rest(&s) {
            member.set_bit(bit::ACTIVE, false);
            continue;
        }
        push(set, id, member);
    }
    n
}

/// Arms a member's socket; true if there is nothing to look at and its writer will ring.
fn rest(s: &Sock) -> bool {
    let Some(v) = session::view(s) else { return false };
    s.session.rx() == phase::RING && !View::CONSUMER.arm(v.inn) && s.session.full_since.load(Ordering::Relaxed) == 0
}

/// What the program is told of a member now, by its trigger mode.
fn report_of(s: &Sock, member: &Member) -> Option<epoll_event> {
    let wanted = member.events.load(Ordering::Relaxed);
    let fd = member.fd.load(Ordering::Relaxed);
    let ready = readiness(s, fd, wanted) & (wanted | (EPOLLERR | EPOLLHUP) as u32);
    if ready == 0 {
        return None;
    }
    if wanted & EPOLLET as u32 != 0 && !edge(s, member, ready) {
        return None;
    }
    if wanted & EPOLLONESHOT as u32 != 0 {
        member.set_bit(bit::SPENT, true);
    }
    Some(epoll_event { events: ready, u64: member.data.load(Ordering::Relaxed) })
}

/// Whether something moved since the last report; remembers what is reported now.
fn edge(s: &Sock, member: &Member, ready: u32) -> bool {
    let ended = u64::from(s.kernel_events.load(Ordering::Relaxed) & ENDED) << 48;
    let arrived = session::view(s).map_or(0, |v| match s.session.rx() {
        phase::RING => v.inn.w.tail.load(Ordering::Acquire) & ((1 << 48) - 1),
        _ => u64::from(s.kernel_moves.load(Ordering::Relaxed)) | 1 << 47,
    });
    let into = ended | arrived;
    let freed = u64::from(s.session.fulls.load(Ordering::Relaxed)) << 1 | u64::from(ready & WRITABLE != 0);
    let moved_in = member.seen_in.swap(into, Ordering::Relaxed) != into;
    let moved_out = member.seen_out.swap(freed, Ordering::Relaxed) != freed;
    moved_in && ready & (READABLE | ENDED) != 0 || moved_out && ready & WRITABLE != 0
}

/// What epoll(7) would call ready on this socket. `wanted` spares questions nobody asked.
pub(crate) fn readiness(s: &Sock, fd: c_int, wanted: u32) -> u32 {
    let Some(v) = session::view(s) else { return kernel_readiness(fd, wanted) };
    let mut ready = 0;
    match s.session.rx() {
        phase::RING => {
            if View::CONSUMER.waiting(v.inn) > 0 {
                ready |= READABLE;
            } else if View::CONSUMER.stirred(v.inn) {
                // Sealed and drained: the kernel carries bytes once the doorbells are out.
                ready |= sealed_readiness(&v, fd);
            }
        }
        phase::READY => ready |= ready_readiness(&v, fd),
        _ => ready |= kernel_readiness(fd, wanted & (READABLE | ENDED | EPOLLPRI as u32)),
    }
    let ended = s.kernel_events.load(Ordering::Relaxed) & ENDED;
    if ended != 0 {
        ready |= ended | READABLE | (EPOLLRDHUP as u32);
    }
    if wanted & WRITABLE != 0 {
        ready |= writable(&v, fd);
    }
    ready
}

fn sealed_readiness(v: &View<'_>, fd: c_int) -> u32 {
    if let Some(_lock) = v.s.rlock.try_lock() {
        let _ = v.swallow(fd);
    }
    let last = v.inn.w.state.load(Ordering::SeqCst) == state::DONE || v.inn.w.ringing.load(Ordering::SeqCst) == 0;
    if last && v.bells_due() == 0 { kernel_readiness(fd, READABLE | EPOLLRDHUP as u32) } else { 0 }
}

fn ready_readiness(v: &View<'_>, fd: c_int) -> u32 {
    if v.inn.w.state.load(Ordering::SeqCst) == state::KERNEL {
        return kernel_readiness(fd, READABLE | EPOLLRDHUP as u32);
    }
    let left = v.inn.w.n_kernel.load(Ordering::Acquire) != v.s.session.pos.load(Ordering::Relaxed);
    if left || View::CONSUMER.stirred(v.inn) { READABLE } else { 0 }
}

fn writable(v: &View<'_>, fd: c_int) -> u32 {
    if v.s.session.tx() != phase::RING {
        return kernel_readiness(fd, WRITABLE);
    }
    if v.s.session.producer.is_sealed(v.out) || v.ended() || v.s.session.producer.has_room(v.out, &v.mem, full_wait(v)) {
        return WRITABLE;
    }
    if v.is_stalled() {
        leave::leave(v.s, fd, Reason::Stalled, false);
        return kernel_readiness(fd, WRITABLE);
    }
    // The reader rings once there is space.
    if v.s.session.producer.want(v.out, &v.mem, send::wanted(v)) { WRITABLE } else { 0 }
}

/// A sender that has not been refused finds any space good enough.
fn full_wait(v: &View<'_>) -> u32 {
    use madrigal_drivers::shm::layout::want;
    if v.s.session.full_since.load(Ordering::Relaxed) == 0 { want::HALF } else { send::wanted(v) }
}

fn kernel_readiness(fd: c_int, wanted: u32) -> u32 {
    let mut poll = [libc::pollfd { fd, events: wanted as i16, revents: 0 }];
    // SAFETY: no mask.
    match unsafe { raw::ppoll(&mut poll, Some(time::timespec(0)), core::ptr::null()) } {
        Ok(n) if n > 0 => poll[0].revents as u16 as u32,
        _ => 0,
    }
}

// --- epoll_wait -------------------------------------------------------------------------------------------------------------------

/// How long a wait may last, and the program's signal mask while it sleeps.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// Nanoseconds since boot; `None` for ever, 0 not at all.
    pub(crate) end: Option<u64>,
    pub(crate) mask: *const libc::sigset_t,
}

impl Limits {
    /// What is left of the time; `None` for ever.
    pub(crate) fn left(&self) -> Option<u64> {
        self.end.map(|end| end.saturating_sub(time::now_ns()))
    }

    fn at_once(&self) -> bool {
        self.end == Some(0)
    }
}

/// How far [`wait`] got.
pub(crate) enum Waited {
    /// Nothing of ours in that set.
    Pass,
    Done(Result<usize, Errno>),
    /// The kernel's set tells everything: let the C library sleep, since when we waited; then [`after_sleep`].
    Sleep(u64),
}

/// epoll_wait(2) and its kin.
pub(crate) fn wait(epfd: c_int, events: *mut epoll_event, max: c_int, limits: Limits) -> Waited {
    let Some((index, set)) = set_of(epfd) else { return Waited::Pass };
    if max <= 0 || events.is_null() || set.tcp.load(Ordering::Relaxed) == 0 || limits.at_once() && is_plain(set) {
        return Waited::Pass;
    }
    // SAFETY: the program vouches for room for `max` events, as for epoll_wait(2); any bytes are valid events.
    let out = unsafe { core::slice::from_raw_parts_mut(events, max as usize) };
    let waiting = Waiting { epfd, index, set, limits };
    if !is_plain(set) {
        let n = waiting.look(out, false);
        if n != Ok(0) || limits.at_once() {
            return Waited::Done(n);
        }
    }
    waiting.spin_then_sleep(out)
}

/// After the C library's epoll_wait(2) returned `got` events: those of registrations that became ours meanwhile are translated.
/// `None`: nothing is left of them, wait again.
pub(crate) fn after_sleep(epfd: c_int, events: *mut epoll_event, got: c_int, since: u64) -> Option<c_int> {
    let Some((index, set)) = set_of(epfd) else { return Some(got) };
    let saved = crate::outcome::errno();
    POLICY.slept(&set.waiter, since);
    crate::outcome::restore_errno(saved);
    if got <= 0 {
        return Some(got);
    }
    // SAFETY: the kernel just filled `got` events there.
    let out = unsafe { core::slice::from_raw_parts_mut(events, got as usize) };
    let waiting = Waiting { epfd, index, set, limits: Limits { end: None, mask: core::ptr::null() } };
    match waiting.translate(out, got as usize) {
        0 => None,
        n => Some(n as c_int),
    }
}

fn is_plain(set: &Set) -> bool {
    set.adopted.load(Ordering::Acquire) == 0
}

struct Waiting<'a> {
    epfd: c_int,
    index: u32,
    set: &'a Set,
    limits: Limits,
}

impl Waiting<'_> {
    /// One look at rings and, if it is due (or `kernel`), at the kernel's set.
    fn look(&self, out: &mut [epoll_event], kernel: bool) -> Result<usize, Errno> {
        let mut n = collect(self.index, self.set, out);
        if n == out.len() || n > 0 && !kernel && !self.kernel_due(n) {
            return Ok(n);
        }
        n += self.ask_kernel(&mut out[n..], Some(0))?;
        if n == 0 {
            n = collect_nested(self.set, out);
        }
        Ok(n)
    }

    fn kernel_due(&self, answers: usize) -> bool {
        let seen = self.set.answers.fetch_add(answers as u32, Ordering::Relaxed);
        seen >= KERNEL_ANSWERS || time::now_ns() > self.set.kernel_at.load(Ordering::Relaxed) + KERNEL_NS
    }

    /// Asks the kernel's set, sleeping up to `timeout` (0: not at all), and translates what it says.
    fn ask_kernel(&self, out: &mut [epoll_event], timeout: Option<u64>) -> Result<usize, Errno> {
        self.set.answers.store(0, Ordering::Relaxed);
        let mask = if timeout == Some(0) { core::ptr::null() } else { self.limits.mask };
        // SAFETY: `out` has room for its length; the mask is the program's.
        let got = unsafe { kernel_wait(self.epfd, out, timeout, mask) }?;
        if !is_plain(self.set) {
            self.set.kernel_at.store(time::now_ns(), Ordering::Relaxed);
        }
        Ok(self.translate(out, got))
    }

    /// Keeps the kernel's events of other descriptors, and turns those of adopted members into activity of theirs.
    fn translate(&self, out: &mut [epoll_event], got: usize) -> usize {
        let (mut kept, mut woken) = (0, false);
        for i in 0..got {
            let event = out[i];
            match by_key(event.u64) {
                None => {
                    out[kept] = event;
                    kept += 1;
                }
                Some((s, m)) => {
                    woken = true;
                    self.note(&s, m, event.events);
                }
            }
        }
        if woken { kept + collect(self.index, self.set, &mut out[kept..]) } else { kept }
    }

    fn note(&self, s: &Ref, m: usize, events: u32) {
        let member = &s.members[m];
        if member.set.load(Ordering::Acquire) != self.index + 1 {
            return;
        }
        s.kernel_moves.fetch_add(1, Ordering::Relaxed);
        if events & ENDED != 0 {
            s.kernel_events.fetch_or(events & ENDED, Ordering::Relaxed);
        }
        if member.is_live() {
            activate(self.set, id(s, m), member);
        }
        let Some(v) = session::view(s).filter(|_| s.mode() == mode::SESSION && s.session.rx() == phase::RING) else { return };
        let shared = self.set.sleepers.load(Ordering::SeqCst) > 0
            || s.sleepers.load(Ordering::SeqCst) > 0
            || s.members.iter().filter(|m| m.is_used()).count() > 1;
        if shared {
            let _ = View::CONSUMER.arm(v.inn);
        }
        // Old doorbells are taken out now and then, so that the socket's buffer never fills (a full one reports no new edge).
        if v.bells_due() >= 64 && let Some(_lock) = s.rlock.try_lock() {
            let _ = v.swallow(member.fd.load(Ordering::Relaxed));
        }
    }

    fn spin_then_sleep(&self, out: &mut [epoll_event]) -> Waited {
        loop {
            let since = match self.spin(out) {
                Ok(n) => return Waited::Done(n),
                Err(since) => since,
            };
            if is_plain(self.set) {
                return Waited::Sleep(since);
            }
            let result = self.sleep(out);
            POLICY.slept(&self.set.waiter, since);
            match result {
                Ok(0) if self.limits.left() != Some(0) => {}
                other => return Waited::Done(other),
            }
        }
    }

    /// Looks again and again until the policy says to sleep (`Err`: since when). Rings are looked at every time, the kernel as
    /// often as a system call is worth.
    fn spin(&self, out: &mut [epoll_event]) -> Result<Result<usize, Errno>, u64> {
        let rings = !is_plain(self.set);
        let mut wait = POLICY.begin(&self.set.waiter, rings);
        let mut asked = 0;
        let mut looks = 0u32;
        while wait.again(|| Peer::Unknown) {
            looks += 1;
            let mut kernel = !rings;
            if rings && looks.is_multiple_of(8) {
                let now = time::now_ns();
                kernel = asked != 0 && now > asked + KERNEL_NS / 5;
                asked = if kernel || asked == 0 { now } else { asked };
                if self.limits.end.is_some_and(|end| now >= end) {
                    return Ok(Ok(0));
                }
            }
            let n = if kernel { self.look(out, true) } else { Ok(collect(self.index, self.set, out)) };
            if n != Ok(0) {
                wait.paid();
                return Ok(n);
            }
        }
        Err(wait.since())
    }

    /// Arms every active member (of nested sets too) and sleeps in the kernel, at most until the cut.
    fn sleep(&self, out: &mut [epoll_event]) -> Result<usize, Errno> {
        let left = self.limits.left().unwrap_or(u64::MAX);
        let sleepers = Sleepers::on(self.set, 0);
        let n = collect(self.index, self.set, out);
        if n > 0 || sleepers.nested_ready {
            return if n > 0 { Ok(n) } else { self.look(out, true) };
        }
        let cut = left.min(if sleepers.full { send::STALL_NS } else { CUT_NS });
        let slept_at = time::now_ns();
        let n = self.ask_kernel(out, Some(cut.max(1)))?;
        if n > 0 || time::now_ns() < slept_at + cut {
            return Ok(n);
        }
        let n = collect(self.index, self.set, out);
        if n > 0 && !sleepers.full && cut == CUT_NS {
            note_missed();
        }
        Ok(n)
    }
}

/// Reports sets nested in this one whose rings are ready.
fn collect_nested(set: &Set, out: &mut [epoll_event]) -> usize {
    let mut n = 0;
    for nested in &set.nested {
        let Some(index) = nested.set.load(Ordering::Acquire).checked_sub(1) else { continue };
        let wanted = nested.events.load(Ordering::Relaxed);
        let (Some(inner), true) = (SETS.get(index), wanted & READABLE != 0 && n < out.len()) else { continue };
        if !any_ready(index, inner) {
            continue;
        }
        let count = inner.activations.load(Ordering::Relaxed);
        let new = nested.seen.swap(count, Ordering::Relaxed) != count;
        if wanted & EPOLLET as u32 != 0 && !new {
            continue;
        }
        out[n] = epoll_event { events: READABLE & wanted, u64: nested.data.load(Ordering::Relaxed) };
        n += 1;
    }
    n
}

/// A sleep ended by the safety cut with something to read: a wake-up was lost.
pub(crate) fn note_missed() {
    if let Some(report) = report() {
        report.missed_bells().fetch_add(1, Ordering::Relaxed);
    }
}

/// A thread about to sleep on a set: counted in it and in every set nested in it, and everything active there armed.
struct Sleepers<'a> {
    set: &'a Set,
    depth: usize,
    /// Something in a nested set is ready.
    nested_ready: bool,
    /// A sender in the set waits for a reader that may have stalled.
    full: bool,
}

/// epoll(7) itself refuses deeper nesting.
const DEPTH: usize = 5;

impl<'a> Sleepers<'a> {
    fn on(set: &'a Set, depth: usize) -> Self {
        // SYNC: SeqCst, before anything is armed; pairs with the looks at `sleepers` in `note` and `modify_adopted`.
        set.sleepers.fetch_add(1, Ordering::SeqCst);
        let full = arm_all(set);
        let mut this = Self { set, depth, nested_ready: false, full };
        for inner in nested_in(set).filter(|_| depth < DEPTH) {
            let deeper = Self::on(inner.1, depth + 1);
            this.full |= deeper.full;
            this.nested_ready |= deeper.nested_ready || any_ready(inner.0, inner.1);
            core::mem::forget(deeper);
        }
        this
    }

    fn off(set: &Set, depth: usize) {
        set.sleepers.fetch_sub(1, Ordering::SeqCst);
        for (_, inner) in nested_in(set).filter(|_| depth < DEPTH) {
            Self::off(inner, depth + 1);
        }
    }
}

impl Drop for Sleepers<'_> {
    fn drop(&mut self) {
        Self::off(self.set, self.depth);
    }
}

fn nested_in(set: &Set) -> impl Iterator<Item = (u32, &'static Set)> {
    set.nested.iter().filter_map(|n| {
        let index = n.set.load(Ordering::Acquire).checked_sub(1)?;
        Some((index, SETS.get(index)?))
    })
}

/// Arms every active member of a set; true if one of them is a sender that found its ring full.
fn arm_all(set: &Set) -> bool {
    let _lock = set.lock.lock();
    let mut full = false;
    let mut next = set.first.load(Ordering::Relaxed);
    while let Some(id) = next.checked_sub(1) {
        let Some((s, m)) = member_of(id) else { break };
        if let Some(v) = session::view(&s) {
            if s.session.rx() == phase::RING {
                let _ = View::CONSUMER.arm(v.inn);
                v.pay_space(s.members[m].fd.load(Ordering::Relaxed));
            }
            full |= s.session.full_since.load(Ordering::Relaxed) != 0;
        }
        next = s.members[m].next.load(Ordering::Relaxed);
    }
    full
}

/// Whether epoll_wait(2) on this set would return something, without consuming it: for a set polled or nested in another.
pub(crate) fn any_ready(index: u32, set: &Set) -> bool {
    let _lock = set.lock.lock();
    let mut next = set.first.load(Ordering::Relaxed);
    while let Some(id) = next.checked_sub(1) {
        let Some((s, m)) = member_of(id) else { return false };
        let member = &s.members[m];
        let alive = member.set.load(Ordering::Acquire) == index + 1 && member.is_live();
        if alive && would_report(&s, member) {
            return true;
        }
        next = member.next.load(Ordering::Relaxed);
    }
    nested_in(set).any(|(index, inner)| any_ready(index, inner))
}

fn would_report(s: &Sock, member: &Member) -> bool {
    let (seen_in, seen_out) = (member.seen_in.load(Ordering::Relaxed), member.seen_out.load(Ordering::Relaxed));
    let spent = member.has(bit::SPENT);
    let ready = report_of(s, member).is_some();
    member.seen_in.store(seen_in, Ordering::Relaxed);
    member.seen_out.store(seen_out, Ordering::Relaxed);
    member.set_bit(bit::SPENT, spent);
    ready
}

/// Whether the epoll descriptor `fd` is one whose rings must be looked at: for poll(2) and select(2) on it.
pub(crate) fn polled(fd: c_int) -> Option<Polled> {
    let (index, set) = set_of(fd)?;
    if is_plain(set) {
        return None;
    }
    watch(index, set);
    Some(Polled { fd, index, set })
}

/// An epoll descriptor inside a poll(2).
pub(crate) struct Polled {
    fd: c_int,
    index: u32,
    set: &'static Set,
}

impl Polled {
    /// Whether epoll_wait(2) on it would return something.
    ///
    /// The kernel's own list may hold reports of our registrations, which only epoll_wait(2) consumes: doorbells are taken out,
    /// which makes them void, and what remains is a real event or costs the program one fruitless epoll_wait(2).
    pub(crate) fn ready(&self) -> bool {
        if any_ready(self.index, self.set) {
            return true;
        }
        if kernel_readiness(self.fd, READABLE) == 0 {
            return false;
        }
        let members = || {
            let all = sock::SOCKS.all().filter(|(_, s)| s.refs.load(Ordering::Relaxed) > 0);
            let index = self.index;
            all.flat_map(|(_, s)| s.members.iter().enumerate().map(move |(m, member)| (s, m, member)))
                .filter(move |(_, _, member)| member.set.load(Ordering::Relaxed) == index + 1 && member.has(bit::ADOPTED))
        };
        for (s, m, member) in members() {
            let fd = member.fd.load(Ordering::Relaxed);
            if let Some(v) = session::view(s).filter(|v| v.bells_due() > 0)
                && let Some(_lock) = s.rlock.try_lock()
            {
                let _ = v.swallow(fd);
            }
            activate(self.set, id(s, m), member);
        }
        if kernel_readiness(self.fd, READABLE) == 0 {
            return any_ready(self.index, self.set);
        }
        for (s, _, member) in members() {
            let events = kernel_readiness(member.fd.load(Ordering::Relaxed), READABLE | EPOLLRDHUP as u32);
            s.kernel_events.fetch_or(events & ENDED, Ordering::Relaxed);
        }
        true
    }

    /// Counts a thread about to sleep; true if it must not.
    pub(crate) fn begin_sleep(&self) -> bool {
        let sleepers = Sleepers::on(self.set, 0);
        let ready = sleepers.nested_ready || any_ready(self.index, self.set);
        core::mem::forget(sleepers);
        ready
    }

    /// The thread is back.
    pub(crate) fn end_sleep(&self) {
        Sleepers::off(self.set, 0);
    }
}

/// epoll_pwait(2) in the form the time-out asks for.
///
/// # Safety
/// `mask` is null or points to a signal set.
unsafe fn kernel_wait(
    epfd: c_int,
    out: &mut [epoll_event],
    timeout: Option<u64>,
    mask: *const libc::sigset_t,
) -> Result<usize, Errno> {
    let max = c_int::try_from(out.len()).unwrap_or(c_int::MAX);
    match timeout {
        // SAFETY: `out` has room for `max` events; the mask is the caller's.
        None => unsafe { raw::epoll_pwait(epfd, out.as_mut_ptr(), max, -1, mask) },
        // SAFETY: as above.
        Some(0) => unsafe { raw::epoll_pwait(epfd, out.as_mut_ptr(), max, 0, mask) },
        Some(ns) => {
            // SAFETY: as above.
            let fine = unsafe { raw::epoll_pwait2(epfd, out.as_mut_ptr(), max, Some(time::timespec(ns)), mask) };
            match fine {
                // Before Linux 5.11: milliseconds, rounded up.
                Err(Errno::NOSYS) => {
                    let ms = c_int::try_from(ns.div_ceil(1_000_000)).unwrap_or(c_int::MAX);
                    // SAFETY: as above.
                    unsafe { raw::epoll_pwait(epfd, out.as_mut_ptr(), max, ms, mask) }
                }
                done => done,
            }
        }
    }
}
