//! Before a thread sleeps on a set: everything active in it, and in sets nested in it, is armed.
//!
//! Token rule: a thread that takes a doorbell out of the kernel, or finds one reported, arms the direction again at once if another may be
//! asleep on the socket ([`View::others_may_sleep`]). Only a set without sleepers stays unarmed while it is at work.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use libc::{EPOLLET, epoll_event};
use madrigal_shm_ring::arena::SLEEP_WORDS;
use madrigal_shm_ring::ring::Sleeper;
use madrigal_sys::{Errno, critical, raw, time};

use super::{READABLE, ready};
use crate::io::send;
use crate::state::member::bit;
use crate::state::process::report;
use crate::state::registration::EventSet as _;
use crate::state::session::{View, phase};
use crate::state::sets::{self, Nested, Set, SetRef};
use crate::state::sock::Sock;
use crate::state::socket::{Socket, view};

/// A sleep is cut after this long, and the rings checked: the safety net of the token rule.
pub(super) const CUT_NS: u64 = 1_000_000_000;
/// Sets nested in one that a sleep follows; with more, it is short.
const DEEP: usize = 16;
const SHORT_NS: u64 = 1_000_000;

/// A thread about to sleep on a set: counted in it and in every set nested in it, and everything active there armed.
pub(crate) struct Sleepers {
    counted: [Option<SetRef>; DEEP],
    n: usize,
    /// Something in a nested set is ready.
    pub(super) inner_ready: bool,
    /// How long it may sleep, if a sender in the set waits for space.
    pub(super) limit: Option<u64>,
}

impl Sleepers {
    /// A thread that sleeps by epoll_wait(2).
    pub(super) fn on(set: &Set) -> Self {
        Self::begin(set, true)
    }

    /// One that sleeps by a set outside this one, or a poll(2).
    pub(super) fn inside(set: &Set) -> Self {
        Self::begin(set, false)
    }

    fn begin(set: &Set, outermost: bool) -> Self {
        let mut this = Self { counted: [const { None }; DEEP], n: 0, inner_ready: false, limit: None };
        this.add(set, outermost);
        this
    }

    fn add(&mut self, set: &Set, outermost: bool) {
        let (Some(place), Some(held)) = (self.counted.get_mut(self.n), sets::by_index(set.index())) else {
            return self.limit_to(SHORT_NS);
        };
        // SYNC: SeqCst, before anything is armed; pairs with the loads of `sleepers` in `wait::note` and `state::registration`.
        let others = set.registry.sleepers.fetch_add(1, Ordering::SeqCst);
        *place = Some(held);
        self.n += 1;
        arm_all(set, others == 0 && outermost).into_iter().for_each(|ns| self.limit_to(ns));
        for (nested, inner) in set.inner() {
            self.add(&inner, false);
            self.inner_ready |= shows(nested, &inner);
        }
    }

    fn limit_to(&mut self, ns: u64) {
        self.limit = Some(self.limit.map_or(ns, |limit| limit.min(ns)));
    }
}

impl Drop for Sleepers {
    fn drop(&mut self) {
        for set in self.counted.iter().flatten() {
            set.registry.sleepers.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Arms every active member of a set. Returns how long to sleep at most, if senders among them wait for space. A thread that is the only one
/// asleep there scans everything when it wakes. So it needs only one doorbell from each peer process.
fn arm_all(set: &Set, alone: bool) -> Option<u64> {
    let _lock = set.registry.lock.lock();
    let mut limit = None;
    let one_bell = alone && (set.index() as usize) < SLEEP_WORDS && set.registry.watched.load(Ordering::Relaxed) == 0;
    for (_, s, member) in set.active().filter(|(_, _, member)| member.has(bit::OURS)) {
        let Some(v) = view(s, member.fd.load(Ordering::Relaxed)) else { continue };
        if s.session.rx() == phase::RING {
            let sleeper = if one_bell { sleeper(s, set.index()) } else { Sleeper::Own };
            let _ = View::<Socket<'_>>::CONSUMER.arm_for(v.inn, sleeper);
            v.pay_space();
        }
        limit = limit.into_iter().chain(send::longest_sleep(s)).chain(v.held_for()).min();
    }
    limit
}

/// Who sleeps behind a member of set `index`: the set, unless others wait for the same socket in their own way.
fn sleeper(s: &Sock, index: u32) -> Sleeper {
    let shared = s.session.has_sleepers() || s.members.iter().filter(|member| member.is_used()).count() > 1;
    let Some(lease) = s.lease().filter(|_| !shared) else { return Sleeper::Own };
    let word = lease.arena().sleep_word(s.session.side(), index);
    if word.load(Ordering::SeqCst) == 0 {
        // SYNC: SeqCst, before anything is armed with it; pairs with `View::wake`.
        word.store(1, Ordering::SeqCst);
    }
    Sleeper::Set(index)
}

/// Whether epoll_wait(2) on this set would return something, without consuming it: for a set polled or nested in another.
pub(super) fn any_ready(set: &Set) -> bool {
    let here = {
        let _lock = set.registry.lock.lock();
        set.active()
            .any(|(_, s, member)| member.is_in(set.index()) && member.is_live() && ready::would_report(s, member))
    };
    here || set.inner().any(|(nested, inner)| shows(nested, &inner))
}

/// Whether a set shows that the one in it has something: what it was not asked for it never does (`ep_item_poll`), and by an edge once.
fn shows(nested: &Nested, inner: &Set) -> bool {
    let wanted = nested.events.load(Ordering::Relaxed);
    let reported = wanted & EPOLLET as u32 != 0
        && nested.seen.load(Ordering::Relaxed) == inner.registry.activations.load(Ordering::Relaxed);
    wanted & READABLE != 0 && !reported && any_ready(inner)
}

/// A sleep ended by the safety cut with something to read: a wake-up was lost.
pub(crate) fn note_missed() {
    if let Some(report) = report() {
        report.missed_bells().fetch_add(1, Ordering::Relaxed);
    }
}

/// epoll_pwait(2) in the form the time-out asks for.
///
/// # Safety
/// `mask` is null or points to a signal set.
pub(super) unsafe fn kernel_wait(
    epfd: c_int,
    out: &mut [epoll_event],
    timeout: Option<u64>,
    mask: *const libc::sigset_t,
) -> Result<usize, Errno> {
    let max = c_int::try_from(out.len()).unwrap_or(c_int::MAX);
    let Some(ns) = timeout.filter(|&ns| ns > 0) else {
        // SAFETY: `out` has room for `max` events; the mask is the caller's.
        let mut wait = |ms| unsafe { raw::epoll_pwait(epfd, out.as_mut_ptr(), max, ms, mask) };
        return if timeout.is_none() { critical::outside(|| wait(-1)) } else { wait(0) };
    };
    // SAFETY: as above.
    let asked =
        critical::outside(|| unsafe { raw::epoll_pwait2(epfd, out.as_mut_ptr(), max, Some(time::timespec(ns)), mask) });
    match asked {
        // Before Linux 5.11: milliseconds, rounded up.
        Err(Errno::NOSYS) => {
            let ms = c_int::try_from(ns.div_ceil(1_000_000)).unwrap_or(c_int::MAX);
            // SAFETY: as above.
            critical::outside(|| unsafe { raw::epoll_pwait(epfd, out.as_mut_ptr(), max, ms, mask) })
        }
        done => done,
    }
}
