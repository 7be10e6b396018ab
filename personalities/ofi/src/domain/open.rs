//! Opens and closes domains, and opens objects from them.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, OnceLock};

use madrigal_sys::spin_lock::SpinLock;

use super::{Domain, DomainObject};
use crate::abi::endpoint::EpFid;
use crate::abi::errno::{EBUSY, EINVAL, EIO, ENOSYS};
use crate::abi::flags::{CLASS_DOMAIN, CLASS_EQ, MR_BASIC};
use crate::abi::info::Info;
use crate::abi::object::{DomainFid, DomainOps, Fid, Ops};
use crate::guard::{guard, lock};
use crate::object::{class, fid, ops, store};
use crate::{av, cntr, cq, ep, eq, mr, names, poll};

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
        // SAFETY: live objects of ours; the class gives the type of `other`.
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
