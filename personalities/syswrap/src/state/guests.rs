//! Calls that have slept on a socket: they hold it to their end, whatever becomes of the descriptor they came by, as the kernel's hold the
//! file.
//!
//! ```text
//!   a thread's call:   none --enter: it is about to sleep--> guest of a socket --leave: it ends, or begins anew by its number--> none
//!   the socket:        last descriptor closes, no guest --> over
//!                      last descriptor closes, guests   --> kept (by a descriptor of our own) --no guest any more: release--> over
//! ```
//! One that closes keeps the socket and then looks for guests again; one that leaves looks whether it is kept ([`super::kept`]). A thread is in
//! one call only: a handler's call on top of a sleep takes the place of that, which the kernel would begin anew by its number; so does the
//! next call of a thread that has lost one. (One that is cancelled, or leaves its sleep by longjmp(3), leaves here by the C library's list of
//! what is to be cleaned up.) A thread's own sleep is never in the way of its own close.

use core::cell::Cell;
use core::sync::atomic::{AtomicU32, Ordering};

use madrigal_sys::lock::thread_id;
use madrigal_sys::process;

use super::lock::Lock;
use super::slab::{Object, Slab};

static GUESTS: Slab<Guest> = Slab::new();

std::thread_local! {
    /// The place of this thread's call, plus one.
    static OWN: Cell<u32> = const { Cell::new(0) };
}

/// A thread in a call.
struct Guest {
    next_free: AtomicU32,
    thread: AtomicU32,
    /// The socket, plus one.
    host: AtomicU32,
}

// SAFETY: atomics only; all-zero is nobody.
unsafe impl Object for Guest {
    fn next_free(&self) -> &AtomicU32 {
        &self.next_free
    }
}

/// Other threads' calls that hold a socket.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Guests {
    Nobody,
    /// All of them sleep in the kernel, which holds the file as well.
    Asleep,
    Awake,
}

/// This thread's call holds that socket from now on; says which one an earlier call has left behind.
pub(crate) fn enter(host: u32) -> Option<u32> {
    if OWN.get() == 0 {
        let (place, guest) = GUESTS.take()?;
        guest.thread.store(thread_id(), Ordering::Relaxed);
        OWN.set(place + 1);
    }
    let guest = GUESTS.get(OWN.get().checked_sub(1)?)?;
    // SYNC: SeqCst with `super::kept`.
    guest.host.swap(host + 1, Ordering::SeqCst).checked_sub(1).filter(|&before| before != host)
}

/// This thread's call holds nothing any more; says what it held.
pub(crate) fn leave() -> Option<u32> {
    let place = OWN.replace(0).checked_sub(1)?;
    let guest = GUESTS.get(place)?;
    // SYNC: SeqCst with `super::kept`.
    let host = guest.host.swap(0, Ordering::SeqCst).checked_sub(1);
    GUESTS.put(place);
    host
}

/// Those that hold this socket, but for the calling thread.
pub(crate) fn of(host: u32) -> Guests {
    let mut found = Guests::Nobody;
    for (place, guest) in GUESTS.all().filter(|(_, guest)| guest.host.load(Ordering::SeqCst) == host + 1) {
        let thread = guest.thread.load(Ordering::Relaxed);
        if thread == thread_id() {
            continue;
        }
        match process::is_thread_asleep(thread) {
            Some(true) if found == Guests::Nobody => found = Guests::Asleep,
            Some(true) => {}
            Some(false) => found = Guests::Awake,
            // It has ended within its call.
            None if guest.host.compare_exchange(host + 1, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok() => {
                GUESTS.put(place);
            }
            None => {}
        }
    }
    found
}

/// What no call begins or ends to sleep without.
pub(crate) fn lock() -> &'static Lock {
    GUESTS.lock()
}

/// In the child after fork(2), which is in no call.
pub(crate) fn after_fork() {
    OWN.set(0);
    GUESTS.all().for_each(|(_, guest)| guest.host.store(0, Ordering::Relaxed));
}
