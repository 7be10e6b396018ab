//! epoll_ctl(2).

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, epoll_event};
use madrigal_report::Reason;
use madrigal_sys::Errno;

use super::adopt::{forget_member, register, watch};
use super::list::activate;
use super::nested::nest;
use super::{Member, Set, bit, id, key, set_of};
use crate::sock::{self, Ref};
use crate::{leave, plain};

/// epoll_ctl(2); `call` is the kernel's.
pub(crate) fn control(
    epfd: c_int,
    op: c_int,
    fd: c_int,
    event: Option<epoll_event>,
    call: impl Fn() -> c_int,
) -> c_int {
    let (Some((index, set)), Some(s)) = (set_of(epfd), sock::enter(fd)) else {
        return control_other(epfd, op, fd, event, call);
    };
    let member = s.members.iter().find(|m| m.is_in(index) && m.fd.load(Ordering::Relaxed) == fd);
    match (op, member, event) {
        (EPOLL_CTL_MOD, Some(member), Some(event)) if member.has(bit::ADOPTED) && is_exclusive(member, event) => {
            crate::outcome::set_errno(Errno::INVAL);
            -1
        }
        (EPOLL_CTL_ADD, Some(member), Some(event)) if member.has(bit::DETACHED) => {
            member.set_bit(bit::DETACHED, false);
            modify_adopted(set, &s, member, epfd, event)
        }
        (EPOLL_CTL_MOD | EPOLL_CTL_DEL, Some(member), _) if member.has(bit::DETACHED) => {
            crate::outcome::set_errno(Errno::NOENT);
            -1
        }
        (EPOLL_CTL_MOD, Some(member), Some(event)) if member.has(bit::ADOPTED) => {
            modify_adopted(set, &s, member, epfd, event)
        }
        (EPOLL_CTL_DEL, Some(member), _) if member.has(bit::ADOPTED) => {
            member.set_bit(bit::DETACHED, true);
            0
        }
        (EPOLL_CTL_ADD, None, Some(event)) => add((index, set), &s, epfd, fd, event, call),
        (EPOLL_CTL_MOD, Some(member), Some(event)) => {
            let result = call();
            if result == 0 {
                member.ask(event);
            }
            result
        }
        (EPOLL_CTL_DEL, Some(member), _) => {
            let result = call();
            if result == 0 {
                forget_member(set, member);
            }
            result
        }
        _ => call(),
    }
}

/// The kernel modifies no exclusive entry, and makes none exclusive.
fn is_exclusive(member: &Member, event: epoll_event) -> bool {
    (member.events.load(Ordering::Relaxed) | event.events) & libc::EPOLLEXCLUSIVE as u32 != 0
}

/// A descriptor that is no TCP socket of ours, or a set we do not know.
fn control_other(epfd: c_int, op: c_int, fd: c_int, event: Option<epoll_event>, call: impl Fn() -> c_int) -> c_int {
    if let Some(s) = sock::enter(fd) {
        // A set nobody told us about would show doorbells.
        leave::leave_for_good(&s, fd, Reason::EventSet, true);
    }
    let result = call();
    if let (0, Some((_, outer)), Some((inner, set))) = (result, set_of(epfd), set_of(fd)) {
        watch(inner, set);
        nest(outer, inner + 1, op, event);
    }
    result
}

fn add(
    (index, set): (u32, &Set),
    s: &Ref,
    epfd: c_int,
    fd: c_int,
    event: epoll_event,
    call: impl Fn() -> c_int,
) -> c_int {
    let Some((m, member)) = s.members.iter().enumerate().find(|(_, m)| !m.is_used()) else {
        leave::leave_for_good(s, fd, Reason::EventSet, true);
        return call();
    };
    let _receiving = s.rlock.lock();
    let adopted = plain::session_receives(s);
    let result = if adopted { register(epfd, EPOLL_CTL_ADD, fd, key(s, m)) } else { call() };
    if result != 0 {
        return result;
    }
    member.fd.store(fd, Ordering::Relaxed);
    member.state.store(if adopted { bit::ADOPTED } else { 0 }, Ordering::Relaxed);
    member.round.store(0, Ordering::Relaxed);
    member.ask(event);
    member.set.store(index + 1, Ordering::Release);
    set.tcp.fetch_add(1, Ordering::AcqRel);
    if adopted {
        set.adopted.fetch_add(1, Ordering::AcqRel);
        activate(set, id(s, m), member);
        // The first report may have woken a thread before it could know the member.
        return stir_sleepers(set, s, m, epfd, fd);
    }
    result
}

/// The kernel's registration stays ours; a thread asleep on the set is made to look again.
fn modify_adopted(set: &Set, s: &Ref, member: &Member, epfd: c_int, event: epoll_event) -> c_int {
    member.ask(event);
    let Some(m) = s.members.iter().position(|x| core::ptr::eq(x, member)) else { return 0 };
    activate(set, id(s, m), member);
    stir_sleepers(set, s, m, epfd, member.fd.load(Ordering::Relaxed))
}

/// Makes threads asleep on the set look at its active members again.
fn stir_sleepers(set: &Set, s: &Ref, m: usize, epfd: c_int, fd: c_int) -> c_int {
    // SYNC: SeqCst with `sleep::Sleepers`: a sleeper counts itself and then looks at the list.
    if set.sleepers.load(Ordering::SeqCst) == 0 {
        return 0;
    }
    // A modified entry that is writable, as this one always is, is reported at once.
    register(epfd, EPOLL_CTL_MOD, fd, key(s, m))
}
