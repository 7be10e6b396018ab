//! Translation of the kernel's events into the program's. An event of a registration that is ours only has its member scanned. An event of
//! one that is lent, or whose peer has gone, is replaced by what we know better.

use core::sync::atomic::Ordering;

use libc::{EPOLLERR, EPOLLHUP, epoll_event};

use super::ENDED;
use super::ready::{asked_elsewhere, ready_of, report_of, shown_of};
use crate::state::member::{Member, bit};
use crate::state::sets::{self, Set};
use crate::state::sock::Ref;
use crate::state::{registration, teardown};

/// `None`: the event is the program's. Else the member that it names, if that is one yet: nothing is reported.
pub(super) type Named = Option<Option<(Ref, usize)>>;

/// The program's event, or the member that the kernel's event names. Of a lent one the kernel knows when, and the ring what.
pub(super) fn translate_event(set: &Set, event: epoll_event) -> (epoll_event, Named) {
    let named = sets::by_key(event.u64);
    let may_report_gone = set.registry.may_report_gone.load(Ordering::Relaxed);
    if named.is_none()
        && let Some((s, m)) = registration::lent_with(set, event)
    {
        return translate_lent(event, &s, &s.members[m]);
    }
    if named.is_none() && may_report_gone != 0 {
        return translate_plain(set, event, may_report_gone);
    }
    let Some(Some((s, m))) = &named else { return (event, named) };
    let member = &s.members[*m];
    if !member.has(bit::LENT) || !member.is_in(set.index()) {
        return (event, named);
    }
    let end = (EPOLLERR | EPOLLHUP) as u32;
    // More than an end is reported only of what is armed, by another process where it is spent here.
    let armed = if event.events & !end != 0 { bit::SPENT } else { 0 };
    member.set_bit(bit::IDLE_IN | bit::IDLE_OUT | armed, false);
    let reported = || report_of(s, member).or_else(|| asked_elsewhere(s, member, event.events));
    let reported = if member.has(bit::SPENT) { None } else { reported() };
    reported.map_or((event, Some(None)), |event| (event, None))
}

/// The same for one that may be the program's, of a socket whose peer has gone. The kernel reports that something happened.
fn translate_plain(set: &Set, event: epoll_event, may_report_gone: u32) -> (epoll_event, Named) {
    if event.events & ENDED != 0
        && let Some(ours) = registration::adopt_gone(set, event.u64)
    {
        return (event, Some(Some(ours)));
    }
    // For a set that other processes have, too, it is not known which ends it has reported.
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

/// An event of a registration that is left behind: its peer has ended, and not reset the connection as the kernel reports.
fn without_reset(event: epoll_event) -> (epoll_event, Named) {
    let events = event.events & !(EPOLLERR | EPOLLHUP) as u32;
    (epoll_event { events, ..event }, if events == 0 { Some(None) } else { None })
}

/// An event that reports more than the end of a stream that was reported before: all there is to report comes with it.
fn whole(set: &Set, event: epoll_event) -> epoll_event {
    let further = event.events & (EPOLLERR | EPOLLHUP) as u32 != 0;
    let reported = || registration::reported_end_with(set, event.u64);
    let Some((s, m)) = further.then(reported).flatten() else { return event };
    let member = &s.members[m];
    epoll_event { events: event.events | shown_of(&s, member, asked_with(member, event.events)), ..event }
}

/// What the program asks for where the kernel has `reported` this. If an edge has reported the stream's end, the kernel may have been asked
/// for the rest only.
fn asked_with(member: &Member, reported: u32) -> u32 {
    if member.knows_end() { reported | member.events.load(Ordering::Relaxed) } else { reported }
}

/// The program's event for one of a lent member, whose bytes may be in a ring.
fn translate_lent(event: epoll_event, s: &Ref, member: &Member) -> (epoll_event, Named) {
    let events = registration::shown(member, event.events, |asked| ready_of(s, member, asked));
    // Its ring may be at its end.
    teardown::mark_due(s);
    if events == 0 { (event, Some(None)) } else { (epoll_event { events, ..event }, None) }
}

/// Whether an event is among those reported already; what is new of it is added there. The kernel reports a level-triggered entry each time
/// it is asked.
pub(super) fn is_reported(reported: &mut [epoll_event], event: epoll_event) -> bool {
    let same = reported.iter_mut().find(|other| other.u64 == event.u64);
    same.is_some_and(|other| {
        other.events |= event.events;
        true
    })
}
