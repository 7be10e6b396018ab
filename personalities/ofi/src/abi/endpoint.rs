//! Endpoints: what they can do, and the structures that describe a message.

use std::ffi::{c_int, c_void};

use libc::iovec;

use super::Addr;
use super::object::Fid;

/// `fid_ep`
#[repr(C)]
pub(crate) struct EpFid {
    pub(crate) fid: Fid,
    pub(crate) ops: *const EpOps,
    pub(crate) cm: *const CmOps,
    pub(crate) msg: *const MsgOps,
    pub(crate) rma: *const RmaOps,
    pub(crate) tagged: *const TaggedOps,
    pub(crate) atomic: *const AtomicOps,
    pub(crate) collective: *const c_void,
}

type Ep = *mut EpFid;
type Buf = *mut c_void;
type ConstBuf = *const c_void;
type Desc = *mut c_void;
type Descs = *mut *mut c_void;
type Iov = *const iovec;
type Context = *mut c_void;

/// `fi_ops_ep`
#[repr(C)]
pub(crate) struct EpOps {
    pub(crate) size: usize,
    pub(crate) cancel: unsafe extern "C" fn(*mut Fid, Context) -> isize,
    pub(crate) getopt: unsafe extern "C" fn(*mut Fid, c_int, c_int, Buf, *mut usize) -> c_int,
    pub(crate) setopt: unsafe extern "C" fn(*mut Fid, c_int, c_int, ConstBuf, usize) -> c_int,
    pub(crate) tx_ctx: unsafe extern "C" fn(Ep, c_int, Buf, *mut *mut EpFid, Context) -> c_int,
    pub(crate) rx_ctx: unsafe extern "C" fn(Ep, c_int, Buf, *mut *mut EpFid, Context) -> c_int,
    pub(crate) rx_size_left: unsafe extern "C" fn(Ep) -> isize,
    pub(crate) tx_size_left: unsafe extern "C" fn(Ep) -> isize,
}

/// `fi_ops_cm`
#[repr(C)]
pub(crate) struct CmOps {
    pub(crate) size: usize,
    pub(crate) setname: unsafe extern "C" fn(*mut Fid, Buf, usize) -> c_int,
    pub(crate) getname: unsafe extern "C" fn(*mut Fid, Buf, *mut usize) -> c_int,
    pub(crate) getpeer: unsafe extern "C" fn(Ep, Buf, *mut usize) -> c_int,
    pub(crate) connect: unsafe extern "C" fn(Ep, ConstBuf, ConstBuf, usize) -> c_int,
    pub(crate) listen: unsafe extern "C" fn(*mut Fid) -> c_int,
    pub(crate) accept: unsafe extern "C" fn(Ep, ConstBuf, usize) -> c_int,
    pub(crate) reject: unsafe extern "C" fn(*mut Fid, *mut Fid, ConstBuf, usize) -> c_int,
    pub(crate) shutdown: unsafe extern "C" fn(Ep, u64) -> c_int,
    pub(crate) join: unsafe extern "C" fn(Ep, ConstBuf, u64, *mut *mut Fid, Context) -> c_int,
}

/// `fi_msg`
#[repr(C)]
pub(crate) struct Msg {
    pub(crate) msg_iov: Iov,
    pub(crate) desc: Descs,
    pub(crate) iov_count: usize,
    pub(crate) addr: Addr,
    pub(crate) context: Context,
    pub(crate) data: u64,
}

/// `fi_ops_msg`
#[repr(C)]
pub(crate) struct MsgOps {
    pub(crate) size: usize,
    pub(crate) recv: unsafe extern "C" fn(Ep, Buf, usize, Desc, Addr, Context) -> isize,
    pub(crate) recvv: unsafe extern "C" fn(Ep, Iov, Descs, usize, Addr, Context) -> isize,
    pub(crate) recvmsg: unsafe extern "C" fn(Ep, *const Msg, u64) -> isize,
    pub(crate) send: unsafe extern "C" fn(Ep, ConstBuf, usize, Desc, Addr, Context) -> isize,
    pub(crate) sendv: unsafe extern "C" fn(Ep, Iov, Descs, usize, Addr, Context) -> isize,
    pub(crate) sendmsg: unsafe extern "C" fn(Ep, *const Msg, u64) -> isize,
    pub(crate) inject: unsafe extern "C" fn(Ep, ConstBuf, usize, Addr) -> isize,
    pub(crate) senddata: unsafe extern "C" fn(Ep, ConstBuf, usize, Desc, u64, Addr, Context) -> isize,
    pub(crate) injectdata: unsafe extern "C" fn(Ep, ConstBuf, usize, u64, Addr) -> isize,
}

/// `fi_msg_tagged`
#[repr(C)]
pub(crate) struct MsgTagged {
    pub(crate) msg_iov: Iov,
    pub(crate) desc: Descs,
    pub(crate) iov_count: usize,
    pub(crate) addr: Addr,
    pub(crate) tag: u64,
    pub(crate) ignore: u64,
    pub(crate) context: Context,
    pub(crate) data: u64,
}

/// `fi_ops_tagged`
#[repr(C)]
pub(crate) struct TaggedOps {
    pub(crate) size: usize,
    pub(crate) recv: unsafe extern "C" fn(Ep, Buf, usize, Desc, Addr, u64, u64, Context) -> isize,
    pub(crate) recvv: unsafe extern "C" fn(Ep, Iov, Descs, usize, Addr, u64, u64, Context) -> isize,
    pub(crate) recvmsg: unsafe extern "C" fn(Ep, *const MsgTagged, u64) -> isize,
    pub(crate) send: unsafe extern "C" fn(Ep, ConstBuf, usize, Desc, Addr, u64, Context) -> isize,
    pub(crate) sendv: unsafe extern "C" fn(Ep, Iov, Descs, usize, Addr, u64, Context) -> isize,
    pub(crate) sendmsg: unsafe extern "C" fn(Ep, *const MsgTagged, u64) -> isize,
    pub(crate) inject: unsafe extern "C" fn(Ep, ConstBuf, usize, Addr, u64) -> isize,
    pub(crate) senddata: unsafe extern "C" fn(Ep, ConstBuf, usize, Desc, u64, Addr, u64, Context) -> isize,
    pub(crate) injectdata: unsafe extern "C" fn(Ep, ConstBuf, usize, u64, Addr, u64) -> isize,
}

/// `fi_rma_iov`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RmaIov {
    pub(crate) addr: u64,
    pub(crate) len: usize,
    pub(crate) key: u64,
}

/// `fi_msg_rma`
#[repr(C)]
pub(crate) struct MsgRma {
    pub(crate) msg_iov: Iov,
    pub(crate) desc: Descs,
    pub(crate) iov_count: usize,
    pub(crate) addr: Addr,
    pub(crate) rma_iov: *const RmaIov,
    pub(crate) rma_iov_count: usize,
    pub(crate) context: Context,
    pub(crate) data: u64,
}

/// `fi_ops_rma`
#[repr(C)]
pub(crate) struct RmaOps {
    pub(crate) size: usize,
    pub(crate) read: unsafe extern "C" fn(Ep, Buf, usize, Desc, Addr, u64, u64, Context) -> isize,
    pub(crate) readv: unsafe extern "C" fn(Ep, Iov, Descs, usize, Addr, u64, u64, Context) -> isize,
    pub(crate) readmsg: unsafe extern "C" fn(Ep, *const MsgRma, u64) -> isize,
    pub(crate) write: unsafe extern "C" fn(Ep, ConstBuf, usize, Desc, Addr, u64, u64, Context) -> isize,
    pub(crate) writev: unsafe extern "C" fn(Ep, Iov, Descs, usize, Addr, u64, u64, Context) -> isize,
    pub(crate) writemsg: unsafe extern "C" fn(Ep, *const MsgRma, u64) -> isize,
    pub(crate) inject: unsafe extern "C" fn(Ep, ConstBuf, usize, Addr, u64, u64) -> isize,
    pub(crate) writedata: unsafe extern "C" fn(Ep, ConstBuf, usize, Desc, u64, Addr, u64, u64, Context) -> isize,
    pub(crate) injectdata: unsafe extern "C" fn(Ep, ConstBuf, usize, u64, Addr, u64, u64) -> isize,
}

/// `fi_ioc`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Ioc {
    pub(crate) addr: Buf,
    pub(crate) count: usize,
}

/// `fi_rma_ioc`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RmaIoc {
    pub(crate) addr: u64,
    pub(crate) count: usize,
    pub(crate) key: u64,
}

/// `fi_msg_atomic`
#[repr(C)]
pub(crate) struct MsgAtomic {
    pub(crate) msg_iov: *const Ioc,
    pub(crate) desc: Descs,
    pub(crate) iov_count: usize,
    pub(crate) addr: Addr,
    pub(crate) rma_iov: *const RmaIoc,
    pub(crate) rma_iov_count: usize,
    pub(crate) datatype: u32,
    pub(crate) op: u32,
    pub(crate) context: Context,
    pub(crate) data: u64,
}

/// `fi_ops_atomic`
#[repr(C)]
#[rustfmt::skip]
pub(crate) struct AtomicOps {
    pub(crate) size: usize,
    pub(crate) write: unsafe extern "C" fn(Ep, ConstBuf, usize, Desc, Addr, u64, u64, u32, u32, Context) -> isize,
    pub(crate) writev: unsafe extern "C" fn(Ep, *const Ioc, Descs, usize, Addr, u64, u64, u32, u32, Context) -> isize,
    pub(crate) writemsg: unsafe extern "C" fn(Ep, *const MsgAtomic, u64) -> isize,
    pub(crate) inject: unsafe extern "C" fn(Ep, ConstBuf, usize, Addr, u64, u64, u32, u32) -> isize,
    pub(crate) readwrite: unsafe extern "C" fn(
        Ep, ConstBuf, usize, Desc, Buf, Desc, Addr, u64, u64, u32, u32, Context,
    ) -> isize,
    pub(crate) readwritev: unsafe extern "C" fn(
        Ep, *const Ioc, Descs, usize, *mut Ioc, Descs, usize, Addr, u64, u64, u32, u32, Context,
    ) -> isize,
    pub(crate) readwritemsg: unsafe extern "C" fn(Ep, *const MsgAtomic, *mut Ioc, Descs, usize, u64) -> isize,
    pub(crate) compwrite: unsafe extern "C" fn(
        Ep, ConstBuf, usize, Desc, ConstBuf, Desc, Buf, Desc, Addr, u64, u64, u32, u32, Context,
    ) -> isize,
    pub(crate) compwritev: unsafe extern "C" fn(
        Ep, *const Ioc, Descs, usize, *const Ioc, Descs, usize, *mut Ioc, Descs, usize, Addr, u64, u64, u32, u32, Context,
    ) -> isize,
    pub(crate) compwritemsg: unsafe extern "C" fn(
        Ep, *const MsgAtomic, *const Ioc, Descs, usize, *mut Ioc, Descs, usize, u64,
    ) -> isize,
    pub(crate) writevalid: unsafe extern "C" fn(Ep, u32, u32, *mut usize) -> c_int,
    pub(crate) readwritevalid: unsafe extern "C" fn(Ep, u32, u32, *mut usize) -> c_int,
    pub(crate) compwritevalid: unsafe extern "C" fn(Ep, u32, u32, *mut usize) -> c_int,
}
