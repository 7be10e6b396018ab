//! Looking at the members of a set that may have something to tell.
//!
//! Who is told of first, where there is room for a few events only, is as in the kernel: its list is in the order in which members became
//! ready, and one that is level-triggered goes to its end when it was told of. Here each member has the *turn* it got when a look found
//! it ready; among those that became ready between two looks the order is that of the active list. A long list is not looked at to its
//! end: it is rotated, which is fair, too.

use libc::epoll_event;
use madrigal_base::sync::Ordering;

use super::{EventSet, Subject};
use crate::state::member::{Member, bit};

/// Members told of by a look at a list that is not long.
const MOST: usize = 64;
type Told = [u32; MOST];

/// What a look is for.
#[derive(Clone, Copy)]
pub(crate) struct Look {
    /// The wait it is made in: what was reported in it is not reported again.
    pub(crate) round: u32,
    /// How long a list is long; [`MOST`] at the most.
    pub(crate) long: u32,
    /// Fruitless looks at a member before it is taken off a long list.
    pub(crate) quiet: u32,
}

impl Look {
    pub(crate) fn new(round: u32) -> Self {
        Self { round, long: MOST as u32, quiet: 64 }
    }
}

/// What a look has found.
#[derive(Clone, Copy, Default)]
pub(crate) struct Found {
    /// Events that it tells.
    pub(crate) n: usize,
    /// A member whose peer is stalled.
    pub(crate) stalled: Option<u32>,
    /// Whether something that is told of stays ready until the program sees to it: whoever else sleeps on the set is to be told, too.
    pub(crate) stays: bool,
}

/// A socket, as a look sees it.
pub(crate) trait Looked: Subject {
    /// Whether there is surely nothing to read of a member's socket, no end, and nothing to be learnt: most are quiet, and looked at each time.
    fn is_quiet(&self, member: &Member) -> bool;
    /// What the program is told of a member now, by its trigger mode.
    fn report_of(&self, member: &Member) -> Option<epoll_event>;
    /// Whether its peer does not read what it has been sent.
    fn is_stalled(&self) -> bool;
    /// Whether somebody will tell when a member has something to tell: its writer, which is made to ring, or the kernel.
    fn may_rest(&self, member: &Member) -> bool;
}

/// Looks at every active member once and reports what is ready and was not reported in this round yet.
pub(crate) fn look<E: EventSet<Subject: Looked>>(set: &E, out: &mut [epoll_event], look: Look) -> Found {
    let guard = set.roll().lock.lock();
    if guard.nested() {
        return Found::default();
    }
    if set.roll().length.load(Ordering::Relaxed) > look.long { rotate(set, out, look) } else { walk(set, out, look) }
}

/// Looks at all of a list, and reports those whose turn it is.
fn walk<E: EventSet<Subject: Looked>>(set: &E, out: &mut [epoll_event], look: Look) -> Found {
    let (mut n, mut stalled, mut told) = (0, None, [0; MOST]);
    let enough = out.len() >= set.roll().length.load(Ordering::Relaxed) as usize;
    for (id, s, member) in set.active() {
        if !member.is_in(set.index()) || !member.is_live() {
            set.deactivate(member);
            continue;
        }
        if member.round.load(Ordering::Relaxed) == look.round {
            continue;
        }
        if member.may_be_passed_over() && s.is_quiet(member) {
            member.turn.store(0, Ordering::Relaxed);
            continue;
        }
        let would = || member.would_report(|| s.report_of(member));
        let event = if enough { s.report_of(member) } else { would().then_some(NO_EVENT) };
        let Some(event) = event.filter(|_| n < told.len()) else {
            member.turn.store(0, Ordering::Relaxed);
            stalled = if s.is_stalled() { Some(id) } else { stalled };
            continue;
        };
        if member.turn.load(Ordering::Relaxed) == 0 {
            member.turn.store(set.roll().next_turn(), Ordering::Relaxed);
        }
        let at = line_up(set, &mut told, n, id);
        if enough {
            out[n] = event;
            out[at..=n].rotate_right(1);
        }
        n += 1;
    }
    Found { stalled, ..report(set, out, (&told[..n], look.round), enough) }
}

const NO_EVENT: epoll_event = epoll_event { events: 0, u64: 0 };

/// Puts a member among the `n` that come before or after it; where.
fn line_up<E: EventSet>(set: &E, told: &mut Told, n: usize, id: u32) -> usize {
    let turn_of = |id: u32| set.member(id).map_or(0, |(_, member)| member.turn.load(Ordering::Relaxed));
    let turn = turn_of(id);
    let mut at = n;
    while at > 0 && turn_of(told[at - 1]) > turn {
        told[at] = told[at - 1];
        at -= 1;
    }
    told[at] = id;
    at
}

/// Notes that members are told of, as many as there is room for; `made`: their events are there already.
fn report<E: EventSet<Subject: Looked>>(
    set: &E,
    out: &mut [epoll_event],
    (told, round): (&[u32], u32),
    made: bool,
) -> Found {
    let mut found = Found::default();
    for &id in told {
        let Some((s, member)) = set.member(id).filter(|_| found.n < out.len()) else { break };
        if !made {
            let Some(event) = s.report_of(member) else { continue };
            out[found.n] = event;
        }
        found.n += 1;
        member.round.store(round, Ordering::Relaxed);
        member.quiet.store(0, Ordering::Relaxed);
        let again = member.tells_again();
        found.stays |= again;
        member.turn.store(if again { set.roll().next_turn() } else { 0 }, Ordering::Relaxed);
        if member.has(bit::SPENT) {
            set.deactivate(member);
        }
    }
    found
}

/// Looks at a long list until there are events enough, and goes on behind them the next time.
fn rotate<E: EventSet<Subject: Looked>>(set: &E, out: &mut [epoll_event], look: Look) -> Found {
    let (mut found, mut last) = (Found::default(), 0);
    for (id, s, member) in set.active() {
        if found.n == out.len() {
            // Whoever was reported goes behind those that were not: nobody starves.
            set.roll().rotate(last, |id| set.member(id));
            break;
        }
        if !member.is_in(set.index()) || !member.is_live() {
            set.deactivate(member);
            continue;
        }
        if member.round.load(Ordering::Relaxed) == look.round {
            continue;
        }
        if let Some(event) = s.report_of(member) {
            out[found.n] = event;
            found.n += 1;
            found.stays |= member.tells_again();
            last = id + 1;
            member.quiet.store(0, Ordering::Relaxed);
            member.round.store(look.round, Ordering::Relaxed);
            if member.has(bit::SPENT) {
                set.deactivate(member);
            }
        } else if s.is_stalled() {
            found.stalled = Some(id);
        } else if member.quiet.fetch_add(1, Ordering::Relaxed) > look.quiet && s.may_rest(member) {
            set.deactivate(member);
        }
    }
    found
}
