//! Tier 1: data calls on the kernel socket, spinning by the wait policy before they sleep. No protocol, any peer.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use madrigal_netaccess::wait::Peer;
use madrigal_sys::{Errno, cpu, tcp};

use crate::outcome::{Outcome, Ticket, errno};
use crate::process::POLICY;
use crate::session::phase;
use crate::sock::{self, Ref, Sock, flag, mode};
use crate::table;

/// Whether receives belong to the session (true) or to the kernel socket.
#[inline]
pub(crate) fn session_receives(s: &Sock) -> bool {
    s.mode() == mode::SESSION && !matches!(s.session.rx(), phase::KERNEL | phase::DONE)
}

/// Whether sends belong to the session (true) or to the kernel socket.
#[inline]
pub(crate) fn session_sends(s: &Sock) -> bool {
    s.mode() == mode::SESSION && !matches!(s.session.tx(), phase::KERNEL | phase::DONE)
}

/// Receives by the kernel. `call(extra_flags)` makes the program's own call; `spin` false for calls that must not be cut into
/// parts (`MSG_WAITALL`, `SO_RCVLOWAT`). `Err(s)`: the session took over in the same moment; ask again there.
pub(crate) fn receive(
    s: Ref,
    fd: c_int,
    nonblocking: bool,
    spin: bool,
    call: impl Fn(c_int) -> Result<usize, Errno>,
) -> Result<Outcome, Ref> {
    // SYNC: SeqCst with `upgrade::ready`: count first, then look.
    s.in_recv.fetch_add(1, Ordering::SeqCst);
    if session_receives(&s) {
        s.in_recv.fetch_sub(1, Ordering::SeqCst);
        return Err(s);
    }
    let result = if nonblocking {
        call(0)
    } else if spin {
        match spinning(&s, fd, &call) {
            Ok(result) => result,
            Err(since) => return Ok(sleep(s, true, since)),
        }
    } else {
        return Ok(sleep(s, true, madrigal_sys::time::now_ns()));
    };
    s.in_recv.fetch_sub(1, Ordering::SeqCst);
    Ok(finish(&s, fd, result, false))
}

/// Looks again and again until the policy says to sleep (`Err`: since when).
fn spinning(s: &Sock, fd: c_int, call: &impl Fn(c_int) -> Result<usize, Errno>) -> Result<Result<usize, Errno>, u64> {
    let mut wait = POLICY.begin(&s.rx_wait, false);
    loop {
        if !wait.again(|| sender_of(fd)) {
            return Err(wait.since());
        }
        match call(libc::MSG_DONTWAIT) {
            Err(Errno::AGAIN) => {}
            result => {
                wait.paid();
                return Ok(result);
            }
        }
    }
}

/// Where the peer of a loopback socket last sent from.
pub(crate) fn sender_of(fd: c_int) -> Peer {
    match tcp::incoming_cpu(fd) {
        Some(cpu) if cpu == cpu::current() => Peer::Here,
        Some(_) => Peer::Elsewhere,
        None => Peer::Unknown,
    }
}

/// Sends by the kernel; see [`receive`].
pub(crate) fn send(
    s: Ref,
    fd: c_int,
    nonblocking: bool,
    call: impl Fn() -> Result<usize, Errno>,
) -> Result<Outcome, Ref> {
    // SYNC: SeqCst with `upgrade::switch`: count first, then look.
    s.in_send.fetch_add(1, Ordering::SeqCst);
    if session_sends(&s) {
        s.in_send.fetch_sub(1, Ordering::SeqCst);
        return Err(s);
    }
    if !nonblocking {
        return Ok(sleep(s, false, 0));
    }
    let result = call();
    s.in_send.fetch_sub(1, Ordering::SeqCst);
    Ok(finish(&s, fd, result, true))
}

fn finish(s: &Sock, fd: c_int, result: Result<usize, Errno>, out: bool) -> Outcome {
    match result {
        Ok(n) => {
            count(s, n, out);
            Outcome::Done(n)
        }
        Err(Errno::NOTSOCK | Errno::BADF) => {
            // The number was closed and used again behind our back (by the C library itself, or a raw system call).
            let _ = table::take(fd);
            Outcome::Pass
        }
        Err(e) => Outcome::Fail(e),
    }
}

#[inline]
fn count(s: &Sock, n: usize, out: bool) {
    s.count_kernel(n, out);
    if out {
        s.sends.store(s.sends.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed);
    }
}

/// Hands a call that may sleep to the C library, where a thread can be cancelled in it.
fn sleep(s: Ref, receiving: bool, since: u64) -> Outcome {
    let sock = s.index();
    // The hold is given up in `after_sleep`. A thread cancelled in between never does: the object is lost, nothing else.
    core::mem::forget(s);
    Outcome::Sleep(Ticket { sock, receiving, since })
}

/// After the C library's call returned `ret`.
pub(crate) fn after_sleep(ticket: Ticket, ret: isize) {
    let Some(again) = sock::by_index(ticket.sock) else { return };
    let saved = errno();
    let busy = if ticket.receiving { &again.in_recv } else { &again.in_send };
    busy.fetch_sub(1, Ordering::SeqCst);
    if ticket.receiving && ticket.since != 0 {
        POLICY.slept(&again.rx_wait, ticket.since);
    }
    if ret >= 0 {
        count(&again, ret as usize, !ticket.receiving);
    }
    again.unhold();
    crate::outcome::restore_errno(saved);
}

/// Whether a call on this socket returns at once instead of waiting.
#[inline]
pub(crate) fn nonblocking(s: &Sock, flags: c_int) -> bool {
    flags & libc::MSG_DONTWAIT != 0 || s.has(flag::NONBLOCK)
}
