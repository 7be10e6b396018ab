//! Objects and what can be done with them: fabric, domain, address vector, memory region.

use std::ffi::{c_char, c_int, c_void};

use libc::iovec;

use super::Addr;
use super::endpoint::EpFid;
pub use super::fid::{Alias, Fid, Ops};
use super::info::Info;
use super::queue::{AvAttr, CntrAttr, CqAttr, EqAttr};

/// `fid_fabric`
#[repr(C)]
pub struct FabricFid {
    pub fid: Fid,
    pub ops: *const FabricOps,
    pub api_version: u32,
}

/// `fi_ops_fabric`
#[repr(C)]
pub struct FabricOps {
    pub size: usize,
    pub domain: unsafe extern "C" fn(*mut FabricFid, *mut Info, *mut *mut Fid, *mut c_void) -> c_int,
    pub passive_ep: unsafe extern "C" fn(*mut FabricFid, *mut Info, *mut *mut Fid, *mut c_void) -> c_int,
    pub eq_open: unsafe extern "C" fn(*mut FabricFid, *mut EqAttr, *mut *mut Fid, *mut c_void) -> c_int,
    pub wait_open: unsafe extern "C" fn(*mut FabricFid, *mut c_void, *mut *mut Fid) -> c_int,
    pub trywait: unsafe extern "C" fn(*mut FabricFid, *mut *mut Fid, c_int) -> c_int,
    pub domain2: unsafe extern "C" fn(*mut FabricFid, *mut Info, *mut *mut Fid, u64, *mut c_void) -> c_int,
}

/// `fid_domain`
#[repr(C)]
pub struct DomainFid {
    pub fid: Fid,
    pub ops: *const DomainOps,
    pub mr: *const MrOps,
}

/// `fi_ops_domain`
#[repr(C)]
pub struct DomainOps {
    pub size: usize,
    pub av_open: unsafe extern "C" fn(*mut DomainFid, *mut AvAttr, *mut *mut Fid, *mut c_void) -> c_int,
    pub cq_open: unsafe extern "C" fn(*mut DomainFid, *mut CqAttr, *mut *mut Fid, *mut c_void) -> c_int,
    pub endpoint: unsafe extern "C" fn(*mut DomainFid, *mut Info, *mut *mut EpFid, *mut c_void) -> c_int,
    pub scalable_ep: unsafe extern "C" fn(*mut DomainFid, *mut Info, *mut *mut Fid, *mut c_void) -> c_int,
    pub cntr_open: unsafe extern "C" fn(*mut DomainFid, *mut CntrAttr, *mut *mut Fid, *mut c_void) -> c_int,
    pub poll_open: unsafe extern "C" fn(*mut DomainFid, *mut c_void, *mut *mut Fid) -> c_int,
    pub stx_ctx: unsafe extern "C" fn(*mut DomainFid, *mut c_void, *mut *mut Fid, *mut c_void) -> c_int,
    pub srx_ctx: unsafe extern "C" fn(*mut DomainFid, *mut c_void, *mut *mut Fid, *mut c_void) -> c_int,
    pub query_atomic: unsafe extern "C" fn(*mut DomainFid, u32, u32, *mut AtomicAttr, u64) -> c_int,
    pub query_collective: unsafe extern "C" fn(*mut DomainFid, u32, *mut c_void, u64) -> c_int,
    pub endpoint2: unsafe extern "C" fn(*mut DomainFid, *mut Info, *mut *mut EpFid, u64, *mut c_void) -> c_int,
}

/// `fi_atomic_attr`
#[repr(C)]
pub struct AtomicAttr {
    pub count: usize,
    pub size: usize,
}

/// `fid_av`
#[repr(C)]
pub struct AvFid {
    pub fid: Fid,
    pub ops: *const AvOps,
}

/// `fi_ops_av`
#[repr(C)]
pub struct AvOps {
    pub size: usize,
    pub insert: unsafe extern "C" fn(*mut AvFid, *const c_void, usize, *mut Addr, u64, *mut c_void) -> c_int,
    pub insertsvc: unsafe extern "C" fn(*mut AvFid, *const c_char, *const c_char, *mut Addr, u64, *mut c_void) -> c_int,
    #[rustfmt::skip]
    pub insertsym: unsafe extern "C" fn(
        *mut AvFid, *const c_char, usize, *const c_char, usize, *mut Addr, u64, *mut c_void,
    ) -> c_int,
    pub remove: unsafe extern "C" fn(*mut AvFid, *mut Addr, usize, u64) -> c_int,
    pub lookup: unsafe extern "C" fn(*mut AvFid, Addr, *mut c_void, *mut usize) -> c_int,
    pub straddr: unsafe extern "C" fn(*mut AvFid, *const c_void, *mut c_char, *mut usize) -> *const c_char,
    pub av_set: unsafe extern "C" fn(*mut AvFid, *mut c_void, *mut *mut Fid, *mut c_void) -> c_int,
    // Not there before version 2.
    pub insert_auth_key: unsafe extern "C" fn(*mut AvFid, *const c_void, usize, *mut Addr, u64) -> c_int,
    pub lookup_auth_key: unsafe extern "C" fn(*mut AvFid, Addr, *mut c_void, *mut usize) -> c_int,
    pub set_user_id: unsafe extern "C" fn(*mut AvFid, Addr, Addr, u64) -> c_int,
}

/// `fid_mr`
#[repr(C)]
pub struct MrFid {
    pub fid: Fid,
    pub mem_desc: *mut c_void,
    pub key: u64,
}

/// `fi_ops_mr`
#[repr(C)]
pub struct MrOps {
    pub size: usize,
    #[rustfmt::skip]
    pub reg: unsafe extern "C" fn(
        *mut Fid, *const c_void, usize, u64, u64, u64, u64, *mut *mut MrFid, *mut c_void,
    ) -> c_int,
    #[rustfmt::skip]
    pub regv: unsafe extern "C" fn(
        *mut Fid, *const iovec, usize, u64, u64, u64, u64, *mut *mut MrFid, *mut c_void,
    ) -> c_int,
    pub regattr: unsafe extern "C" fn(*mut Fid, *const MrAttr, u64, *mut *mut MrFid) -> c_int,
}

/// The front of `fi_mr_attr`, which grew with every version; more than this is never read.
#[repr(C)]
pub struct MrAttr {
    pub mr_iov: *const iovec,
    pub iov_count: usize,
    pub access: u64,
    pub offset: u64,
    pub requested_key: u64,
    pub context: *mut c_void,
}
