//! The address of an endpoint, and the calls of connected endpoints, which we do not have.

use std::ffi::{c_int, c_void};

use super::EpObject;
use crate::abi::endpoint::{CmOps, EpFid};
use crate::abi::errno::{EINVAL, EIO, ENOSYS, ETOOSMALL};
use crate::abi::object::Fid;
use crate::av::put_bytes;
use crate::guard::guard;

pub(super) static OPS: CmOps = CmOps {
    size: size_of::<CmOps>(),
    setname: no_setname,
    getname,
    getpeer: no_peer,
    connect: no_connect,
    listen: no_listen,
    accept: no_accept,
    reject: no_reject,
    shutdown: no_shutdown,
    join: no_join,
};

unsafe extern "C" fn getname(ep: *mut Fid, addr: *mut c_void, len: *mut usize) -> c_int {
    guard(-EIO, || {
        // SAFETY: a live endpoint of ours, and a length or null.
        let (inner, len) = unsafe { (EpObject::of(ep), len.as_mut()) };
        let Some(len) = len else { return -EINVAL };
        let state = inner.shared.domain.lock();
        let Some(it) = state.eps.get(inner.shared.at) else { return -EINVAL };
        let bytes = it.link.address().encode(inner.shared.domain.addr_len);
        let room = std::mem::replace(len, bytes.len());
        // SAFETY: `room` bytes may be written, by the caller, or it is null.
        unsafe { put_bytes(&bytes, addr, room) };
        if room < bytes.len() || addr.is_null() { -ETOOSMALL } else { 0 }
    })
}

unsafe extern "C" fn no_setname(_: *mut Fid, _: *mut c_void, _: usize) -> c_int {
    -ENOSYS
}

unsafe extern "C" fn no_peer(_: *mut EpFid, _: *mut c_void, _: *mut usize) -> c_int {
    -ENOSYS
}

unsafe extern "C" fn no_connect(_: *mut EpFid, _: *const c_void, _: *const c_void, _: usize) -> c_int {
    -ENOSYS
}

unsafe extern "C" fn no_listen(_: *mut Fid) -> c_int {
    -ENOSYS
}

unsafe extern "C" fn no_accept(_: *mut EpFid, _: *const c_void, _: usize) -> c_int {
    -ENOSYS
}

unsafe extern "C" fn no_reject(_: *mut Fid, _: *mut Fid, _: *const c_void, _: usize) -> c_int {
    -ENOSYS
}

unsafe extern "C" fn no_shutdown(_: *mut EpFid, _: u64) -> c_int {
    -ENOSYS
}

unsafe extern "C" fn no_join(_: *mut EpFid, _: *const c_void, _: u64, _: *mut *mut Fid, _: *mut c_void) -> c_int {
    -ENOSYS
}
