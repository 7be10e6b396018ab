//! The end of a session, and of a socket. The last thread at work on it does this, so that no other thread reads what is taken away.
//!
//! | what has ended | what is done | what marks it as due |
//! |---|---|---|
//! | both directions are DONE | registrations are the program's again | the hook that sees it |
//! | the peer needs nothing of us any more | `TCP_NODELAY` is the program's; the slot is left, or its release is pending ([`super::pending_release`]); the connection may earn another session | the next hook |
//! | the last descriptor is closed, and no thread sleeps on it | the slot is left; the object is free | close, and the thread that wakes |

use core::sync::atomic::Ordering;

use madrigal_shm_ring::layout::Block;
use madrigal_shm_ring::slot::Contradiction;
use madrigal_sys::raw;

use super::pending_release::Place;
use super::sock::{Sock, flag, mode};
use super::socket::view;
use super::{arenas, gate, registration};

/// Does what is due on a socket, if no uses but the caller's `own` are counted. While the process forks it stays due.
#[cold]
pub(crate) fn finish(s: &'static Sock, own: u32) {
    let Some(_pass) = gate::pass() else { return };
    if !s.uses.exclusive(own) {
        return;
    }
    if s.is_closed() {
        if !s.uses.has_parked() {
            release_pending(s);
            leave_slot(s);
            s.free();
        }
    } else if s.mode() == mode::SESSION && s.session.is_done() {
        if view(s, s.fd()).is_some_and(|v| !v.ended()) {
            s.record_end();
        }
        unhook(s);
        if !s.has(flag::STAYS) && !is_needed(s) && !is_gone(s) {
            restore_nodelay(s);
            leave_slot(s);
            s.back_off();
            s.mode.store(mode::KERNEL, Ordering::Release);
        }
    }
    s.uses.share();
}

/// Marks a session that is over as due. The caller's use of the socket, or another's, is the next to end.
#[inline]
pub(crate) fn mark_due(s: &Sock) {
    if s.mode() == mode::SESSION
        && s.session.is_done()
        && !s.session.is_gone()
        && !s.has(flag::STAYS)
        && (s.has(flag::HOOKED) || !is_needed(s))
    {
        s.uses.set_due();
    }
}

/// Whether the program is to see another end of the peer than the kernel reports. An end that is known to have come is examined.
fn is_gone(s: &Sock) -> bool {
    if let Some(v) = view(s, s.fd()) {
        v.learn_end();
    }
    s.session.is_gone()
}

fn is_needed(s: &Sock) -> bool {
    view(s, s.fd()).is_some_and(|v| v.is_needed())
}

/// Once both directions are DONE, the socket is an ordinary one to the program and the kernel again. A fork's child, or another program,
/// then finds in the kernel what the program has put there. Registrations that know of the end by an edge are an exception: they stay ours,
/// and the slot stays with them, until the socket is closed.
pub(crate) fn unhook(s: &Sock) {
    if !s.has(flag::HOOKED) || s.session.is_gone() || s.mode() != mode::SESSION || !s.session.is_done() {
        return;
    }
    s.set_flag(flag::STAYS, !registration::restore_unless_ended(s));
}

/// The kernel may hold small pieces back again, if the program lets it. This waits until the peer has taken our doorbells out: behind an
/// unacknowledged one the kernel would hold back what the program sends, and a peer that closes would not receive it. It also happens before
/// another process gets the socket, for that one asks the kernel for the program's option.
pub(crate) fn restore_nodelay(s: &Sock) {
    // To set it again would send what the kernel holds back (`MSG_MORE`).
    let is_off = s.nodelay.load(Ordering::Relaxed) == 0;
    if is_off && s.mode() == mode::SESSION && s.session.is_done() {
        let _ = raw::set_sockopt(s.fd(), libc::IPPROTO_TCP, libc::TCP_NODELAY, &0);
    }
}

/// A process that holds a socket ends, or gives the socket up. `LAST` means that no other process of its family will leave the slot. (What a
/// single process leaves behind goes with its arena, when its peer finds it dead.)
pub(crate) fn leave_last(s: &'static Sock) {
    let Some(_pass) = gate::pass().filter(|_| s.has(flag::LAST)) else { return };
    s.uses.set_due();
    if s.uses.exclusive(0) {
        release_pending(s);
        if s.mode() == mode::SESSION {
            leave_slot(s);
            s.mode.store(mode::KERNEL, Ordering::Release);
        }
        s.uses.share();
    }
}

/// The session is over for this process: leaves its slot, if there is one and no other process of its family reads it.
fn leave_slot(s: &Sock) {
    let (Some(lease), Some(lent)) = (s.lease(), s.session.lent()) else { return };
    let place = Place { lease: lease.index(), slot: s.slot_index(), side: s.session.side(), lent };
    s.session.clear();
    s.lease.store(0, Ordering::Relaxed);
    match () {
        // Another process may still drain this slot (after a fork): the last of them leaves it for our side.
        () if is_last(s) => give_back(place),
        () if s.is_closed() => lease.end_session(place.slot, place.side == 0),
        () => s.pending_release.set(place),
    }
}

/// Leaves the slot whose release is pending, if this process is the last of its family by now. Forgets it, if this process holds the socket
/// no longer. Called before another session begins, and as the socket ends.
pub(crate) fn release_pending(s: &Sock) {
    let last = is_last(s);
    if !last && !s.is_closed() {
        return;
    }
    if let Some(place) = s.pending_release.take() {
        if last {
            give_back(place);
        } else if let Some(lease) = arenas::by_index(place.lease) {
            lease.end_session(place.slot, place.side == 0);
        }
    }
}

fn is_last(s: &Sock) -> bool {
    s.is_sole() || s.has(flag::LAST)
}

/// Leaves a slot: the last side gives back what both have borrowed.
fn give_back(place: Place) {
    let Some(lease) = arenas::by_index(place.lease) else { return };
    let arena = lease.arena();
    let Some(slot) = arena.slot(place.slot) else { return };
    let free = || {
        for (dir, direction) in slot.dir.iter().enumerate() {
            let word = direction.w.block.load(madrigal_base::sync::Ordering::Relaxed);
            let given =
                Block::unpack(word, arena.memory().size()).map(|b| arena.give_block(b, place.lent.session, dir));
            if given == Some(Err(Contradiction)) {
                lease.mistrust();
            }
        }
    };
    if slot.life.leave(place.side, place.lent, free).is_err() {
        lease.mistrust();
    }
    lease.end_session(place.slot, place.side == 0);
}
