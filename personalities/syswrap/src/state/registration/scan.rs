//! The scan of a set's members that may have something to report.
//!
//! Where there is room for a few events only, they are reported in the kernel's order. The kernel's list has members in the order in which
//! they became ready, and a level-triggered member goes to its end when it is reported. Here each member gets its place in the *order* when
//! a scan finds it ready. Members that became ready between two scans follow the order of the active list. A long list is not scanned to its
//! end: it is rotated, which is fair, too.

use libc::epoll_event;
use madrigal_base::sync::Ordering;

use super::{EventSet, Subject};
use crate::state::member::{Member, bit};

/// Members reported by a scan of a list that is not long.
const MOST: usize = 64;
type Reported = [u32; MOST];

/// What a scan is for.
#[derive(Clone, Copy)]
pub(crate) struct Scan {
    /// The wait that scans: what was reported in it is not reported again.
    pub(crate) round: u32,
    /// A list longer than this is long; [`MOST`] at the most.
    pub(crate) long: u32,
    /// Fruitless scans of a member before it is taken off a long list.
    pub(crate) idle: u32,
}

impl Scan {
    pub(crate) fn new(round: u32) -> Self {
        Self { round, long: MOST as u32, idle: 64 }
    }
}

/// What a scan has found.
#[derive(Clone, Copy, Default)]
pub(crate) struct Found {
    /// Events that it reports.
    pub(crate) n: usize,
    /// A member whose peer is stalled.
    pub(crate) stalled: Option<u32>,
    /// Whether something that is reported stays ready until the program handles it: another sleeper on the set is to get it, too.
    pub(crate) stays: bool,
}

/// A socket, as a scan sees it.
pub(crate) trait Scanned: Subject {
    /// Whether a member's socket surely has nothing to read, no end, and nothing to be learnt. Most members are idle, and each scan checks
    /// them.
    fn is_idle(&self, member: &Member) -> bool;
    /// What is reported of a member now, by its trigger mode.
    fn report_of(&self, member: &Member) -> Option<epoll_event>;
    /// Whether its peer does not read what it has been sent.
    fn is_stalled(&self) -> bool;
    /// Whether an event will come when a member has something to report: from its writer, which is made to ring, or from the kernel.
    fn may_rest(&self, member: &Member) -> bool;
}

/// Scans every active member once and reports what is ready and was not reported in this round yet.
pub(crate) fn scan<E: EventSet<Subject: Scanned>>(set: &E, out: &mut [epoll_event], scan: Scan) -> Found {
    let guard = set.registry().lock.lock();
    if guard.nested() {
        return Found::default();
    }
    if set.registry().length.load(Ordering::Relaxed) > scan.long {
        rotate(set, out, scan)
    } else {
        walk(set, out, scan)
    }
}

/// Scans all of a list, and reports the first members in the order of readiness.
fn walk<E: EventSet<Subject: Scanned>>(set: &E, out: &mut [epoll_event], scan: Scan) -> Found {
    let (mut n, mut stalled, mut reported) = (0, None, [0; MOST]);
    let enough = out.len() >= set.registry().length.load(Ordering::Relaxed) as usize;
    for (id, s, member) in set.active() {
        if !member.is_in(set.index()) || !member.is_live() {
            set.deactivate(member);
            continue;
        }
        if member.round.load(Ordering::Relaxed) == scan.round {
            continue;
        }
        if member.may_be_passed_over() && s.is_idle(member) {
            member.order.store(0, Ordering::Relaxed);
            continue;
        }
        let would = || member.would_report(|| s.report_of(member));
        let event = if enough { s.report_of(member) } else { would().then_some(NO_EVENT) };
        let Some(event) = event.filter(|_| n < reported.len()) else {
            member.order.store(0, Ordering::Relaxed);
            stalled = if s.is_stalled() { Some(id) } else { stalled };
            continue;
        };
        if member.order.load(Ordering::Relaxed) == 0 {
            member.order.store(set.registry().next_order(), Ordering::Relaxed);
        }
        let at = insert_by_order(set, &mut reported, n, id);
        if enough {
            out[n] = event;
            out[at..=n].rotate_right(1);
        }
        n += 1;
    }
    Found { stalled, ..report(set, out, (&reported[..n], scan.round), enough) }
}

const NO_EVENT: epoll_event = epoll_event { events: 0, u64: 0 };

/// Inserts a member into the `n` sorted ones; returns its place.
fn insert_by_order<E: EventSet>(set: &E, reported: &mut Reported, n: usize, id: u32) -> usize {
    let order_of = |id: u32| set.member(id).map_or(0, |(_, member)| member.order.load(Ordering::Relaxed));
    let order = order_of(id);
    let mut at = n;
    while at > 0 && order_of(reported[at - 1]) > order {
        reported[at] = reported[at - 1];
        at -= 1;
    }
    reported[at] = id;
    at
}

/// Notes that members are reported, as many as there is room for. `made`: their events are in `out` already.
fn report<E: EventSet<Subject: Scanned>>(
    set: &E,
    out: &mut [epoll_event],
    (reported, round): (&[u32], u32),
    made: bool,
) -> Found {
    let mut found = Found::default();
    for &id in reported {
        let Some((s, member)) = set.member(id).filter(|_| found.n < out.len()) else { break };
        if !made {
            let Some(event) = s.report_of(member) else { continue };
            out[found.n] = event;
        }
        found.n += 1;
        member.round.store(round, Ordering::Relaxed);
        member.idle.store(0, Ordering::Relaxed);
        let again = member.reports_again();
        found.stays |= again;
        member.order.store(if again { set.registry().next_order() } else { 0 }, Ordering::Relaxed);
        if member.has(bit::SPENT) {
            set.deactivate(member);
        }
    }
    found
}

/// Scans a long list until there are events enough. The next scan goes on behind them.
fn rotate<E: EventSet<Subject: Scanned>>(set: &E, out: &mut [epoll_event], scan: Scan) -> Found {
    let (mut found, mut last) = (Found::default(), 0);
    for (id, s, member) in set.active() {
        if found.n == out.len() {
            // Reported members go behind the others: no member starves.
            set.registry().rotate(last, |id| set.member(id));
            break;
        }
        if !member.is_in(set.index()) || !member.is_live() {
            set.deactivate(member);
            continue;
        }
        if member.round.load(Ordering::Relaxed) == scan.round {
            continue;
        }
        if let Some(event) = s.report_of(member) {
            out[found.n] = event;
            found.n += 1;
            found.stays |= member.reports_again();
            last = id + 1;
            member.idle.store(0, Ordering::Relaxed);
            member.round.store(scan.round, Ordering::Relaxed);
            if member.has(bit::SPENT) {
                set.deactivate(member);
            }
        } else if s.is_stalled() {
            found.stalled = Some(id);
        } else if member.idle.fetch_add(1, Ordering::Relaxed) > scan.idle && s.may_rest(member) {
            set.deactivate(member);
        }
    }
    found
}
