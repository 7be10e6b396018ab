//! Endpoints: what they can do, and the structures that describe a message.

use std::ffi::{c_int, c_void};

use libc::iovec;

use super::Addr;
use super::fid::Fid;

/// `fid_ep`
#[repr(C)]
pub struct EpFid {
    pub fid: Fid,
    pub ops: *const EpOps,
    pub cm: *const CmOps,
    pub msg: *const MsgOps,
    pub rma: *const RmaOps,
    pub tagged: *const TaggedOps,
    pub atomic: *const AtomicOps,
    pub collective: *const c_void,
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
pub struct EpOps {
    pub size: usize,
    pub cancel: unsafe extern "C" fn(*mut Fid, Context) -> isize,
    pub getopt: unsafe extern "C" fn(*mut Fid, c_int, c_int, Buf, *mut usize) -> c_int,
    pub setopt: unsafe extern "C" fn(*mut Fid, c_int, c_int, ConstBuf, usize) -> c_int,
    pub tx_ctx: unsafe extern "C" fn(Ep, c_int, Buf, *mut *mut EpFid, Context) -> c_int,
    pub rx_ctx: unsafe extern "C" fn(Ep, c_int, Buf, *mut *mut EpFid, Context) -> c_int,
    pub rx_size_left: unsafe extern "C" fn(Ep) -> isize,
    pub tx_size_left: unsafe extern "C" fn(Ep) -> isize,
}

/// `fi_ops_cm`
#[repr(C)]
pub struct CmOps {
    pub size: usize,
    pub setname: unsafe extern "C" fn(*mut Fid, Buf, usize) -> c_int,
    pub getname: unsafe extern "C" fn(*mut Fid, Buf, *mut usize) -> c_int,
    pub getpeer: unsafe extern "C" fn(Ep, Buf, *mut usize) -> c_int,
    pub connect: unsafe extern "C" fn(Ep, ConstBuf, ConstBuf, usize) -> c_int,
    pub listen: unsafe extern "C" fn(*mut Fid) -> c_int,
    pub accept: unsafe extern "C" fn(Ep, ConstBuf, usize) -> c_int,
    pub reject: unsafe extern "C" fn(*mut Fid, *mut Fid, ConstBuf, usize) -> c_int,
    pub shutdown: unsafe extern "C" fn(Ep, u64) -> c_int,
    pub join: unsafe extern "C" fn(Ep, ConstBuf, u64, *mut *mut Fid, Context) -> c_int,
}

/// `fi_msg`
#[repr(C)]
pub struct Msg {
    pub msg_iov: Iov,
    pub desc: Descs,
    pub iov_count: usize,
    pub addr: Addr,
    pub context: Context,
    pub data: u64,
}

/// `fi_ops_msg`
#[repr(C)]
pub struct MsgOps {
    pub size: usize,
    pub recv: unsafe extern "C" fn(Ep, Buf, usize, Desc, Addr, Context) -> isize,
    pub recvv: unsafe extern "C" fn(Ep, Iov, Descs, usize, Addr, Context) -> isize,
    pub recvmsg: unsafe extern "C" fn(Ep, *const Msg, u64) -> isize,
    pub send: unsafe extern "C" fn(Ep, ConstBuf, usize, Desc, Addr, Context) -> isize,
    pub sendv: unsafe extern "C" fn(Ep, Iov, Descs, usize, Addr, Context) -> isize,
    pub sendmsg: unsafe extern "C" fn(Ep, *const Msg, u64) -> isize,
    pub inject: unsafe extern "C" fn(Ep, ConstBuf, usize, Addr) -> isize,
    pub senddata: unsafe extern "C" fn(Ep, ConstBuf, usize, Desc, u64, Addr, Context) -> isize,
    pub injectdata: unsafe extern "C" fn(Ep, ConstBuf, usize, u64, Addr) -> isize,
}

/// `fi_msg_tagged`
#[repr(C)]
pub struct MsgTagged {
    pub msg_iov: Iov,
    pub desc: Descs,
    pub iov_count: usize,
    pub addr: Addr,
    pub tag: u64,
    pub ignore: u64,
    pub context: Context,
    pub data: u64,
}

/// `fi_ops_tagged`
#[repr(C)]
pub struct TaggedOps {
    pub size: usize,
    pub recv: unsafe extern "C" fn(Ep, Buf, usize, Desc, Addr, u64, u64, Context) -> isize,
    pub recvv: unsafe extern "C" fn(Ep, Iov, Descs, usize, Addr, u64, u64, Context) -> isize,
    pub recvmsg: unsafe extern "C" fn(Ep, *const MsgTagged, u64) -> isize,
    pub send: unsafe extern "C" fn(Ep, ConstBuf, usize, Desc, Addr, u64, Context) -> isize,
    pub sendv: unsafe extern "C" fn(Ep, Iov, Descs, usize, Addr, u64, Context) -> isize,
    pub sendmsg: unsafe extern "C" fn(Ep, *const MsgTagged, u64) -> isize,
    pub inject: unsafe extern "C" fn(Ep, ConstBuf, usize, Addr, u64) -> isize,
    pub senddata: unsafe extern "C" fn(Ep, ConstBuf, usize, Desc, u64, Addr, u64, Context) -> isize,
    pub injectdata: unsafe extern "C" fn(Ep, ConstBuf, usize, u64, Addr, u64) -> isize,
}

/// `fi_rma_iov`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RmaIov {
    pub addr: u64,
    pub len: usize,
    pub key: u64,
}

/// `fi_msg_rma`
#[repr(C)]
pub struct MsgRma {
    pub msg_iov: Iov,
    pub desc: Descs,
    pub iov_count: usize,
    pub addr: Addr,
    pub rma_iov: *const RmaIov,
    pub rma_iov_count: usize,
    pub context: Context,
    pub data: u64,
}

/// `fi_ops_rma`
#[repr(C)]
pub struct RmaOps {
    pub size: usize,
    pub read: unsafe extern "C" fn(Ep, Buf, usize, Desc, Addr, u64, u64, Context) -> isize,
    pub readv: unsafe extern "C" fn(Ep, Iov, Descs, usize, Addr, u64, u64, Context) -> isize,
    pub readmsg: unsafe extern "C" fn(Ep, *const MsgRma, u64) -> isize,
    pub write: unsafe extern "C" fn(Ep, ConstBuf, usize, Desc, Addr, u64, u64, Context) -> isize,
    pub writev: unsafe extern "C" fn(Ep, Iov, Descs, usize, Addr, u64, u64, Context) -> isize,
    pub writemsg: unsafe extern "C" fn(Ep, *const MsgRma, u64) -> isize,
    pub inject: unsafe extern "C" fn(Ep, ConstBuf, usize, Addr, u64, u64) -> isize,
    pub writedata: unsafe extern "C" fn(Ep, ConstBuf, usize, Desc, u64, Addr, u64, u64, Context) -> isize,
    pub injectdata: unsafe extern "C" fn(Ep, ConstBuf, usize, u64, Addr, u64, u64) -> isize,
}

/// `fi_ioc`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Ioc {
    pub addr: Buf,
    pub count: usize,
}

/// `fi_rma_ioc`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RmaIoc {
    pub addr: u64,
    pub count: usize,
    pub key: u64,
}

/// `fi_msg_atomic`
#[repr(C)]
pub struct MsgAtomic {
    pub msg_iov: *const Ioc,
    pub desc: Descs,
    pub iov_count: usize,
    pub addr: Addr,
    pub rma_iov: *const RmaIoc,
    pub rma_iov_count: usize,
    pub datatype: u32,
    pub op: u32,
    pub context: Context,
    pub data: u64,
}

/// `fi_ops_atomic`
#[repr(C)]
#[rustfmt::skip]
pub struct AtomicOps {
    pub size: usize,
    pub write: unsafe extern "C" fn(Ep, ConstBuf, usize, Desc, Addr, u64, u64, u32, u32, Context) -> isize,
    pub writev: unsafe extern "C" fn(Ep, *const Ioc, Descs, usize, Addr, u64, u64, u32, u32, Context) -> isize,
    pub writemsg: unsafe extern "C" fn(Ep, *const MsgAtomic, u64) -> isize,
    pub inject: unsafe extern "C" fn(Ep, ConstBuf, usize, Addr, u64, u64, u32, u32) -> isize,
    pub readwrite: unsafe extern "C" fn(
        Ep, ConstBuf, usize, Desc, Buf, Desc, Addr, u64, u64, u32, u32, Context,
    ) -> isize,
    pub readwritev: unsafe extern "C" fn(
        Ep, *const Ioc, Descs, usize, *mut Ioc, Descs, usize, Addr, u64, u64, u32, u32, Context,
    ) -> isize,
    pub readwritemsg: unsafe extern "C" fn(Ep, *const MsgAtomic, *mut Ioc, Descs, usize, u64) -> isize,
    pub compwrite: unsafe extern "C" fn(
        Ep, ConstBuf, usize, Desc, ConstBuf, Desc, Buf, Desc, Addr, u64, u64, u32, u32, Context,
    ) -> isize,
    pub compwritev: unsafe extern "C" fn(
        Ep, *const Ioc, Descs, usize, *const Ioc, Descs, usize, *mut Ioc, Descs, usize, Addr, u64, u64, u32, u32, Context,
    ) -> isize,
    pub compwritemsg: unsafe extern "C" fn(
        Ep, *const MsgAtomic, *const Ioc, Descs, usize, *mut Ioc, Descs, usize, u64,
    ) -> isize,
    pub writevalid: unsafe extern "C" fn(Ep, u32, u32, *mut usize) -> c_int,
    pub readwritevalid: unsafe extern "C" fn(Ep, u32, u32, *mut usize) -> c_int,
    pub compwritevalid: unsafe extern "C" fn(Ep, u32, u32, *mut usize) -> c_int,
}
