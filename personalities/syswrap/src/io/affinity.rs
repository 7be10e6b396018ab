//! Processor affinity of two processes that alternate on a connection, where every processor is busy: one processor serves them better.
//!
//! Waking a sleeper on another busy processor takes 20 us, and now and then the rest of a time slice. On the waker's own processor it takes
//! 2 to 3 us. The scheduler leaves such a pair where it began. So the connecting side of a connection that strictly alternates joins its
//! peer's processor. It asks for that one, and at once for all it had again: its affinity stays what it was, and the scheduler may separate
//! the pair later.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use madrigal_sys::{cpu, process as proc, time};

use crate::state::process::POLICY;
use crate::state::session::View;
use crate::state::sock::role;
use crate::state::socket::Socket;

/// Alternations in a row that make a pair.
const ALTERNATIONS: u32 = 64;
/// How often a process joins a peer at most.
const REST_NS: u64 = 20_000_000;

static NEXT: AtomicU64 = AtomicU64::new(0);
/// 0 unknown, 1 yes, 2 no: whether no sandbox watches our system calls.
static FREE: AtomicU32 = AtomicU32::new(0);

/// Before a receive sleeps: joins the peer's processor if that promises a quicker answer.
#[inline]
pub(crate) fn join(v: &View<'_, Socket<'_>>) {
    if POLICY.was_contended()
        && v.wire.s.role() == role::CLIENT
        && v.wire.s.alternations.load(Ordering::Relaxed) >= ALTERNATIONS
    {
        join_now(v);
    }
}

#[cold]
fn join_now(v: &View<'_, Socket<'_>>) {
    let Some(there) = v.writer_cpu().checked_sub(1) else { return };
    let now = time::now_ns();
    if there == cpu::current() || now < NEXT.load(Ordering::Relaxed) || !may_move() {
        return;
    }
    NEXT.store(now + REST_NS, Ordering::Relaxed);
    cpu::visit(there);
}

/// A seccomp filter might kill for a call that the program does not make itself.
fn may_move() -> bool {
    if FREE.load(Ordering::Relaxed) == 0 {
        let mut buf = [0u8; 4096];
        let status = proc::read_small(c"/proc/self/status", &mut buf).unwrap_or(b"");
        let free = status.split(|&b| b == b'\n').any(|line| line == b"Seccomp:\t0");
        FREE.store(if free { 1 } else { 2 }, Ordering::Relaxed);
    }
    FREE.load(Ordering::Relaxed) == 1
}
