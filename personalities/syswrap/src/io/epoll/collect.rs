//! Looking at the members of a set that may have something to tell.
//!
//! Who is told of first, where there is room for a few events only, is as in the kernel: its list is in the order in which members became
//! ready, and one that is level-triggered goes to its end when it was told of. Here each member has the *turn* it got when a look found
//! it ready; among those that became ready between two looks the order is that of the active list. A long list is not looked at to its
//! end: it is rotated, which is fair, too.

use core::sync::atomic::Ordering;

use libc::epoll_event;
use madrigal_drivers::shm::layout::state;
use madrigal_netaccess::wait::Peer;

use super::WRITABLE;
use super::ready::{report_of, would_report};
use crate::lifecycle::leave::relieve;
use crate::state::member::{Member, bit};
use crate::state::session::{View, phase};
use crate::state::sets::{Set, member_of};
use crate::state::sock::{self, MEMBERS, Sock};
use crate::state::socket::{Socket, view};

/// Fruitless looks at a member before it is taken off a long active list, and how long is long.
const QUIET: u32 = 64;
const LONG: u32 = 64;
/// Members told of by a look at a list that is not long.
type Told = [u32; LONG as usize];

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
        if set.length.load(Ordering::Relaxed) > LONG { rotate(set, out, round) } else { walk(set, out, round) }
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

/// Looks at all of a list, and reports those whose turn it is.
fn walk(set: &Set, out: &mut [epoll_event], round: u32) -> (usize, Option<u32>) {
    let (mut n, mut stalled, mut told) = (0, None, [0; LONG as usize]);
    let enough = out.len() >= set.length.load(Ordering::Relaxed) as usize;
    for (id, s, member) in set.active() {
        if !member.is_in(set.index()) || !member.is_live() {
            set.deactivate(member);
            continue;
        }
        if member.round.load(Ordering::Relaxed) == round {
            continue;
        }
        let event = if enough { report_of(s, member) } else { would_report(s, member).then_some(NO_EVENT) };
        let Some(event) = event.filter(|_| n < told.len()) else {
            member.turn.store(0, Ordering::Relaxed);
            stalled = if is_stalled(s) { Some(id) } else { stalled };
            continue;
        };
        if member.turn.load(Ordering::Relaxed) == 0 {
            member.turn.store(set.next_turn(), Ordering::Relaxed);
        }
        let at = line_up(&mut told, n, id);
        if enough {
            out[n] = event;
            out[at..=n].rotate_right(1);
        }
        n += 1;
    }
    (report(set, out, (&told[..n], round), enough), stalled)
}

const NO_EVENT: epoll_event = epoll_event { events: 0, u64: 0 };

fn turn_of(id: u32) -> u64 {
    member_of(id).map_or(0, |(_, member)| member.turn.load(Ordering::Relaxed))
}

/// Puts a member among the `n` that come before or after it; where.
fn line_up(told: &mut Told, n: usize, id: u32) -> usize {
    let turn = turn_of(id);
    let mut at = n;
    while at > 0 && turn_of(told[at - 1]) > turn {
        told[at] = told[at - 1];
        at -= 1;
    }
    told[at] = id;
    at
}

/// Notes that members are told of, as many as there is room for; `made`: their events are there already. How many.
fn report(set: &Set, out: &mut [epoll_event], (told, round): (&[u32], u32), made: bool) -> usize {
    let mut n = 0;
    for &id in told {
        let Some((s, member)) = member_of(id).filter(|_| n < out.len()) else { break };
        if !made {
            let Some(event) = report_of(s, member) else { continue };
            out[n] = event;
        }
        n += 1;
        member.round.store(round, Ordering::Relaxed);
        member.quiet.store(0, Ordering::Relaxed);
        let again = member.events.load(Ordering::Relaxed) & (libc::EPOLLET | libc::EPOLLONESHOT) as u32 == 0;
        member.turn.store(if again { set.next_turn() } else { 0 }, Ordering::Relaxed);
        if member.has(bit::SPENT) {
            set.deactivate(member);
        }
    }
    n
}

/// Looks at a long list until there are events enough, and goes on behind them the next time.
fn rotate(set: &Set, out: &mut [epoll_event], round: u32) -> (usize, Option<u32>) {
    let (mut n, mut stalled, mut last) = (0, None, 0);
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
        } else if member.quiet.fetch_add(1, Ordering::Relaxed) > QUIET && may_rest(s, member) {
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
