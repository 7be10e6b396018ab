//! Queues and counters: how they are opened, read and what they hold.

use std::ffi::{c_char, c_int, c_void};

use super::object::Fid;

/// `fi_av_attr`
#[repr(C)]
pub(crate) struct AvAttr {
    pub(crate) kind: u32,
    pub(crate) rx_ctx_bits: c_int,
    pub(crate) count: usize,
    pub(crate) ep_per_node: usize,
    pub(crate) name: *const c_char,
    pub(crate) map_addr: *mut c_void,
    pub(crate) flags: u64,
}

/// `fi_eq_attr`
#[repr(C)]
pub(crate) struct EqAttr {
    pub(crate) size: usize,
    pub(crate) flags: u64,
    pub(crate) wait_obj: u32,
    pub(crate) signaling_vector: c_int,
    pub(crate) wait_set: *mut Fid,
}

/// `fi_cq_attr`
#[repr(C)]
pub(crate) struct CqAttr {
    pub(crate) size: usize,
    pub(crate) flags: u64,
    pub(crate) format: u32,
    pub(crate) wait_obj: u32,
    pub(crate) signaling_vector: c_int,
    pub(crate) wait_cond: u32,
    pub(crate) wait_set: *mut Fid,
}

/// `fi_cntr_attr`
#[repr(C)]
pub(crate) struct CntrAttr {
    pub(crate) events: u32,
    pub(crate) wait_obj: u32,
    pub(crate) wait_set: *mut Fid,
    pub(crate) flags: u64,
}

/// `fid_eq`
#[repr(C)]
pub(crate) struct EqFid {
    pub(crate) fid: Fid,
    pub(crate) ops: *const EqOps,
}

/// `fi_ops_eq`
#[repr(C)]
pub(crate) struct EqOps {
    pub(crate) size: usize,
    pub(crate) read: unsafe extern "C" fn(*mut EqFid, *mut u32, *mut c_void, usize, u64) -> isize,
    pub(crate) readerr: unsafe extern "C" fn(*mut EqFid, *mut EqErrEntry, u64) -> isize,
    pub(crate) write: unsafe extern "C" fn(*mut EqFid, u32, *const c_void, usize, u64) -> isize,
    pub(crate) sread: unsafe extern "C" fn(*mut EqFid, *mut u32, *mut c_void, usize, c_int, u64) -> isize,
    pub(crate) strerror: unsafe extern "C" fn(*mut EqFid, c_int, *const c_void, *mut c_char, usize) -> *const c_char,
}

/// `fi_eq_entry`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct EqEntry {
    pub(crate) fid: *mut Fid,
    pub(crate) context: *mut c_void,
    pub(crate) data: u64,
}

/// `fi_eq_err_entry`
#[repr(C)]
pub(crate) struct EqErrEntry {
    pub(crate) fid: *mut Fid,
    pub(crate) context: *mut c_void,
    pub(crate) data: u64,
    pub(crate) err: c_int,
    pub(crate) prov_errno: c_int,
    pub(crate) err_data: *mut c_void,
    pub(crate) err_data_size: usize,
}

/// `fid_cq`
#[repr(C)]
pub(crate) struct CqFid {
    pub(crate) fid: Fid,
    pub(crate) ops: *const CqOps,
}

/// `fi_ops_cq`
#[repr(C)]
pub(crate) struct CqOps {
    pub(crate) size: usize,
    pub(crate) read: unsafe extern "C" fn(*mut CqFid, *mut c_void, usize) -> isize,
    pub(crate) readfrom: unsafe extern "C" fn(*mut CqFid, *mut c_void, usize, *mut u64) -> isize,
    pub(crate) readerr: unsafe extern "C" fn(*mut CqFid, *mut CqErrEntry, u64) -> isize,
    pub(crate) sread: unsafe extern "C" fn(*mut CqFid, *mut c_void, usize, *const c_void, c_int) -> isize,
    pub(crate) sreadfrom: unsafe extern "C" fn(*mut CqFid, *mut c_void, usize, *mut u64, *const c_void, c_int) -> isize,
    pub(crate) signal: unsafe extern "C" fn(*mut CqFid) -> c_int,
    pub(crate) strerror: unsafe extern "C" fn(*mut CqFid, c_int, *const c_void, *mut c_char, usize) -> *const c_char,
}

/// `fi_cq_tagged_entry`. The other formats are fronts of it: the context, then up to `len`, then up to `data`. Pointers are numbers
/// here, for nothing of ours follows them.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct CqEntry {
    pub(crate) op_context: usize,
    pub(crate) flags: u64,
    pub(crate) len: usize,
    pub(crate) buf: usize,
    pub(crate) data: u64,
    pub(crate) tag: u64,
}

/// `fi_cq_err_entry` up to where version 1.17 ends.
#[repr(C)]
pub(crate) struct CqErrEntry {
    pub(crate) entry: CqEntry,
    pub(crate) olen: usize,
    pub(crate) err: c_int,
    pub(crate) prov_errno: c_int,
    pub(crate) err_data: *mut c_void,
    pub(crate) err_data_size: usize,
}

/// `fid_cntr`
#[repr(C)]
pub(crate) struct CntrFid {
    pub(crate) fid: Fid,
    pub(crate) ops: *const CntrOps,
}

/// `fi_ops_cntr`
#[repr(C)]
pub(crate) struct CntrOps {
    pub(crate) size: usize,
    pub(crate) read: unsafe extern "C" fn(*mut CntrFid) -> u64,
    pub(crate) readerr: unsafe extern "C" fn(*mut CntrFid) -> u64,
    pub(crate) add: unsafe extern "C" fn(*mut CntrFid, u64) -> c_int,
    pub(crate) set: unsafe extern "C" fn(*mut CntrFid, u64) -> c_int,
    pub(crate) wait: unsafe extern "C" fn(*mut CntrFid, u64, c_int) -> c_int,
    pub(crate) adderr: unsafe extern "C" fn(*mut CntrFid, u64) -> c_int,
    pub(crate) seterr: unsafe extern "C" fn(*mut CntrFid, u64) -> c_int,
}

/// `fid_poll`
#[repr(C)]
pub(crate) struct PollFid {
    pub(crate) fid: Fid,
    pub(crate) ops: *const PollOps,
}

/// `fi_ops_poll`
#[repr(C)]
pub(crate) struct PollOps {
    pub(crate) size: usize,
    pub(crate) poll: unsafe extern "C" fn(*mut PollFid, *mut *mut c_void, c_int) -> c_int,
    pub(crate) poll_add: unsafe extern "C" fn(*mut PollFid, *mut Fid, u64) -> c_int,
    pub(crate) poll_del: unsafe extern "C" fn(*mut PollFid, *mut Fid, u64) -> c_int,
}
