//! Registrations of ours, and those that are lent, become the program's again.

use madrigal_base::sync::Ordering;

use super::entry::{be_absent, end_lending, note_plain, put, used, withdraw};
use super::{EventSet, Subject, lent};
use crate::state::member::{Member, bit};

/// Gives every registration back to the program.
pub(crate) fn restore<S: Subject>(s: &S) {
    let _registering = s.lock_members();
    restore_all(s);
}

/// The same, except those that know of the stream's end by an edge: the kernel would report it again. False: some stay ours.
pub(crate) fn restore_unless_ended<S: Subject>(s: &S) -> bool {
    let _registering = s.lock_members();
    let knows_end = |member: &Member| member.has(bit::OURS) && !member.has(bit::DETACHED) && member.knows_end();
    if !used(s).any(|(_, member)| knows_end(member)) {
        restore_all(s);
        return true;
    }
    for (_, member) in used(s).filter(|(_, member)| member.has(bit::OURS | bit::LENT) && !knows_end(member)) {
        restore_one(s, member);
    }
    false
}

pub(super) fn restore_all<S: Subject>(s: &S) {
    s.set_hooked(false);
    for (_, member) in used(s).filter(|(_, member)| member.has(bit::OURS | bit::LENT)) {
        restore_one(s, member);
    }
}

pub(super) fn restore_one<S: Subject>(s: &S, member: &Member) {
    if member.has(bit::ORPHAN) && member.has(bit::LENT | bit::OURS) && s.is_gone() {
        // The kernel's entry cannot be changed any more, and goes on reporting when there is an event.
        return;
    }
    let Some(set) = s.set_of(member) else { return };
    let epfd = set.descriptor();
    let Some(lock) = withdraw(&*set, s, member) else { return };
    let Some(epfd) = epfd else { return };
    if member.has(bit::LENT) && !s.is_gone() {
        drop(lock);
        return lent::take_back(&*set, s, member, epfd);
    }
    end_lending(&*set, member);
    if member.has(bit::SPENT) {
        // An entry that was not spent in the kernel would report errors and hang-ups.
        return be_absent(&*set, epfd, member);
    }
    note_plain(&*set, s);
    // The kernel checks the socket again, and reports what is there.
    let _ = put(&*set, epfd, member, member.events.load(Ordering::Relaxed), member.data.load(Ordering::Relaxed));
}

/// One-shot registrations of ours that are spent leave the kernel. It would report the end of the socket to each thread that waits on their
/// sets.
pub(crate) fn take_out_spent<S: Subject>(s: &S) {
    let _registering = s.lock_members();
    let spent = |member: &Member| member.has(bit::OURS) && member.has(bit::SPENT) && !member.has(bit::ORPHAN);
    for (_, member) in used(s).filter(|(_, member)| spent(member)) {
        restore_one(s, member);
    }
}
