//! The thread behind `mdg_fd`: it sleeps for the engine in place of the program, which sleeps in an event loop of its own, and makes a
//! descriptor readable when there is something to do. It does no work itself, so handlers run only in threads of the program's.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use madrigal::engine::Engine;
use madrigal_sys::fd::Fd;
use madrigal_sys::signals::Blocked;
use rustix::event::{EventfdFlags, eventfd};

use crate::classes::work_done;
use crate::failure::Failure;
use crate::slot::lock;

/// A thread that sleeps for an engine.
pub(crate) struct Watcher {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    engine: Arc<Engine>,
    bell: Fd,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// It sleeps until there is something to do, or until another thread has done something: the program may wait for what that thread
    /// completed.
    Watching { done: u64 },
    /// The descriptor is readable: the program has to run the engine.
    Readable,
    /// It has to end.
    Ending,
}

impl Watcher {
    /// Begins to watch.
    pub(crate) fn begin(engine: &Arc<Engine>) -> Result<Self, Failure> {
        let failed = |errno: rustix::io::Errno| Failure::system(errno.raw_os_error(), "cannot make an eventfd");
        let bell = Fd::from(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(failed)?);
        // Readable at first: the program may not have seen what was done before.
        let (engine, state) = (Arc::clone(engine), Mutex::new(State::Readable));
        let shared = Arc::new(Shared { engine, bell, state, changed: Condvar::new() });
        shared.ring();
        let its = Arc::clone(&shared);
        // The program's signal handlers run in its own threads: this thread inherits a mask that blocks all signals.
        let blocked = Blocked::all();
        let thread = std::thread::Builder::new().name("madrigal-fd".to_owned()).spawn(move || its.run());
        drop(blocked);
        let failed = |e: std::io::Error| Failure::system(e.raw_os_error().unwrap_or(0), "cannot start a thread");
        Ok(Self { shared, thread: Some(thread.map_err(failed)?) })
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.shared.bell.as_raw_fd()
    }

    /// The engine was run: the descriptor is not readable any more until there is something to do again.
    pub(crate) fn watch(&self) {
        let mut state = lock(&self.shared.state);
        if *state != State::Ending {
            // Empty means that it was taken out before.
            let _ = rustix::io::read(&self.shared.bell, &mut [0u8; 8]);
            *state = State::Watching { done: work_done(&self.shared.engine) };
            self.shared.changed.notify_one();
        }
    }

    /// Makes the descriptor readable though there may be nothing to do.
    pub(crate) fn notify(&self) {
        self.shared.ring();
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        *lock(&self.shared.state) = State::Ending;
        self.shared.changed.notify_one();
        self.shared.engine.call_all();
        if let Some(thread) = self.thread.take() {
            // It ends by itself; a panic in it is ignored here.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self) {
        loop {
            let mut state = lock(&self.state);
            while *state == State::Readable {
                state = self.wait(state);
            }
            if *state == State::Ending {
                return;
            }
            drop(state);
            // SYNC: the state is changed under the lock that the look takes, and `call_all` comes after (`Sleep::sleep`).
            self.engine.sleeper().sleep_for_any(None, &mut || match *lock(&self.state) {
                State::Watching { done } => work_done(&self.engine) != done,
                State::Readable | State::Ending => true,
            });
            let mut state = lock(&self.state);
            if matches!(*state, State::Watching { .. }) {
                *state = State::Readable;
                self.ring();
            }
        }
    }

    fn ring(&self) {
        // Full means that it rings already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}
