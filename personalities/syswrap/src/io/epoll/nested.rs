//! Sets inside sets, and sets inside a poll(2).
//!
//! The kernel reports such a set as ready by its ready list, and only epoll_wait(2) takes anything off that. An entry of ours that reports a
//! doorbell, or something the program did not ask for, would make the set seem ready. So the sockets of a set that is watched go by TCP
//! ([`watch`]), and the kernel's answer is the program's. What follows is for sessions that are about to end: a session that ends while the
//! peer sleeps, or while bytes are left in its ring, lasts until both have gone on.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use libc::{EPOLL_CTL_MOD, EPOLLET, EPOLLRDHUP, epoll_event};
use madrigal_report::Reason;
use madrigal_sys::raw;

use super::ready::kernel_readiness;
use super::sleep::{Sleepers, any_ready};
use super::{ENDED, READABLE};
use crate::lifecycle::leave::{Back, leave};
use crate::state::member::{Member, bit};
use crate::state::registration::{self, EventSet as _};
use crate::state::session::Me;
use crate::state::sets::{self, Nested, Set, SetRef};
use crate::state::sock::{Ref, Sock, mode};
use crate::state::socket::view;
use crate::state::teardown;

/// The set's own descriptor is being watched, by another set or by poll(2).
pub(super) fn watch(set: &Set) {
    if registration::watch(set) {
        for s in set.subjects() {
            plain_in_watched(&s, s.fd());
        }
    }
}

/// A socket in a set that is watched goes by TCP, as long as it is in there.
pub(super) fn plain_in_watched(s: &Sock, fd: c_int) {
    if s.mode() != mode::KERNEL {
        leave(s, fd, Reason::EventSet, Back::IfPossible);
    }
}

/// Reports sets nested in this one whose rings are ready, and were not reported in this `round` yet.
pub(super) fn collect_nested(set: &Set, out: &mut [epoll_event], round: u32) -> usize {
    let mut n = 0;
    for (nested, inner) in set.inner() {
        let wanted = nested.events.load(Ordering::Relaxed);
        let reported = nested.round.load(Ordering::Relaxed) == round;
        if n == out.len() || reported || wanted & READABLE == 0 || !any_ready(&inner) {
            continue;
        }
        let count = inner.registry.activations.load(Ordering::Relaxed);
        let new = nested.seen.swap(count, Ordering::Relaxed) != count;
        if wanted & EPOLLET as u32 != 0 && !new {
            continue;
        }
        out[n] = epoll_event { events: READABLE & wanted, u64: nested.data.load(Ordering::Relaxed) };
        n += 1;
        if nested.spend() {
            // The kernel, which has reported nothing, is not to report it any more, either.
            put(set, nested, &inner);
        }
    }
    n
}

/// Whether the kernel's report of a nested set, with this data, is about something the program would find there. Then it is reported in this
/// `round`.
pub(super) fn is_meant(outer: &Set, data: u64, round: u32) -> bool {
    let Some((nested, inner)) = outer.inner().find(|(nested, _)| nested.data.load(Ordering::Relaxed) == data) else {
        return true;
    };
    let meant = inner.is_plain() || is_ready(&inner);
    if meant {
        nested.round.store(round, Ordering::Relaxed);
        // That was the edge, too.
        nested.seen.store(inner.registry.activations.load(Ordering::Relaxed), Ordering::Relaxed);
        nested.spend();
    } else if nested.is_one_shot() {
        // The kernel has reported it for once, and the program has not got the event.
        put(outer, nested, &inner);
    }
    meant
}

/// Makes the kernel's entry of a nested set what the program asks for by now.
#[cold]
fn put(outer: &Set, nested: &Nested, inner: &Set) {
    let (events, data) = (nested.events.load(Ordering::Relaxed), nested.data.load(Ordering::Relaxed));
    if let (Some(epfd), Some(fd)) = (outer.descriptor(), inner.descriptor()) {
        let _ = raw::epoll_ctl(epfd, EPOLL_CTL_MOD, fd, events, data);
    }
}

/// Whether epoll_wait(2) on a set would return something.
///
/// The kernel's own list may hold reports of our registrations, which only epoll_wait(2) consumes: doorbells are taken out, which
/// makes them void, and what remains is a real event or costs the program one fruitless epoll_wait(2).
fn is_ready(set: &Set) -> bool {
    each_of_ours(set, |s, _, member| {
        if let Some(v) = view(s, member.fd.load(Ordering::Relaxed)).filter(|v| v.is_sealed_in())
            && let Some(_lock) = v.try_reading()
        {
            v.finish_receiving();
        }
        teardown::unhook(s);
    });
    if any_ready(set) {
        return true;
    }
    let Some(fd) = set.descriptor().filter(|&fd| kernel_readiness(fd, READABLE) != 0) else { return false };
    each_of_ours(set, |s, m, member| {
        if let Some(v) = view(s, member.fd.load(Ordering::Relaxed)).filter(|v| v.bells_due() > 0)
            && let Some(_lock) = v.try_reading()
        {
            v.swallow(Me::Awake);
        }
        member.set_bit(bit::IDLE_IN | bit::IDLE_OUT, false);
        set.activate(sets::id(s, m), member);
    });
    if kernel_readiness(fd, READABLE) == 0 {
        return any_ready(set);
    }
    each_of_ours(set, |s, _, member| {
        let events = kernel_readiness(member.fd.load(Ordering::Relaxed), READABLE | EPOLLRDHUP as u32);
        s.session.kernel_events.fetch_or(events & ENDED, Ordering::Relaxed);
        if events & ENDED != 0 {
            registration::take_out_spent(&**s);
        }
    });
    kernel_readiness(fd, READABLE) != 0 || any_ready(set)
}

/// The members of a set whose registration is ours.
fn each_of_ours(set: &Set, mut f: impl FnMut(&Ref, usize, &Member)) {
    for s in set.subjects() {
        for (m, member) in s.members.iter().enumerate() {
            if member.is_in(set.index()) && member.has(bit::OURS) {
                f(&s, m, member);
            }
        }
    }
}

/// An epoll descriptor inside a poll(2).
pub(crate) struct Polled {
    set: SetRef,
    asleep: Option<Sleepers>,
}

/// The epoll descriptor `fd`, if its rings must be checked.
pub(crate) fn polled(fd: c_int) -> Option<Polled> {
    let set = sets::enter(fd)?;
    // Also an empty one: a socket may be put into it meanwhile.
    watch(&set);
    if set.is_plain() {
        return None;
    }
    Some(Polled { set, asleep: None })
}

impl Polled {
    /// Whether epoll_wait(2) on it would return something.
    pub(crate) fn ready(&self) -> bool {
        is_ready(&self.set)
    }

    /// Counts a thread about to sleep; true if it must not.
    pub(crate) fn begin_sleep(&mut self) -> bool {
        let asleep = self.asleep.insert(Sleepers::inside(&self.set));
        asleep.inner_ready || any_ready(&self.set)
    }

    /// How long it may sleep.
    pub(crate) fn limit(&self) -> Option<u64> {
        self.asleep.as_ref().and_then(|asleep| asleep.limit)
    }

    /// The thread is back.
    pub(crate) fn end_sleep(&mut self) {
        self.asleep = None;
    }
}
