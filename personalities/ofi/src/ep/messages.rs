//! The calls for plain and tagged messages.
#![allow(clippy::too_many_arguments, reason = "the calls are libfabric's")]

use std::ffi::c_void;
use std::sync::atomic::Ordering;

use libc::iovec;

use super::pieces::{Pieces, one};
use super::receive::Incoming;
use super::send::Outgoing;
use super::{Ep, EpObject, code};
use crate::abi::Addr;
use crate::abi::endpoint::{EpFid, Msg, MsgOps, MsgTagged, TaggedOps};
use crate::abi::errno::{EINVAL, EIO};
use crate::abi::flags::REMOTE_CQ_DATA;
use crate::guard::guard;

/// Functions of plain messages.
pub(super) static PLAIN: MsgOps =
    MsgOps { size: size_of::<MsgOps>(), recv, recvv, recvmsg, send, sendv, sendmsg, inject, senddata, injectdata };

/// Functions of tagged messages.
pub(super) static TAGGED: TaggedOps = TaggedOps {
    size: size_of::<TaggedOps>(),
    recv: trecv,
    recvv: trecvv,
    recvmsg: trecvmsg,
    send: tsend,
    sendv: tsendv,
    sendmsg: tsendmsg,
    inject: tinject,
    senddata: tsenddata,
    injectdata: tinjectdata,
};

const FAILED: isize = -(EIO as isize);

impl Ep {
    /// Flags of a send that is given none.
    #[inline]
    fn tx(&self) -> u64 {
        // Nothing else depends on when a change is seen.
        self.tx_flags.load(Ordering::Relaxed)
    }

    /// Flags of a receive that is given none.
    #[inline]
    fn rx(&self) -> u64 {
        self.rx_flags.load(Ordering::Relaxed)
    }
}

/// The endpoint behind a handle.
///
/// # Safety
/// A live endpoint of ours.
#[inline]
unsafe fn of<'a>(ep: *mut EpFid) -> &'a Ep {
    // SAFETY: by the caller.
    unsafe { EpObject::of(ep) }
}

type Context = *mut c_void;

unsafe extern "C" fn recv(
    ep: *mut EpFid,
    buf: *mut c_void,
    len: usize,
    _: *mut c_void,
    from: Addr,
    context: Context,
) -> isize {
    guard(FAILED, || {
        // SAFETY: a live endpoint, and a buffer the caller leaves alone until the completion.
        let (ep, parts) = unsafe { (of(ep), one(buf, len)) };
        code(ep.receive(&Incoming { from, tag: None, ignore: 0, context: context as usize, flags: ep.rx() }, &parts))
    })
}

unsafe extern "C" fn recvv(
    ep: *mut EpFid,
    iov: *const iovec,
    _: *mut *mut c_void,
    count: usize,
    from: Addr,
    context: Context,
) -> isize {
    guard(FAILED, || {
        // SAFETY: a live endpoint, and buffers the caller leaves alone until the completion.
        let (ep, parts) = unsafe { (of(ep), Pieces::of_iov(iov, count)) };
        let message = Incoming { from, tag: None, ignore: 0, context: context as usize, flags: ep.rx() };
        code(parts.and_then(|parts| ep.receive(&message, parts.as_slice())))
    })
}

unsafe extern "C" fn recvmsg(ep: *mut EpFid, msg: *const Msg, flags: u64) -> isize {
    guard(FAILED, || {
        // SAFETY: a live endpoint, and a whole message or null.
        let (ep, Some(msg)) = (unsafe { (of(ep), msg.as_ref()) }) else { return -(EINVAL as isize) };
        // SAFETY: buffers the caller leaves alone until the completion.
        let parts = unsafe { Pieces::of_iov(msg.msg_iov, msg.iov_count) };
        let message = Incoming { from: msg.addr, tag: None, ignore: 0, context: msg.context as usize, flags };
        code(parts.and_then(|parts| ep.receive(&message, parts.as_slice())))
    })
}

unsafe extern "C" fn send(
    ep: *mut EpFid,
    buf: *const c_void,
    len: usize,
    _: *mut c_void,
    to: Addr,
    context: Context,
) -> isize {
    guard(FAILED, || {
        // SAFETY: a live endpoint, and a buffer the caller leaves alone until the completion.
        let (ep, parts) = unsafe { (of(ep), one(buf, len)) };
        let message = Outgoing { to, tag: None, data: 0, context: context as usize, flags: ep.tx(), silent: false };
        code(ep.send(&message, &parts))
    })
}

unsafe extern "C" fn sendv(
    ep: *mut EpFid,
    iov: *const iovec,
    _: *mut *mut c_void,
    count: usize,
    to: Addr,
    context: Context,
) -> isize {
    guard(FAILED, || {
        // SAFETY: a live endpoint, and buffers the caller leaves alone until the completion.
        let (ep, parts) = unsafe { (of(ep), Pieces::of_iov(iov, count)) };
        let message = Outgoing { to, tag: None, data: 0, context: context as usize, flags: ep.tx(), silent: false };
        code(parts.and_then(|parts| ep.send(&message, parts.as_slice())))
    })
}

unsafe extern "C" fn sendmsg(ep: *mut EpFid, msg: *const Msg, flags: u64) -> isize {
    guard(FAILED, || {
        // SAFETY: a live endpoint, and a whole message or null.
        let (ep, Some(msg)) = (unsafe { (of(ep), msg.as_ref()) }) else { return -(EINVAL as isize) };
        // SAFETY: buffers the caller leaves alone until the completion.
        let parts = unsafe { Pieces::of_iov(msg.msg_iov, msg.iov_count) };
        let context = msg.context as usize;
        let message = Outgoing { to: msg.addr, tag: None, data: msg.data, context, flags, silent: false };
        code(parts.and_then(|parts| ep.send(&message, parts.as_slice())))
    })
}

unsafe extern "C" fn inject(ep: *mut EpFid, buf: *const c_void, len: usize, to: Addr) -> isize {
    guard(FAILED, || {
        // SAFETY: a live endpoint, and a buffer that stays until we return.
        let (ep, parts) = unsafe { (of(ep), one(buf, len)) };
        code(ep.send(&Outgoing { to, tag: None, data: 0, context: 0, flags: 0, silent: true }, &parts))
    })
}

unsafe extern "C" fn senddata(
    ep: *mut EpFid,
    buf: *const c_void,
    len: usize,
    _: *mut c_void,
    data: u64,
    to: Addr,
    context: Context,
) -> isize {
    guard(FAILED, || {
        // SAFETY: a live endpoint, and a buffer the caller leaves alone until the completion.
        let (ep, parts) = unsafe { (of(ep), one(buf, len)) };
        let flags = ep.tx() | REMOTE_CQ_DATA;
        code(ep.send(&Outgoing { to, tag: None, data, context: context as usize, flags, silent: false }, &parts))
    })
}

unsafe extern "C" fn injectdata(ep: *mut EpFid, buf: *const c_void, len: usize, data: u64, to: Addr) -> isize {
    guard(FAILED, || {
        // SAFETY: a live endpoint, and a buffer that stays until we return.
        let (ep, parts) = unsafe { (of(ep), one(buf, len)) };
        code(ep.send(&Outgoing { to, tag: None, data, context: 0, flags: REMOTE_CQ_DATA, silent: true }, &parts))
    })
}

unsafe extern "C" fn trecv(
    ep: *mut EpFid,
    buf: *mut c_void,
    len: usize,
    _: *mut c_void,
    from: Addr,
    tag: u64,
    ignore: u64,
    context: Context,
) -> isize {
    guard(FAILED, || {
        // SAFETY: a live endpoint, and a buffer the caller leaves alone until the completion.
        let (ep, parts) = unsafe { (of(ep), one(buf, len)) };
        code(ep.receive(&Incoming { from, tag: Some(tag), ignore, context: context as usize, flags: ep.rx() }, &parts))
    })
}

unsafe extern "C" fn trecvv(
    ep: *mut EpFid,
    iov: *const iovec,
    _: *mut *mut c_void,
    count: usize,
    from: Addr,
    tag: u64,
    ignore: u64,
    context: Context,
) -> isize {
    guard(FAILED, || {
        // SAFETY: a live endpoint, and buffers the caller leaves alone until the completion.
        let (ep, parts) = unsafe { (of(ep), Pieces::of_iov(iov, count)) };
        let message = Incoming { from, tag: Some(tag), ignore, context: context as usize, flags: ep.rx() };
        code(parts.and_then(|parts| ep.receive(&message, parts.as_slice())))
    })
}

unsafe extern "C" fn trecvmsg(ep: *mut EpFid, msg: *const MsgTagged, flags: u64) -> isize {
    guard(FAILED, || {
        // SAFETY: a live endpoint, and a whole message or null.
        let (ep, Some(msg)) = (unsafe { (of(ep), msg.as_ref()) }) else { return -(EINVAL as isize) };
        // SAFETY: buffers the caller leaves alone until the completion.
        let parts = unsafe { Pieces::of_iov(msg.msg_iov, if msg.msg_iov.is_null() { 0 } else { msg.iov_count }) };
        let context = msg.context as usize;
        let message = Incoming { from: msg.addr, tag: Some(msg.tag), ignore: msg.ignore, context, flags };
        code(parts.and_then(|parts| ep.receive(&message, parts.as_slice())))
    })
}

unsafe extern "C" fn tsend(
    ep: *mut EpFid,
    buf: *const c_void,
    len: usize,
    _: *mut c_void,
    to: Addr,
    tag: u64,
    context: Context,
) -> isize {
    guard(FAILED, || {
        // SAFETY: a live endpoint, and a buffer the caller leaves alone until the completion.
        let (ep, parts) = unsafe { (of(ep), one(buf, len)) };
        let message =
            Outgoing { to, tag: Some(tag), data: 0, context: context as usize, flags: ep.tx(), silent: false };
        code(ep.send(&message, &parts))
    })
}

unsafe extern "C" fn tsendv(
    ep: *mut EpFid,
    iov: *const iovec,
    _: *mut *mut c_void,
    count: usize,
    to: Addr,
    tag: u64,
    context: Context,
) -> isize {
    guard(FAILED, || {
        // SAFETY: a live endpoint, and buffers the caller leaves alone until the completion.
        let (ep, parts) = unsafe { (of(ep), Pieces::of_iov(iov, count)) };
        let message =
            Outgoing { to, tag: Some(tag), data: 0, context: context as usize, flags: ep.tx(), silent: false };
        code(parts.and_then(|parts| ep.send(&message, parts.as_slice())))
    })
}

unsafe extern "C" fn tsendmsg(ep: *mut EpFid, msg: *const MsgTagged, flags: u64) -> isize {
    guard(FAILED, || {
        // SAFETY: a live endpoint, and a whole message or null.
        let (ep, Some(msg)) = (unsafe { (of(ep), msg.as_ref()) }) else { return -(EINVAL as isize) };
        // SAFETY: buffers the caller leaves alone until the completion.
        let parts = unsafe { Pieces::of_iov(msg.msg_iov, msg.iov_count) };
        let context = msg.context as usize;
        let message = Outgoing { to: msg.addr, tag: Some(msg.tag), data: msg.data, context, flags, silent: false };
        code(parts.and_then(|parts| ep.send(&message, parts.as_slice())))
    })
}

unsafe extern "C" fn tinject(ep: *mut EpFid, buf: *const c_void, len: usize, to: Addr, tag: u64) -> isize {
    guard(FAILED, || {
        // SAFETY: a live endpoint, and a buffer that stays until we return.
        let (ep, parts) = unsafe { (of(ep), one(buf, len)) };
        code(ep.send(&Outgoing { to, tag: Some(tag), data: 0, context: 0, flags: 0, silent: true }, &parts))
    })
}

unsafe extern "C" fn tsenddata(
    ep: *mut EpFid,
    buf: *const c_void,
    len: usize,
    _: *mut c_void,
    data: u64,
    to: Addr,
    tag: u64,
    context: Context,
) -> isize {
    guard(FAILED, || {
        // SAFETY: a live endpoint, and a buffer the caller leaves alone until the completion.
        let (ep, parts) = unsafe { (of(ep), one(buf, len)) };
        let flags = ep.tx() | REMOTE_CQ_DATA;
        code(ep.send(&Outgoing { to, tag: Some(tag), data, context: context as usize, flags, silent: false }, &parts))
    })
}

unsafe extern "C" fn tinjectdata(
    ep: *mut EpFid,
    buf: *const c_void,
    len: usize,
    data: u64,
    to: Addr,
    tag: u64,
) -> isize {
    guard(FAILED, || {
        // SAFETY: a live endpoint, and a buffer that stays until we return.
        let (ep, parts) = unsafe { (of(ep), one(buf, len)) };
        code(ep.send(&Outgoing { to, tag: Some(tag), data, context: 0, flags: REMOTE_CQ_DATA, silent: true }, &parts))
    })
}
