//! Registrations: the kernel's entry for a socket in an event set is the program's, or ours while a session can receive doorbells.
//!
//! Ours is edge-triggered, for all events, with a key of ours as data. Its events only put the member on the set's active list. What is
//! reported to the program is computed from ring and kernel. States and steps: [`super::member`].

mod control;
mod entry;
mod give_back;
mod lending;
mod lent;
mod parties;
#[cfg(not(feature = "shuttle"))]
mod program;
mod scan;

use core::ffi::c_int;

use libc::{EPOLLET, EPOLLIN, EPOLLOUT, EPOLLPRI, EPOLLRDHUP};
use madrigal_base::sync::Ordering;

use super::member::{Member, bit};
use super::session::{deaths, phase};
pub(crate) use control::control;
use entry::{forget, put, take_out, used};
pub(crate) use give_back::{restore, restore_unless_ended, take_out_spent};
use give_back::{restore_all, restore_one};
pub(crate) use lending::lend;
use lending::lend_one;
pub(crate) use lent::{lent_with, shown};
pub(crate) use parties::{EventSet, Subject};
pub(crate) use scan::{Found, Scan, Scanned, scan};

/// Our registration. While the kernel still carries what the socket sends, `EPOLLOUT` belongs to it; later it only serves to wake
/// a sleeper by a modification.
const OURS: u32 = (EPOLLIN | EPOLLPRI | EPOLLRDHUP | EPOLLET) as u32;
const OURS_OUT: u32 = OURS | EPOLLOUT as u32;

/// Whether the socket's memberships are no obstacle to a session.
pub(crate) fn may_move<S: Subject>(s: &S) -> bool {
    used(s).all(|(_, member)| {
        let fits = |set: S::SetRef| set.is_sole() && set.registry().watched.load(Ordering::Relaxed) == 0;
        !member.has(bit::ORPHAN) && s.set_of(member).is_some_and(fits)
    })
}

/// Makes every registration of the socket ours, and all that are added from now on, before the first doorbell can come. False: one of
/// them cannot be, and all stay the program's. Under the receive lock.
pub(crate) fn adopt<S: Subject>(s: &S) -> bool {
    let _registering = s.lock_members();
    lent::learn_changes(s);
    let mut unknown = 0;
    for (_, member) in used(s).filter(|(_, member)| member.may_have_fired()) {
        member.set_bit(bit::AWAITED, true);
        unknown += 1;
    }
    unknown == 0 && !would_report_again(s) && adopt_all(s)
}

/// How often the adoption of edge-triggered registrations is deferred. A stream that is never read to its end has no end to wait for.
const PATIENCE: u32 = 64;

/// Whether the kernel would report bytes again, as it does for a modified entry. Such bytes must be read first.
fn would_report_again<S: Subject>(s: &S) -> bool {
    let reads = (EPOLLIN | libc::EPOLLRDNORM) as u32;
    let by_edge = |member: &Member| {
        let asked = member.events.load(Ordering::Relaxed);
        asked & EPOLLET as u32 != 0 && asked & reads != 0
    };
    let Some((_, member)) = used(s).find(|(_, member)| by_edge(member)) else { return false };
    s.has_unread() && member.put_off.fetch_add(1, Ordering::Relaxed) < PATIENCE
}

fn adopt_all<S: Subject>(s: &S) -> bool {
    for (m, member) in used(s).filter(|(_, member)| !member.has(bit::OURS)) {
        if !adopt_one(s, m, member) {
            restore_all(s);
            return false;
        }
    }
    s.set_hooked(true);
    true
}

fn adopt_one<S: Subject>(s: &S, m: usize, member: &Member) -> bool {
    let Some(set) = s.set_of(member) else { return false };
    // A set that another process waits on stays the program's.
    let stays = member.has(bit::ORPHAN) || !set.is_sole();
    let (Some(epfd), false) = (set.descriptor(), stays) else { return false };
    let _lock = set.registry().lock.lock();
    // First, for the kernel may report the new entry at once.
    member.forget_edges();
    member.put_off.store(0, Ordering::Relaxed);
    member.set_bit(bit::AWAITED, false);
    member.set_bit(bit::OURS, true);
    set.registry().ours.fetch_add(1, Ordering::AcqRel);
    if deaths() != 0 {
        // For this member the kernel was not queried since.
        set.registry().deaths.store(u32::MAX, Ordering::Relaxed);
    }
    let wakes = if set.registry().sleepers.load(Ordering::SeqCst) > 0 { OURS_OUT } else { ours(&*set, s, member) };
    let taken = put(&*set, epfd, member, wakes, s.key(m));
    if taken.is_err() {
        member.set_bit(bit::OURS, false);
        set.registry().ours.fetch_sub(1, Ordering::AcqRel);
        return false;
    }
    set.activate_locked(s.id(m), member);
    true
}

/// The events that the kernel reports of a member of ours. `EPOLLOUT` wakes a sleeper whose doorbell another thread has taken in between.
/// In a set that is itself watched it would make that set seem ready. There it is only asked for if the program asks for it and the kernel
/// carries what the program sends.
fn ours<S: Subject>(set: &S::Set, s: &S, member: &Member) -> u32 {
    let writes = member.events.load(Ordering::Relaxed) & (EPOLLOUT | libc::EPOLLWRNORM) as u32 != 0;
    let plainly = writes && s.tx() != phase::RING;
    if set.registry().watched.load(Ordering::Relaxed) != 0 && !plainly { OURS } else { OURS_OUT }
}

/// The kernel has reported an end with this data. If the socket's peer went otherwise than the kernel reports, the registration is ours from
/// now on.
pub(crate) fn adopt_gone<E: EventSet>(set: &E, data: u64) -> Option<(E::Held, usize)> {
    if !set.is_sole() {
        return None;
    }
    let (s, m) = gone_with(set, data)?;
    let adopted = {
        let _registering = s.lock_members();
        lent::learn_changes(&*s);
        let member = &s.members()[m];
        let plain = member.is_in(set.index()) && !member.has(bit::OURS | bit::ABSENT);
        // First, for the kernel may report the new entry at once.
        member.set_bit(bit::REPORTED, plain);
        let adopted = plain && adopt_one(&*s, m, member);
        if !adopted {
            member.set_bit(bit::REPORTED, false);
        }
        adopted
    };
    if adopted {
        s.set_hooked(true);
    }
    adopted.then_some((s, m))
}

/// The member that is registered with the data of a kernel event, of a socket whose peer has gone.
pub(crate) fn gone_with<E: EventSet>(set: &E, data: u64) -> Option<(E::Held, usize)> {
    plain_with(set, data, |s, _| {
        s.learn_end();
        s.is_gone()
    })
}

/// The same of a socket whose stream's end an edge reported before a fork. The kernel was asked for the other events only
/// ([`lending::lend`]).
pub(crate) fn reported_end_with<E: EventSet>(set: &E, data: u64) -> Option<(E::Held, usize)> {
    plain_with(set, data, |_, member| member.knows_end())
}

fn plain_with<E: EventSet>(
    set: &E,
    data: u64,
    is_it: impl Fn(&E::Subject, &Member) -> bool,
) -> Option<(E::Held, usize)> {
    let fits = |s: &E::Subject, member: &Member| {
        let plain = member.is_in(set.index()) && !member.has(bit::OURS | bit::ABSENT);
        plain && member.data.load(Ordering::Relaxed) == data && is_it(s, member)
    };
    set.subjects().find_map(|s| {
        let m = s.members().iter().position(|member| fits(&s, member))?;
        Some((s, m))
    })
}

/// One descriptor of the socket closes while others stay open. The kernel keeps what was registered by it, and nobody can change that any
/// more. Called just before the close: the session has been left, so a registration is ours only if its socket's peer has gone.
pub(crate) fn orphan<S: Subject>(s: &S, fd: c_int) {
    let _registering = s.lock_members();
    // This process does not correct events of a socket that it has no more.
    let stays = s.has_copies() && s.is_gone();
    for (m, member) in used(s).filter(|(_, member)| member.fd.load(Ordering::Relaxed) == fd) {
        if stays && member.is_live() && member.knows_all() {
            // The kernel would report a modified entry again. It reports this one when it wakes a waiter.
        } else if stays && member.has(bit::OURS) {
            lend_one(s, m, member);
        } else if !stays && member.has(bit::OURS | bit::LENT) {
            restore_one(s, member);
        }
        member.set_bit(bit::ORPHAN, true);
    }
}

/// Whether something is registered by this descriptor of the socket.
pub(crate) fn is_registered_by<S: Subject>(s: &S, fd: c_int) -> bool {
    used(s).any(|(_, member)| member.fd.load(Ordering::Relaxed) == fd && !member.has(bit::ORPHAN))
}

/// This process's last descriptor of the socket is closing, and another process has the socket. The kernel goes on reporting what is
/// registered. It reports a hang-up if the peer has ended and has reset the kernel's connection.
pub(crate) fn leave_behind<S: Subject>(s: &S) {
    if !s.is_gone() || s.end_events() & libc::EPOLLHUP as u32 != 0 {
        return;
    }
    for (_, member) in used(s).filter(|(_, member)| !member.has(bit::ABSENT)) {
        if let Some(set) = s.set_of(member) {
            set.registry().leave(member.data.load(Ordering::Relaxed));
        }
    }
}

/// The socket's last descriptor is closing: the kernel drops its registrations.
pub(crate) fn drop_members<S: Subject>(s: &S) {
    if used(s).next().is_none() {
        return;
    }
    let _registering = s.lock_members();
    for (_, member) in used(s) {
        let Some(set) = s.set_of(member) else { continue };
        let ours = member.has(bit::OURS);
        forget(&*set, s, member);
        // SYNC: SeqCst with `epoll::sleep`: a sleeper counts itself before it arms.
        if ours && set.registry().sleepers.load(Ordering::SeqCst) > 0 {
            wake_sleeper(&*set);
        }
    }
}

/// The kernel has an event of a member whose registration is ours: the next scan checks the member.
pub(crate) fn notified<S: Subject>(set: &S::Set, s: &S, m: usize) {
    let member = &s.members()[m];
    // SYNC: SeqCst with `Member::ask_once`.
    member.set_bit(bit::IDLE_IN | bit::IDLE_OUT | bit::WOKEN, false);
    // Under the set's lock: a member that has left the set meanwhile must not stay on its list, for it may begin again elsewhere.
    set.activate_with(s.id(m), member, || member.is_in(set.index()) && member.is_live());
}

/// Another thread has taken an event that was meant for all, such as a doorbell of a socket that is closing. Wakes a sleeper, which scans
/// again.
pub(crate) fn wake_sleeper<E: EventSet>(set: &E) {
    let _lock = set.registry().lock.lock();
    let mut changeable = set.active().filter(|(_, _, member)| !member.has(bit::ORPHAN));
    if let (Some((id, s, member)), Some(epfd)) = (changeable.next(), set.descriptor()) {
        // A modified entry that is writable, as this one is or will be, is reported at once.
        let _ = put(set, epfd, member, OURS_OUT, s.key(id as usize % s.members().len()));
    }
}

/// A set's last descriptor is closed, and with it every registration in it.
pub(crate) fn set_closed<E: EventSet>(set: &E) {
    for s in set.subjects() {
        let _registering = s.lock_members();
        for (_, member) in used(&*s).filter(|(_, member)| member.is_in(set.index())) {
            forget(set, &*s, member);
        }
    }
}

/// The socket's sending side is in the ring: in watched sets the kernel need not report that its own is writable.
pub(crate) fn stop_write_events<S: Subject>(s: &S) {
    if used(s).next().is_none() {
        return;
    }
    let _registering = s.lock_members();
    for (m, member) in used(s).filter(|(_, member)| member.has(bit::OURS)) {
        let Some(set) = s.set_of(member) else { continue };
        let _lock = set.registry().lock.lock();
        let events = ours(&*set, s, member);
        if events == OURS
            && let Some(epfd) = set.descriptor()
        {
            let _ = put(&*set, epfd, member, events, s.key(m));
        }
    }
}

/// Makes unread bytes an edge once more.
pub(crate) fn report_bytes_again<S: Subject>(s: &S) {
    let _registering = s.lock_members();
    for (m, member) in used(s).filter(|(_, member)| member.has(bit::OURS)) {
        let Some(set) = s.set_of(member) else { continue };
        set.activate_with(s.id(m), member, || {
            member.seen_in.store(u64::MAX, Ordering::Relaxed);
            true
        });
        wake_sleepers(&*set, s, m, member);
    }
}

/// The kernel is about to wake the waiters of a socket whose peer has gone: an edge, which it will report.
pub(crate) fn note_wake<S: Subject>(s: &S) {
    let _registering = s.lock_members();
    for (_, member) in used(s).filter(|(_, member)| member.is_live() && member.knows_all()) {
        member.set_bit(bit::WOKEN, true);
    }
}

/// The same for a reason of ours: no edge, unless another wake is on its way.
pub(crate) fn note_own_wake<S: Subject>(s: &S) {
    let _registering = s.lock_members();
    for (_, member) in used(s).filter(|(_, member)| member.is_live() && member.knows_all() && !member.has(bit::WOKEN)) {
        member.set_bit(bit::REPORTED, true);
    }
}

/// It has done so: entries that were taken out because they had nothing more to report now report this wake, too.
pub(crate) fn report_wake<S: Subject>(s: &S) {
    let _registering = s.lock_members();
    let waits = |member: &Member| member.has(bit::ABSENT) && !member.has(bit::ORPHAN | bit::SPENT | bit::DETACHED);
    for (m, member) in used(s).filter(|(_, member)| waits(member) && member.knows_all()) {
        lent::put_back(s, m, member);
    }
}

/// Wakes threads asleep on sets with this socket: they scan it again.
pub(crate) fn wake_sets<S: Subject>(s: &S) {
    if used(s).next().is_none() {
        return;
    }
    let _registering = s.lock_members();
    for (m, member) in used(s).filter(|(_, member)| member.has(bit::OURS)) {
        let Some(set) = s.set_of(member) else { continue };
        set.activate(s.id(m), member);
        wake_sleepers(&*set, s, m, member);
    }
    // One that reports once may have done so.
    let again = |member: &Member| s.is_gone() && member.events.load(Ordering::Relaxed) & libc::EPOLLONESHOT as u32 == 0;
    for (m, member) in used(s).filter(|(_, member)| member.has(bit::LENT) && again(member)) {
        if let Some(set) = s.set_of(member) {
            let _ = lent::put(&*set, s, m, member);
        }
    }
}

/// Wakes threads asleep on the set: they scan its active members again. With the socket's members locked.
fn wake_sleepers<S: Subject>(set: &S::Set, s: &S, m: usize, member: &Member) {
    // SYNC: SeqCst with `epoll::sleep`: a sleeper counts itself and then scans the list.
    if set.registry().sleepers.load(Ordering::SeqCst) > 0
        && let Some(epfd) = set.descriptor()
    {
        // A modified entry that is writable, as this one always is, is reported at once.
        let _ = put(set, epfd, member, OURS_OUT, s.key(m));
    }
}

/// The set's own descriptor is being watched: from now on our registrations in it, as long as there are any, report doorbells only.
/// True: it was not before.
pub(crate) fn watch<E: EventSet>(set: &E) -> bool {
    // SYNC: SeqCst, before the members are read: with `epoll::control`.
    let first = set.registry().watched.swap(1, Ordering::SeqCst) == 0;
    if first {
        for s in set.subjects() {
            // What the program has taken out would make the set look ready.
            forget_detached(&*s);
            stop_write_events(&*s);
        }
    }
    first
}

/// Removes from the kernel what the program has taken out of its sets: a child shares the kernel's entries, but has a list of its own.
pub(crate) fn forget_detached<S: Subject>(s: &S) {
    let _registering = s.lock_members();
    for (_, member) in used(s).filter(|(_, member)| member.has(bit::DETACHED)) {
        let Some(set) = s.set_of(member) else { continue };
        let _lock = set.registry().lock.lock();
        if member.has(bit::DETACHED) {
            take_out(&*set, s, member);
        }
    }
}

#[cfg(all(test, feature = "shuttle"))]
mod explored;
