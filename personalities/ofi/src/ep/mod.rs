//! Endpoints: one is a channel of this process's worker.

mod atomic;
mod messages;
mod name;
mod open;
mod options;
mod pieces;
mod receive;
mod rma;
mod send;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use madrigal_sys::time;

use crate::abi::endpoint::EpFid;
use crate::abi::errno::{EINVAL, EOPBADSTATE};
use crate::domain::Domain;
use crate::object::Object;
use crate::state::{EpState, Queues, State};

pub(crate) use atomic::query as query_atomic;
pub(crate) use open::open;

type EpObject = Object<EpFid, Ep>;

/// An endpoint as one C handle knows it.
struct Ep {
    shared: Arc<Shared>,
    /// Flags of operations that are given none.
    tx_flags: AtomicU64,
    rx_flags: AtomicU64,
}

/// What all handles of an endpoint share; the last one closes it.
struct Shared {
    domain: Arc<Domain>,
    at: usize,
}

impl Ep {
    /// Does something with the endpoint, once it is enabled.
    #[inline]
    fn with<T>(&self, run: impl FnOnce(&mut EpState, &mut Queues) -> Result<T, i32>) -> Result<T, i32> {
        let mut state = self.shared.domain.lock();
        let State { avs, queues, eps, .. } = &mut *state;
        let it = eps.get_mut(self.shared.at).ok_or(EINVAL)?;
        if !it.enabled {
            return Err(EOPBADSTATE);
        }
        it.sync(avs);
        run(it, queues)
    }
}

/// What an extern function returns.
#[inline]
fn code(result: Result<(), i32>) -> isize {
    match result {
        Ok(()) => 0,
        Err(errno) => -(errno as isize),
    }
}

/// How long closing an endpoint waits until everything that was sent is on its way.
const FLUSH_NS: u64 = 5_000_000_000;

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(worker) = self.domain.worker() {
            worker.flush(Some(time::now_ns() + FLUSH_NS));
        }
        let mut state = self.domain.lock();
        let gone = state.eps.remove(self.at);
        if let Some(it) = &gone {
            if let Some(av) = it.av.and_then(|at| state.avs.get_mut(at)) {
                av.users = av.users.saturating_sub(1);
            }
            for cq in [it.bindings.tx_cq, it.bindings.rx_cq].into_iter().flatten() {
                if let Some(cq) = state.queues.cqs.get_mut(cq) {
                    cq.users = cq.users.saturating_sub(1);
                }
            }
            for cntr in it.bindings.cntrs.into_iter().flatten() {
                if let Some(cntr) = state.queues.cntrs.get_mut(cntr) {
                    cntr.users = cntr.users.saturating_sub(1);
                }
            }
        }
        // Closing may have to send what waits: not under the lock.
        drop(state);
        drop(gone);
    }
}
