//! Options of endpoints, and taking receives and sends back.

use std::ffi::{c_int, c_void};

use super::EpObject;
use crate::abi::endpoint::{EpFid, EpOps};
use crate::abi::errno::{EINVAL, EIO, ENOPROTOOPT, ENOSYS, ETOOSMALL};
use crate::abi::flags::{
    OPT_CM_DATA_SIZE, OPT_CUDA_API_PERMITTED, OPT_ENDPOINT, OPT_HMEM_P2P, OPT_INJECT_ATOMIC_SIZE, OPT_INJECT_MSG_SIZE,
    OPT_INJECT_RMA_SIZE, OPT_INJECT_TAGGED_SIZE, OPT_MAX_ATOMIC_SIZE, OPT_MAX_MSG_SIZE, OPT_MAX_RMA_SIZE,
    OPT_MAX_TAGGED_SIZE, OPT_MIN_MULTI_RECV, OPT_RX_SIZE, OPT_SHARED_MEMORY_PERMITTED, OPT_TX_SIZE,
};
use crate::abi::object::Fid;
use crate::guard::guard;
use crate::info::{INJECT, MAX_MESSAGE, QUEUE};
use crate::state::Role;

pub(super) static OPS: EpOps = EpOps {
    size: size_of::<EpOps>(),
    cancel,
    getopt,
    setopt,
    tx_ctx: no_context,
    rx_ctx: no_context,
    rx_size_left: size_left,
    tx_size_left: size_left,
};

/// A buffer for many messages is given back when fewer bytes are free, unless the program sets another number.
pub(super) const MIN_MULTI_RECV: usize = 64;

unsafe extern "C" fn cancel(ep: *mut Fid, context: *mut c_void) -> isize {
    guard(-(EIO as isize), || {
        // SAFETY: a live endpoint of ours.
        let inner = unsafe { EpObject::of(ep) };
        let found = inner.with(|it, _| {
            let token = |role: Role| {
                let mut mine =
                    it.bindings.requests.iter().filter(|(_, r)| r.role == role && r.context == context as usize);
                mine.next().map(|(at, _)| at as u64)
            };
            // If it is too late for that, the completion is on its way.
            let found = match (token(Role::Recv), token(Role::Send)) {
                (Some(receive), _) => it.link.cancel(receive),
                (None, Some(send)) => it.link.cancel_send(send),
                (None, None) => false,
            };
            found.then_some(()).ok_or(libc::ENOENT)
        });
        super::code(found)
    })
}

unsafe extern "C" fn getopt(ep: *mut Fid, level: c_int, name: c_int, value: *mut c_void, len: *mut usize) -> c_int {
    guard(-EIO, || {
        // SAFETY: a live endpoint of ours, and a length or null.
        let (inner, len) = unsafe { (EpObject::of(ep), len.as_mut()) };
        let Some(len) = len.filter(|_| level == OPT_ENDPOINT && !value.is_null()) else { return -ENOPROTOOPT };
        let size = match name {
            OPT_MIN_MULTI_RECV => match inner.shared.domain.lock().eps.get(inner.shared.at) {
                Some(it) => it.min_multi,
                None => return -EINVAL,
            },
            OPT_CM_DATA_SIZE => 0,
            OPT_TX_SIZE | OPT_RX_SIZE => QUEUE,
            OPT_MAX_MSG_SIZE | OPT_MAX_TAGGED_SIZE | OPT_MAX_RMA_SIZE => MAX_MESSAGE,
            OPT_MAX_ATOMIC_SIZE | OPT_INJECT_ATOMIC_SIZE => super::atomic::MAX,
            OPT_INJECT_MSG_SIZE | OPT_INJECT_TAGGED_SIZE | OPT_INJECT_RMA_SIZE => INJECT,
            _ => return -ENOPROTOOPT,
        };
        if *len < size_of::<usize>() {
            *len = size_of::<usize>();
            return -ETOOSMALL;
        }
        *len = size_of::<usize>();
        // SAFETY: so many bytes may be written, as compared; they need not be aligned.
        unsafe { value.cast::<usize>().write_unaligned(size) };
        0
    })
}

unsafe extern "C" fn setopt(ep: *mut Fid, level: c_int, name: c_int, value: *const c_void, len: usize) -> c_int {
    guard(-EIO, || {
        // SAFETY: a live endpoint of ours.
        let inner = unsafe { EpObject::of(ep) };
        if level != OPT_ENDPOINT || value.is_null() {
            return -ENOPROTOOPT;
        }
        match name {
            OPT_MIN_MULTI_RECV if len == size_of::<usize>() => {
                // SAFETY: so many bytes are there, as compared; they need not be aligned.
                let min = unsafe { value.cast::<usize>().read_unaligned() };
                match lock_ep(inner, |it| it.min_multi = min) {
                    Some(()) => 0,
                    None => -EINVAL,
                }
            }
            OPT_MIN_MULTI_RECV => -EINVAL,
            // There is no memory but the host's here, so what may be done with other memory does not matter.
            OPT_HMEM_P2P | OPT_CUDA_API_PERMITTED | OPT_SHARED_MEMORY_PERMITTED => 0,
            _ => -ENOPROTOOPT,
        }
    })
}

fn lock_ep<T>(ep: &super::Ep, run: impl FnOnce(&mut crate::state::EpState) -> T) -> Option<T> {
    ep.shared.domain.lock().eps.get_mut(ep.shared.at).map(run)
}

unsafe extern "C" fn no_context(_: *mut EpFid, _: c_int, _: *mut c_void, _: *mut *mut EpFid, _: *mut c_void) -> c_int {
    -ENOSYS
}

unsafe extern "C" fn size_left(_: *mut EpFid) -> isize {
    QUEUE as isize
}
