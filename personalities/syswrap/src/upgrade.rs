//! Earning a ring: the offer of the connecting end, the answer of the accepting end, and the switch of each direction.
//!
//! 1. After its eighth send, or 256 KiB either way, the connecting end takes a slot, writes a fresh nonce into it and posts an offer.
//! 2. The accepting end finds the offer by the connection's addresses in one of its data calls, maps the arena, checks nonce and
//!    generation, writes its own nonce and wins or loses one compare-exchange against a withdrawal.
//! 3. Each reader becomes READY in a receive (it echoes the writer's nonce: from now on it understands doorbells).
//! 4. Each writer switches in a send or receive: it writes how many bytes the kernel has carried, and goes on in the ring. The
//!    connecting end switches first, so that an accepting end that rings for space is always understood.
//!
//! Stale files, stale addresses and strangers never match, for only fresh nonces count; an accepting end that is not wrapped never
//! answers, and the offer is withdrawn.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use madrigal_drivers::shm::layout::{Slot, stage, state};
use madrigal_report::{Path, Reason};
use madrigal_sys::{cpu, process as proc, raw, tcp, time};

use crate::arenas::{self, Lease, Unmapped};
use crate::offers::{self, Offer};
use crate::session::{self, View, phase};
use crate::sock::{Sock, flag, mode, role};
use crate::{epoll, holders, process};

/// Sends that earn the first try: a session costs both ends together about as much as ten small exchanges.
pub(crate) const FIRST_TRY: u32 = 8;
/// Bytes, either way, that earn a try.
const EARNED_BYTES: u64 = 256 << 10;
/// Data calls, and time, an offer stands without an answer.
const OFFER_LOOKS: u32 = 64;
const OFFER_NS: u64 = 1_000_000_000;

/// Called at the beginning of every data call on a connection: does whatever is next on the way to a ring. Cheap when nothing is.
#[inline]
pub(crate) fn step(s: &Sock, fd: c_int) {
    match s.mode() {
        mode::SESSION => {}
        mode::OFFERED => await_answer(s, fd),
        _ => match s.role() {
            role::CLIENT if has_earned(s) => try_offer(s, fd),
            role::SERVER if s.seen_offers.load(Ordering::Relaxed) != offers::posts() => look(s, fd),
            _ => {}
        },
    }
}

#[inline]
fn has_earned(s: &Sock) -> bool {
    let due = s.next_try.load(Ordering::Relaxed);
    s.sends.load(Ordering::Relaxed) + 1 >= due
        || s.bytes.load(Ordering::Relaxed) >= EARNED_BYTES.saturating_mul(u64::from(due / FIRST_TRY))
}

/// The next try needs twice the traffic.
pub(crate) fn back_off(s: &Sock) {
    let due = s.next_try.load(Ordering::Relaxed);
    s.next_try.store(due.saturating_mul(2).max(FIRST_TRY), Ordering::Relaxed);
    s.sends.store(0, Ordering::Relaxed);
    s.bytes.store(0, Ordering::Relaxed);
}

/// Why this connection may not move now, if so.
fn obstacle(s: &Sock, fd: c_int) -> Option<Reason> {
    if let Some(reason) = process::off().or_else(|| s.never()) {
        return Some(reason);
    }
    if s.has(flag::CORK) {
        return Some(Reason::Corked);
    }
    if !holders::is_sole(s) {
        return Some(if holders::unknown(&s.holders) { Reason::SharedUnknown } else { Reason::Shared });
    }
    if !s.members.iter().all(epoll::Member::may_move) {
        return Some(Reason::EventSet);
    }
    (!tcp::established(fd)).then_some(Reason::NotOpen)
}

// --- the connecting end -------------------------------------------------------------------------------------------------------

#[cold]
fn try_offer(s: &Sock, fd: c_int) {
    let Some(guard) = s.wlock.try_lock().filter(|g| !g.nested()) else { return };
    if s.mode() == mode::KERNEL
        && let Err(reason) = offer(s, fd, None)
    {
        s.tell(Path::Tcp, Some(reason));
        back_off(s);
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
    let posted = lay_out(s, fd, lease, index).and_then(|generation| {
        let offer = offers::post(&s.tuple, |offer| describe(offer, lease, index, generation))?;
        s.session.offer.store(offers::index_of(offer) + 1, Ordering::Relaxed);
        Some(())
    });
    if posted.is_none() {
        lease.give_up(index);
        s.session.clear();
        return Err(Reason::TableFull);
    }
    s.session.offered_at.store(time::now_ns(), Ordering::Relaxed);
    s.mode.store(mode::OFFERED, Ordering::Release);
    Ok(())
}

/// Writes our side of a fresh slot; returns its new generation.
fn lay_out(s: &Sock, fd: c_int, lease: &Lease, index: u32) -> Option<u64> {
    let slot = s.session.open(lease, index, 0)?;
    for dir in &slot.dir {
        dir.reset();
    }
    let block = lease.arena().small_block(index, 0);
    s.session.producer.open(&slot.dir[0], block);
    slot.left.store(0, Ordering::Relaxed);
    introduce(slot, 0, fd)?;
    let generation = (slot.stage.load(Ordering::Relaxed) >> 8).wrapping_add(1) & (u64::MAX >> 8);
    slot.stage.store(generation << 8 | stage::OFFERED, Ordering::Release);
    Some(generation)
}

/// Writes who we are into side `side` of a slot.
fn introduce(slot: &Slot, side: usize, fd: c_int) -> Option<()> {
    let line = &slot.side[side];
    line.cookie.store(tcp::cookie(fd).ok()?, Ordering::Relaxed);
    line.pid.store(proc::own_pid(), Ordering::Relaxed);
    line.fd.store(fd as u32, Ordering::Relaxed);
    line.nonce.store(proc::random() | 1, Ordering::Relaxed);
    Some(())
}

fn describe(offer: &Offer, lease: &Lease, index: u32, generation: u64) {
    offer.arena_fd.store(lease.shown_fd().map_or(0, |fd| fd as u32 + 1), Ordering::Relaxed);
    offer.arena.store(lease.arena().id(), Ordering::Relaxed);
    offer.slot.store(index, Ordering::Relaxed);
    offer.generation.store(generation, Ordering::Relaxed);
    let nonce = lease.arena().slot(index).map_or(0, |s| s.side[0].nonce.load(Ordering::Relaxed));
    offer.nonce.store(nonce, Ordering::Relaxed);
}

/// The offer this end has out, if it still is ours.
fn own_offer(s: &Sock) -> Option<&'static Offer> {
    let offer = offers::offer_at(s.session.offer.load(Ordering::Relaxed).checked_sub(1)?)?;
    let nonce = s.session.slot()?.side[0].nonce.load(Ordering::Relaxed);
    (offer.nonce.load(Ordering::Relaxed) == nonce).then_some(offer)
}

fn await_answer(s: &Sock, fd: c_int) {
    let Some(slot) = s.session.slot() else { return };
    let looks = s.session.offer_looks.fetch_add(1, Ordering::Relaxed);
    if slot.stage.load(Ordering::Acquire) & stage::MASK == stage::ATTACHED {
        return accepted(s, fd);
    }
    let answer = own_offer(s).map_or(offers::stage::FREE, |o| o.stage.load(Ordering::Acquire));
    let waiting = answer == offers::stage::POSTED || answer == offers::stage::TAKEN;
    let late = looks > OFFER_LOOKS
        || looks.is_multiple_of(8) && time::now_ns() > s.session.offered_at.load(Ordering::Relaxed) + OFFER_NS;
    if waiting && !late {
        return;
    }
    let Some(_guard) = s.wlock.try_lock().filter(|g| !g.nested()) else { return };
    if s.mode() != mode::OFFERED || !take_back(s) {
        return;
    }
    let result = match answer {
        offers::stage::OTHER_ARENA => {
            let bound = own_offer(s).map_or(0, |o| o.answer.load(Ordering::Relaxed));
            forget_offer(s);
            offer(s, fd, Some(bound))
        }
        offers::stage::REFUSED => {
            forget_offer(s);
            s.set_never(Reason::OtherUser);
            Err(Reason::OtherUser)
        }
        _ => {
            forget_offer(s);
            Err(Reason::NoAnswer)
        }
    };
    if let Err(reason) = result {
        s.tell(Path::Tcp, Some(reason));
        back_off(s);
    }
}

/// Wins or loses the slot against the accepting end; true: the offer is off.
fn take_back(s: &Sock) -> bool {
    let Some(slot) = s.session.slot() else { return true };
    let word = slot.stage.load(Ordering::Acquire);
    let off = (word & !stage::MASK) | stage::WITHDRAWN;
    word & stage::MASK != stage::ATTACHED
        && slot.stage.compare_exchange(word, off, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// Gives slot and table place of a withdrawn offer back.
fn forget_offer(s: &Sock) {
    free_place(s);
    if let Some(lease) = s.session.lease() {
        lease.give_up(s.session.slot_index());
    }
    s.session.clear();
    s.mode.store(mode::KERNEL, Ordering::Release);
}

fn free_place(s: &Sock) {
    if let Some(offer) = own_offer(s) {
        offer.stage.store(offers::stage::FREE, Ordering::Release);
    }
    s.session.offer.store(0, Ordering::Relaxed);
}

/// Takes back an offer nobody has answered, if there is one. False: it was answered in the same moment.
pub(crate) fn withdraw(s: &Sock) -> bool {
    if s.mode() != mode::OFFERED {
        return true;
    }
    if !take_back(s) {
        return false;
    }
    forget_offer(s);
    true
}

fn accepted(s: &Sock, fd: c_int) {
    let Some(_guard) = s.wlock.try_lock().filter(|g| !g.nested()) else { return };
    if s.mode() != mode::OFFERED {
        return;
    }
    begin(s, fd);
}

/// The offer was answered: the session begins. Under the send lock.
pub(crate) fn begin(s: &Sock, fd: c_int) {
    free_place(s);
    let (Some(lease), Some(slot)) = (s.session.lease(), s.session.slot()) else { return };
    lease.set_peer(slot.side[1].pid.load(Ordering::Relaxed));
    lease.hide();
    start(s, fd);
}

fn start(s: &Sock, fd: c_int) {
    if s.record().is_none() {
        // Inherited: the record is in the parent's report.
        s.relist(fd);
    }
    let nodelay = raw::sockopt_int(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY).unwrap_or(0);
    s.session.nodelay.store(nodelay as u32, Ordering::Relaxed);
    let nonblock = raw::fcntl(fd, libc::F_GETFL, 0).is_ok_and(|f| f & libc::O_NONBLOCK != 0);
    s.set_flag(flag::NONBLOCK, nonblock);
    session::tell_linger(s);
    s.mode.store(mode::SESSION, Ordering::SeqCst);
}

// --- the accepting end --------------------------------------------------------------------------------------------------------

#[cold]
fn look(s: &Sock, fd: c_int) {
    let posts = offers::posts();
    if s.never().is_some() || process::off().is_some() || !holders::is_sole(s) {
        // Looked at again when the next offer is posted: a fork's copies may be gone by then.
        return s.seen_offers.store(posts, Ordering::Relaxed);
    }
    let Some(_guard) = s.wlock.try_lock().filter(|g| !g.nested()) else { return };
    if s.mode() != mode::KERNEL || !s.tuple.is_known() && s.tuple.learn(fd, false).is_err() {
        return;
    }
    s.seen_offers.store(posts, Ordering::Relaxed);
    if !process::port_wanted(s.tuple.port()) {
        return s.set_never(Reason::PortOff);
    }
    let Some(offer) = offers::find(&s.tuple) else { return };
    let answer = match accept(s, fd, offer) {
        Ok(()) => offers::stage::ACCEPTED,
        Err(answer) => answer,
    };
    offer.stage.store(answer, Ordering::Release);
}

/// Attaches to what an offer describes; the error is the stage to answer with.
fn accept(s: &Sock, fd: c_int, offer: &Offer) -> Result<(), u32> {
    if let Some(reason) = obstacle(s, fd) {
        s.tell(Path::Tcp, Some(reason));
        return Err(offers::stage::FREE);
    }
    let pid = offer.pid.load(Ordering::Relaxed);
    let shown = offer.arena_fd.load(Ordering::Relaxed).checked_sub(1).map(|fd| fd as i32);
    let another = || {
        offer.answer.store(process::id(), Ordering::Relaxed);
        offers::stage::OTHER_ARENA
    };
    let lease = arenas::of_peer(offer.arena.load(Ordering::Relaxed), pid, shown).map_err(|e| match e {
        Unmapped::Unknown => another(),
        Unmapped::NotNow => offers::stage::FREE,
        Unmapped::Refused => {
            s.set_never(Reason::OtherUser);
            offers::stage::REFUSED
        }
    })?;
    if !lease.arena().bind(process::id()) {
        // Two accepting processes found it unbound in the same moment.
        session::release_unused(s, lease);
        return Err(another());
    }
    attach(s, fd, offer, lease).ok_or_else(|| {
        session::release_unused(s, lease);
        offers::stage::FREE
    })
}

fn attach(s: &Sock, fd: c_int, offer: &Offer, lease: &'static Lease) -> Option<()> {
    let index = offer.slot.load(Ordering::Relaxed);
    let slot = s.session.open(lease, index, 1)?;
    let offered = offer.generation.load(Ordering::Relaxed) << 8 | stage::OFFERED;
    let client = &slot.side[0];
    let fresh = slot.stage.load(Ordering::Acquire) == offered
        && client.nonce.load(Ordering::Relaxed) == offer.nonce.load(Ordering::Relaxed);
    if !fresh {
        return None;
    }
    introduce(slot, 1, fd)?;
    // SYNC: AcqRel: our lines are written before the peer sees ATTACHED; the peer's withdrawal and this exclude each other.
    slot.stage
        .compare_exchange(offered, offered ^ stage::OFFERED ^ stage::ATTACHED, Ordering::AcqRel, Ordering::Relaxed)
        .ok()?;
    start(s, fd);
    Some(())
}

// --- the switch ---------------------------------------------------------------------------------------------------------------

/// Makes the receiving side READY if nothing stands in the way. Under the receive lock.
pub(crate) fn ready(v: &View<'_>, fd: c_int) -> bool {
    let s = v.s;
    s.session.rx.store(phase::SWITCHING, Ordering::SeqCst);
    // SYNC: SeqCst on both sides: a thread entering a kernel receive counts itself and then looks at the phase.
    let alone = s.in_recv.load(Ordering::SeqCst) == 0;
    let position = if alone && s.never().is_none() { tcp::bytes_read(fd).ok() } else { None };
    let Some(position) = position.filter(|_| epoll::adopt(s)) else {
        s.session.rx.store(phase::KERNEL, Ordering::SeqCst);
        return false;
    };
    s.session.pos.store(position, Ordering::Relaxed);
    s.session.rx.store(phase::READY, Ordering::SeqCst);
    v.inn.r.cpu.store(cpu::current() + 1, Ordering::Relaxed);
    // SYNC: Release pairs with the Acquire in `switch`: everything above is in place before the first doorbell can come.
    v.inn.r.ready.store(v.peer.nonce.load(Ordering::Relaxed), Ordering::Release);
    true
}

/// Moves the sending side into the ring if nothing stands in the way. Under the send lock.
pub(crate) fn switch(v: &View<'_>, fd: c_int) -> bool {
    let s = v.s;
    let understood = v.out.r.ready.load(Ordering::Acquire) == v.own.nonce.load(Ordering::Relaxed);
    // The connecting end comes first. The other one waits until it has read what that sent by the kernel: doorbells come behind it.
    let in_turn = s.session.side() == 0 || s.session.rx() == phase::RING;
    if !understood || !in_turn || s.has(flag::CORK) || s.session.producer.is_sealed(v.out) {
        return false;
    }
    s.session.tx.store(phase::SWITCHING, Ordering::SeqCst);
    // SYNC: SeqCst on both sides: a thread entering a kernel send counts itself and then looks at the phase.
    let alone = s.in_send.load(Ordering::SeqCst) == 0;
    let position = if alone { tcp::bytes_written(fd).ok() } else { None };
    let Some(position) = position else {
        s.session.tx.store(phase::KERNEL, Ordering::SeqCst);
        return false;
    };
    // Doorbells must not wait for acknowledgements.
    let _ = raw::set_sockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1);
    v.out.w.n_kernel.store(position, Ordering::Relaxed);
    v.out.w.cpu.store(cpu::current() + 1, Ordering::Relaxed);
    v.out.w.state.store(state::RING, Ordering::SeqCst);
    if s.session.producer.is_sealed(v.out) {
        // Sealed in the same moment: nothing was published and no doorbell sent, so the kernel simply goes on.
        v.out.w.state.store(state::DONE, Ordering::SeqCst);
        s.session.tx.store(phase::DONE, Ordering::SeqCst);
        return false;
    }
    s.session.tx.store(phase::RING, Ordering::SeqCst);
    epoll::settle(s);
    if let Some(record) = s.record() {
        record.moves.store(record.moves.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        record.set(Path::Shm, None);
    }
    true
}

/// Brings the receiving side of a program that only sends as far as it can go, so that the peer can ring for space.
#[inline]
pub(crate) fn advance(v: &View<'_>, fd: c_int) {
    if !matches!(v.s.session.rx(), phase::RING | phase::DONE) {
        advance_slowly(v, fd);
    }
}

#[cold]
fn advance_slowly(v: &View<'_>, fd: c_int) {
    let Some(guard) = v.s.rlock.try_lock() else { return };
    if guard.nested() {
        return;
    }
    match v.s.session.rx() {
        phase::KERNEL => {
            ready(v, fd);
        }
        phase::READY if is_drained_of_kernel(v) => v.s.session.rx.store(phase::RING, Ordering::SeqCst),
        _ => {}
    }
}

/// Whether a side that is READY has read all that the writer sent by the kernel before it switched.
pub(crate) fn is_drained_of_kernel(v: &View<'_>) -> bool {
    v.s.session.rx() == phase::READY
        && v.inn.w.state.load(Ordering::SeqCst) != state::KERNEL
        && v.s.session.pos.load(Ordering::Relaxed) == v.inn.w.n_kernel.load(Ordering::Acquire)
}
