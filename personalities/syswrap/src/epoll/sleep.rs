//! Before a thread sleeps on a set: everything active in it, and in sets nested in it, is armed.
//!
//! Token rule: who takes a doorbell out of the kernel, or finds one reported, arms the direction again at once if anybody else may
//! be asleep on the socket ([`View::others_may_sleep`]); only a set without sleepers goes unarmed while it is at work.

use core::sync::atomic::Ordering;

use madrigal_drivers::shm::arena::SLEEP_WORDS;
use madrigal_drivers::shm::ring::Sleeper;

use super::list::active;
use super::nested::nested_in;
use super::{Set, ready};
use crate::process::report;
use crate::send;
use crate::session::{self, View, phase};
use crate::sock::Sock;

/// A sleep is cut after this long, and the rings looked at: the net below the token rule.
pub(super) const CUT_NS: u64 = 1_000_000_000;
/// epoll(7) itself refuses deeper nesting.
const DEPTH: usize = 5;

/// A thread about to sleep on a set: counted in it and in every set nested in it, and everything active there armed.
pub(super) struct Sleepers<'a> {
    set: &'a Set,
    depth: usize,
    /// Something in a nested set is ready.
    pub(super) nested_ready: bool,
    /// How long it may sleep, if a sender in the set waits for space.
    pub(super) limit: Option<u64>,
}

impl<'a> Sleepers<'a> {
    pub(super) fn on(index: u32, set: &'a Set, depth: usize) -> Self {
        // SYNC: SeqCst, before anything is armed; pairs with the looks at `sleepers` in `note`, `modify_adopted`, `drop_members`.
        let others = set.sleepers.fetch_add(1, Ordering::SeqCst);
        let limit = arm_all(index, set, others == 0 && depth == 0);
        let mut this = Self { set, depth, nested_ready: false, limit };
        for inner in nested_in(set).filter(|_| depth < DEPTH) {
            let deeper = Self::on(inner.0, inner.1, depth + 1);
            this.limit = this.limit.into_iter().chain(deeper.limit).min();
            this.nested_ready |= deeper.nested_ready || any_ready(inner.0, inner.1);
            core::mem::forget(deeper);
        }
        this
    }

    pub(super) fn off(set: &Set, depth: usize) {
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

/// Arms every active member of a set; tells how long to sleep at most if senders among them wait for space. A thread that is the only one
/// asleep there, and looks at everything when it wakes, needs one doorbell from each process it hears of.
fn arm_all(index: u32, set: &Set, alone: bool) -> Option<u64> {
    let _lock = set.lock.lock();
    let mut limit = None;
    let one_bell = alone && (index as usize) < SLEEP_WORDS && set.watched.load(Ordering::Relaxed) == 0;
    for (_, s, member) in active(set).filter(|(_, _, member)| member.has(super::bit::ADOPTED)) {
        let Some(v) = session::view(s) else { continue };
        if s.session.rx() == phase::RING {
            let _ = View::CONSUMER.arm_for(v.inn, if one_bell { sleeper(s, index) } else { Sleeper::Own });
            v.pay_space(member.fd.load(Ordering::Relaxed));
        }
        limit = limit.into_iter().chain(send::longest_sleep(s)).min();
    }
    limit
}

/// Who sleeps behind a member of set `index`: the set, unless others wait for the same socket in their own way.
fn sleeper(s: &Sock, index: u32) -> Sleeper {
    let shared = s.sleepers.load(Ordering::SeqCst) > 0 || s.members.iter().filter(|m| m.is_used()).count() > 1;
    let Some(lease) = s.session.lease().filter(|_| !shared) else { return Sleeper::Own };
    let word = lease.arena().sleep_word(s.session.side(), index);
    if word.load(Ordering::SeqCst) == 0 {
        // SYNC: SeqCst, before anything is armed with it; pairs with `View::wake`.
        word.store(1, Ordering::SeqCst);
    }
    Sleeper::Set(index)
}

/// Whether epoll_wait(2) on this set would return something, without consuming it: for a set polled or nested in another.
pub(super) fn any_ready(index: u32, set: &Set) -> bool {
    let here = {
        let _lock = set.lock.lock();
        active(set).any(|(_, s, member)| member.is_in(index) && member.is_live() && ready::would_report(s, member))
    };
    here || nested_in(set).any(|(index, inner)| any_ready(index, inner))
}

/// A sleep ended by the safety cut with something to read: a wake-up was lost.
pub(crate) fn note_missed() {
    if let Some(report) = report() {
        report.missed_bells().fetch_add(1, Ordering::Relaxed);
    }
}
