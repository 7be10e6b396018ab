//! The domain: what everything else but event queues is opened from.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use madrigal_links::worker::{Space, Worker};
use madrigal_sys::spin_lock::{SpinGuard, SpinLock};
use madrigal_sys::time;

use crate::abi::endpoint::EpFid;
use crate::abi::errno::{EBUSY, EINVAL, EIO, ENOSYS};
use crate::abi::flags::{CLASS_DOMAIN, CLASS_EQ, MR_BASIC};
use crate::abi::info::Info;
use crate::abi::object::{DomainFid, DomainOps, Fid, Ops};
use crate::eq::Events;
use crate::guard::{guard, lock};
use crate::object::{Object, class, fid, ops, store};
use crate::state::State;
use crate::{av, cntr, cq, ep, eq, mr, names, poll};

pub(crate) type DomainObject = Object<DomainFid, Arc<Domain>>;

/// A domain.
pub(crate) struct Domain {
    state: SpinLock<State>,
    worker: OnceLock<(Arc<Worker>, Space)>,
    /// How long addresses are.
    pub(crate) addr_len: usize,
    /// Whether remote memory is named by address and keys are ours to choose, as callers of the first interface may want.
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

    /// To be called by whoever found nothing: lets others run, and tells the user of peers that cannot be reached. What was injected
    /// for one of those ends without a word to the program.
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
        // Nothing wakes us when another thread signals or sets a counter, so nobody sleeps for long.
        const NET: Duration = Duration::from_millis(5);
        let left = end.map_or(NET, |end| end.saturating_duration_since(Instant::now()).min(NET));
        match self.worker() {
            Some(worker) => drop(worker.wait(Some(time::now_ns() + left.as_nanos() as u64))),
            None => std::thread::sleep(left.min(Duration::from_millis(1))),
        }
    }

    /// Where to tell events.
    pub(crate) fn events(&self) -> Option<Arc<Events>> {
        lock(&self.events).clone()
    }
}

static OPS: Ops = Ops { bind, ..ops(close) };

static DOMAIN: DomainOps = DomainOps {
    size: size_of::<DomainOps>(),
    av_open: av::open,
    cq_open: cq::open,
    endpoint: ep::open,
    scalable_ep: no_scalable,
    cntr_open: cntr::open,
    poll_open: poll::open,
    stx_ctx: no_shared,
    srx_ctx: no_shared,
    query_atomic: ep::query_atomic,
    query_collective: no_collective,
    endpoint2,
};

/// Opens a domain as described.
///
/// # Safety
/// What the description points to is null or whole; `domain` is null or may be written.
pub(crate) unsafe fn open(fabric: Arc<()>, info: &Info, domain: *mut *mut Fid, context: *mut c_void) -> c_int {
    // SAFETY: by the caller.
    let Some(attr) = (unsafe { info.domain_attr.as_ref() }) else { return -EINVAL };
    let inner = Domain {
        state: SpinLock::default(),
        worker: OnceLock::new(),
        addr_len: names::length(info.addr_format, crate::worker::settings().address_len),
        by_address: attr.mr_mode == MR_BASIC,
        events: Mutex::default(),
        _fabric: fabric,
    };
    let front = DomainFid { fid: fid(CLASS_DOMAIN, context, &OPS), ops: &DOMAIN, mr: &mr::OPS };
    let made = DomainObject::give(front, Arc::new(inner));
    // SAFETY: by the caller.
    unsafe { store(domain, made.cast()) }
}

unsafe extern "C" fn close(domain: *mut Fid) -> c_int {
    guard(-EIO, || {
        // SAFETY: a live domain of ours.
        if Arc::strong_count(unsafe { DomainObject::of(domain) }) > 1 {
            return -EBUSY;
        }
        // SAFETY: as above; the caller gives it up.
        drop(unsafe { DomainObject::take(domain) });
        0
    })
}

unsafe extern "C" fn bind(domain: *mut Fid, other: *mut Fid, _flags: u64) -> c_int {
    guard(-EIO, || {
        // SAFETY: live objects of ours; the class says what `other` is.
        unsafe {
            if class(other) != CLASS_EQ {
                return -EINVAL;
            }
            *lock(&DomainObject::of(domain).events) = Some(eq::events(other));
        }
        0
    })
}

unsafe extern "C" fn endpoint2(
    domain: *mut DomainFid,
    info: *mut Info,
    ep: *mut *mut EpFid,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    if flags != 0 {
        return -ENOSYS;
    }
    // SAFETY: the same contract.
    unsafe { ep::open(domain, info, ep, context) }
}

unsafe extern "C" fn no_scalable(_: *mut DomainFid, _: *mut Info, _: *mut *mut Fid, _: *mut c_void) -> c_int {
    -ENOSYS
}

unsafe extern "C" fn no_shared(_: *mut DomainFid, _: *mut c_void, _: *mut *mut Fid, _: *mut c_void) -> c_int {
    -ENOSYS
}

unsafe extern "C" fn no_collective(_: *mut DomainFid, _: u32, _: *mut c_void, _: u64) -> c_int {
    -ENOSYS
}
