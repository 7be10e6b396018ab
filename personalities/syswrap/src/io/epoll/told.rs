//! What the program is told of an event of the kernel's: of a registration that is ours nothing, but that its member is to be looked at; of
//! one that is lent, or whose peer has gone, what we know better.

use core::sync::atomic::Ordering;

use libc::{EPOLLERR, EPOLLHUP, epoll_event};

use super::ENDED;
use super::ready::{asked_elsewhere, ready_of, report_of, shown_of};
use crate::state::member::{Member, bit};
use crate::state::sets::{self, Set};
use crate::state::sock::Ref;
use crate::state::{registration, teardown};

/// `None`: the event is the program's. Else the member that it names, if that is one still: nothing is told.
pub(super) type Named = Option<Option<(Ref, usize)>>;

/// What the program is told of an event, or the member it names. Of one that is lent the kernel knows when, and the ring what.
pub(super) fn put_right(set: &Set, event: epoll_event) -> (epoll_event, Named) {
    let named = sets::by_key(event.u64);
    let may_report_gone = set.registry.may_report_gone.load(Ordering::Relaxed);
    if named.is_none()
        && let Some((s, m)) = registration::lent_with(set, event)
    {
        return put_lent_right(event, &s, &s.members[m]);
    }
    if named.is_none() && may_report_gone != 0 {
        return put_plain_right(set, event, may_report_gone);
    }
    let Some(Some((s, m))) = &named else { return (event, named) };
    let member = &s.members[*m];
    if !member.has(bit::LENT) || !member.is_in(set.index()) {
        return (event, named);
    }
    let end = (EPOLLERR | EPOLLHUP) as u32;
    // More than an end is told only of what is armed, by another process where it is spent here.
    let armed = if event.events & !end != 0 { bit::SPENT } else { 0 };
    member.set_bit(bit::IDLE_IN | bit::IDLE_OUT | armed, false);
    let told = || report_of(s, member).or_else(|| asked_elsewhere(s, member, event.events));
    let told = if member.has(bit::SPENT) { None } else { told() };
    told.map_or((event, Some(None)), |event| (event, None))
}

/// The same for one that may be the program's, of a socket whose peer has gone. What happened the kernel knows.
fn put_plain_right(set: &Set, event: epoll_event, may_report_gone: u32) -> (epoll_event, Named) {
    if event.events & ENDED != 0
        && let Some(ours) = registration::adopt_gone(set, event.u64)
    {
        return (event, Some(Some(ours)));
    }
    // Of a set that others have nobody knows of which ends it was told.
    let may_be_gone = may_report_gone > 1 || event.events & ENDED != 0;
    let gone = || registration::gone_with(set, event.u64);
    let Some((s, m)) = may_be_gone.then(gone).flatten() else {
        return if set.registry.is_left(event.u64) { without_reset(event) } else { (whole(set, event), None) };
    };
    let member = &s.members[m];
    match shown_of(&s, member, asked_with(member, event.events)) {
        0 => (event, Some(None)),
        events => (epoll_event { events, ..event }, None),
    }
}

/// An event of a registration that is left behind: its peer has ended, and not reset the connection as the kernel says.
fn without_reset(event: epoll_event) -> (epoll_event, Named) {
    let events = event.events & !(EPOLLERR | EPOLLHUP) as u32;
    (epoll_event { events, ..event }, if events == 0 { Some(None) } else { None })
}

/// An event that tells of more than the end of a stream that was told before: all there is to tell comes with it.
fn whole(set: &Set, event: epoll_event) -> epoll_event {
    let further = event.events & (EPOLLERR | EPOLLHUP) as u32 != 0;
    let told = || registration::reported_end_with(set, event.u64);
    let Some((s, m)) = further.then(told).flatten() else { return event };
    let member = &s.members[m];
    epoll_event { events: event.events | shown_of(&s, member, asked_with(member, event.events)), ..event }
}

/// What the program asks for where the kernel has `told` this: of one whose stream's end was told by an edge the kernel may have been asked
/// for the rest only.
fn asked_with(member: &Member, told: u32) -> u32 {
    if member.knows_end() { told | member.events.load(Ordering::Relaxed) } else { told }
}

/// What the program is told of an event of a member that is lent, and whose bytes may be in a ring.
fn put_lent_right(event: epoll_event, s: &Ref, member: &Member) -> (epoll_event, Named) {
    let events = registration::shown(member, event.events, |asked| ready_of(s, member, asked));
    // Its ring may be at its end.
    teardown::mark_due(s);
    if events == 0 { (event, Some(None)) } else { (epoll_event { events, ..event }, None) }
}

/// Whether an event is among those told already; what is new of it is added there. The kernel tells of a level-triggered entry each time
/// it is asked.
pub(super) fn is_told(told: &mut [epoll_event], event: epoll_event) -> bool {
    let same = told.iter_mut().find(|other| other.u64 == event.u64);
    same.is_some_and(|other| {
        other.events |= event.events;
        true
    })
}
