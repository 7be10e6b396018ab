//! Looking at the members of a set that may have something to tell.

use core::sync::atomic::Ordering;

use libc::epoll_event;
use madrigal_drivers::shm::layout::state;
use madrigal_netaccess::wait::Peer;

use super::WRITABLE;
use super::ready::report_of;
use crate::lifecycle::leave::relieve;
use crate::state::member::{Member, bit};
use crate::state::session::{View, phase};
use crate::state::sets::Set;
use crate::state::sock::{self, MEMBERS, Sock};
use crate::state::socket::{Socket, view};

/// Fruitless looks at a member before it is taken off a long active list, and how long is long.
const QUIET: u32 = 64;
const LONG: u32 = 64;

/// Looks at every active member once and reports what is ready and was not reported in this `round` yet.
pub(super) fn collect(set: &Set, out: &mut [epoll_event], round: u32) -> usize {
    if set.length.load(Ordering::SeqCst) == 0 {
        return 0;
    }
    let (n, stalled) = {
        let guard = set.lock.lock();
        if guard.nested() {
            return 0;
        }
        walk(set, out, round)
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
    let first = set.active().next();
    first.and_then(|(_, s, _)| view(s, s.fd())).map_or(Peer::Unknown, |v| v.writer_is())
}

fn walk(set: &Set, out: &mut [epoll_event], round: u32) -> (usize, Option<u32>) {
    let (mut n, mut stalled, mut last) = (0, None, 0);
    let long = set.length.load(Ordering::Relaxed) > LONG;
    for (id, s, member) in set.active() {
        if n == out.len() {
            // Whoever was reported goes behind those that were not: nobody starves.
            set.rotate(last);
            break;
        }
        if !member.is_in(set.index()) || !member.is_live() {
            set.deactivate(member);
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
                set.deactivate(member);
            }
        } else if is_stalled(s) {
            stalled = Some(id);
        } else if long && member.quiet.fetch_add(1, Ordering::Relaxed) > QUIET && may_rest(s, member) {
            set.deactivate(member);
        }
    }
    (n, stalled)
}

fn is_stalled(s: &Sock) -> bool {
    view(s, s.fd()).is_some_and(|v| v.was_full() && v.is_stalled())
}

/// Whether somebody will tell when a member has something to tell: its writer, which is made to ring, or the kernel.
fn may_rest(s: &Sock, member: &Member) -> bool {
    let Some(v) = view(s, member.fd.load(Ordering::Relaxed)) else { return false };
    if v.was_full() {
        return false;
    }
    let told_out = s.session.tx() == phase::RING
        || member.has(bit::QUIET_OUT)
        || member.events.load(Ordering::Relaxed) & WRITABLE == 0;
    let switched = || v.inn.w.state.load(Ordering::SeqCst) != state::KERNEL;
    match s.session.rx() {
        phase::RING => told_out && !View::<Socket<'_>>::CONSUMER.arm(v.inn) && v.held_for().is_none(),
        // A writer that switches finds the direction armed and rings.
        phase::READY => told_out && member.has(bit::QUIET_IN) && !switched(),
        _ => told_out && member.has(bit::QUIET_IN),
    }
}
