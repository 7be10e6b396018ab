//! Earning a ring: the offer of the connecting end, and the answer of the accepting end.
//!
//! 1. After its eighth send, or 256 KiB either way, the connecting end takes a slot, lays it out, and posts an offer.
//! 2. The accepting end finds the offer by the connection's addresses in one of its data calls, maps the arena, claims the slot (which
//!    excludes a withdrawal), compares generation, session and addresses, writes its part, and attaches.
//! 3. Each reader and each writer goes on from there: `session::switch`.
//!
//! Stale offers, stale addresses and other processes never match: only the numbers of this very use of the slot do. An accepting end that
//! is not wrapped never answers, and the offer is withdrawn.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use madrigal_offers::{Answer, Offer, Place, Standing};
use madrigal_report::{Path, Reason};
use madrigal_shm_ring::arena::Tag;
use madrigal_shm_ring::layout::{SideLine, Slot};
use madrigal_shm_ring::slot::Lent;
use madrigal_sys::{process as proc, raw, tcp, time};

use crate::state::arenas::{self, Lease, Unmapped};
use crate::state::session::At;
use crate::state::sock::{Sock, flag, mode, role};
use crate::state::{gate, offers, process, registration, teardown};

/// Data calls, and time, an offer stands without an answer.
const OFFER_CHECKS: u32 = 64;
const OFFER_NS: u64 = 1_000_000_000;

/// Called at the beginning of every data call on a connection: does whatever is next on the way to a ring. Cheap when nothing is.
#[inline]
pub(crate) fn step(s: &Sock, fd: c_int) {
    match s.mode() {
        mode::SESSION if s.session.is_done() => teardown::mark_due(s),
        mode::SESSION => {}
        mode::OFFERED => await_answer(s, fd),
        _ => match s.role() {
            role::CLIENT if s.has_earned() => try_offer(s, fd),
            role::SERVER if s.seen_offers.load(Ordering::Relaxed) != offers::posts() => find_offer(s, fd),
            _ => {}
        },
    }
}

/// Why this connection may not move now, if so.
fn obstacle(s: &Sock, fd: c_int) -> Option<Reason> {
    if let Some(reason) = process::off().or_else(|| s.never()) {
        return Some(reason);
    }
    if !s.is_sole() {
        return Some(if s.holders.unknown() { Reason::SharedUnknown } else { Reason::Shared });
    }
    if s.has(flag::OPTIONS_UNKNOWN) {
        s.learn_options(fd);
        if s.never().is_some() {
            return s.never();
        }
    }
    if s.session.corked.load(madrigal_base::sync::Ordering::Relaxed) != 0 {
        return Some(Reason::Corked);
    }
    if !registration::may_move(s) {
        return Some(Reason::EventSet);
    }
    (!tcp::established(fd)).then_some(Reason::NotOpen)
}

// --- the connecting end -------------------------------------------------------------------------------------------------------

#[cold]
fn try_offer(s: &Sock, fd: c_int) {
    let Some(_pass) = gate::pass() else { return };
    let Some(guard) = s.session.wlock.try_lock().filter(|guard| !guard.nested()) else { return };
    if s.mode() == mode::KERNEL
        && let Err(reason) = offer(s, fd, None)
    {
        s.record_path(Path::Tcp, Some(reason));
        s.back_off();
    }
    drop(guard);
}

fn offer(s: &Sock, fd: c_int, bound: Option<u64>) -> Result<(), Reason> {
    if let Some(reason) = obstacle(s, fd) {
        return Err(reason);
    }
    if !s.tuple.is_known() {
        s.tuple.learn(fd, true).map_err(|_| Reason::NotOpen)?;
    }
    let port = s.tuple.port();
    // The port that was asked for is, where this one is the daemon's.
    if !process::port_wanted(port) && s.routed.way().is_none() {
        return Err(Reason::PortOff);
    }
    if !offers::is_marked(fd, port)? || !offers::same_netns(fd) {
        return Err(Reason::NoListener);
    }
    let (lease, index) = arenas::lend(port, bound)?;
    let Some(lent) = lay_out(s, fd, lease, index) else {
        lease.give_up(index);
        return Err(Reason::Kernel);
    };
    s.lease.store(lease.index() + 1, Ordering::Relaxed);
    s.slot_index.store(index, Ordering::Relaxed);
    let Some(place) =
        offers::mapped().and_then(|table| table.post(&s.tuple, |offer| describe(offer, lease, index, lent)))
    else {
        // No peer has seen it.
        call_off(s);
        return Err(Reason::TableFull);
    };
    let (place, generation) = place.to_parts();
    s.offer.store(place + 1, Ordering::Relaxed);
    s.offer_generation.store(generation, Ordering::Relaxed);
    s.offer_checks.store(0, Ordering::Relaxed);
    s.offered_at.store(time::now_ns(), Ordering::Relaxed);
    s.mode.store(mode::OFFERED, Ordering::Release);
    Ok(())
}

/// Writes our side of a fresh slot, and offers it.
fn lay_out(s: &Sock, fd: c_int, lease: &Lease, index: u32) -> Option<Lent> {
    let slot = lease.arena().slot(index)?;
    for (dir, sums) in slot.dir.iter().zip(&slot.sums) {
        dir.reset();
        sums.count.store(0, Ordering::Relaxed);
    }
    introduce(&slot.side[0], s, fd)?;
    let session = Tag::fresh(proc::random());
    prepare(s, lease, (slot, index), 0, Lent { generation: 0, session });
    let lent = slot.life.offer(session);
    s.session.set_lent(lent);
    Some(lent)
}

/// Publishes the identity of this side.
fn introduce(line: &SideLine, s: &Sock, fd: c_int) -> Option<()> {
    line.cookie.store(tcp::cookie(fd).ok()?, Ordering::Relaxed);
    line.pid.store(proc::own_pid(), Ordering::Relaxed);
    line.child.store(0, Ordering::Relaxed);
    // Not the number of this call: the peer would not learn of its close.
    line.fd.store(s.fd() as u32, Ordering::Relaxed);
    line.checks.store(u32::from(process::checks()), Ordering::Relaxed);
    for (cell, word) in line.tuple.iter().zip(s.tuple.words()) {
        cell.store(word, Ordering::Relaxed);
    }
    Some(())
}

fn prepare(s: &Sock, lease: &Lease, (slot, index): (&Slot, u32), side: usize, lent: Lent) {
    teardown::release_pending(s);
    let (memory, block) = (lease.arena().memory(), lease.arena().small_block(index, side));
    s.session.prepare(At { slot, memory, lent, side, block });
}

fn describe(offer: &Offer, lease: &Lease, index: u32, lent: Lent) {
    offer.arena_fd.store(lease.shown_fd().map_or(0, |fd| fd as u32 + 1), Ordering::Relaxed);
    offer.arena.store(lease.arena().id(), Ordering::Relaxed);
    offer.slot.store(index, Ordering::Relaxed);
    offer.generation.store(lent.generation, Ordering::Relaxed);
    offer.session.store(lent.session.get(), Ordering::Relaxed);
}

/// The slot this end has offered, and which use of it.
fn offered(s: &Sock) -> Option<(&'static Lease, &Slot, Lent)> {
    let lease = s.lease()?;
    Some((lease, lease.arena().slot(s.slot_index())?, s.session.lent()?))
}

/// Where the offer stands that this end has out.
fn own_place(s: &Sock) -> Option<Place> {
    let index = s.offer.load(Ordering::Relaxed).checked_sub(1)?;
    Some(Place::from_parts(index, s.offer_generation.load(Ordering::Relaxed)))
}

fn await_answer(s: &Sock, fd: c_int) {
    let (Some((_, slot, lent)), Some(place), Some(table)) = (offered(s), own_place(s), offers::mapped()) else {
        return;
    };
    let checks = s.offer_checks.fetch_add(1, Ordering::Relaxed);
    let attached = slot.life.is_attached(lent);
    let standing = table.standing(place);
    let late = checks > OFFER_CHECKS
        || checks.is_multiple_of(8) && time::now_ns() > s.offered_at.load(Ordering::Relaxed) + OFFER_NS;
    if !attached && standing == Standing::Waiting && !late {
        return;
    }
    let Some(_pass) = gate::pass() else { return };
    let Some(_guard) = s.session.wlock.try_lock().filter(|guard| !guard.nested()) else { return };
    if s.mode() != mode::OFFERED {
        return;
    }
    if attached {
        return begin(s, fd);
    }
    let bound = table.answerer(place);
    let lease = s.lease();
    if !call_off(s) {
        return begin(s, fd);
    }
    let result = match standing {
        Standing::Answered(Answer::OtherArena) => {
            lease.inspect(|lease| lease.unmapped_by(bound));
            offer(s, fd, Some(bound))
        }
        Standing::Answered(Answer::Refused) => {
            s.set_never(Reason::OtherUser);
            Err(Reason::OtherUser)
        }
        _ => Err(Reason::NoAnswer),
    };
    if let Err(reason) = result {
        s.record_path(Path::Tcp, Some(reason));
        s.back_off();
    }
}

/// Takes back what this end has offered; false: it was accepted in the same moment, and [`begin`] follows. Under the send lock.
pub(crate) fn call_off(s: &Sock) -> bool {
    free_place(s);
    let Some((lease, slot, lent)) = offered(s) else { return true };
    let off = slot.life.withdraw(lent) || slot.life.leave_early(lent) || !slot.life.is_attached(lent);
    if off {
        let index = s.slot_index();
        s.session.clear();
        s.lease.store(0, Ordering::Relaxed);
        s.mode.store(mode::KERNEL, Ordering::Release);
        lease.end_session(index, true);
    }
    off
}

fn free_place(s: &Sock) {
    if let (Some(place), Some(table)) = (own_place(s), offers::mapped()) {
        table.free(place);
    }
    s.offer.store(0, Ordering::Relaxed);
}

/// The offer was accepted: the session begins. Under the send lock.
pub(crate) fn begin(s: &Sock, fd: c_int) {
    free_place(s);
    let Some((lease, slot, _)) = offered(s) else { return };
    lease.set_peer(slot.side[1].pid.load(Ordering::Relaxed));
    lease.hide();
    start(s, fd, slot);
}

fn start(s: &Sock, fd: c_int, slot: &Slot) {
    if s.record().is_none() {
        // Inherited: the record is in the parent's report.
        s.relist(fd);
    }
    let nodelay = raw::sockopt_int(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY).unwrap_or(0);
    s.nodelay.store(nodelay as u32, Ordering::Relaxed);
    let nonblock = raw::fcntl(fd, libc::F_GETFL, 0).is_ok_and(|f| f & libc::O_NONBLOCK != 0);
    s.set_flag(flag::NONBLOCK, nonblock);
    s.session.begin(slot);
    publish_linger(s);
    s.mode.store(mode::SESSION, Ordering::SeqCst);
}

/// Publishes to the peer what it means if this process dies.
pub(crate) fn publish_linger(s: &Sock) {
    if let Some(slot) = s.session.slot() {
        let resets = u32::from(s.has(flag::LINGER0));
        slot.dir[s.session.side()].w.resets.store(resets, Ordering::Release);
    }
}

// --- the accepting end --------------------------------------------------------------------------------------------------------

#[cold]
fn find_offer(s: &Sock, fd: c_int) {
    let posts = offers::posts();
    let is_kept_back = s.never().is_some() || process::off().is_some();
    if is_kept_back || !s.is_sole() {
        if !is_kept_back && s.holders.unknown() {
            s.record_path(Path::Tcp, Some(Reason::Uncounted));
        }
        // Checked again when the next offer is posted: a fork's copies may be gone by then.
        return s.seen_offers.store(posts, Ordering::Relaxed);
    }
    let Some(_pass) = gate::pass() else { return };
    let Some(_guard) = s.session.wlock.try_lock().filter(|guard| !guard.nested()) else { return };
    if s.mode() != mode::KERNEL || !s.tuple.is_known() && s.tuple.learn(fd, false).is_err() {
        return;
    }
    s.seen_offers.store(posts, Ordering::Relaxed);
    if !process::port_wanted(s.tuple.port()) {
        return s.set_never(Reason::PortOff);
    }
    let Some(table) = offers::mapped() else { return };
    let Some((place, offer)) = table.find(&s.tuple) else { return };
    let answer = match accept(s, fd, offer) {
        Ok(()) => Answer::Accepted,
        Err(answer) => answer,
    };
    table.answer(place, answer);
}

/// Attaches to what an offer describes; the error is the answer to it.
fn accept(s: &Sock, fd: c_int, offer: &Offer) -> Result<(), Answer> {
    if let Some(reason) = obstacle(s, fd) {
        s.record_path(Path::Tcp, Some(reason));
        return Err(Answer::No);
    }
    let pid = offer.pid.load(Ordering::Relaxed);
    let shown = offer.arena_fd.load(Ordering::Relaxed).checked_sub(1).map(|fd| fd as i32);
    let another = || {
        offer.answer.store(process::id(), Ordering::Relaxed);
        Answer::OtherArena
    };
    let lease = arenas::of_peer(offer.arena.load(Ordering::Relaxed), pid, shown).map_err(|e| match e {
        Unmapped::Unknown => another(),
        Unmapped::NotNow => Answer::No,
        Unmapped::Refused => {
            s.set_never(Reason::OtherUser);
            Answer::Refused
        }
    })?;
    if !lease.arena().bind(process::id()) {
        // Two accepting processes found it unbound in the same moment.
        lease.uncount();
        return Err(another());
    }
    let attached = attach(s, fd, offer, lease);
    if attached.is_none() {
        lease.uncount();
    }
    attached.ok_or(Answer::No)
}

fn attach(s: &Sock, fd: c_int, offer: &Offer, lease: &'static Lease) -> Option<()> {
    let index = offer.slot.load(Ordering::Relaxed);
    let slot = lease.arena().slot(index)?;
    let session = Tag::new(offer.session.load(Ordering::Relaxed))?;
    let lent = Lent { generation: offer.generation.load(Ordering::Relaxed), session };
    if !slot.life.claim(lent) {
        return None;
    }
    // Any process of this user may have written the offer into the table, and the slot: both must name this connection.
    let ours = slot.side[0].tuple.iter().zip(s.tuple.words()).all(|(cell, word)| cell.load(Ordering::Relaxed) == word);
    if !ours || introduce(&slot.side[1], s, fd).is_none() {
        slot.life.decline(lent);
        return None;
    }
    prepare(s, lease, (slot, index), 1, lent);
    if !slot.life.attach(lent) {
        s.session.clear();
        return None;
    }
    s.lease.store(lease.index() + 1, Ordering::Relaxed);
    s.slot_index.store(index, Ordering::Relaxed);
    start(s, fd, slot);
    Some(())
}
