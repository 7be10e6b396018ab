//! The gate in front of every step that begins or ends a session. It is closed while the process forks, so that the child finds every
//! connection at rest.
//!
//! ```text
//!   threads inside:  pass ... (a session begins, moves or ends) ... drop         close: no thread passes, and all inside have left
//!                                                                                open:  the fork is over
//! ```
//! A thread that cannot pass skips the step, or does it later: only the thread that closes the gate waits at it. Inside it signals are
//! blocked, so that a handler that forks never waits for its own thread.

use madrigal_base::sync::{AtomicU32, Ordering};
use madrigal_sys::signals::Blocked;

use super::lock::pause;

const CLOSED: u32 = 1 << 16;
const INSIDE: u32 = CLOSED - 1;

/// The gate of this process. Zeroed memory is an open one.
#[derive(Default)]
pub(crate) struct Gate(AtomicU32);

static GATE: Gate = Gate(AtomicU32::new(0));

/// The calling thread is inside; it leaves on drop.
pub(crate) struct Pass<'a> {
    gate: &'a Gate,
    _blocked: Option<Blocked>,
}

impl Gate {
    fn pass(&self) -> Option<Pass<'_>> {
        // Before the count: see above.
        let blocked = Blocked::all();
        // SYNC: SeqCst: either we see the gate closed, or the thread that closes it sees us inside.
        if self.0.fetch_add(1, Ordering::SeqCst) & CLOSED == 0 {
            return Some(Pass { gate: self, _blocked: Some(blocked) });
        }
        self.0.fetch_sub(1, Ordering::SeqCst);
        None
    }

    fn close(&self) {
        self.0.fetch_or(CLOSED, Ordering::SeqCst);
        while self.0.load(Ordering::SeqCst) & INSIDE > 0 {
            pause();
        }
    }

    fn open(&self) {
        self.0.fetch_and(!CLOSED, Ordering::SeqCst);
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.gate.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Passes the gate of this process; `None`: it forks.
pub(crate) fn pass() -> Option<Pass<'static>> {
    GATE.pass()
}

/// Closes it, and waits until all inside have left. By one thread at a time, which itself is outside.
pub(crate) fn close() {
    GATE.close();
}

/// Opens it again.
pub(crate) fn open() {
    GATE.open();
}

/// The child after fork(2): no thread is inside.
pub(crate) fn after_fork() {
    GATE.0.store(0, Ordering::SeqCst);
}

#[cfg(all(test, feature = "shuttle"))]
mod explored {
    use shuttle::sync::Arc;
    use shuttle::thread;
    use std::sync::atomic::{AtomicU32 as Word, Ordering as Order};

    use super::*;

    #[test]
    fn nothing_begins_while_it_is_closed() {
        let run = || {
            let gate = Arc::new((Gate::default(), Word::new(0)));
            let threads = [0, 1].map(|_| {
                let gate = Arc::clone(&gate);
                thread::spawn(move || {
                    for _ in 0..2 {
                        if let Some(_pass) = gate.0.pass() {
                            gate.1.fetch_add(1, Order::SeqCst);
                            thread::yield_now();
                            gate.1.fetch_sub(1, Order::SeqCst);
                        }
                    }
                })
            });
            gate.0.close();
            assert_eq!(gate.1.load(Order::SeqCst), 0);
            thread::yield_now();
            assert_eq!(gate.1.load(Order::SeqCst), 0, "a session began while the process forked");
            gate.0.open();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        };
        shuttle::check_random(run, 10_000);
        shuttle::check_pct(run, 3_000, 3);
    }
}
