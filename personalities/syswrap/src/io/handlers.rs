//! What a signal handler that interrupts a sleep of ours means for the program's call: begun again, or ended (`SA_RESTART`).
//!
//! The kernel decides this for its own receives and sends. poll(2), in which some of ours sleep, ends with either kind of handler. Which one
//! ran is not known afterwards. Where a program has both kinds, the signals whose handlers end a call are blocked during the sleep, and
//! signalfd(2) reports them: they end the sleep, too, and their handlers run behind it.

use core::ffi::c_int;
use core::ptr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use libc::{pollfd, sigset_t, timespec};
use madrigal_sys::signals::as_set;
use madrigal_sys::{Errno, fd, raw, time};

use crate::state::table;

/// Counts what the program sets by the C library.
static CHANGES: AtomicU32 = AtomicU32::new(0);
/// The handlers the program had installed when last read, by kind: written under no lock, each by itself, and used for a short time.
static SNAPSHOT: Snapshot = Snapshot {
    at: AtomicU64::new(0),
    changes: AtomicU32::new(0),
    ends: AtomicU64::new(0),
    restarts: AtomicU64::new(0),
};
/// So long a snapshot is used. The program may also set a handler by a system call of its own.
const FRESH_NS: u64 = 10_000_000;

struct Snapshot {
    at: AtomicU64,
    changes: AtomicU32,
    ends: AtomicU64,
    restarts: AtomicU64,
}

/// The program has set a handler.
pub(crate) fn changed() {
    CHANGES.fetch_add(1, Ordering::Release);
}

/// Whether every signal handler of the program was installed with `SA_RESTART`.
fn handlers_restart() -> bool {
    installed().0 == 0
}

/// The signals with a handler: those that end a call, and those behind which it is begun again (`SA_RESTART`).
fn installed() -> (u64, u64) {
    // Not sent from outside, or the C library's own.
    const OTHERS: [c_int; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP];
    let signals = (1..65).filter(|signal| !OTHERS.contains(signal) && !(32..34).contains(signal));
    signals.fold((0, 0), |(ends, restarts), signal| {
        // SAFETY: all-zero is a valid sigaction, and with a null pointer nothing is changed.
        let mut now: libc::sigaction = unsafe { core::mem::zeroed() };
        // SAFETY: as above.
        let known = unsafe { crate::real::sigaction()(signal, ptr::null(), &raw mut now) } == 0;
        let bit = 1 << (signal - 1);
        match known && ![libc::SIG_DFL, libc::SIG_IGN].contains(&now.sa_sigaction) {
            true if now.sa_flags & libc::SA_RESTART == 0 => (ends | bit, restarts),
            true => (ends, restarts | bit),
            false => (ends, restarts),
        }
    })
}

/// [`installed`], from a snapshot if it is recent: to read it costs a system call for each signal.
fn lately_installed() -> (u64, u64) {
    let (changes, now) = (CHANGES.load(Ordering::Acquire), time::now_ns());
    let fresh =
        SNAPSHOT.changes.load(Ordering::Acquire) == changes && now < SNAPSHOT.at.load(Ordering::Acquire) + FRESH_NS;
    if fresh {
        return (SNAPSHOT.ends.load(Ordering::Relaxed), SNAPSHOT.restarts.load(Ordering::Relaxed));
    }
    let (ends, restarts) = installed();
    SNAPSHOT.ends.store(ends, Ordering::Relaxed);
    SNAPSHOT.restarts.store(restarts, Ordering::Relaxed);
    SNAPSHOT.changes.store(changes, Ordering::Release);
    SNAPSHOT.at.store(now, Ordering::Release);
    (ends, restarts)
}

/// Whether the program has handlers.
pub(crate) fn are_some() -> bool {
    lately_installed() != (0, 0)
}

/// Whether it has one that ends a call.
pub(crate) fn some_end_calls() -> bool {
    lately_installed().0 != 0
}

/// The signals whose handlers end a call, if there are handlers of both kinds; else none.
fn ends_where_mixed() -> u64 {
    let (ends, restarts) = lately_installed();
    if restarts == 0 { 0 } else { ends }
}

/// Closes the descriptor that [`sleep`] made, if the program has not made another of its number.
pub(crate) fn close_own(fd: c_int) {
    if table::is_hidden(fd) {
        table::unhide(fd);
        raw::close(fd);
    }
}

/// A sleep in poll(2) by `ppoll`, of a call that the kernel would restart behind a handler with `SA_RESTART`: that is `ERESTART`. Else the
/// events of the descriptor, none when the time is over. `held`: the program's blocked signals, if the call holds back all signals. If the
/// second entry is a descriptor, `ppoll` must close it when a thread is cancelled in it.
#[cold]
pub(crate) fn sleep(
    (fd, events): (c_int, i16),
    left: Option<timespec>,
    held: Option<u64>,
    ppoll: impl FnOnce(&mut [pollfd; 2], Option<timespec>, *const sigset_t) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    let ends = ends_where_mixed();
    let mixed = ends != 0;
    // What the program itself has blocked ends nothing.
    let blocked = held.or_else(|| raw::block_signals(0).ok().filter(|_| mixed));
    let signals = blocked.filter(|_| mixed).and_then(|now| raw::signal_fd(ends & !now).ok());
    let signals = signals.map(|fd| fd::move_high(fd).into_number()).inspect(|&fd| table::hide(fd));
    let mask = blocked.map(|now| as_set(if signals.is_some() { now | ends } else { now }));
    let mut poll = [fd, signals.unwrap_or(-1)].map(|fd| pollfd { fd, events: libc::POLLIN, revents: 0 });
    poll[0].events = events;
    let result = ppoll(&mut poll, left, mask.as_ref().map_or(ptr::null(), ptr::from_ref));
    signals.into_iter().for_each(close_own);
    match result {
        Err(Errno::INTR) if signals.is_some() || handlers_restart() => Err(Errno::RESTART),
        Ok(1..) if poll[0].revents == 0 => Err(Errno::INTR),
        result => result.map(|_| poll[0].revents as u16 as usize),
    }
}
