//! The end of a session, and of a socket: made by whoever is the last at work on it, so that nobody looks at what is taken away.
//!
//! | what has ended | what is done | by whom it is marked as due |
//! |---|---|---|
//! | both directions are DONE | registrations are the program's again | the hook that sees it |
//! | the peer needs nothing of us any more | `TCP_NODELAY` is the program's; the slot is left, or that is owed ([`super::owed`]); the connection may earn another session | the next hook |
//! | the last descriptor is closed, and nobody sleeps on it | the slot is left; the object is free | close, and who wakes up |

use core::sync::atomic::Ordering;

use madrigal_shm_ring::layout::Block;
use madrigal_shm_ring::slot::Contradiction;
use madrigal_sys::raw;

use super::owed::Place;
use super::sock::{Sock, flag, mode};
use super::socket::view;
use super::{arenas, gate, registration};

/// Does what is due on a socket, if nobody but the caller's `own` holds are at work on it. While the process forks it stays due.
#[cold]
pub(crate) fn settle(s: &'static Sock, own: u32) {
    let Some(_pass) = gate::pass() else { return };
    if !s.hold.exclusive(own) {
        return;
    }
    if s.is_closed() {
        if !s.hold.has_parked() {
            leave_owed(s);
            leave_slot(s);
            s.free();
        }
    } else if s.mode() == mode::SESSION && s.session.is_done() {
        if view(s, s.fd()).is_some_and(|v| !v.ended()) {
            s.tell_over();
        }
        unhook(s);
        if !s.has(flag::STAYS) && !is_needed(s) && !is_gone(s) {
            restore_nodelay(s);
            leave_slot(s);
            s.back_off();
            s.mode.store(mode::KERNEL, Ordering::Release);
        }
    }
    s.hold.share();
}

/// Marks a session that is over as due; the caller's hold is the next to end, or another's.
#[inline]
pub(crate) fn note(s: &Sock) {
    if s.mode() == mode::SESSION
        && s.session.is_done()
        && !s.session.is_gone()
        && !s.has(flag::STAYS)
        && (s.has(flag::HOOKED) || !is_needed(s))
    {
        s.hold.set_due();
    }
}

/// Whether the program is to be told another end of the peer than the kernel tells. An end that is known to have come is looked into.
fn is_gone(s: &Sock) -> bool {
    if let Some(v) = view(s, s.fd()) {
        v.learn_end();
    }
    s.session.is_gone()
}

fn is_needed(s: &Sock) -> bool {
    view(s, s.fd()).is_some_and(|v| v.is_needed())
}

/// The socket is an ordinary one to the program and the kernel again, once both directions are DONE: what a fork's child, or another
/// program, finds in the kernel is what the program has put there. But for registrations that know of its end by an edge: they stay ours, and
/// the slot stays with them, until the socket is closed.
pub(crate) fn unhook(s: &Sock) {
    if !s.has(flag::HOOKED) || s.session.is_gone() || s.mode() != mode::SESSION || !s.session.is_done() {
        return;
    }
    s.set_flag(flag::STAYS, !registration::restore_unless_ended(s));
}

/// The kernel may hold small pieces back again, if the program lets it: once the peer has taken our doorbells out, for behind one that is not
/// acknowledged it would hold back what the program sends, and a peer that closes would not have had it. Or before somebody else has the
/// socket, who asks the kernel what the program wishes.
pub(crate) fn restore_nodelay(s: &Sock) {
    // To set it again would send what the kernel holds back (`MSG_MORE`).
    let is_off = s.nodelay.load(Ordering::Relaxed) == 0;
    if is_off && s.mode() == mode::SESSION && s.session.is_done() {
        let _ = raw::set_sockopt(s.fd(), libc::IPPROTO_TCP, libc::TCP_NODELAY, &0);
    }
}

/// A process ends that holds a socket, or gives it up: `LAST` says that nobody else of its family will leave the slot. (What a single
/// process leaves behind goes with its arena, when its peer finds it dead.)
pub(crate) fn leave_last(s: &'static Sock) {
    let Some(_pass) = gate::pass().filter(|_| s.has(flag::LAST)) else { return };
    s.hold.set_due();
    if s.hold.exclusive(0) {
        leave_owed(s);
        if s.mode() == mode::SESSION {
            leave_slot(s);
            s.mode.store(mode::KERNEL, Ordering::Release);
        }
        s.hold.share();
    }
}

/// The session is over for this process: leaves its slot, if there is one and nobody else of its family looks into it.
fn leave_slot(s: &Sock) {
    let (Some(lease), Some(lent)) = (s.lease(), s.session.lent()) else { return };
    let place = Place { lease: lease.index(), slot: s.slot_index(), side: s.session.side(), lent };
    s.session.clear();
    s.lease.store(0, Ordering::Relaxed);
    match () {
        // Another process may still drain this slot (after a fork): the last of them says that our side has left.
        () if is_last(s) => give_back(place),
        () if s.is_closed() => lease.end_session(place.slot, place.side == 0),
        () => s.owed.owe(place),
    }
}

/// Leaves the slot of a session that was over before, if this process is the last of its family by now; forgets it, if it holds the socket
/// no longer. Before another session begins, and as the socket ends.
pub(crate) fn leave_owed(s: &Sock) {
    let last = is_last(s);
    if !last && !s.is_closed() {
        return;
    }
    if let Some(place) = s.owed.take() {
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
