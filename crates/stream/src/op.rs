//! What posts return, and what they may be given: descriptors and handlers.

use core::fmt;
use core::task::Poll;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use madrigal_progress::engine::Engine;
use madrigal_progress::wait::Waiter;

/// A function to be called when an operation completes: with the object it was posted on and the outcome. Cloning is cheap and
/// allocates nothing, so one handler may be posted again and again.
pub struct Handler<C: ?Sized, T>(Arc<Function<C, T>>);

type Function<C, T> = dyn Fn(&C, T) + Send + Sync;

impl<C: ?Sized, T> Handler<C, T> {
    /// A handler that calls `f`. A panic inside ends up in the thread that runs the engine.
    pub fn new(f: impl Fn(&C, T) + Send + Sync + 'static) -> Self {
        Self(Arc::new(f))
    }

    pub(crate) fn call(&self, object: &C, outcome: T) {
        (self.0)(object, outcome);
    }
}

impl<C: ?Sized, T> Clone for Handler<C, T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<C: ?Sized, T> fmt::Debug for Handler<C, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handler")
    }
}

/// The descriptor of a posted connect, accept or close. Dropping it before it completes leaves the operation to itself: an accept is
/// taken back, a connection that is made is closed at once.
pub struct Op<T> {
    slot: Arc<Slot<T>>,
    engine: Arc<Engine>,
}

impl<T> Op<T> {
    /// An operation that is complete already.
    pub fn ready(engine: &Arc<Engine>, outcome: T) -> Self {
        let (op, completer) = Self::new(Arc::clone(engine));
        completer.complete(outcome);
        op
    }

    pub(crate) fn new(engine: Arc<Engine>) -> (Self, Completer<T>) {
        let slot = Arc::new(Slot { state: Mutex::new(State::Waiting { sleeping: false }), waiter: Waiter::default() });
        (Self { slot: Arc::clone(&slot), engine: Arc::clone(&engine) }, Completer { slot, engine })
    }

    /// Runs the engine once and checks whether the operation completed. Does not block. `Ready` once; after that `Pending` for ever.
    pub fn poll(&mut self) -> Poll<T> {
        if let Some(outcome) = self.slot.take() {
            return Poll::Ready(outcome);
        }
        self.engine.do_work();
        self.slot.take().map_or(Poll::Pending, Poll::Ready)
    }

    /// Waits until the operation completed, turning the engine; spins, then sleeps.
    pub fn wait(mut self) -> T {
        loop {
            if let Poll::Ready(outcome) = self.wait_until(None) {
                return outcome;
            }
        }
    }

    /// Waits no longer than the deadline, in nanoseconds of [`madrigal_sys::time::now_ns`].
    pub fn wait_until(&mut self, deadline: Option<u64>) -> Poll<T> {
        let mut sleep = self.engine.sleeper();
        loop {
            let mut wait = self.engine.policy().begin(&self.slot.waiter, false);
            loop {
                if let Some(outcome) = self.slot.take() {
                    wait.paid();
                    return Poll::Ready(outcome);
                }
                if deadline.is_some_and(|at| madrigal_sys::time::now_ns() >= at) {
                    return Poll::Pending;
                }
                if self.engine.do_work() == 0 && !wait.again(|| madrigal_progress::wait::Peer::Unknown) {
                    break;
                }
            }
            let since = wait.since();
            sleep.sleep(deadline, &mut || self.slot.fall_asleep());
            self.engine.policy().slept(&self.slot.waiter, since);
        }
    }
}

/// The other end of an [`Op`].
pub(crate) struct Completer<T> {
    slot: Arc<Slot<T>>,
    engine: Arc<Engine>,
}

impl<T> Completer<T> {
    pub(crate) fn complete(self, outcome: T) {
        let mut state = self.slot.lock();
        let sleeping = matches!(*state, State::Waiting { sleeping: true });
        *state = State::Done(outcome);
        drop(state);
        if sleeping {
            self.engine.call_all();
        }
    }

    /// Whether the descriptor was dropped.
    pub(crate) fn is_orphan(&self) -> bool {
        Arc::strong_count(&self.slot) == 1
    }
}

struct Slot<T> {
    state: Mutex<State<T>>,
    waiter: Waiter,
}

enum State<T> {
    Waiting { sleeping: bool },
    Done(T),
    Taken,
}

impl<T> Slot<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<T> {
        let mut state = self.lock();
        match core::mem::replace(&mut *state, State::Taken) {
            State::Done(outcome) => Some(outcome),
            other => {
                *state = other;
                None
            }
        }
    }

    /// True: it is done, do not sleep.
    fn fall_asleep(&self) -> bool {
        let mut state = self.lock();
        if let State::Waiting { sleeping } = &mut *state {
            *sleeping = true;
        }
        !matches!(*state, State::Waiting { .. })
    }
}

/// How a posted connect, accept or close completes.
pub(crate) enum Then<C, T> {
    /// Its descriptor is notified.
    Tell(Completer<T>),
    /// A handler is called.
    Call(Handler<C, T>),
}
