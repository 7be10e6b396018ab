//! Queues and counters: how they are opened, read and what they hold.

use std::ffi::{c_char, c_int, c_void};

use super::fid::Fid;

/// `fi_av_attr`
#[repr(C)]
pub struct AvAttr {
    pub kind: u32,
    pub rx_ctx_bits: c_int,
    pub count: usize,
    pub ep_per_node: usize,
    pub name: *const c_char,
    pub map_addr: *mut c_void,
    pub flags: u64,
}

/// `fi_eq_attr`
#[repr(C)]
pub struct EqAttr {
    pub size: usize,
    pub flags: u64,
    pub wait_obj: u32,
    pub signaling_vector: c_int,
    pub wait_set: *mut Fid,
}

/// `fi_cq_attr`
#[repr(C)]
pub struct CqAttr {
    pub size: usize,
    pub flags: u64,
    pub format: u32,
    pub wait_obj: u32,
    pub signaling_vector: c_int,
    pub wait_cond: u32,
    pub wait_set: *mut Fid,
}

/// `fi_cntr_attr`
#[repr(C)]
pub struct CntrAttr {
    pub events: u32,
    pub wait_obj: u32,
    pub wait_set: *mut Fid,
    pub flags: u64,
}

/// `fid_eq`
#[repr(C)]
pub struct EqFid {
    pub fid: Fid,
    pub ops: *const EqOps,
}

/// `fi_ops_eq`
#[repr(C)]
pub struct EqOps {
    pub size: usize,
    pub read: unsafe extern "C" fn(*mut EqFid, *mut u32, *mut c_void, usize, u64) -> isize,
    pub readerr: unsafe extern "C" fn(*mut EqFid, *mut EqErrEntry, u64) -> isize,
    pub write: unsafe extern "C" fn(*mut EqFid, u32, *const c_void, usize, u64) -> isize,
    pub sread: unsafe extern "C" fn(*mut EqFid, *mut u32, *mut c_void, usize, c_int, u64) -> isize,
    pub strerror: unsafe extern "C" fn(*mut EqFid, c_int, *const c_void, *mut c_char, usize) -> *const c_char,
}

/// `fi_eq_entry`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct EqEntry {
    pub fid: *mut Fid,
    pub context: *mut c_void,
    pub data: u64,
}

/// `fi_eq_err_entry`
#[repr(C)]
pub struct EqErrEntry {
    pub fid: *mut Fid,
    pub context: *mut c_void,
    pub data: u64,
    pub err: c_int,
    pub prov_errno: c_int,
    pub err_data: *mut c_void,
    pub err_data_size: usize,
}

/// `fid_cq`
#[repr(C)]
pub struct CqFid {
    pub fid: Fid,
    pub ops: *const CqOps,
}

/// `fi_ops_cq`
#[repr(C)]
pub struct CqOps {
    pub size: usize,
    pub read: unsafe extern "C" fn(*mut CqFid, *mut c_void, usize) -> isize,
    pub readfrom: unsafe extern "C" fn(*mut CqFid, *mut c_void, usize, *mut u64) -> isize,
    pub readerr: unsafe extern "C" fn(*mut CqFid, *mut CqErrEntry, u64) -> isize,
    pub sread: unsafe extern "C" fn(*mut CqFid, *mut c_void, usize, *const c_void, c_int) -> isize,
    pub sreadfrom: unsafe extern "C" fn(*mut CqFid, *mut c_void, usize, *mut u64, *const c_void, c_int) -> isize,
    pub signal: unsafe extern "C" fn(*mut CqFid) -> c_int,
    pub strerror: unsafe extern "C" fn(*mut CqFid, c_int, *const c_void, *mut c_char, usize) -> *const c_char,
}

/// `fi_cq_tagged_entry`. The other formats are fronts of it: the context, then up to `len`, then up to `data`. Pointers are numbers
/// here, for nothing of ours follows them.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct CqEntry {
    pub op_context: usize,
    pub flags: u64,
    pub len: usize,
    pub buf: usize,
    pub data: u64,
    pub tag: u64,
}

/// `fi_cq_msg_entry`
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct CqMsgEntry {
    pub op_context: usize,
    pub flags: u64,
    pub len: usize,
}

/// `fi_cq_err_entry` up to where version 1.17 ends.
#[repr(C)]
pub struct CqErrEntry {
    pub entry: CqEntry,
    pub olen: usize,
    pub err: c_int,
    pub prov_errno: c_int,
    pub err_data: *mut c_void,
    pub err_data_size: usize,
}

/// `fid_cntr`
#[repr(C)]
pub struct CntrFid {
    pub fid: Fid,
    pub ops: *const CntrOps,
}

/// `fi_ops_cntr`
#[repr(C)]
pub struct CntrOps {
    pub size: usize,
    pub read: unsafe extern "C" fn(*mut CntrFid) -> u64,
    pub readerr: unsafe extern "C" fn(*mut CntrFid) -> u64,
    pub add: unsafe extern "C" fn(*mut CntrFid, u64) -> c_int,
    pub set: unsafe extern "C" fn(*mut CntrFid, u64) -> c_int,
    pub wait: unsafe extern "C" fn(*mut CntrFid, u64, c_int) -> c_int,
    pub adderr: unsafe extern "C" fn(*mut CntrFid, u64) -> c_int,
    pub seterr: unsafe extern "C" fn(*mut CntrFid, u64) -> c_int,
}

/// `fid_poll`
#[repr(C)]
pub struct PollFid {
    pub fid: Fid,
    pub ops: *const PollOps,
}

/// `fi_ops_poll`
#[repr(C)]
pub struct PollOps {
    pub size: usize,
    pub poll: unsafe extern "C" fn(*mut PollFid, *mut *mut c_void, c_int) -> c_int,
    pub poll_add: unsafe extern "C" fn(*mut PollFid, *mut Fid, u64) -> c_int,
    pub poll_del: unsafe extern "C" fn(*mut PollFid, *mut Fid, u64) -> c_int,
}
