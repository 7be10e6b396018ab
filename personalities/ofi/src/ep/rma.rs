//! Reading and writing a peer's memory.
#![allow(clippy::too_many_arguments, reason = "the calls are libfabric's")]

use std::ffi::c_void;
use std::sync::atomic::Ordering;

use libc::iovec;
use madrigal_message::endpoint::{Get, Put};
use madrigal_sys::piece::{self, Piece};

use super::pieces::{Pieces, one};
use super::{Ep, EpObject, code};
use crate::abi::Addr;
use crate::abi::endpoint::{EpFid, MsgRma, RmaIov, RmaOps};
use crate::abi::errno::{EINVAL, EIO, EMSGSIZE};
use crate::abi::flags::{COMPLETION, INJECT, READ, REMOTE_CQ_DATA, RMA, WRITE};
use crate::guard::guard;
use crate::info;
use crate::state::{EpState, Role};
use crate::state::{Queues, Request};

pub(super) static OPS: RmaOps =
    RmaOps { size: size_of::<RmaOps>(), read, readv, readmsg, write, writev, writemsg, inject, writedata, injectdata };

const FAILED: isize = -(EIO as isize);

/// The peer, the place in its memory, and the completion.
struct Remote {
    peer: Addr,
    at: u64,
    key: u64,
    context: usize,
    flags: u64,
    data: u64,
    silent: bool,
}

impl EpState {
    fn get(&mut self, remote: &Remote, parts: &[Piece], queues: &mut Queues) -> Result<(), i32> {
        let from = self.target(remote.peer, remote.flags)?;
        let request = self.rma_request(remote, READ, Role::Read);
        let token = self.keep(request);
        let posted = self.link.get(&Get { from, key: remote.key, at: remote.at, parts, token });
        self.posted(posted, token, &request, queues)
    }

    fn put(&mut self, remote: &Remote, parts: &[Piece], queues: &mut Queues) -> Result<(), i32> {
        let to = self.target(remote.peer, remote.flags)?;
        let inject = remote.silent || remote.flags & INJECT != 0;
        if inject && piece::total(parts) > info::INJECT {
            return Err(EMSGSIZE);
        }
        let request = self.rma_request(remote, WRITE, Role::Write);
        let token = self.keep(request);
        let data = (remote.flags & REMOTE_CQ_DATA != 0).then_some(remote.data);
        let posted = self.link.put(&Put { to, key: remote.key, at: remote.at, parts, data, token, inject });
        self.posted(posted, token, &request, queues)
    }

    fn rma_request(&self, remote: &Remote, way: u64, role: Role) -> Request {
        let tell = !remote.silent && (!self.tx_selective || remote.flags & COMPLETION != 0);
        Request { context: remote.context, flags: RMA | way, tell, role }
    }
}

/// The endpoint behind a handle, and the flags of operations that are given none.
///
/// # Safety
/// A live endpoint of ours.
unsafe fn of<'a>(ep: *mut EpFid) -> (&'a Ep, u64) {
    // SAFETY: by the caller.
    let ep = unsafe { EpObject::of(ep) };
    // Nothing else depends on when a change is seen.
    (ep, ep.tx_flags.load(Ordering::Relaxed))
}

unsafe extern "C" fn read(
    ep: *mut EpFid,
    buf: *mut c_void,
    len: usize,
    _: *mut c_void,
    peer: Addr,
    at: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    guard(FAILED, || {
        // SAFETY: a live endpoint, and a buffer the caller leaves alone until the completion.
        let ((ep, flags), parts) = unsafe { (of(ep), one(buf, len)) };
        let remote = Remote { peer, at, key, context: context as usize, flags, data: 0, silent: false };
        code(ep.with(|it, queues| it.get(&remote, &parts, queues)))
    })
}

unsafe extern "C" fn readv(
    ep: *mut EpFid,
    iov: *const iovec,
    _: *mut *mut c_void,
    count: usize,
    peer: Addr,
    at: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    guard(FAILED, || {
        // SAFETY: a live endpoint, and buffers the caller leaves alone until the completion.
        let ((ep, flags), parts) = unsafe { (of(ep), Pieces::of_iov(iov, count)) };
        let remote = Remote { peer, at, key, context: context as usize, flags, data: 0, silent: false };
        code(parts.and_then(|parts| ep.with(|it, queues| it.get(&remote, parts.as_slice(), queues))))
    })
}

unsafe extern "C" fn readmsg(ep: *mut EpFid, msg: *const MsgRma, flags: u64) -> isize {
    guard(FAILED, || {
        // SAFETY: a live endpoint, and a whole description or null, of buffers the caller leaves alone until the completion.
        let (ep, described) = unsafe { (of(ep).0, describe(msg, flags)) };
        code(described.and_then(|(remote, parts)| ep.with(|it, queues| it.get(&remote, parts.as_slice(), queues))))
    })
}

unsafe extern "C" fn write(
    ep: *mut EpFid,
    buf: *const c_void,
    len: usize,
    _: *mut c_void,
    peer: Addr,
    at: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    guard(FAILED, || {
        // SAFETY: a live endpoint, and a buffer the caller leaves alone until the completion.
        let ((ep, flags), parts) = unsafe { (of(ep), one(buf, len)) };
        let remote = Remote { peer, at, key, context: context as usize, flags, data: 0, silent: false };
        code(ep.with(|it, queues| it.put(&remote, &parts, queues)))
    })
}

unsafe extern "C" fn writev(
    ep: *mut EpFid,
    iov: *const iovec,
    _: *mut *mut c_void,
    count: usize,
    peer: Addr,
    at: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    guard(FAILED, || {
        // SAFETY: a live endpoint, and buffers the caller leaves alone until the completion.
        let ((ep, flags), parts) = unsafe { (of(ep), Pieces::of_iov(iov, count)) };
        let remote = Remote { peer, at, key, context: context as usize, flags, data: 0, silent: false };
        code(parts.and_then(|parts| ep.with(|it, queues| it.put(&remote, parts.as_slice(), queues))))
    })
}

unsafe extern "C" fn writemsg(ep: *mut EpFid, msg: *const MsgRma, flags: u64) -> isize {
    guard(FAILED, || {
        // SAFETY: a live endpoint, and a whole description or null, of buffers the caller leaves alone until the completion.
        let (ep, described) = unsafe { (of(ep).0, describe(msg, flags)) };
        code(described.and_then(|(remote, parts)| ep.with(|it, queues| it.put(&remote, parts.as_slice(), queues))))
    })
}

unsafe extern "C" fn inject(ep: *mut EpFid, buf: *const c_void, len: usize, peer: Addr, at: u64, key: u64) -> isize {
    guard(FAILED, || {
        // SAFETY: a live endpoint, and a buffer that stays until we return.
        let ((ep, _), parts) = unsafe { (of(ep), one(buf, len)) };
        let remote = Remote { peer, at, key, context: 0, flags: 0, data: 0, silent: true };
        code(ep.with(|it, queues| it.put(&remote, &parts, queues)))
    })
}

unsafe extern "C" fn writedata(
    ep: *mut EpFid,
    buf: *const c_void,
    len: usize,
    _: *mut c_void,
    data: u64,
    peer: Addr,
    at: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    guard(FAILED, || {
        // SAFETY: a live endpoint, and a buffer the caller leaves alone until the completion.
        let ((ep, flags), parts) = unsafe { (of(ep), one(buf, len)) };
        let flags = flags | REMOTE_CQ_DATA;
        let remote = Remote { peer, at, key, context: context as usize, flags, data, silent: false };
        code(ep.with(|it, queues| it.put(&remote, &parts, queues)))
    })
}

unsafe extern "C" fn injectdata(
    ep: *mut EpFid,
    buf: *const c_void,
    len: usize,
    data: u64,
    peer: Addr,
    at: u64,
    key: u64,
) -> isize {
    guard(FAILED, || {
        // SAFETY: a live endpoint, and a buffer that stays until we return.
        let ((ep, _), parts) = unsafe { (of(ep), one(buf, len)) };
        let remote = Remote { peer, at, key, context: 0, flags: REMOTE_CQ_DATA, data, silent: true };
        code(ep.with(|it, queues| it.put(&remote, &parts, queues)))
    })
}

/// Reads a description. We report a limit of one remote piece.
///
/// # Safety
/// Null or whole; the buffers are lent until the operation is over.
unsafe fn describe(msg: *const MsgRma, flags: u64) -> Result<(Remote, Pieces), i32> {
    // SAFETY: by the caller.
    let msg = unsafe { msg.as_ref() }.ok_or(EINVAL)?;
    if msg.rma_iov_count != 1 || msg.rma_iov.is_null() {
        return Err(EINVAL);
    }
    // SAFETY: one is there, by the caller.
    let RmaIov { addr, len, key } = unsafe { *msg.rma_iov };
    // SAFETY: by the caller.
    let parts = unsafe { Pieces::of_iov(msg.msg_iov, msg.iov_count) }?;
    if piece::total(parts.as_slice()) != len {
        return Err(EINVAL);
    }
    let context = msg.context as usize;
    Ok((Remote { peer: msg.addr, at: addr, key, context, flags, data: msg.data, silent: false }, parts))
}
