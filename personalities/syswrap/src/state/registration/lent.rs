//! Registrations of a family. After a fork, parent and child share the kernel's entries, and each of them may change what both are sent. So
//! the kernel's entry is what the program asks for, with its data and in its trigger mode. What one process changes, arms or takes out, the
//! other sees. An event that is reported once goes to one of them.
//!
//! The kernel does not know the events of a LENT socket:
//!
//! * Its peer has gone otherwise than the kernel reports. The kernel reports an end, and we know which.
//! * Bytes are unread in the ring, and could not be handed back. An entry that asks for bytes asks for [`MARK`], too, which a socket that
//!   sends by the kernel has nearly always. It is reported as what is in the ring. The reader of the last byte takes the mark off.

use core::ffi::c_int;

use libc::{
    EPOLLERR, EPOLLET, EPOLLHUP, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLPRI, EPOLLRDHUP, EPOLLRDNORM, EPOLLWRNORM,
    epoll_event,
};
use madrigal_base::sync::Ordering;
use madrigal_sys::Errno;

use super::entry::{self, end_lending, note_plain, used};
use super::{EventSet, Subject};
use crate::state::member::{Member, bit};

/// Few programs request it: it means the same as `EPOLLOUT`.
const MARK: u32 = EPOLLWRNORM as u32;
const READS: u32 = (EPOLLIN | EPOLLRDNORM) as u32;
const ENDS: u32 = (EPOLLERR | EPOLLHUP) as u32;

/// Other processes had these sets, and are gone. The kernel knows what they changed. Called before the program's wanted events are used.
pub(super) fn learn_changes<S: Subject>(s: &S) {
    for (_, member) in used(s).filter(|(_, member)| member.has(bit::SHARED)) {
        let Some(set) = s.set_of(member).filter(|set| set.is_sole()) else { continue };
        member.set_bit(bit::SHARED, false);
        if !member.has(bit::OURS | bit::LENT | bit::ORPHAN) {
            learn_change(&*set, s, member);
        }
    }
}

fn learn_change<S: Subject>(set: &S::Set, s: &S, member: &Member) {
    let Some(epfd) = set.descriptor() else { return };
    let (asked, data) = (member.events.load(Ordering::Relaxed), member.data.load(Ordering::Relaxed));
    match set.entry(epfd, member.fd.load(Ordering::Relaxed)) {
        // Without /proc there is nothing better.
        Err(_) => {}
        Ok(None) if member.has(bit::ABSENT) => {}
        Ok(None) => entry::forget(set, s, member),
        // It is spent, and reports nothing before it is modified.
        Ok(Some(entry)) if entry.events & ENDS == 0 => {
            member.events.store(asked | EPOLLONESHOT as u32, Ordering::Relaxed)
        }
        Ok(Some(entry)) => {
            let events = entry.events & !ENDS;
            let expected = if member.knows_end() { behind_end(asked) } else { asked };
            if (events, entry.data) != (expected, data) {
                member.ask(epoll_event { events: events & !(MARK & !asked), u64: entry.data });
                member.set_bit(bit::ABSENT, false);
            }
        }
    }
}

/// An entry that had nothing more to report is to report once more.
pub(super) fn put_back<S: Subject>(s: &S, m: usize, member: &Member) {
    let Some(set) = s.set_of(member) else { return };
    member.forget_edges();
    begin(&*set, member);
    if put(&*set, s, m, member) == Err(Errno::EXIST) {
        // Another process has put it back, as one that is lent.
        member.set_bit(bit::ABSENT, false);
    }
}

/// The wanted events that may still come behind the end of the stream.
pub(super) fn behind_end(asked: u32) -> u32 {
    asked & !(READS | EPOLLPRI as u32 | EPOLLRDHUP as u32)
}

pub(super) fn begin<E: EventSet>(set: &E, member: &Member) {
    member.set_bit(bit::LENT, true);
    set.registry().lent.fetch_add(1, Ordering::Relaxed);
}

/// Makes the kernel's entry report when the program is to get an event, in the program's trigger mode. An event that the kernel would report
/// all the time, and the program never gets, is reported once. Our key would mean nothing to another process that has closed the socket.
pub(super) fn put<S: Subject>(set: &S::Set, s: &S, m: usize, member: &Member) -> Result<(), Errno> {
    let wanted = member.events.load(Ordering::Relaxed);
    let shown = s.end_events() | READS | (EPOLLOUT | EPOLLWRNORM) as u32;
    let reports = !member.has(bit::SPENT) && (!s.is_gone() || shown & (wanted | ENDS) != 0);
    let mark = if wanted & READS != 0 && s.holds_unread() && !s.is_gone() { MARK } else { 0 };
    let epfd = set.descriptor().ok_or(Errno::BADF)?;
    let data = if set.is_sole() && s.is_gone() { s.key(m) } else { member.data.load(Ordering::Relaxed) };
    entry::put(set, epfd, member, if reports { wanted | mark } else { EPOLLET as u32 }, data)
}

/// The ring is read: the kernel's entry is the program's without the mark. The kernel knows what the program asks for by now, for another
/// process may have changed it.
pub(super) fn take_back<S: Subject>(set: &S::Set, s: &S, member: &Member, epfd: c_int) {
    let known = set.entry(epfd, member.fd.load(Ordering::Relaxed));
    let Ok(entry) = known else {
        // Without /proc there is nothing better.
        end_lending(set, member);
        let (events, data) = (member.events.load(Ordering::Relaxed), member.data.load(Ordering::Relaxed));
        let _ = entry::put(set, epfd, member, events, data);
        return;
    };
    let Some(entry) = entry else { return entry::forget(set, s, member) };
    if member.has(bit::SPENT) && entry.events & !ENDS == EPOLLET as u32 {
        // Spent before the fork, and not armed since. Another process that has the set may arm it.
        if set.is_sole() {
            end_lending(set, member);
            member.set_bit(bit::ABSENT, true);
            let _ = set.ctl(epfd, libc::EPOLL_CTL_DEL, member.fd.load(Ordering::Relaxed), 0, 0);
        }
        return;
    }
    end_lending(set, member);
    note_plain(set, s);
    let events = entry.events & !(MARK | ENDS);
    member.events.store(events, Ordering::Relaxed);
    member.data.store(entry.data, Ordering::Relaxed);
    member.set_bit(bit::SPENT, false);
    if entry.events & MARK != 0 {
        // The kernel checks the socket again, and reports what is there.
        let _ = entry::put(set, epfd, member, events, entry.data);
    }
}

/// The lent member of which the kernel has `reported` this, and whose peer has not gone.
pub(crate) fn lent_with<E: EventSet>(set: &E, reported: epoll_event) -> Option<(E::Held, usize)> {
    if set.registry().lent.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let find = |is_it: &dyn Fn(&Member) -> bool| {
        let lent = |member: &Member| member.is_in(set.index()) && member.has(bit::LENT) && is_it(member);
        set.subjects().find_map(|s| {
            let m = s.members().iter().position(lent).filter(|_| !s.is_gone())?;
            Some((s, m))
        })
    };
    let known = find(&|member| member.data.load(Ordering::Relaxed) == reported.u64);
    if known.is_some() || reported.events & MARK == 0 {
        return known;
    }
    // Another process has set the mark.
    let epfd = set.descriptor()?;
    find(&|member| {
        let entry = set.entry(epfd, member.fd.load(Ordering::Relaxed));
        entry.is_ok_and(|entry| entry.is_some_and(|entry| entry.data == reported.u64))
    })
}

/// The events of a lent member to report, where the kernel has `reported` these. `ready` returns what is ready of some events. 0: none.
pub(crate) fn shown(member: &Member, reported: u32, ready: impl FnOnce(u32) -> u32) -> u32 {
    if reported & !ENDS == 0 && member.has(bit::SPENT) {
        return 0;
    }
    let marked = reported & MARK != 0;
    let asked = if marked { reported & !MARK | EPOLLIN as u32 } else { reported };
    match ready(asked) & (asked | ENDS) {
        // Another descriptor may have the same data, and its event must not be lost.
        0 if !marked => reported,
        shown => shown,
    }
}
