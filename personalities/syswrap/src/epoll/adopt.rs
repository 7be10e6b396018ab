//! Registrations: the kernel's entry for a socket is the program's, or ours while a session can receive doorbells.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use libc::{
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLET, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLPRI, EPOLLRDHUP,
};
use madrigal_report::Reason;
use madrigal_sys::raw;

use super::list::{activate, active, deactivate};
use super::{Member, SETS, Set, bit, descriptor_of, id, key, member_of};
use crate::session::phase;
use crate::sock::{MEMBERS, SOCKS, Sock};

/// Our registration. While the kernel still carries what the socket sends, `EPOLLOUT` belongs to it; later it only serves to wake
/// a sleeper by a modification.
const OURS: u32 = (EPOLLIN | EPOLLPRI | EPOLLRDHUP | EPOLLET) as u32;
const OURS_OUT: u32 = OURS | EPOLLOUT as u32;

/// Makes every registration of the socket ours, before the first doorbell can come. Under the receive lock.
pub(crate) fn adopt(s: &Sock) -> bool {
    for (m, member) in s.members.iter().enumerate().filter(|(_, m)| m.is_used() && !m.has(bit::ADOPTED)) {
        let index = member.set.load(Ordering::Relaxed) - 1;
        let Some(set) = SETS.get(index) else { continue };
        if !take_over(s, m, member, index) {
            s.set_never(Reason::EventSet);
            return false;
        }
        member.forget_edges();
        member.set_bit(bit::ADOPTED, true);
        set.adopted.fetch_add(1, Ordering::AcqRel);
        activate(set, id(s, m), member);
    }
    true
}

fn take_over(s: &Sock, m: usize, member: &Member, index: u32) -> bool {
    let Some(epfd) = descriptor_of(index) else { return false };
    let (fd, key) = (member.fd.load(Ordering::Relaxed), key(s, m));
    let exclusive = member.events.load(Ordering::Relaxed) & libc::EPOLLEXCLUSIVE as u32 != 0;
    let changed = if exclusive {
        // An exclusive entry cannot be modified.
        raw::epoll_ctl(epfd, EPOLL_CTL_DEL, fd, 0, 0)
            .and_then(|()| raw::epoll_ctl(epfd, EPOLL_CTL_ADD, fd, OURS_OUT, key))
    } else {
        raw::epoll_ctl(epfd, EPOLL_CTL_MOD, fd, OURS_OUT, key)
    };
    changed.is_ok()
}

/// Registers member `m` with the kernel as ours; 0, or -1 with errno.
pub(super) fn register(epfd: c_int, op: c_int, fd: c_int, key: u64) -> c_int {
    match raw::epoll_ctl(epfd, op, fd, OURS_OUT, key) {
        Ok(()) => 0,
        Err(e) => {
            crate::outcome::set_errno(e);
            -1
        }
    }
}

/// Gives every registration back to the program.
pub(crate) fn restore(s: &Sock) {
    for member in s.members.iter().filter(|m| m.is_used() && m.has(bit::ADOPTED)) {
        let index = member.set.load(Ordering::Relaxed) - 1;
        let Some(set) = SETS.get(index) else { continue };
        let epfd = descriptor_of(index);
        let fd = member.fd.load(Ordering::Relaxed);
        if member.has(bit::DETACHED) {
            if let Some(epfd) = epfd {
                let _ = raw::epoll_ctl(epfd, EPOLL_CTL_DEL, fd, 0, 0);
            }
            forget_member(set, member);
            continue;
        }
        // No thread is in the middle of a look at the session once this lock was ours.
        let _lock = set.lock.lock();
        let events = if member.has(bit::SPENT) { EPOLLONESHOT as u32 } else { member.events.load(Ordering::Relaxed) };
        if let Some(epfd) = epfd {
            let data = member.data.load(Ordering::Relaxed);
            let _ = if events & libc::EPOLLEXCLUSIVE as u32 != 0 {
                // An entry becomes exclusive only as it is added.
                raw::epoll_ctl(epfd, EPOLL_CTL_DEL, fd, 0, 0)
                    .and_then(|()| raw::epoll_ctl(epfd, EPOLL_CTL_ADD, fd, events, data))
            } else {
                raw::epoll_ctl(epfd, EPOLL_CTL_MOD, fd, events, data)
            };
        }
        deactivate(set, member);
        member.set_bit(bit::ADOPTED, false);
        set.adopted.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The socket's sending side is in the ring: in watched sets the kernel need not tell that its own is writable.
pub(crate) fn settle(s: &Sock) {
    for (m, member) in s.members.iter().enumerate().filter(|(_, m)| m.is_used() && m.has(bit::ADOPTED)) {
        let index = member.set.load(Ordering::Relaxed) - 1;
        let watched = SETS.get(index).is_some_and(|set| set.watched.load(Ordering::Relaxed) != 0);
        if watched
            && s.session.tx() == phase::RING
            && let Some(epfd) = descriptor_of(index)
        {
            let _ = raw::epoll_ctl(epfd, EPOLL_CTL_MOD, member.fd.load(Ordering::Relaxed), OURS, key(s, m));
        }
    }
}

/// Threads asleep on sets with this socket are made to look at it again.
pub(crate) fn stir(s: &Sock) {
    for (m, member) in s.members.iter().enumerate().filter(|(_, m)| m.is_used() && m.has(bit::ADOPTED)) {
        let index = member.set.load(Ordering::Relaxed) - 1;
        let Some(set) = SETS.get(index) else { continue };
        activate(set, id(s, m), member);
        if set.sleepers.load(Ordering::SeqCst) > 0
            && let Some(epfd) = descriptor_of(index)
        {
            let _ = register(epfd, EPOLL_CTL_MOD, member.fd.load(Ordering::Relaxed), key(s, m));
        }
    }
}

/// The set's own descriptor is being watched: from now on our registrations in it tell of doorbells only.
pub(super) fn watch(index: u32, set: &Set) {
    if set.watched.swap(1, Ordering::AcqRel) != 0 {
        return;
    }
    for (_, s) in SOCKS.all().filter(|(_, s)| s.refs.load(Ordering::Relaxed) > 0) {
        if s.members.iter().any(|m| m.is_in(index)) {
            settle(s);
        }
    }
}

/// The member leaves its set.
pub(super) fn forget_member(set: &Set, member: &Member) {
    let _lock = set.lock.lock();
    if member.has(bit::ADOPTED) {
        set.adopted.fetch_sub(1, Ordering::AcqRel);
    }
    set.tcp.fetch_sub(1, Ordering::AcqRel);
    deactivate(set, member);
    member.clear();
}

/// The socket's last descriptor is closing: the kernel drops its registrations.
pub(crate) fn drop_members(s: &Sock) {
    for member in s.members.iter().filter(|m| m.is_used()) {
        let index = member.set.load(Ordering::Relaxed) - 1;
        match SETS.get(index) {
            Some(set) => {
                let adopted = member.has(bit::ADOPTED);
                forget_member(set, member);
                // SYNC: SeqCst with `sleep::Sleepers`: a sleeper counts itself before it arms.
                if adopted && set.sleepers.load(Ordering::SeqCst) > 0 {
                    wake_sleeper(index, set);
                }
            }
            None => member.clear(),
        }
    }
}

/// A doorbell meant for all may have been on its way to the socket that is closing: a sleeper is made to look again.
fn wake_sleeper(index: u32, set: &Set) {
    let _lock = set.lock.lock();
    if let Some((id, s, member)) = active(set).next()
        && let Some(epfd) = descriptor_of(index)
        && member_of(id).is_some()
    {
        // A modified entry that is writable, as this one is or will be, is reported at once.
        let _ = register(epfd, EPOLL_CTL_MOD, member.fd.load(Ordering::Relaxed), key(s, id as usize % MEMBERS));
    }
}
