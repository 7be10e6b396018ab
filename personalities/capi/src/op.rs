//! Posted operations that complete by test or wait.

use core::task::Poll;
use std::sync::{Arc, Mutex, MutexGuard};

use madrigal::{Choice, ReadOp, VLink, WriteOp};

use crate::dial::{Dial, Made};
use crate::failure::Failure;
use crate::link::named;
use crate::listeners::{Arrival, Listeners};
use crate::runtime::{Runtime, deadline};
use crate::slot::{Slot, lock_or_busy};

/// The result of an operation.
pub(crate) enum Outcome {
    /// So many bytes; 0 for a close.
    Count(i64),
    /// A link.
    Link(VLink, Option<Choice>),
}

/// A posted operation. One thread at a time may query it.
pub(crate) struct Op {
    pub(crate) runtime: Arc<Runtime>,
    posted: Mutex<Option<Posted>>,
}

pub(crate) enum Posted {
    Read(VLink, ReadOp<'static>),
    Write(VLink, WriteOp<'static>, usize),
    Connect(Arc<Dial>, Arc<Slot<Made>>),
    Accept(Arc<Listeners>, Arc<Slot<Arrival>>),
    Close(Arc<Slot<()>>),
}

/// The operation, locked for the thread that queries it.
pub(crate) struct Asked<'o>(&'o Op, MutexGuard<'o, Option<Posted>>);

impl Op {
    pub(crate) fn new(runtime: &Arc<Runtime>, posted: Posted) -> Self {
        Self { runtime: Arc::clone(runtime), posted: Mutex::new(Some(posted)) }
    }

    /// Locks it; an error if another thread queries it.
    pub(crate) fn ask(&self) -> Result<Asked<'_>, Failure> {
        Ok(Asked(self, lock_or_busy(&self.posted, "this operation")?))
    }
}

impl Asked<'_> {
    /// Waits for its completion, so long at most. Returns its result, once.
    pub(crate) fn wait(&mut self, timeout_ns: i64) -> Option<Result<Outcome, Failure>> {
        let runtime = &self.0.runtime;
        let outcome = match self.1.as_mut()? {
            Posted::Read(link, op) => {
                let done = if timeout_ns == 0 { op.poll() } else { op.wait_until(deadline(timeout_ns)) };
                let Poll::Ready(outcome) = done else { return None };
                outcome.map(|filled| Outcome::Count(filled.len as i64)).map_err(|error| named(link, error))
            }
            Posted::Write(link, op, len) => {
                let done = if timeout_ns == 0 { op.poll() } else { op.wait_until(deadline(timeout_ns)) };
                let Poll::Ready(outcome) = done else { return None };
                outcome.map(|_| Outcome::Count(*len as i64)).map_err(|error| named(link, error))
            }
            Posted::Connect(_, slot) => {
                runtime.wait(slot, timeout_ns)?.map(|(link, choice)| Outcome::Link(link, choice))
            }
            Posted::Accept(_, slot) => runtime.wait(slot, timeout_ns)?.map(|link| Outcome::Link(link, None)),
            Posted::Close(slot) => Ok(Outcome::Count(runtime.wait(slot, timeout_ns).map(|()| 0)?)),
        };
        *self.1 = None;
        Some(outcome)
    }

    /// Takes it back: memory that was lent to it is free. Returns the bytes that a read or a write moved before.
    pub(crate) fn cancel(&mut self) -> Result<i64, Failure> {
        match self.1.take() {
            None => Ok(0),
            Some(Posted::Read(link, op)) => match op.cancel() {
                None => Ok(0),
                Some(outcome) => outcome.map(|filled| filled.len as i64).map_err(|error| named(&link, error)),
            },
            Some(Posted::Write(link, op, len)) => match op.cancel() {
                Ok(taken) => Ok(taken.unwrap_or(len) as i64),
                Err(error) => Err(named(&link, error)),
            },
            // A link that came of it is closed with it.
            Some(Posted::Connect(dial, slot)) => {
                drop(dial.give_up(&slot));
                Ok(0)
            }
            Some(Posted::Accept(listeners, slot)) => {
                if let Some(arrival) = listeners.give_up(&slot) {
                    listeners.give_back(arrival);
                }
                Ok(0)
            }
            Some(Posted::Close(slot)) => {
                slot.give_up();
                Ok(0)
            }
        }
    }
}
