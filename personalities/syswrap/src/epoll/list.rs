//! The active list: members that may have something to tell. Doubly linked through the members; under the set's lock.

use core::sync::atomic::Ordering;

use libc::epoll_event;
use madrigal_drivers::shm::layout::state;
use madrigal_netaccess::wait::Peer;

use super::ready::{relieve, report_of};
use super::{Member, Set, bit, member_of};
use crate::session::{self, View, phase};
use crate::sock::{self, MEMBERS, Sock};

/// Fruitless looks at a member before it is taken off a long active list, and how long is long.
const QUIET: u32 = 64;
const LONG: u32 = 64;

/// Puts a member on its set's active list.
pub(super) fn activate(set: &Set, id: u32, member: &Member) {
    let _lock = set.lock.lock();
    set.activations.fetch_add(1, Ordering::Relaxed);
    member.quiet.store(0, Ordering::Relaxed);
    if !member.has(bit::ACTIVE) {
        push(set, id, member);
    }
}

/// Takes a member off its set's active list, if it is on it. Under the lock.
pub(super) fn deactivate(set: &Set, member: &Member) {
    if !member.has(bit::ACTIVE) {
        return;
    }
    let (next, prev) = (member.next.load(Ordering::Relaxed), member.prev.load(Ordering::Relaxed));
    match prev.checked_sub(1).and_then(member_of) {
        Some((_, before)) => before.next.store(next, Ordering::Relaxed),
        None => set.first.store(next, Ordering::Relaxed),
    }
    match next.checked_sub(1).and_then(member_of) {
        Some((_, after)) => after.prev.store(prev, Ordering::Relaxed),
        None => set.last.store(prev, Ordering::Relaxed),
    }
    member.set_bit(bit::ACTIVE, false);
    set.length.fetch_sub(1, Ordering::SeqCst);
}

fn push(set: &Set, id: u32, member: &Member) {
    member.set_bit(bit::ACTIVE, true);
    let last = set.last.swap(id + 1, Ordering::Relaxed);
    member.next.store(0, Ordering::Relaxed);
    member.prev.store(last, Ordering::Relaxed);
    match last.checked_sub(1).and_then(member_of) {
        Some((_, before)) => before.next.store(id + 1, Ordering::Relaxed),
        None => set.first.store(id + 1, Ordering::Relaxed),
    }
    set.length.fetch_add(1, Ordering::SeqCst);
}

/// The active members, first to last. Under the lock; the current one may be taken off meanwhile.
pub(super) fn active(set: &Set) -> impl Iterator<Item = (u32, &'static Sock, &'static Member)> {
    let mut next = set.first.load(Ordering::Relaxed);
    // A list cannot be longer than this: a loop would be our own bug, and must not hang a program.
    let mut left = set.length.load(Ordering::Relaxed);
    core::iter::from_fn(move || {
        left = left.checked_sub(1)?;
        let id = next.checked_sub(1)?;
        let (s, member) = member_of(id)?;
        next = member.next.load(Ordering::Relaxed);
        Some((id, s, member))
    })
}

/// Looks at every active member once and reports what is ready and was not reported in this `round` yet.
pub(super) fn collect(index: u32, set: &Set, out: &mut [epoll_event], round: u32) -> usize {
    if set.length.load(Ordering::SeqCst) == 0 {
        return 0;
    }
    let (n, stalled) = {
        let guard = set.lock.lock();
        if guard.nested() {
            return 0;
        }
        walk(index, set, out, round)
    };
    if let Some(id) = stalled
        && let Some(s) = sock::by_index(id / MEMBERS as u32)
    {
        // Outside the lock: leaving a session takes the socket's own.
        relieve(&s, s.members[id as usize % MEMBERS].fd.load(Ordering::Relaxed));
    }
    n
}

/// Where the peer of a member that may have something to tell soon was last seen.
pub(super) fn peer(set: &Set) -> Peer {
    let guard = set.lock.lock();
    if guard.nested() {
        return Peer::Unknown;
    }
    active(set).next().and_then(|(_, s, _)| session::view(s)).map_or(Peer::Unknown, |v| v.writer_is())
}

fn walk(index: u32, set: &Set, out: &mut [epoll_event], round: u32) -> (usize, Option<u32>) {
    let (mut n, mut stalled, mut last) = (0, None, 0);
    let long = set.length.load(Ordering::Relaxed) > LONG;
    for (id, s, member) in active(set) {
        if n == out.len() {
            // Whoever was reported goes behind those that were not: nobody starves.
            rotate(set, last);
            break;
        }
        if !member.is_in(index) || !member.is_live() {
            deactivate(set, member);
            continue;
        }
        if member.round.load(Ordering::Relaxed) == round {
            continue;
        }
        if let Some(event) = report_of(s, member) {
            out[n] = event;
            n += 1;
            last = id + 1;
            member.quiet.store(0, Ordering::Relaxed);
            member.round.store(round, Ordering::Relaxed);
            if member.has(bit::SPENT) {
                deactivate(set, member);
            }
        } else if is_stalled(s) {
            stalled = Some(id);
        } else if long && member.quiet.fetch_add(1, Ordering::Relaxed) > QUIET && may_rest(s, member) {
            deactivate(set, member);
        }
    }
    (n, stalled)
}

/// Makes the member behind `last` (an id plus one) the first of the list.
fn rotate(set: &Set, last: u32) {
    let Some((_, member)) = last.checked_sub(1).and_then(member_of) else { return };
    let next = member.next.load(Ordering::Relaxed);
    let (Some((_, new_first)), true) = (next.checked_sub(1).and_then(member_of), member.has(bit::ACTIVE)) else {
        return;
    };
    let (first, end) = (set.first.load(Ordering::Relaxed), set.last.load(Ordering::Relaxed));
    if let (Some((_, a)), Some((_, z))) =
        (first.checked_sub(1).and_then(member_of), end.checked_sub(1).and_then(member_of))
    {
        z.next.store(first, Ordering::Relaxed);
        a.prev.store(end, Ordering::Relaxed);
        member.next.store(0, Ordering::Relaxed);
        new_first.prev.store(0, Ordering::Relaxed);
        set.first.store(next, Ordering::Relaxed);
        set.last.store(last, Ordering::Relaxed);
    }
}

fn is_stalled(s: &Sock) -> bool {
    s.session.full_since.load(Ordering::Relaxed) != 0 && session::view(s).is_some_and(|v| v.is_stalled())
}

/// Whether somebody will tell when a member has something to tell: its writer, which is made to ring, or the kernel.
fn may_rest(s: &Sock, member: &Member) -> bool {
    let Some(v) = session::view(s) else { return false };
    if s.session.full_since.load(Ordering::Relaxed) != 0 {
        return false;
    }
    let told_out = s.session.tx() == phase::RING
        || member.has(bit::QUIET_OUT)
        || member.events.load(Ordering::Relaxed) & super::WRITABLE == 0;
    match s.session.rx() {
        phase::RING => told_out && !View::CONSUMER.arm(v.inn),
        // A writer that switches finds the direction armed and rings.
        phase::READY => told_out && member.has(bit::QUIET_IN) && v.inn.w.state.load(Ordering::SeqCst) == state::KERNEL,
        _ => told_out && member.has(bit::QUIET_IN),
    }
}
