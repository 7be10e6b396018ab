//! Completion queues and counters in the state of their domain.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::abi::Addr;
use crate::abi::queue::CqEntry;
use crate::bell::Bell;
use crate::slab::Slab;

/// The queues and counters for the ends of operations.
#[derive(Default)]
pub(crate) struct Queues {
    pub(crate) cqs: Slab<CqState>,
    pub(crate) cntrs: Slab<CntrState>,
}

/// A completion queue.
pub(crate) struct CqState {
    pub(crate) entries: VecDeque<Entry>,
    /// Endpoints bound to it.
    pub(crate) users: usize,
    /// `fi_cq_signal` was called: a waiting thread returns.
    pub(crate) signaled: bool,
    /// The descriptor on which the program may sleep, ...
    pub(crate) bell: Option<Arc<Bell>>,
    /// ... and whether it does.
    pub(crate) sleeping: bool,
}

impl CqState {
    /// Ends the sleep of a thread that waits for the descriptor.
    #[cold]
    pub(crate) fn wake(&mut self) {
        self.sleeping = false;
        if let Some(bell) = &self.bell {
            bell.ring();
        }
    }
}

/// An entry of a completion queue.
pub(crate) struct Entry {
    pub(crate) completion: CqEntry,
    pub(crate) from: Addr,
    pub(crate) failure: Option<Failure>,
}

/// How an operation failed.
#[derive(Clone, Copy)]
pub(crate) struct Failure {
    pub(crate) errno: i32,
    /// The number of the text that the user got, else the errno.
    pub(crate) detail: i32,
    /// Bytes that did not fit.
    pub(crate) overflow: usize,
}

/// A counter.
#[derive(Default)]
pub(crate) struct CntrState {
    pub(crate) value: u64,
    pub(crate) errors: u64,
    pub(crate) users: usize,
    /// What a poll set saw last.
    pub(crate) seen: u64,
}

impl Queues {
    /// Adds to a completion queue, where there is one.
    #[inline]
    pub(crate) fn push(&mut self, cq: Option<usize>, entry: Entry) {
        if let Some(cq) = cq.and_then(|at| self.cqs.get_mut(at)) {
            cq.entries.push_back(entry);
            if cq.sleeping {
                cq.wake();
            }
        }
    }

    /// Counts, where there is a counter.
    #[inline]
    pub(crate) fn count(&mut self, cntr: Option<usize>, failed: bool) {
        if let Some(cntr) = cntr.and_then(|at| self.cntrs.get_mut(at)) {
            if failed {
                cntr.errors += 1;
            } else {
                cntr.value = cntr.value.wrapping_add(1);
            }
        }
    }
}
