//! The scan of a set's members that may have something to report ([`crate::state::registration::scan`]).

use core::sync::atomic::Ordering;

use libc::epoll_event;
use madrigal_progress::wait::Peer;
use madrigal_shm_ring::layout::state;

use super::{WRITABLE, ready};
use crate::lifecycle::leave::relieve;
use crate::state::member::{Member, bit};
use crate::state::registration::{EventSet as _, Found, Scan, Scanned, scan};
use crate::state::session::{View, phase};
use crate::state::sets::Set;
use crate::state::sock::{self, MEMBERS, Sock};
use crate::state::socket::{Socket, view};

/// Scans every active member once and reports what is ready and was not reported in this `round` yet.
pub(super) fn collect(set: &Set, out: &mut [epoll_event], round: u32) -> Found {
    if set.registry.length.load(Ordering::SeqCst) == 0 {
        return Found::default();
    }
    let found = scan(set, out, Scan::new(round));
    if let Some(id) = found.stalled
        && let Some(s) = sock::by_index(id / MEMBERS as u32)
    {
        // Outside the lock: leaving a session takes the socket's own.
        relieve(&s, s.members[id as usize % MEMBERS].fd.load(Ordering::Relaxed));
    }
    found
}

/// Where the peer of a member that may have an event soon was last seen.
pub(super) fn peer(set: &Set) -> Peer {
    let guard = set.registry.lock.lock();
    if guard.nested() {
        return Peer::Unknown;
    }
    let first = set.active().next();
    first.and_then(|(_, s, _)| view(s, s.fd())).map_or(Peer::Unknown, |v| v.writer_is())
}

impl Scanned for Sock {
    #[inline]
    fn is_idle(&self, member: &Member) -> bool {
        view(self, member.fd.load(Ordering::Relaxed)).is_some_and(|v| v.is_idle())
    }

    fn report_of(&self, member: &Member) -> Option<epoll_event> {
        ready::report_of(self, member)
    }

    fn is_stalled(&self) -> bool {
        view(self, self.fd()).is_some_and(|v| v.was_full() && v.is_stalled())
    }

    fn may_rest(&self, member: &Member) -> bool {
        may_rest(self, member)
    }
}

fn may_rest(s: &Sock, member: &Member) -> bool {
    let Some(v) = view(s, member.fd.load(Ordering::Relaxed)) else { return false };
    if v.was_full() {
        return false;
    }
    let writes_reported = s.session.tx() == phase::RING
        || member.has(bit::IDLE_OUT)
        || member.events.load(Ordering::Relaxed) & WRITABLE == 0;
    let switched = || v.inn.w.state.load(Ordering::SeqCst) != state::KERNEL;
    match s.session.rx() {
        phase::RING => writes_reported && !View::<Socket<'_>>::CONSUMER.arm(v.inn) && v.held_for().is_none(),
        // A writer that switches finds the direction armed and rings.
        phase::READY => writes_reported && member.has(bit::IDLE_IN) && !switched(),
        _ => writes_reported && member.has(bit::IDLE_IN),
    }
}
