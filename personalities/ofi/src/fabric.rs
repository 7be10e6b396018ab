//! The fabric: domains and event queues are opened from it.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use crate::abi::errno::{EBUSY, EINVAL, EIO, ENOMEM, ENOSYS};
use crate::abi::flags::{CLASS_CQ, CLASS_EQ, CLASS_FABRIC};
use crate::abi::info::{FabricAttr, Info};
use crate::abi::object::{FabricFid, FabricOps, Fid, Ops};
use crate::guard::guard;
use crate::object::{Object, class, fid, ops, store};
use crate::{cq, domain, eq};

type FabricObject = Object<FabricFid, Fabric>;

/// Our data of a fabric. Each open domain holds a reference to `users`.
pub(crate) struct Fabric {
    users: Arc<()>,
}

static OPS: Ops = ops(close);

static FABRIC: FabricOps = FabricOps {
    size: size_of::<FabricOps>(),
    domain: open_domain,
    passive_ep: no_passive,
    eq_open: eq::open,
    wait_open: no_wait_set,
    trywait,
    domain2,
};

/// `fi_fabric`
pub(crate) unsafe extern "C" fn open(attr: *mut FabricAttr, fabric: *mut *mut Fid, context: *mut c_void) -> c_int {
    guard(-ENOMEM, || {
        // SAFETY: libfabric passes null or a whole structure.
        let Some(attr) = (unsafe { attr.as_ref() }) else { return -EINVAL };
        let front = FabricFid { fid: fid(CLASS_FABRIC, context, &OPS), ops: &FABRIC, api_version: attr.api_version };
        let made = FabricObject::give(front, Fabric { users: Arc::new(()) });
        // SAFETY: a place for the result, by the caller.
        unsafe { store(fabric, made.cast()) }
    })
}

unsafe extern "C" fn close(fabric: *mut Fid) -> c_int {
    guard(-EIO, || {
        // SAFETY: called through the operations of a fabric of ours that is not closed.
        let inner = unsafe { FabricObject::of(fabric) };
        if Arc::strong_count(&inner.users) > 1 {
            return -EBUSY;
        }
        // SAFETY: as above; the caller gives it up.
        drop(unsafe { FabricObject::take(fabric) });
        0
    })
}

unsafe extern "C" fn open_domain(
    fabric: *mut FabricFid,
    info: *mut Info,
    domain: *mut *mut Fid,
    context: *mut c_void,
) -> c_int {
    guard(-EIO, || {
        // SAFETY: a live fabric of ours, and null or a whole description.
        let (inner, info) = unsafe { (FabricObject::of(fabric), info.as_ref()) };
        let Some(info) = info else { return -EINVAL };
        // SAFETY: what the description points to is null or whole, and there is a place for the result, by the caller.
        unsafe { domain::open(Arc::clone(&inner.users), info, domain, context) }
    })
}

unsafe extern "C" fn domain2(
    fabric: *mut FabricFid,
    info: *mut Info,
    domain: *mut *mut Fid,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    if flags != 0 {
        return -ENOSYS;
    }
    // SAFETY: the same contract.
    unsafe { open_domain(fabric, info, domain, context) }
}

unsafe extern "C" fn no_passive(_: *mut FabricFid, _: *mut Info, _: *mut *mut Fid, _: *mut c_void) -> c_int {
    -ENOSYS
}

unsafe extern "C" fn no_wait_set(_: *mut FabricFid, _: *mut c_void, _: *mut *mut Fid) -> c_int {
    -ENOSYS
}

/// Whether the program may sleep on the descriptors of these queues: they are empty, and new entries make the descriptors ready.
unsafe extern "C" fn trywait(_fabric: *mut FabricFid, fids: *mut *mut Fid, count: c_int) -> c_int {
    guard(-EIO, || {
        for i in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: an array of `count` live objects, by the caller.
            let fid = unsafe { *fids.add(i) };
            // SAFETY: as above.
            let ready = match unsafe { class(fid) } {
                // SAFETY: its class says what it is.
                CLASS_EQ => unsafe { eq::ready(fid) },
                // SAFETY: its class says what it is.
                CLASS_CQ => unsafe { cq::ready(fid) },
                _ => false,
            };
            if ready {
                return -crate::abi::errno::EAGAIN;
            }
        }
        0
    })
}
