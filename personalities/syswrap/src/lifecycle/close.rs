//! The end of a descriptor: close(2), dup2(2) over it, or a range of them; and another descriptor of the same socket.

use core::ffi::c_int;
use core::sync::atomic::Ordering;
use std::os::fd::AsRawFd;

use madrigal_report::Reason;
use madrigal_sys::{fd, raw, time};

use super::earn;
use super::leave::{Back, leave_for_good, unmix};
use crate::state::callers::{self, Callers};
use crate::state::lock::Guard;
use crate::state::session::Wire;
use crate::state::sock::{self, Ref, SOCKS, Sock, flag, mode};
use crate::state::socket::{Socket, sleep_ns, view};
use crate::state::table::{self, Kind, Word};
pub(crate) use crate::state::table::{end, end_range};
use crate::state::{arenas, registration, sets, teardown};

/// Begins to close `fd`: what is ours of it ends here. The kernel's close follows, and then [`end`]: other threads' calls wait for it.
pub(crate) fn begin(fd: c_int) {
    give_up(fd, table::begin);
    table::to_kernel(fd);
}

/// [`begin`] of every descriptor in a range; [`end_range`] follows.
pub(crate) fn begin_range(from: u32, to: u32) {
    for (fd, word) in table::range(from, to) {
        if !word.is_hidden() {
            begin(fd);
        }
    }
}

/// Forgets `fd`, which the kernel has closed behind our back, or no program calls on.
pub(crate) fn forget(fd: c_int) {
    give_up(fd, table::take);
}

fn give_up(fd: c_int, take: impl FnOnce(c_int) -> Option<Word>) {
    // The hold comes first: a thread that still works on the socket must not free it under us.
    let held = sock::enter(fd);
    if let Some(s) = &held {
        retain(s, fd);
        before_close(s, fd);
    }
    // In one piece. A thread that makes a child may be leaving the session by this descriptor, whose number will soon be another socket's.
    // And a child counted as a holder must find the descriptor, or it would never let go.
    let sending = held.as_ref().map(|s| s.session.wlock.lock());
    let word = take(fd);
    let last = match (&held, word) {
        (Some(s), Some(word)) if word.is_socket() => drop_descriptor(s, fd, word),
        _ => false,
    };
    drop(sending);
    if let Some(s) = &held {
        // The calls it was retained for may just have ended.
        release(s);
    }
    match (held, word) {
        (Some(s), _) if last => {
            last_close(&s, fd);
            // The last one at work leaves the slot and frees the socket.
            s.uses.set_due();
        }
        (_, Some(word)) if word.kind() == Kind::EventSet => sets::drop_descriptor(word.index()),
        _ => {}
    }
}

/// How long a close waits for hooks that are at work on the socket: none of them is so long, but one below the signal handler that closes.
const AT_WORK_NS: u64 = 100_000_000;
/// Between checks of them.
const PAUSE_NS: u64 = 20_000;

/// Just before the last descriptor closes: a socket on which other threads' calls sleep lives on by one of our own, until they are over.
fn retain(s: &Ref, fd: c_int) {
    let is_last = s.refs.load(Ordering::Relaxed) == 1 && !table::is_hidden(fd);
    let is_shared = || s.uses.at_work() > 1 || s.uses.has_parked();
    if is_last && is_shared() && has_callers(s) {
        retain_by_copy(s, fd);
        // One that woke up just now may still go by the old number.
        let _ = has_callers(s);
    }
}

/// Whether other threads' calls sleep on the socket. Waits until no call is at work on it or about to fall asleep: until then they use the
/// number that is about to close.
#[cold]
fn has_callers(s: &Sock) -> bool {
    let end = time::now_ns() + AT_WORK_NS;
    loop {
        let callers = if s.uses.at_work() > 1 { Callers::Awake } else { callers::of(s.index()) };
        match callers {
            Callers::Nobody => return false,
            Callers::Asleep => return true,
            Callers::Awake if time::now_ns() > end => return callers::of(s.index()) != Callers::Nobody,
            Callers::Awake => _ = sleep_ns(PAUSE_NS),
        }
    }
}

#[cold]
fn retain_by_copy(s: &Ref, fd: c_int) {
    let _sending = s.session.wlock.lock();
    let Ok(copy) = fd::copy_high(fd) else { return };
    let copy = copy.into_number();
    s.refs.fetch_add(1, Ordering::AcqRel);
    if table::set(copy, s.retained_word()) {
        s.set_fd(copy);
        s.retained.retain(copy as u32);
    } else {
        s.refs.fetch_sub(1, Ordering::AcqRel);
        raw::close(copy);
    }
}

/// Closes the descriptor by which the socket lived on, if no call needs it any more.
pub(crate) fn release(s: &Ref) {
    if let Some(retained) = s.retained.release(|| callers::of(s.index()) != Callers::Nobody) {
        forget(retained as c_int);
        raw::close(retained as c_int);
    }
}

/// The program wants that very number, by dup2(2): the socket lives on by another one.
pub(crate) fn yield_retained(wanted: c_int) {
    let is_retained = table::peek(wanted).is_some_and(|word| word.kind() == Kind::Retained);
    let Some(s) = sock::enter(wanted).filter(|_| is_retained) else { return };
    retain_by_copy(&s, wanted);
    table::take(wanted);
    s.refs.fetch_sub(1, Ordering::AcqRel);
}

/// What has been registered by this descriptor stays in the kernel as long as another one is open, here or in another process, and cannot
/// be changed any more.
fn before_close(s: &Sock, fd: c_int) {
    let is_last = s.refs.load(Ordering::Relaxed) <= 1 && s.is_sole();
    if !is_last && registration::is_registered_by(s, fd) {
        leave_for_good(s, fd, Reason::EventSet, Back::Beside);
        registration::orphan(s, fd);
    }
}

/// One descriptor less; true: it was the last one. Under the send lock.
fn drop_descriptor(s: &Sock, fd: c_int, word: Word) -> bool {
    let last = s.refs.fetch_sub(1, Ordering::AcqRel) == 1;
    if !last
        && s.fd() == fd
        && let Some((other, _)) = table::range(0, u32::MAX).find(|&(_, w)| w == word)
    {
        s.set_fd(other);
    }
    last
}

/// This process holds the socket no longer.
fn last_close(s: &Sock, fd: c_int) {
    if !s.is_sole() {
        registration::leave_behind(s);
    }
    registration::drop_members(s);
    if let Some(record) = s.record() {
        record.close();
    }
    let last = gives_up(s);
    if s.mode() == mode::OFFERED {
        let guard = s.session.wlock.lock();
        if !guard.nested() && s.mode() == mode::OFFERED && !earn::call_off(s) {
            // It was accepted just now; nothing has moved yet.
            earn::begin(s, fd);
        }
    }
    // The descriptor that is closed may stand for another socket just now.
    let own = s.take_displaced();
    let fd = own.as_ref().map_or(fd, AsRawFd::as_raw_fd);
    if last && s.mode() == mode::SESSION {
        end_session(s, fd, &s.session.wlock.lock());
    }
}

/// This process gives the socket up; true: no other process has it.
fn gives_up(s: &Sock) -> bool {
    if s.is_sole() {
        return true;
    }
    // Another one may have given it up since that check.
    s.let_go()
}

/// Publishes to the peer how we leave, so that it sees what TCP would show: end of stream, or a reset if we leave bytes unread. Under the
/// send lock.
fn end_session(s: &Sock, fd: c_int, sending: &Guard<'_>) {
    let Some(v) = view(s, fd) else { return };
    if v.close(s.has(flag::LINGER0), !sending.nested()) {
        Socket { s, fd }.resets();
    } else if !sending.nested() {
        unmix(&v);
    }
    if v.ended() {
        arenas::tidy();
    }
}

/// `new` is another descriptor of what `old` is (dup(2) and its kin; `new` was closed by the kernel if it was open).
pub(crate) fn duplicate(old: c_int, new: c_int) {
    let Some(word) = table::get(old) else { return };
    match word.kind() {
        Kind::Socket => {
            let Some(s) = sock::enter(old) else { return };
            s.refs.fetch_add(1, Ordering::AcqRel);
            if !table::set(new, word) {
                s.refs.fetch_sub(1, Ordering::AcqRel);
                // A descriptor we cannot see might be read without us.
                leave_for_good(&s, old, Reason::SharedUnknown, Back::IntoKernel);
            } else if is_standard(new) && s.may_carry() {
                // A FILE that reads finds what the kernel has; beside one that writes our hooks read on.
                let back = if new == libc::STDIN_FILENO { Back::IntoKernel } else { Back::Beside };
                leave_for_good(&s, new, Reason::Stdio, back);
            }
        }
        Kind::EventSet => {
            sets::add_descriptor(word.index());
            if !table::set(new, word) {
                sets::drop_descriptor(word.index());
            }
        }
        Kind::Foreign | Kind::Hidden | Kind::Retained => {}
    }
}

/// Whether the C library has a FILE on that descriptor from the start: it reads and writes where no hook sees it.
pub(crate) fn is_standard(fd: c_int) -> bool {
    (0..3).contains(&fd)
}

/// This process ends without closing: the kernel closes every connection in a moment, so its peer learns how.
pub(crate) fn end_all() {
    for (fd, word) in table::range(0, u32::MAX) {
        if !word.is_socket() {
            continue;
        }
        let Some(s) = SOCKS.get(word.index()) else { continue };
        let sending = s.session.wlock.lock();
        let Some(fd) = s.open_fd(fd) else { continue };
        let last = gives_up(s);
        if last && s.mode() == mode::SESSION {
            end_session(s, fd, &sending);
        }
        drop(sending);
        if last {
            teardown::leave_last(s);
        }
    }
}
