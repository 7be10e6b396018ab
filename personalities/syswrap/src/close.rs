//! The end of a descriptor: close(2), dup2(2) over it, or a range of them.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use madrigal_drivers::shm::layout::fate;
use madrigal_sys::raw;

use crate::session::{self, View, phase};
use crate::sock::{self, SOCKS, Sock, flag, mode};
use crate::table::{self, Kind, Word};
use crate::{epoll, holders, leave, upgrade};

/// Forgets `fd`, just before the kernel closes it.
pub(crate) fn forget(fd: c_int) {
    // The hold comes first: a thread that still works on the socket must not free it under us.
    let held = sock::enter(fd);
    match table::take(fd) {
        Some(word) if word.kind() == Kind::Socket => {
            if let Some(s) = held
                && s.refs.fetch_sub(1, Ordering::AcqRel) == 1
            {
                last_close(&s, fd);
            }
        }
        Some(word) if word.kind() == Kind::EventSet => epoll::close(word.index()),
        _ => {}
    }
}

/// Forgets every descriptor in a range.
pub(crate) fn forget_range(from: u32, to: u32) {
    for (fd, _) in table::range(from, to) {
        forget(fd);
    }
}

/// `new` is another descriptor of what `old` is (dup(2) and its kin; `new` was closed by the kernel if it was open).
pub(crate) fn duplicate(old: c_int, new: c_int) {
    let Some(word) = table::get(old) else { return };
    match word.kind() {
        Kind::Socket => {
            let Some(s) = sock::enter(old) else { return };
            s.refs.fetch_add(1, Ordering::AcqRel);
            enter_or(new, word, || {
                s.refs.fetch_sub(1, Ordering::AcqRel);
                // A descriptor we cannot see might be read without us.
                crate::leave::leave_for_good(&s, old, madrigal_report::Reason::SharedUnknown, true);
            });
        }
        Kind::EventSet => {
            epoll::hold(word.index());
            enter_or(new, word, || epoll::close(word.index()));
        }
        Kind::Foreign => {}
    }
}

fn enter_or(fd: c_int, word: Word, undo: impl FnOnce()) {
    if !table::set(fd, word) {
        undo();
    }
}

/// This process holds the socket no longer.
fn last_close(s: &Sock, fd: c_int) {
    epoll::drop_members(s);
    if let Some(record) = s.record() {
        record.close();
    }
    let sole = holders::is_sole(s);
    match s.mode() {
        mode::OFFERED => {
            let guard = s.wlock.lock();
            if !guard.nested() && !upgrade::withdraw(s) {
                // It was answered just now; nothing has moved yet.
                end_session(s, fd, sole);
            }
        }
        mode::SESSION => end_session(s, fd, sole),
        _ => {}
    }
    if !sole {
        holders::lose_count(&s.holders);
    }
    s.set_flag(flag::CLOSED, true);
}

/// How long doorbells under way are waited for. TCP may pace them.
const RINGING_NS: u64 = 500_000_000;

/// Tells the peer how we leave, so that it sees what TCP would show: end of stream, or a reset if we leave bytes unread.
fn end_session(s: &Sock, fd: c_int, sole: bool) {
    let Some(v) = session::view(s) else { return };
    if !sole {
        return;
    }
    if leaves_unread(&v, fd) || s.has(flag::LINGER0) {
        v.out.w.fate.store(fate::RESET, Ordering::SeqCst);
        let _ = raw::set_sockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &libc::linger { l_onoff: 1, l_linger: 0 });
        return;
    }
    // First, so that the peer rings no more: a doorbell we leave unread would make the kernel send a reset we do not mean.
    v.out.w.fate.store(fate::CLOSED, Ordering::SeqCst);
    let guard = s.wlock.lock();
    if !guard.nested() && s.session.tx() == phase::RING {
        s.session.producer.seal(v.out);
        leave::take_back(&v, fd);
    }
    drop(guard);
    if let Some(_lock) = s.rlock.try_lock() {
        take_doorbells(&v, fd);
    }
}

/// Whether there is something the program has not read. Doorbells are none of its bytes.
fn leaves_unread(v: &View<'_>, fd: c_int) -> bool {
    if reads_ring(v) {
        return View::CONSUMER.waiting(v.inn) > 0;
    }
    raw::ioctl_int(fd, libc::FIONREAD).is_ok_and(|n| n > 0)
}

/// Whether what the kernel socket holds are doorbells.
fn reads_ring(v: &View<'_>) -> bool {
    v.s.session.rx() == phase::RING || upgrade::is_drained_of_kernel(v)
}

/// Takes out all the doorbells there will ever be: those that are counted come, and no more are sent to who closes. Under the
/// receive lock.
fn take_doorbells(v: &View<'_>, fd: c_int) {
    if !reads_ring(v) {
        return;
    }
    leave::wait_until(RINGING_NS, || {
        // Read before the count: a doorbell is counted while it is rung.
        let last = v.inn.w.ringing.load(Ordering::SeqCst) == 0;
        v.swallow_any(fd);
        last && v.bells_due() == 0 || v.ended()
    });
}

/// This process ends without closing: every connection is closed by the kernel in a moment, so its peer is told how.
pub(crate) fn end_all() {
    for (fd, word) in table::range(0, u32::MAX) {
        if word.kind() != Kind::Socket {
            continue;
        }
        let Some(s) = SOCKS.get(word.index()) else { continue };
        let sole = holders::is_sole(s);
        if s.mode() == mode::SESSION {
            end_session(s, fd, sole);
        }
        holders::lose_count(&s.holders);
    }
}
