//! Objects and what can be done with them: fabric, domain, address vector, memory region.

use std::ffi::{c_char, c_int, c_void};

use libc::iovec;

use super::Addr;
use super::endpoint::EpFid;
use super::info::Info;
use super::queue::{AvAttr, CntrAttr, CqAttr, EqAttr};

/// `fid`: what every object begins with.
#[repr(C)]
pub(crate) struct Fid {
    pub(crate) class: usize,
    pub(crate) context: *mut c_void,
    pub(crate) ops: *const Ops,
}

/// `fi_ops`
#[repr(C)]
pub(crate) struct Ops {
    pub(crate) size: usize,
    pub(crate) close: unsafe extern "C" fn(*mut Fid) -> c_int,
    pub(crate) bind: unsafe extern "C" fn(*mut Fid, *mut Fid, u64) -> c_int,
    pub(crate) control: unsafe extern "C" fn(*mut Fid, c_int, *mut c_void) -> c_int,
    pub(crate) ops_open: unsafe extern "C" fn(*mut Fid, *const c_char, u64, *mut *mut c_void, *mut c_void) -> c_int,
    pub(crate) tostr: unsafe extern "C" fn(*const Fid, *mut c_char, usize) -> c_int,
    pub(crate) ops_set: unsafe extern "C" fn(*mut Fid, *const c_char, u64, *mut c_void, *mut c_void) -> c_int,
}

/// `fi_alias`
#[repr(C)]
pub(crate) struct Alias {
    pub(crate) fid: *mut *mut Fid,
    pub(crate) flags: u64,
}

/// `fid_fabric`
#[repr(C)]
pub(crate) struct FabricFid {
    pub(crate) fid: Fid,
    pub(crate) ops: *const FabricOps,
    pub(crate) api_version: u32,
}

/// `fi_ops_fabric`
#[repr(C)]
pub(crate) struct FabricOps {
    pub(crate) size: usize,
    pub(crate) domain: unsafe extern "C" fn(*mut FabricFid, *mut Info, *mut *mut Fid, *mut c_void) -> c_int,
    pub(crate) passive_ep: unsafe extern "C" fn(*mut FabricFid, *mut Info, *mut *mut Fid, *mut c_void) -> c_int,
    pub(crate) eq_open: unsafe extern "C" fn(*mut FabricFid, *mut EqAttr, *mut *mut Fid, *mut c_void) -> c_int,
    pub(crate) wait_open: unsafe extern "C" fn(*mut FabricFid, *mut c_void, *mut *mut Fid) -> c_int,
    pub(crate) trywait: unsafe extern "C" fn(*mut FabricFid, *mut *mut Fid, c_int) -> c_int,
    pub(crate) domain2: unsafe extern "C" fn(*mut FabricFid, *mut Info, *mut *mut Fid, u64, *mut c_void) -> c_int,
}

/// `fid_domain`
#[repr(C)]
pub(crate) struct DomainFid {
    pub(crate) fid: Fid,
    pub(crate) ops: *const DomainOps,
    pub(crate) mr: *const MrOps,
}

/// `fi_ops_domain`
#[repr(C)]
pub(crate) struct DomainOps {
    pub(crate) size: usize,
    pub(crate) av_open: unsafe extern "C" fn(*mut DomainFid, *mut AvAttr, *mut *mut Fid, *mut c_void) -> c_int,
    pub(crate) cq_open: unsafe extern "C" fn(*mut DomainFid, *mut CqAttr, *mut *mut Fid, *mut c_void) -> c_int,
    pub(crate) endpoint: unsafe extern "C" fn(*mut DomainFid, *mut Info, *mut *mut EpFid, *mut c_void) -> c_int,
    pub(crate) scalable_ep: unsafe extern "C" fn(*mut DomainFid, *mut Info, *mut *mut Fid, *mut c_void) -> c_int,
    pub(crate) cntr_open: unsafe extern "C" fn(*mut DomainFid, *mut CntrAttr, *mut *mut Fid, *mut c_void) -> c_int,
    pub(crate) poll_open: unsafe extern "C" fn(*mut DomainFid, *mut c_void, *mut *mut Fid) -> c_int,
    pub(crate) stx_ctx: unsafe extern "C" fn(*mut DomainFid, *mut c_void, *mut *mut Fid, *mut c_void) -> c_int,
    pub(crate) srx_ctx: unsafe extern "C" fn(*mut DomainFid, *mut c_void, *mut *mut Fid, *mut c_void) -> c_int,
    pub(crate) query_atomic: unsafe extern "C" fn(*mut DomainFid, u32, u32, *mut AtomicAttr, u64) -> c_int,
    pub(crate) query_collective: unsafe extern "C" fn(*mut DomainFid, u32, *mut c_void, u64) -> c_int,
    pub(crate) endpoint2: unsafe extern "C" fn(*mut DomainFid, *mut Info, *mut *mut EpFid, u64, *mut c_void) -> c_int,
}

/// `fi_atomic_attr`
#[repr(C)]
pub(crate) struct AtomicAttr {
    pub(crate) count: usize,
    pub(crate) size: usize,
}

/// `fid_av`
#[repr(C)]
pub(crate) struct AvFid {
    pub(crate) fid: Fid,
    pub(crate) ops: *const AvOps,
}

/// `fi_ops_av`
#[repr(C)]
pub(crate) struct AvOps {
    pub(crate) size: usize,
    pub(crate) insert: unsafe extern "C" fn(*mut AvFid, *const c_void, usize, *mut Addr, u64, *mut c_void) -> c_int,
    pub(crate) insertsvc:
        unsafe extern "C" fn(*mut AvFid, *const c_char, *const c_char, *mut Addr, u64, *mut c_void) -> c_int,
    #[rustfmt::skip]
    pub(crate) insertsym: unsafe extern "C" fn(
        *mut AvFid, *const c_char, usize, *const c_char, usize, *mut Addr, u64, *mut c_void,
    ) -> c_int,
    pub(crate) remove: unsafe extern "C" fn(*mut AvFid, *mut Addr, usize, u64) -> c_int,
    pub(crate) lookup: unsafe extern "C" fn(*mut AvFid, Addr, *mut c_void, *mut usize) -> c_int,
    pub(crate) straddr: unsafe extern "C" fn(*mut AvFid, *const c_void, *mut c_char, *mut usize) -> *const c_char,
    pub(crate) av_set: unsafe extern "C" fn(*mut AvFid, *mut c_void, *mut *mut Fid, *mut c_void) -> c_int,
    // Not there before version 2.
    pub(crate) insert_auth_key: unsafe extern "C" fn(*mut AvFid, *const c_void, usize, *mut Addr, u64) -> c_int,
    pub(crate) lookup_auth_key: unsafe extern "C" fn(*mut AvFid, Addr, *mut c_void, *mut usize) -> c_int,
    pub(crate) set_user_id: unsafe extern "C" fn(*mut AvFid, Addr, Addr, u64) -> c_int,
}

/// `fid_mr`
#[repr(C)]
pub(crate) struct MrFid {
    pub(crate) fid: Fid,
    pub(crate) mem_desc: *mut c_void,
    pub(crate) key: u64,
}

/// `fi_ops_mr`
#[repr(C)]
pub(crate) struct MrOps {
    pub(crate) size: usize,
    #[rustfmt::skip]
    pub(crate) reg: unsafe extern "C" fn(
        *mut Fid, *const c_void, usize, u64, u64, u64, u64, *mut *mut MrFid, *mut c_void,
    ) -> c_int,
    #[rustfmt::skip]
    pub(crate) regv: unsafe extern "C" fn(
        *mut Fid, *const iovec, usize, u64, u64, u64, u64, *mut *mut MrFid, *mut c_void,
    ) -> c_int,
    pub(crate) regattr: unsafe extern "C" fn(*mut Fid, *const MrAttr, u64, *mut *mut MrFid) -> c_int,
}

/// The front of `fi_mr_attr`, which grew with every version; more than this is never read.
#[repr(C)]
pub(crate) struct MrAttr {
    pub(crate) mr_iov: *const iovec,
    pub(crate) iov_count: usize,
    pub(crate) access: u64,
    pub(crate) offset: u64,
    pub(crate) requested_key: u64,
    pub(crate) context: *mut c_void,
}
