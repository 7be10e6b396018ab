//! Registrations of a family: after a fork parent and child share the kernel's entries, and each of them may change what both are told. So the
//! kernel's entry is what the program asks for, with its data and in its trigger mode: what one of them changes, arms or takes out the
//! other sees, and what is to be told once is told to one of them. Of a socket that is LENT the kernel does not know what there is to tell:
//!
//! * its peer has gone otherwise than the kernel says: the kernel tells of an end, and we know of which;
//! * bytes are unread in the ring, and could not be handed back: an entry that asks for bytes asks for [`MARK`], too, which a socket that
//!   sends by the kernel shows nearly always. It is told as what is in the ring. Who reads the last of it takes the mark off.

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

/// Hardly a program asks for it: it says the same as `EPOLLOUT`.
const MARK: u32 = EPOLLWRNORM as u32;
const READS: u32 = (EPOLLIN | EPOLLRDNORM) as u32;
const ENDS: u32 = (EPOLLERR | EPOLLHUP) as u32;

/// Others had these sets, and are gone: what they changed the kernel knows. Before anything is built on what the program asks for.
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
        // Without /proc nobody knows better.
        Err(_) => {}
        Ok(None) if member.has(bit::ABSENT) => {}
        Ok(None) => entry::forget(set, s, member),
        // It is spent, and tells nothing before it is modified.
        Ok(Some(entry)) if entry.events & ENDS == 0 => {
            member.events.store(asked | EPOLLONESHOT as u32, Ordering::Relaxed)
        }
        Ok(Some(entry)) => {
            let events = entry.events & !ENDS;
            let still = if member.knows_end() { behind_end(asked) } else { asked };
            if (events, entry.data) != (still, data) {
                member.ask(epoll_event { events: events & !(MARK & !asked), u64: entry.data });
                member.set_bit(bit::ABSENT, false);
            }
        }
    }
}

/// An entry that had nothing more to tell is to tell once more.
pub(super) fn put_back<S: Subject>(s: &S, m: usize, member: &Member) {
    let Some(set) = s.set_of(member) else { return };
    member.forget_edges();
    begin(&*set, member);
    if put(&*set, s, m, member) == Err(Errno::EXIST) {
        // Another process has put it back, as one that is lent.
        member.set_bit(bit::ABSENT, false);
    }
}

/// What is left of what is asked for.
pub(super) fn behind_end(asked: u32) -> u32 {
    asked & !(READS | EPOLLPRI as u32 | EPOLLRDHUP as u32)
}

pub(super) fn begin<E: EventSet>(set: &E, member: &Member) {
    member.set_bit(bit::LENT, true);
    set.roll().lent.fetch_add(1, Ordering::Relaxed);
}

/// Makes the kernel's entry one that tells when the program is to be told, in the program's trigger mode. What the kernel would tell all
/// the time, and the program never, it tells once. Our key would say nothing to another process that has closed the socket.
pub(super) fn put<S: Subject>(set: &S::Set, s: &S, m: usize, member: &Member) -> Result<(), Errno> {
    let wanted = member.events.load(Ordering::Relaxed);
    let shown = s.end_events() | READS | (EPOLLOUT | EPOLLWRNORM) as u32;
    let tells = !member.has(bit::SPENT) && (!s.is_gone() || shown & (wanted | ENDS) != 0);
    let mark = if wanted & READS != 0 && s.holds_unread() && !s.is_gone() { MARK } else { 0 };
    let epfd = set.descriptor().ok_or(Errno::BADF)?;
    let data = if set.is_sole() && s.is_gone() { s.key(m) } else { member.data.load(Ordering::Relaxed) };
    entry::put(set, epfd, member, if tells { wanted | mark } else { EPOLLET as u32 }, data)
}

/// The ring is read: the kernel's entry is the program's without the mark. What the program asks for by now the kernel knows, for another
/// process may have changed it.
pub(super) fn take_back<S: Subject>(set: &S::Set, s: &S, member: &Member, epfd: c_int) {
    let known = set.entry(epfd, member.fd.load(Ordering::Relaxed));
    let Ok(entry) = known else {
        // Without /proc nobody knows better.
        end_lending(set, member);
        let (events, data) = (member.events.load(Ordering::Relaxed), member.data.load(Ordering::Relaxed));
        let _ = entry::put(set, epfd, member, events, data);
        return;
    };
    let Some(entry) = entry else { return entry::forget(set, s, member) };
    if member.has(bit::SPENT) && entry.events & !ENDS == EPOLLET as u32 {
        // Spent before the fork, and not armed since. What others hold they may arm.
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
        // The kernel looks at the socket anew, and reports what is there.
        let _ = entry::put(set, epfd, member, events, entry.data);
    }
}

/// The member that is lent, whose peer has not gone, and of which the kernel has told this.
pub(crate) fn lent_with<E: EventSet>(set: &E, told: epoll_event) -> Option<(E::Held, usize)> {
    if set.roll().lent.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let find = |is_it: &dyn Fn(&Member) -> bool| {
        let lent = |member: &Member| member.is_in(set.index()) && member.has(bit::LENT) && is_it(member);
        set.subjects().find_map(|s| {
            let m = s.members().iter().position(lent).filter(|_| !s.is_gone())?;
            Some((s, m))
        })
    };
    let known = find(&|member| member.data.load(Ordering::Relaxed) == told.u64);
    if known.is_some() || told.events & MARK == 0 {
        return known;
    }
    // Another process has said so.
    let epfd = set.descriptor()?;
    find(&|member| {
        let entry = set.entry(epfd, member.fd.load(Ordering::Relaxed));
        entry.is_ok_and(|entry| entry.is_some_and(|entry| entry.data == told.u64))
    })
}

/// What of a lent member is to be told, where the kernel has `told` this; `ready` says what of something there is. 0: nothing.
pub(crate) fn shown(member: &Member, told: u32, ready: impl FnOnce(u32) -> u32) -> u32 {
    if told & !ENDS == 0 && member.has(bit::SPENT) {
        return 0;
    }
    let marked = told & MARK != 0;
    let asked = if marked { told & !MARK | EPOLLIN as u32 } else { told };
    match ready(asked) & (asked | ENDS) {
        // Another descriptor may have the same data, and its event must not be lost.
        0 if !marked => told,
        shown => shown,
    }
}
