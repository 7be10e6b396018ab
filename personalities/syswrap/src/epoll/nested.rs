//! Sets inside sets, and sets inside a poll(2): they are ready when one of their rings is.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use libc::{EPOLL_CTL_DEL, EPOLLET, EPOLLRDHUP, epoll_event};

use super::adopt::watch;
use super::list::activate;
use super::ready::kernel_readiness;
use super::sleep::{Sleepers, any_ready};
use super::{ENDED, Member, READABLE, SETS, Set, bit, descriptor_of, id, set_of};
use crate::session::{self, Me};
use crate::sock::{SOCKS, Sock};

/// A set inside a set.
#[derive(Default)]
pub(super) struct Nested {
    /// The inner set plus one; 0: unused.
    set: AtomicU32,
    events: AtomicU32,
    data: AtomicU64,
    seen: AtomicU32,
}

impl Nested {
    pub(super) fn clear(&self) {
        self.set.store(0, Ordering::Relaxed);
    }
}

/// The kernel has put set `inner` (plus one) into `outer`, changed it there or taken it out.
pub(super) fn nest(outer: &Set, inner: u32, op: c_int, event: Option<epoll_event>) {
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

pub(super) fn nested_in(set: &Set) -> impl Iterator<Item = (u32, &'static Set)> {
    set.nested.iter().filter_map(|n| {
        let index = n.set.load(Ordering::Acquire).checked_sub(1)?;
        Some((index, SETS.get(index)?))
    })
}

/// Reports sets nested in this one whose rings are ready.
pub(super) fn collect_nested(set: &Set, out: &mut [epoll_event]) -> usize {
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

/// Whether the epoll descriptor `fd` is one whose rings must be looked at: for poll(2) and select(2) on it.
pub(crate) fn polled(fd: c_int) -> Option<Polled> {
    let (index, set) = set_of(fd)?;
    if set.is_plain() {
        return None;
    }
    watch(index, set);
    Some(Polled { fd, index, set })
}

/// Whether the kernel's report of a nested set, with this data, is about something the program would find there.
pub(super) fn is_meant(outer: &Set, data: u64) -> bool {
    let nested =
        outer.nested.iter().find(|n| n.set.load(Ordering::Acquire) != 0 && n.data.load(Ordering::Relaxed) == data);
    let Some(index) = nested.and_then(|n| n.set.load(Ordering::Acquire).checked_sub(1)) else { return true };
    let (Some(inner), Some(fd)) = (SETS.get(index), descriptor_of(index)) else { return true };
    inner.is_plain() || is_ready(fd, index, inner)
}

/// Whether epoll_wait(2) on a set would return something.
///
/// The kernel's own list may hold reports of our registrations, which only epoll_wait(2) consumes: doorbells are taken out, which
/// makes them void, and what remains is a real event or costs the program one fruitless epoll_wait(2).
fn is_ready(fd: c_int, index: u32, set: &Set) -> bool {
    if any_ready(index, set) {
        return true;
    }
    if kernel_readiness(fd, READABLE) == 0 {
        return false;
    }
    for (s, m, member) in members(index) {
        if let Some(v) = session::view(s).filter(|v| v.bells_due() > 0)
            && let Some(_lock) = s.rlock.try_lock()
        {
            v.swallow(member.fd.load(Ordering::Relaxed), Me::Awake);
        }
        member.set_bit(bit::QUIET_IN | bit::QUIET_OUT, false);
        activate(set, id(s, m), member);
    }
    if kernel_readiness(fd, READABLE) == 0 {
        return any_ready(index, set);
    }
    for (s, _, member) in members(index) {
        let events = kernel_readiness(member.fd.load(Ordering::Relaxed), READABLE | EPOLLRDHUP as u32);
        s.kernel_events.fetch_or(events & ENDED, Ordering::Relaxed);
    }
    true
}

/// The members of a set whose registration is ours.
fn members(index: u32) -> impl Iterator<Item = (&'static Sock, usize, &'static Member)> {
    let all = SOCKS.all().filter(|(_, s)| s.refs.load(Ordering::Relaxed) > 0);
    all.flat_map(|(_, s)| s.members.iter().enumerate().map(move |(m, member)| (s, m, member)))
        .filter(move |(_, _, member)| member.is_in(index) && member.has(bit::ADOPTED))
}

/// An epoll descriptor inside a poll(2).
pub(crate) struct Polled {
    fd: c_int,
    index: u32,
    set: &'static Set,
}

impl Polled {
    /// Whether epoll_wait(2) on it would return something.
    pub(crate) fn ready(&self) -> bool {
        is_ready(self.fd, self.index, self.set)
    }

    /// Counts a thread about to sleep; true if it must not.
    pub(crate) fn begin_sleep(&self) -> bool {
        let sleepers = Sleepers::on(self.index, self.set, 1);
        let ready = sleepers.nested_ready || any_ready(self.index, self.set);
        core::mem::forget(sleepers);
        ready
    }

    /// The thread is back.
    pub(crate) fn end_sleep(&self) {
        Sleepers::off(self.set, 1);
    }
}
