//! The kernel's entry of a member, and how a member leaves its set.

use core::ffi::c_int;

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD};
use madrigal_base::sync::Ordering;
use madrigal_sys::Errno;

use super::{EventSet, Subject};
use crate::state::lock::Guard;
use crate::state::member::{Member, bit};

/// Members of a socket that are in a set, each by its place.
pub(super) fn used<S: Subject>(s: &S) -> impl Iterator<Item = (usize, &Member)> {
    s.members().iter().enumerate().filter(|(_, member)| member.is_used())
}

/// Makes the kernel's entry of a member this.
pub(super) fn put<E: EventSet>(set: &E, epfd: c_int, member: &Member, events: u32, data: u64) -> Result<(), Errno> {
    let fd = member.fd.load(Ordering::Relaxed);
    if member.has(bit::ORPHAN) {
        // The number may be another socket's.
        return Err(Errno::BADF);
    }
    if member.has(bit::ABSENT) {
        return set.ctl(epfd, EPOLL_CTL_ADD, fd, events, data).inspect(|()| member.set_bit(bit::ABSENT, false));
    }
    if member.is_exclusive() {
        // An exclusive entry cannot be modified, and one becomes exclusive only as it is added.
        return set.ctl(epfd, EPOLL_CTL_DEL, fd, 0, 0).and_then(|()| set.ctl(epfd, EPOLL_CTL_ADD, fd, events, data));
    }
    set.ctl(epfd, EPOLL_CTL_MOD, fd, events, data)
}

/// Removes the kernel's entry of a member that has nothing to report, until the program asks for something.
pub(super) fn be_absent<E: EventSet>(set: &E, epfd: c_int, member: &Member) {
    member.set_bit(bit::ABSENT, true);
    let _ = set.ctl(epfd, EPOLL_CTL_DEL, member.fd.load(Ordering::Relaxed), 0, 0);
}

/// A member is ours no longer; `None`: it is none any more.
pub(super) fn withdraw<'a, S: Subject>(set: &'a S::Set, s: &S, member: &Member) -> Option<Guard<'a>> {
    // Once this lock was ours, no thread is in the middle of a scan of the session, nor of a quick change of the member.
    let lock = set.registry().lock.lock();
    if member.has(bit::DETACHED) {
        take_out(set, s, member);
        return None;
    }
    if member.has(bit::OURS) {
        set.deactivate(member);
        member.set_bit(bit::OURS | bit::REPORTED, false);
        set.registry().ours.fetch_sub(1, Ordering::AcqRel);
    }
    Some(lock)
}

/// A registration of the socket is the program's: notes what the kernel may report of it.
pub(super) fn note_plain<S: Subject>(set: &S::Set, s: &S) {
    let may_report = if s.is_gone() { 2 } else { u32::from(s.is_in_session()) };
    set.registry().may_report_gone.fetch_max(may_report, Ordering::Relaxed);
}

/// A member of ours leaves the kernel's set. Under the set's lock.
pub(super) fn take_out<S: Subject>(set: &S::Set, s: &S, member: &Member) {
    if let Some(epfd) = set.descriptor() {
        let _ = set.ctl(epfd, EPOLL_CTL_DEL, member.fd.load(Ordering::Relaxed), 0, 0);
    }
    forget_locked(set, s, member);
}

/// The member leaves its set. With the socket's members locked.
pub(super) fn forget<S: Subject>(set: &S::Set, s: &S, member: &Member) {
    let _lock = set.registry().lock.lock();
    forget_locked(set, s, member);
}

fn forget_locked<S: Subject>(set: &S::Set, s: &S, member: &Member) {
    s.watchers().fetch_sub(1, Ordering::SeqCst);
    set.registry().tcp.fetch_sub(1, Ordering::AcqRel);
    if member.has(bit::OURS) {
        set.registry().ours.fetch_sub(1, Ordering::AcqRel);
    }
    end_lending(set, member);
    set.deactivate(member);
    member.clear();
}

/// It is lent no longer.
pub(super) fn end_lending<E: EventSet>(set: &E, member: &Member) {
    if member.has(bit::LENT) {
        member.set_bit(bit::LENT, false);
        set.registry().lent.fetch_sub(1, Ordering::Relaxed);
    }
}
