//! Tier 1: data calls on the kernel socket, spinning by the wait policy before they sleep. No protocol, any peer.

use core::ffi::c_int;

use madrigal_base::sync::{AtomicU32, Ordering};
use madrigal_progress::wait::Peer;
use madrigal_sys::{Errno, cpu, tcp, time};

use crate::outcome::{Outcome, Ticket, errno};
use crate::state::process::POLICY;
use crate::state::sock::{Ref, Sock};
use crate::state::table;

/// How a receive by the kernel may wait.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Not at all.
    No,
    /// It may poll before it sleeps.
    Polling,
    /// In one piece: it must not be cut into parts (`MSG_WAITALL`, `SO_RCVLOWAT`).
    Whole,
}

/// Receives by the kernel. `call(extra_flags)` makes the program's own call. `Err(s)`: the session took over in the same moment; ask
/// again there.
pub(crate) fn receive(
    s: Ref,
    fd: c_int,
    wait: Wait,
    call: impl Fn(c_int) -> Result<usize, Errno>,
) -> Result<Outcome, Ref> {
    // SYNC: SeqCst with `View::ready`: count first, then check.
    s.session.in_recv.fetch_add(1, Ordering::SeqCst);
    if s.session.receives() {
        s.session.in_recv.fetch_sub(1, Ordering::SeqCst);
        return Err(s);
    }
    let result = match wait {
        Wait::No => call(0),
        Wait::Polling => match spinning(&s, fd, &call) {
            Ok(result) => result,
            Err(since) => return Ok(sleep(s, true, since)),
        },
        Wait::Whole => return Ok(sleep(s, true, time::now_ns())),
    };
    note(&s, result);
    s.session.in_recv.fetch_sub(1, Ordering::SeqCst);
    Ok(finish(&s, fd, result, false))
}

/// Polls until the policy ends that (`Err`: since when).
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
    // SYNC: SeqCst with `View::switch`: count first, then check.
    s.session.in_send.fetch_add(1, Ordering::SeqCst);
    if s.session.sends() {
        s.session.in_send.fetch_sub(1, Ordering::SeqCst);
        return Err(s);
    }
    if !nonblocking {
        return Ok(sleep(s, false, 0));
    }
    let result = call();
    note(&s, result);
    s.session.in_send.fetch_sub(1, Ordering::SeqCst);
    Ok(finish(&s, fd, result, true))
}

fn note(s: &Sock, result: Result<usize, Errno>) {
    if let Err(e) = result {
        s.session.note_error(e);
    }
}

fn finish(s: &Sock, fd: c_int, result: Result<usize, Errno>, out: bool) -> Outcome {
    match result {
        Ok(n) => {
            s.count_kernel(n, out);
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

/// Hands a call that may sleep to the C library, where a thread can be cancelled in it.
fn sleep(s: Ref, receiving: bool, since: u64) -> Outcome {
    Outcome::Sleep(Ticket { sock: s.park(), receiving, since })
}

/// After the C library's call returned `ret`.
pub(crate) fn after_sleep(ticket: Ticket, ret: isize) {
    let saved = errno();
    let Some(s) = ticket.sock.unpark() else { return };
    if ret < 0 {
        s.session.note_error(madrigal_sys::errno_from(saved));
    }
    busy(&s, &ticket).fetch_sub(1, Ordering::SeqCst);
    if ticket.receiving && ticket.since != 0 {
        POLICY.slept(&s.rx_wait, ticket.since);
    }
    if ret >= 0 {
        s.count_kernel(ret as usize, !ticket.receiving);
    }
    drop(s);
    crate::outcome::restore_errno(saved);
}

/// The thread is in that call no longer.
pub(crate) fn left(ticket: &Ticket) {
    if let Some(s) = ticket.sock.unpark() {
        busy(&s, ticket).fetch_sub(1, Ordering::SeqCst);
    }
}

fn busy<'a>(s: &'a Sock, ticket: &Ticket) -> &'a AtomicU32 {
    if ticket.receiving { &s.session.in_recv } else { &s.session.in_send }
}

/// Whether a call on this socket returns at once instead of waiting.
#[inline]
pub(crate) fn nonblocking(s: &Sock, flags: c_int) -> bool {
    flags & libc::MSG_DONTWAIT != 0 || s.is_nonblocking()
}
