//! A fork is coming: registrations that are ours are lent to the family ([`super::lent`]).

use madrigal_base::sync::Ordering;

use super::entry::{be_absent, note_plain, put, used, withdraw};
use super::give_back::restore_one;
use super::lent::{self, behind_end};
use super::{EventSet, Subject};
use crate::state::member::{Member, bit};
use crate::state::session::phase;

/// A fork is coming: what is ours would be each process's own from now on.
pub(crate) fn lend<S: Subject>(s: &S) {
    if used(s).next().is_none() {
        return;
    }
    let _registering = s.lock_members();
    for (m, member) in used(s) {
        if member.has(bit::OURS) {
            lend_one(s, m, member);
        }
        member.set_bit(bit::SHARED, true);
    }
}

pub(super) fn lend_one<S: Subject>(s: &S, m: usize, member: &Member) {
    let Some(set) = s.set_of(member) else { return };
    if !s.is_gone() && s.rx() == phase::DONE && !member.knows_end() {
        // The kernel reports everything.
        return restore_one(s, member);
    }
    if member.has(bit::ORPHAN) {
        // The kernel's entry cannot be changed any more; its key means the same to a child.
        return;
    }
    let Some(_lock) = withdraw(&*set, s, member) else { return };
    if member.has(bit::WOKEN) {
        // That is yet to be reported.
        member.set_bit(bit::WOKEN, false);
        member.forget_edges();
    }
    if member.knows_end() && (!s.is_gone() || member.knows_all()) {
        return keep_reported(&*set, s, member);
    }
    lent::begin(&*set, member);
    if s.is_gone() {
        // Another process may make it the program's.
        set.registry().may_report_gone.store(2, Ordering::Relaxed);
    }
    let _ = lent::put(&*set, s, m, member);
}

/// An edge has reported that the stream has ended. The kernel would report it again of a modified entry, so the entry asks for what may
/// still come, or for nothing.
fn keep_reported<S: Subject>(set: &S::Set, s: &S, member: &Member) {
    let Some(epfd) = set.descriptor() else { return };
    if member.knows_all() {
        return be_absent(set, epfd, member);
    }
    note_plain(set, s);
    let events = behind_end(member.events.load(Ordering::Relaxed));
    let _ = put(set, epfd, member, events, member.data.load(Ordering::Relaxed));
}
