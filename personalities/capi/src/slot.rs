//! The receiver of an outcome: a slot from which a waiter takes it, or a function.

use core::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use madrigal::wait::Waiter;

use crate::codes::MDG_EBUSY;
use crate::failure::Failure;

/// A place for the outcome of one operation.
pub(crate) struct Slot<T> {
    state: Mutex<State<T>>,
    pub(crate) waiter: Waiter,
}

enum State<T> {
    Waiting,
    Done(T),
    /// It was taken, or the waiter gave up.
    Over,
}

impl<T> Slot<T> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(State::Waiting), waiter: Waiter::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        lock(&self.state)
    }

    /// Whether the outcome is there.
    pub(crate) fn is_done(&self) -> bool {
        matches!(*self.lock(), State::Done(_))
    }

    /// The outcome, if it is there.
    pub(crate) fn take(&self) -> Option<T> {
        let mut state = self.lock();
        if !matches!(*state, State::Done(_)) {
            return None;
        }
        match mem::replace(&mut *state, State::Over) {
            State::Done(outcome) => Some(outcome),
            State::Waiting | State::Over => None,
        }
    }

    /// Gives up. Returns the outcome, if it is there already.
    pub(crate) fn give_up(&self) -> Option<T> {
        match mem::replace(&mut *self.lock(), State::Over) {
            State::Done(outcome) => Some(outcome),
            State::Waiting | State::Over => None,
        }
    }
}

/// The receiver of an outcome.
pub(crate) enum Then<T> {
    /// A slot.
    Keep(Arc<Slot<T>>),
    /// A function.
    Call(Box<dyn FnOnce(T) + Send>),
}

impl<T> Then<T> {
    /// Delivers the outcome. Returns it if the waiter has given up.
    pub(crate) fn complete(self, outcome: T) -> Option<T> {
        match self {
            Self::Keep(slot) => {
                let mut state = slot.lock();
                if !matches!(*state, State::Waiting) {
                    return Some(outcome);
                }
                *state = State::Done(outcome);
                None
            }
            Self::Call(call) => {
                call(outcome);
                None
            }
        }
    }
}

/// Locks; what a panic left behind is whole, for nothing that may panic is done under these locks.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks what one thread at a time uses; an error if another one has it.
pub(crate) fn lock_or_busy<'m, T>(mutex: &'m Mutex<T>, what: &str) -> Result<MutexGuard<'m, T>, Failure> {
    match mutex.try_lock() {
        Ok(guard) => Ok(guard),
        Err(TryLockError::Poisoned(guard)) => Ok(guard.into_inner()),
        Err(TryLockError::WouldBlock) => Err(Failure::new(MDG_EBUSY, format!("another thread is using {what}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_is_taken_once_and_comes_back_from_who_gave_up() {
        let slot = Slot::new();
        assert_eq!((slot.is_done(), slot.take()), (false, None));
        assert_eq!(Then::Keep(Arc::clone(&slot)).complete(5), None);
        assert_eq!((slot.is_done(), slot.take(), slot.take()), (true, Some(5), None));
        let slot = Slot::new();
        assert_eq!(slot.give_up(), None);
        assert_eq!(Then::Keep(Arc::clone(&slot)).complete(6), Some(6));
        let slot = Slot::new();
        Then::Keep(Arc::clone(&slot)).complete(7);
        assert_eq!((slot.give_up(), slot.take()), (Some(7), None));
    }
}
