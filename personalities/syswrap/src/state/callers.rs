//! Calls that have slept on a socket. They hold the socket to their end, even if the program closes their descriptor meanwhile. The kernel's
//! calls hold a file in the same way.
//!
//! ```text
//!   a thread's call:   none --enter: it is about to sleep--> caller of a socket --leave: it ends, or restarts by its number--> none
//!   the socket:        last descriptor closes, no caller --> over
//!                      last descriptor closes, callers   --> retained (by a descriptor of our own) --no caller any more: release--> over
//! ```
//! A closing thread retains the socket and then checks for callers again. A leaving call checks whether the socket is retained
//! ([`super::retained`]).
//!
//! A thread is in one call only. A handler's call on top of a sleep replaces the sleeping call, which the kernel would restart by its
//! number. The next call of a thread that has lost one replaces it, too. A call that is cancelled, or ends by longjmp(3), leaves by the C
//! library's list of cleanup handlers. A thread's own sleep never delays its own close.

use core::cell::Cell;
use core::sync::atomic::{AtomicU32, Ordering};

use madrigal_sys::lock::thread_id;
use madrigal_sys::process;

use super::lock::Lock;
use super::slab::{Object, Slab};

static CALLERS: Slab<Caller> = Slab::new();

std::thread_local! {
    /// The place of this thread's call, plus one.
    static OWN: Cell<u32> = const { Cell::new(0) };
}

/// A thread in a call.
struct Caller {
    next_free: AtomicU32,
    thread: AtomicU32,
    /// The socket, plus one.
    socket: AtomicU32,
}

// SAFETY: atomics only; all-zero is an unused one.
unsafe impl Object for Caller {
    fn next_free(&self) -> &AtomicU32 {
        &self.next_free
    }
}

/// Other threads' calls that hold a socket.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Callers {
    Nobody,
    /// All of them sleep in the kernel, which holds the file as well.
    Asleep,
    Awake,
}

/// This thread's call holds that socket from now on. Returns the socket that an earlier call has left behind.
pub(crate) fn enter(socket: u32) -> Option<u32> {
    if OWN.get() == 0 {
        let (place, caller) = CALLERS.take()?;
        caller.thread.store(thread_id(), Ordering::Relaxed);
        OWN.set(place + 1);
    }
    let caller = CALLERS.get(OWN.get().checked_sub(1)?)?;
    // SYNC: SeqCst with `super::retained`.
    caller.socket.swap(socket + 1, Ordering::SeqCst).checked_sub(1).filter(|&before| before != socket)
}

/// This thread's call holds nothing any more. Returns what it held.
pub(crate) fn leave() -> Option<u32> {
    let place = OWN.replace(0).checked_sub(1)?;
    let caller = CALLERS.get(place)?;
    // SYNC: SeqCst with `super::retained`.
    let socket = caller.socket.swap(0, Ordering::SeqCst).checked_sub(1);
    CALLERS.put(place);
    socket
}

/// The calls that hold this socket, except the calling thread's.
pub(crate) fn of(socket: u32) -> Callers {
    let mut found = Callers::Nobody;
    for (place, caller) in CALLERS.all().filter(|(_, caller)| caller.socket.load(Ordering::SeqCst) == socket + 1) {
        let thread = caller.thread.load(Ordering::Relaxed);
        if thread == thread_id() {
            continue;
        }
        match process::is_thread_asleep(thread) {
            Some(true) if found == Callers::Nobody => found = Callers::Asleep,
            Some(true) => {}
            Some(false) => found = Callers::Awake,
            // It has ended within its call.
            None if caller.socket.compare_exchange(socket + 1, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok() => {
                CALLERS.put(place);
            }
            None => {}
        }
    }
    found
}

/// No call begins or ends its sleep without this lock.
pub(crate) fn lock() -> &'static Lock {
    CALLERS.lock()
}

/// In the child after fork(2), which is in no call.
pub(crate) fn after_fork() {
    OWN.set(0);
    CALLERS.all().for_each(|(_, caller)| caller.socket.store(0, Ordering::Relaxed));
}
