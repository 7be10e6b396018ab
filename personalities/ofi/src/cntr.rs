//! Counters of operations that are over.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::abi::errno::{EAVAIL, EBUSY, EINVAL, EIO, ENOSYS};
use crate::abi::flags::{CLASS_CNTR, WAIT_NONE, WAIT_UNSPEC, WAIT_YIELD};
use crate::abi::object::{DomainFid, Fid, Ops};
use crate::abi::queue::{CntrAttr, CntrFid, CntrOps};
use crate::domain::{Domain, DomainObject};
use crate::guard::guard;
use crate::object::{Object, fid, ops, store};
use crate::state::CntrState;

type CntrObject = Object<CntrFid, Cntr>;

struct Cntr {
    domain: Arc<Domain>,
    at: usize,
}

static OPS: Ops = ops(close);

static CNTR: CntrOps = CntrOps { size: size_of::<CntrOps>(), read, readerr, add, set, wait, adderr, seterr };

/// `fi_cntr_open`
pub(crate) unsafe extern "C" fn open(
    domain: *mut DomainFid,
    attr: *mut CntrAttr,
    cntr: *mut *mut Fid,
    context: *mut c_void,
) -> c_int {
    guard(-EIO, || {
        // SAFETY: a live domain of ours, and a whole structure or null.
        let (domain, attr) = unsafe { (DomainObject::of(domain), attr.as_ref()) };
        let (events, waits) = attr.map_or((0, WAIT_NONE), |attr| (attr.events, attr.wait_obj));
        if events != 0 || !matches!(waits, WAIT_NONE | WAIT_UNSPEC | WAIT_YIELD) {
            return -ENOSYS;
        }
        let at = domain.lock().queues.cntrs.insert(CntrState::default());
        let inner = Cntr { domain: Arc::clone(domain), at };
        let made = CntrObject::give(CntrFid { fid: fid(CLASS_CNTR, context, &OPS), ops: &CNTR }, inner);
        // SAFETY: a place for the result, by the caller.
        unsafe { store(cntr, made.cast()) }
    })
}

/// The number of a counter in its domain, if it is one of that domain.
///
/// # Safety
/// A live counter of ours.
pub(crate) unsafe fn place(cntr: *mut Fid, domain: &Arc<Domain>) -> Option<usize> {
    // SAFETY: by the caller.
    let cntr = unsafe { CntrObject::of(cntr) };
    Arc::ptr_eq(&cntr.domain, domain).then_some(cntr.at)
}

unsafe extern "C" fn close(cntr: *mut Fid) -> c_int {
    guard(-EIO, || {
        // SAFETY: a live counter of ours.
        let inner = unsafe { CntrObject::of(cntr) };
        let mut state = inner.domain.lock();
        if state.queues.cntrs.get(inner.at).is_some_and(|cntr| cntr.users > 0) {
            return -EBUSY;
        }
        state.queues.cntrs.remove(inner.at);
        drop(state);
        // SAFETY: as above; the caller gives it up.
        drop(unsafe { CntrObject::take(cntr) });
        0
    })
}

impl Cntr {
    /// Polls the peers, then reads the counter: values, and whether anything was found at the peers.
    fn read_values(&self) -> (u64, u64, bool) {
        let mut state = self.domain.lock();
        let worked = state.progress() > 0;
        match state.queues.cntrs.get_mut(self.at) {
            Some(cntr) => {
                cntr.seen = cntr.value;
                (cntr.value, cntr.errors, worked)
            }
            None => (0, 0, worked),
        }
    }

    fn change(&self, change: impl FnOnce(&mut CntrState)) -> c_int {
        let mut state = self.domain.lock();
        let Some(cntr) = state.queues.cntrs.get_mut(self.at) else { return -EINVAL };
        change(cntr);
        0
    }

    fn wait(&self, threshold: u64, timeout: c_int) -> c_int {
        let end = u64::try_from(timeout).ok().map(|ms| Instant::now() + Duration::from_millis(ms));
        let (_, errors, _) = self.read_values();
        loop {
            let (value, failed, worked) = self.read_values();
            if value >= threshold {
                return 0;
            }
            if failed != errors {
                return -EAVAIL;
            }
            if end.is_some_and(|end| Instant::now() >= end) {
                return -libc::ETIMEDOUT;
            }
            if !worked {
                self.domain.sleep(end);
            }
        }
    }
}

unsafe extern "C" fn read(cntr: *mut CntrFid) -> u64 {
    guard(0, || {
        // SAFETY: a live counter of ours.
        let inner = unsafe { CntrObject::of(cntr) };
        let (value, _, worked) = inner.read_values();
        if !worked {
            inner.domain.rest();
        }
        value
    })
}

unsafe extern "C" fn readerr(cntr: *mut CntrFid) -> u64 {
    // SAFETY: a live counter of ours.
    guard(0, || unsafe { CntrObject::of(cntr) }.read_values().1)
}

unsafe extern "C" fn add(cntr: *mut CntrFid, value: u64) -> c_int {
    // SAFETY: a live counter of ours.
    guard(-EIO, || unsafe { CntrObject::of(cntr) }.change(|cntr| cntr.value = cntr.value.wrapping_add(value)))
}

unsafe extern "C" fn set(cntr: *mut CntrFid, value: u64) -> c_int {
    // SAFETY: a live counter of ours.
    guard(-EIO, || unsafe { CntrObject::of(cntr) }.change(|cntr| (cntr.value, cntr.seen) = (value, value)))
}

unsafe extern "C" fn wait(cntr: *mut CntrFid, threshold: u64, timeout: c_int) -> c_int {
    // SAFETY: a live counter of ours.
    guard(-EIO, || unsafe { CntrObject::of(cntr) }.wait(threshold, timeout))
}

unsafe extern "C" fn adderr(cntr: *mut CntrFid, value: u64) -> c_int {
    // SAFETY: a live counter of ours.
    guard(-EIO, || unsafe { CntrObject::of(cntr) }.change(|cntr| cntr.errors = cntr.errors.wrapping_add(value)))
}

unsafe extern "C" fn seterr(cntr: *mut CntrFid, value: u64) -> c_int {
    // SAFETY: a live counter of ours.
    guard(-EIO, || unsafe { CntrObject::of(cntr) }.change(|cntr| cntr.errors = value))
}
