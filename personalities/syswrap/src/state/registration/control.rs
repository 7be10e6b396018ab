//! epoll_ctl(2): what the program changes of a registration that is its own, or ours.

use core::ffi::c_int;

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLET, epoll_event};
use madrigal_base::sync::Ordering;
use madrigal_sys::Errno;

use super::entry::{forget, note_plain, put, take_out, used};
use super::{EventSet, OURS_OUT, Subject, adopt_all, adopt_one, lent, ours, wake_sleepers};
use crate::state::member::{Member, bit};
use crate::state::session::phase;

/// epoll_ctl(2) of a socket in a set that we both know; `call` is the kernel's. `None`: the socket is in too many sets to follow it into
/// one more.
pub(crate) fn control<S: Subject>(
    (set, epfd): (&S::Set, c_int),
    (s, fd): (&S, c_int),
    op: c_int,
    event: Option<epoll_event>,
    call: impl Fn() -> Result<(), Errno>,
) -> Option<Result<(), Errno>> {
    if let Some(result) = change_quickly(set, (s, fd), op, event) {
        return Some(result);
    }
    let _registering = s.lock_members();
    let by_this = |(_, member): &(usize, &Member)| member.is_in(set.index()) && member.fd.load(Ordering::Relaxed) == fd;
    let known = used(s).find(by_this);
    Some(match (op, known, event) {
        // Another process would be shown what is ours.
        (EPOLL_CTL_ADD, None, Some(_)) if s.is_hooked() && !set.is_sole() && !s.is_gone() && !s.holds_unread() => {
            return None;
        }
        (EPOLL_CTL_ADD, None, Some(event)) => {
            let (m, member) = s.members().iter().enumerate().find(|(_, member)| !member.is_used())?;
            add((set, epfd), (s, fd), (m, member), event, call)
        }
        (_, Some(known), _) if !known.1.has(bit::OURS) => changed_plainly(set, s, known, op, event, call),
        (_, Some(known), _) => change_ours(set, s, known, op, event, call),
        _ => call(),
    })
}

/// The frequent change of an event loop: it modifies the wanted events of a registration that is ours, in a set where no thread sleeps.
/// That takes a few stores under the set's lock and no system call, not even one that blocks signals: a change made by a handler on top of
/// it stays. `None`: it takes more.
fn change_quickly<S: Subject>(
    set: &S::Set,
    (s, fd): (&S, c_int),
    op: c_int,
    event: Option<epoll_event>,
) -> Option<Result<(), Errno>> {
    let guard = set.registry().lock.lock();
    let (m, member) = used(s)
        .find(|(_, member)| member.is_in(set.index()) && member.fd.load(Ordering::Relaxed) == fd)
        .filter(|(_, member)| !guard.nested() && member.has(bit::OURS) && !member.is_exclusive())?;
    let simple = set.registry().watched.load(Ordering::SeqCst) == 0
        && set.registry().sleepers.load(Ordering::SeqCst) == 0
        && set.is_sole();
    match (op, event) {
        (EPOLL_CTL_DEL, _) if simple && !member.has(bit::DETACHED) => {
            member.set_bit(bit::DETACHED, true);
            return Some(Ok(()));
        }
        (EPOLL_CTL_MOD, Some(event)) if simple && !member.has(bit::DETACHED) && !is_exclusive(event) => {
            ask(set, (s, m), member, event);
        }
        (EPOLL_CTL_ADD, Some(event)) if simple && member.has(bit::DETACHED) && !is_exclusive(event) => {
            ask(set, (s, m), member, event);
        }
        _ => return None,
    }
    drop(guard);
    // SYNC: SeqCst with `epoll::sleep`: a sleeper counts itself and then scans the list.
    if set.registry().sleepers.load(Ordering::SeqCst) > 0 {
        wake_late_sleeper(set, s, m);
    }
    Some(Ok(()))
}

/// A sleeper came meanwhile.
#[cold]
fn wake_late_sleeper<S: Subject>(set: &S::Set, s: &S, m: usize) {
    let _registering = s.lock_members();
    let member = &s.members()[m];
    if member.is_in(set.index()) && member.has(bit::OURS) {
        wake_sleepers(set, s, m, member);
    }
}

fn add<S: Subject>(
    (set, epfd): (&S::Set, c_int),
    (s, fd): (&S, c_int),
    (m, member): (usize, &Member),
    event: epoll_event,
    call: impl Fn() -> Result<(), Errno>,
) -> Result<(), Errno> {
    let becomes_ours = s.is_hooked() && set.is_sole();
    if becomes_ours && !is_exclusive(event) {
        // It does not report with the program's data: a sleeper on the set would get an event for a doorbell.
        set.ctl(epfd, EPOLL_CTL_ADD, fd, EPOLLET as u32, s.key(m))?;
    } else {
        // The kernel checks the program's request.
        call()?;
    }
    member.begin(set.index(), fd, event, 0);
    // SYNC: SeqCst with `View::others_may_sleep`: a thread that takes a doorbell from now on arms again.
    s.watchers().fetch_add(1, Ordering::SeqCst);
    set.registry().tcp.fetch_add(1, Ordering::SeqCst);
    // SYNC: SeqCst with `set_closed`, which searches members behind the last descriptor.
    if set.is_closed() {
        forget(set, s, member);
        return Ok(());
    }
    if becomes_ours {
        if !adopt_one(s, m, member) {
            // Doorbells would be shown.
            let _ = set.ctl(epfd, EPOLL_CTL_DEL, fd, 0, 0);
            forget(set, s, member);
            // The set may have been closed meanwhile, behind the call.
            return if set.is_closed() { Ok(()) } else { Err(Errno::NOMEM) };
        }
        // The first report may have woken a thread before it could know the member.
        wake_sleepers(set, s, m, member);
    } else if !set.is_sole() && s.holds_unread() && !s.is_gone() {
        lent::begin(set, member);
        // Another process may have taken it out again: the program's call has succeeded all the same.
        let _ = lent::put(set, s, m, member);
    } else {
        note_plain(set, s);
    }
    Ok(())
}

/// The registration is the program's, in the kernel.
fn changed_plainly<S: Subject>(
    set: &S::Set,
    s: &S,
    (m, member): (usize, &Member),
    op: c_int,
    event: Option<epoll_event>,
    call: impl Fn() -> Result<(), Errno>,
) -> Result<(), Errno> {
    if member.has(bit::ABSENT) {
        return changed_absently(set, s, member, op, event);
    }
    if let (EPOLL_CTL_MOD, Some(event)) = (op, event)
        && arm_as_ours(s, member, event)
    {
        return Ok(());
    }
    if let (EPOLL_CTL_MOD, Some(event), true) = (op, event, member.has(bit::LENT)) {
        if member.is_exclusive() || is_exclusive(event) {
            return Err(Errno::INVAL);
        }
        let before = (member.events.load(Ordering::Relaxed), member.data.load(Ordering::Relaxed));
        member.ask(event);
        return lent::put(set, s, m, member).inspect_err(|_| {
            // Another process has taken it out.
            member.events.store(before.0, Ordering::Relaxed);
            member.data.store(before.1, Ordering::Relaxed);
        });
    }
    call()?;
    match (op, event) {
        // Another process had taken it out.
        (EPOLL_CTL_ADD, Some(event)) if member.has(bit::LENT) => {
            member.ask(event);
            return lent::put(set, s, m, member);
        }
        (EPOLL_CTL_ADD | EPOLL_CTL_MOD, Some(event)) => member.ask(event),
        (EPOLL_CTL_DEL, _) => forget(set, s, member),
        _ => {}
    }
    Ok(())
}

/// The program arms what a session waits for: from now on it is ours. False: no session waits for it, or something else prevents it.
fn arm_as_ours<S: Subject>(s: &S, member: &Member, event: epoll_event) -> bool {
    lent::learn_changes(s);
    let waits = member.has(bit::AWAITED) && s.is_in_session() && s.rx() == phase::KERNEL;
    let others =
        || used(s).filter(|&(_, other)| !core::ptr::eq(other, member)).any(|(_, other)| other.may_have_fired());
    if !waits || is_exclusive(event) || others() {
        return false;
    }
    member.ask(event);
    adopt_all(s)
}

/// The registration is the program's, and was spent: there is none in the kernel.
fn changed_absently<S: Subject>(
    set: &S::Set,
    s: &S,
    member: &Member,
    op: c_int,
    event: Option<epoll_event>,
) -> Result<(), Errno> {
    match (op, event) {
        (EPOLL_CTL_ADD, Some(_)) => Err(Errno::EXIST),
        (EPOLL_CTL_MOD, Some(event)) if is_exclusive(event) => Err(Errno::INVAL),
        (EPOLL_CTL_MOD, Some(event)) => {
            let epfd = set.descriptor().ok_or(Errno::BADF)?;
            let fd = member.fd.load(Ordering::Relaxed);
            match set.ctl(epfd, EPOLL_CTL_ADD, fd, event.events, event.u64) {
                // Another process that has the set was first.
                Err(Errno::EXIST) => set.ctl(epfd, EPOLL_CTL_MOD, fd, event.events, event.u64)?,
                done => done?,
            }
            member.set_bit(bit::ABSENT, false);
            member.ask(event);
            Ok(())
        }
        (EPOLL_CTL_DEL, _) => {
            if let Some(epfd) = set.descriptor().filter(|_| !set.is_sole()) {
                // Another process may have asked for something.
                let _ = set.ctl(epfd, EPOLL_CTL_DEL, member.fd.load(Ordering::Relaxed), 0, 0);
            }
            forget(set, s, member);
            Ok(())
        }
        _ => Err(Errno::INVAL),
    }
}

/// The kernel's registration is ours, and stays so.
fn change_ours<S: Subject>(
    set: &S::Set,
    s: &S,
    (m, member): (usize, &Member),
    op: c_int,
    event: Option<epoll_event>,
    call: impl Fn() -> Result<(), Errno>,
) -> Result<(), Errno> {
    // What is changed quickly is changed under this.
    let _lock = set.registry().lock.lock();
    let detached = member.has(bit::DETACHED);
    let events = ours(set, s, member);
    match (op, event) {
        (EPOLL_CTL_ADD, Some(event)) if detached => ask(set, (s, m), member, event),
        (EPOLL_CTL_MOD | EPOLL_CTL_DEL, _) if detached => return Err(Errno::NOENT),
        // The kernel modifies no exclusive entry, and makes none exclusive.
        (EPOLL_CTL_MOD, Some(event)) if (member.is_exclusive() || is_exclusive(event)) => return Err(Errno::INVAL),
        (EPOLL_CTL_MOD, Some(event)) => ask(set, (s, m), member, event),
        (EPOLL_CTL_DEL, _) => {
            member.set_bit(bit::DETACHED, true);
            if set.registry().watched.load(Ordering::Relaxed) != 0 || !set.is_sole() {
                take_out(set, s, member);
            }
            return Ok(());
        }
        // Added twice, or nonsense: the kernel returns the error.
        _ => return call(),
    }
    if ours(set, s, member) & !events != 0
        && let Some(epfd) = set.descriptor()
    {
        let _ = put(set, epfd, member, OURS_OUT, s.key(m));
    }
    wake_sleepers(set, s, m, member);
    Ok(())
}

fn is_exclusive(event: epoll_event) -> bool {
    event.events & libc::EPOLLEXCLUSIVE as u32 != 0
}

/// A registration that is ours is (again) what the program asks for, and is scanned next. Under the set's lock.
#[inline]
fn ask<S: Subject>(set: &S::Set, (s, m): (&S, usize), member: &Member, event: epoll_event) {
    member.ask(event);
    set.activate_locked(s.id(m), member);
}
