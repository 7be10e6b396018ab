//! Before a thread sleeps on a set: everything active in it, and in sets nested in it, is armed.
//!
//! Token rule: who takes a doorbell out of the kernel, or finds one reported, arms the direction again at once if anybody else may
//! be asleep on the socket ([`View::others_may_sleep`]); only a set without sleepers goes unarmed while it is at work.

use core::sync::atomic::Ordering;

use super::list::active;
use super::nested::nested_in;
use super::{Set, ready};
use crate::process::report;
use crate::session::{self, View, phase};

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
    /// A sender in the set waits for a reader that may have stalled.
    pub(super) full: bool,
}

impl<'a> Sleepers<'a> {
    pub(super) fn on(set: &'a Set, depth: usize) -> Self {
        // SYNC: SeqCst, before anything is armed; pairs with the looks at `sleepers` in `note`, `modify_adopted`, `drop_members`.
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

/// Arms every active member of a set; true if one of them is a sender that found its ring full.
fn arm_all(set: &Set) -> bool {
    let _lock = set.lock.lock();
    let mut full = false;
    for (_, s, member) in active(set).filter(|(_, _, member)| member.has(super::bit::ADOPTED)) {
        let Some(v) = session::view(s) else { continue };
        if s.session.rx() == phase::RING {
            let _ = View::CONSUMER.arm(v.inn);
            v.pay_space(member.fd.load(Ordering::Relaxed));
        }
        full |= s.session.full_since.load(Ordering::Relaxed) != 0;
    }
    full
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
