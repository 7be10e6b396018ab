//! Registrations of ours, and those that are lent, become the program's again.

use madrigal_base::sync::Ordering;

use super::entry::{be_absent, end_lending, note_plain, put, used, withdraw};
use super::{EventSet, Subject, lent};
use crate::state::member::{Member, bit};

/// Gives every registration back to the program.
pub(crate) fn restore<S: Subject>(s: &S) {
    let _registering = s.hold_members();
    restore_all(s);
}

/// The same but for those that know of the stream's end by an edge: the kernel would tell of it anew. False: some are kept.
pub(crate) fn restore_unless_ended<S: Subject>(s: &S) -> bool {
    let _registering = s.hold_members();
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
        // Nobody can change the kernel's entry, which goes on saying when there is something to tell.
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
        // An entry of the kernel's that was not spent there would tell of errors and hang-ups.
        return be_absent(&*set, epfd, member);
    }
    note_plain(&*set, s);
    // The kernel looks at the socket anew, and reports what is there.
    let _ = put(&*set, epfd, member, member.events.load(Ordering::Relaxed), member.data.load(Ordering::Relaxed));
}

/// One-shot registrations of ours that are spent leave the kernel, which would tell whoever looks at their sets of the end of the socket.
pub(crate) fn take_out_spent<S: Subject>(s: &S) {
    let _registering = s.hold_members();
    let spent = |member: &Member| member.has(bit::OURS) && member.has(bit::SPENT) && !member.has(bit::ORPHAN);
    for (_, member) in used(s).filter(|(_, member)| spent(member)) {
        restore_one(s, member);
    }
}
