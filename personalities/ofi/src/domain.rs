//! The domain: everything except event queues is opened from it.

mod open;

use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use madrigal_message::worker::{Space, Worker};
use madrigal_sys::spin_lock::{SpinGuard, SpinLock};
use madrigal_sys::time;

use crate::abi::object::DomainFid;
use crate::eq::Events;
use crate::guard::lock;
use crate::object::Object;
use crate::state::State;

pub(crate) use open::open;

pub(crate) type DomainObject = Object<DomainFid, Arc<Domain>>;

/// A domain.
pub(crate) struct Domain {
    state: SpinLock<State>,
    worker: OnceLock<(Arc<Worker>, Space)>,
    /// How long addresses are.
    pub(crate) addr_len: usize,
    /// Whether remote memory is named by address and we choose the keys, as callers of the first interface may request.
    pub(crate) by_address: bool,
    events: Mutex<Option<Arc<Events>>>,
    _fabric: Arc<()>,
}

impl Domain {
    #[inline]
    pub(crate) fn lock(&self) -> SpinGuard<'_, State> {
        self.state.lock()
    }

    /// The worker, opened when first needed, and the regions of this domain there.
    pub(crate) fn open_worker(&self) -> Result<&(Arc<Worker>, Space), String> {
        if let Some(worker) = self.worker.get() {
            return Ok(worker);
        }
        let worker = crate::worker::worker()?;
        Ok(self.worker.get_or_init(|| {
            let space = worker.space();
            (worker, space)
        }))
    }

    /// The worker, if any endpoint was opened.
    #[inline]
    pub(crate) fn worker(&self) -> Option<&Arc<Worker>> {
        self.worker.get().map(|(worker, _)| worker)
    }

    /// To be called after a poll without result: lets others run, and reports unreachable peers to the user. Injected messages for such a
    /// peer end without a report to the program.
    #[inline]
    pub(crate) fn rest(&self) {
        if let Some(worker) = self.worker()
            && worker.rest()
        {
            for (to, why) in worker.lost() {
                crate::worker::explain(worker.address().id, &to, &why);
            }
        }
    }

    /// Sleeps until something may have come, at most until `end`.
    pub(crate) fn sleep(&self, end: Option<Instant>) {
        // Nothing wakes this thread when another one signals or sets a counter, so it does not sleep for long.
        const NET: Duration = Duration::from_millis(5);
        let left = end.map_or(NET, |end| end.saturating_duration_since(Instant::now()).min(NET));
        match self.worker() {
            Some(worker) => drop(worker.wait(Some(time::now_ns() + left.as_nanos() as u64))),
            None => std::thread::sleep(left.min(Duration::from_millis(1))),
        }
    }

    /// The event queue for its events.
    pub(crate) fn events(&self) -> Option<Arc<Events>> {
        lock(&self.events).clone()
    }
}
