//! Operations on numbers in a peer's memory.
#![allow(clippy::too_many_arguments, reason = "the calls are libfabric's")]

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

use madrigal_message::endpoint::Atomic;
use madrigal_message::endpoint::atomic::{AtomicOp, AtomicType, is_supported};
use madrigal_sys::piece::{self, Piece};

use super::pieces::Pieces;
use super::{Ep, EpObject, code};
use crate::abi::Addr;
use crate::abi::endpoint::{AtomicOps, EpFid, Ioc, MsgAtomic};
use crate::abi::errno::{EINVAL, EIO, EMSGSIZE, EOPNOTSUPP};
use crate::abi::flags::{ATOMIC, COMPARE_ATOMIC, COMPLETION, FETCH_ATOMIC, READ, WRITE};
use crate::abi::object::{AtomicAttr, DomainFid};
use crate::guard::guard;
use crate::state::{EpState, Role};
use crate::state::{Queues, Request};

pub(super) static OPS: AtomicOps = AtomicOps {
    size: size_of::<AtomicOps>(),
    write,
    writev,
    writemsg,
    inject,
    readwrite,
    readwritev,
    readwritemsg,
    compwrite,
    compwritev,
    compwritemsg,
    writevalid,
    readwritevalid,
    compwritevalid,
};

/// Bytes one operation works on.
pub(super) const MAX: usize = 4096;

const FAILED: isize = -(EIO as isize);

/// An operation as the caller describes it.
struct Described {
    peer: Addr,
    at: u64,
    key: u64,
    op: AtomicOp,
    of: AtomicType,
    context: usize,
    flags: u64,
    silent: bool,
}

/// The buffers of an operation. Each is lent until the operation is over.
struct Operands {
    operand: Pieces,
    compare: Option<Pieces>,
    result: Option<Pieces>,
}

/// A caller's numbers: one buffer or a vector.
#[derive(Clone, Copy)]
struct Numbers {
    ioc: *const Ioc,
    count: usize,
}

impl Numbers {
    /// # Safety
    /// What it names is lent as [`Piece::lend`] says.
    unsafe fn pieces(self, of: AtomicType) -> Result<Pieces, i32> {
        // SAFETY: by the caller.
        unsafe { Pieces::of_ioc(self.ioc, self.count, of.size()) }
    }
}

impl EpState {
    fn atomic(&mut self, what: &Described, with: &Operands, queues: &mut Queues) -> Result<(), i32> {
        let to = self.target(what.peer, what.flags)?;
        let fetches = with.result.is_some();
        let slice = |pieces: &Option<Pieces>| -> Vec<Piece> {
            pieces.as_ref().map_or_else(Vec::new, |p| p.as_slice().to_vec())
        };
        let (compare, result) = (slice(&with.compare), slice(&with.result));
        let operand = if what.op == AtomicOp::Read { &[] } else { with.operand.as_slice() };
        let bytes = piece::total(if what.op == AtomicOp::Read { &result } else { operand });
        if bytes > MAX {
            return Err(EMSGSIZE);
        }
        let request = Request {
            context: what.context,
            flags: ATOMIC | if fetches { READ } else { WRITE },
            tell: !what.silent && (!self.tx_selective || what.flags & COMPLETION != 0),
            role: if fetches { Role::Read } else { Role::Write },
        };
        let token = self.keep(request);
        let posted = self.link.atomic(&Atomic {
            to,
            key: what.key,
            at: what.at,
            op: what.op,
            of: what.of,
            count: bytes / what.of.size(),
            operand,
            compare: &compare,
            result: &result,
            token,
        });
        self.posted(posted, token, &request, queues)
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

/// The operation and its datatype, if we support them.
fn kind(datatype: u32, op: u32) -> Result<(AtomicOp, AtomicType), i32> {
    let found = AtomicOp::from_number(op).zip(AtomicType::from_number(datatype));
    found.filter(|&(op, of)| is_supported(op, of)).ok_or(EOPNOTSUPP)
}

/// The target of an operation, and its completion.
struct Call {
    peer: Addr,
    at: u64,
    key: u64,
    context: *mut c_void,
    flags: Option<u64>,
    silent: bool,
}

/// Does an operation.
///
/// # Safety
/// A live endpoint, and numbers the caller leaves alone until the completion.
unsafe fn run(
    ep: *mut EpFid,
    call: &Call,
    what: (u32, u32),
    operand: Numbers,
    compare: Option<Numbers>,
    result: Option<Numbers>,
) -> isize {
    guard(FAILED, || {
        // SAFETY: by the caller.
        let (ep, flags) = unsafe { of(ep) };
        let done = kind(what.0, what.1).and_then(|(op, of)| {
            // SAFETY: by the caller.
            let with = unsafe {
                Operands {
                    operand: operand.pieces(of)?,
                    compare: compare.map(|numbers| numbers.pieces(of)).transpose()?,
                    result: result.map(|numbers| numbers.pieces(of)).transpose()?,
                }
            };
            let described = Described {
                peer: call.peer,
                at: call.at,
                key: call.key,
                op,
                of,
                context: call.context as usize,
                flags: call.flags.unwrap_or(flags),
                silent: call.silent,
            };
            ep.with(|it, queues| it.atomic(&described, &with, queues))
        });
        code(done)
    })
}

/// One buffer, as a vector of one.
fn single(addr: *const c_void, count: usize) -> Ioc {
    Ioc { addr: addr.cast_mut(), count }
}

fn numbers(ioc: &Ioc) -> Numbers {
    Numbers { ioc, count: 1 }
}

unsafe extern "C" fn write(
    ep: *mut EpFid,
    buf: *const c_void,
    count: usize,
    _: *mut c_void,
    peer: Addr,
    at: u64,
    key: u64,
    datatype: u32,
    op: u32,
    context: *mut c_void,
) -> isize {
    let (call, ioc) = (Call { peer, at, key, context, flags: None, silent: false }, single(buf, count));
    // SAFETY: the caller's contract is ours.
    unsafe { run(ep, &call, (datatype, op), numbers(&ioc), None, None) }
}

unsafe extern "C" fn writev(
    ep: *mut EpFid,
    ioc: *const Ioc,
    _: *mut *mut c_void,
    count: usize,
    peer: Addr,
    at: u64,
    key: u64,
    datatype: u32,
    op: u32,
    context: *mut c_void,
) -> isize {
    let call = Call { peer, at, key, context, flags: None, silent: false };
    // SAFETY: the caller's contract is ours.
    unsafe { run(ep, &call, (datatype, op), Numbers { ioc, count }, None, None) }
}

unsafe extern "C" fn inject(
    ep: *mut EpFid,
    buf: *const c_void,
    count: usize,
    peer: Addr,
    at: u64,
    key: u64,
    datatype: u32,
    op: u32,
) -> isize {
    let context = std::ptr::null_mut();
    let (call, ioc) = (Call { peer, at, key, context, flags: Some(0), silent: true }, single(buf, count));
    // SAFETY: the caller's contract is ours.
    unsafe { run(ep, &call, (datatype, op), numbers(&ioc), None, None) }
}

unsafe extern "C" fn readwrite(
    ep: *mut EpFid,
    buf: *const c_void,
    count: usize,
    _: *mut c_void,
    result: *mut c_void,
    _: *mut c_void,
    peer: Addr,
    at: u64,
    key: u64,
    datatype: u32,
    op: u32,
    context: *mut c_void,
) -> isize {
    let call = Call { peer, at, key, context, flags: None, silent: false };
    let (ioc, result) = (single(buf, count), single(result, count));
    // SAFETY: the caller's contract is ours.
    unsafe { run(ep, &call, (datatype, op), numbers(&ioc), None, Some(numbers(&result))) }
}

unsafe extern "C" fn readwritev(
    ep: *mut EpFid,
    ioc: *const Ioc,
    _: *mut *mut c_void,
    count: usize,
    result: *mut Ioc,
    _: *mut *mut c_void,
    results: usize,
    peer: Addr,
    at: u64,
    key: u64,
    datatype: u32,
    op: u32,
    context: *mut c_void,
) -> isize {
    let call = Call { peer, at, key, context, flags: None, silent: false };
    let result = Numbers { ioc: result, count: results };
    // SAFETY: the caller's contract is ours.
    unsafe { run(ep, &call, (datatype, op), Numbers { ioc, count }, None, Some(result)) }
}

unsafe extern "C" fn compwrite(
    ep: *mut EpFid,
    buf: *const c_void,
    count: usize,
    _: *mut c_void,
    compare: *const c_void,
    _: *mut c_void,
    result: *mut c_void,
    _: *mut c_void,
    peer: Addr,
    at: u64,
    key: u64,
    datatype: u32,
    op: u32,
    context: *mut c_void,
) -> isize {
    let call = Call { peer, at, key, context, flags: None, silent: false };
    let (ioc, compare, result) = (single(buf, count), single(compare, count), single(result, count));
    // SAFETY: the caller's contract is ours.
    unsafe { run(ep, &call, (datatype, op), numbers(&ioc), Some(numbers(&compare)), Some(numbers(&result))) }
}

unsafe extern "C" fn compwritev(
    ep: *mut EpFid,
    ioc: *const Ioc,
    _: *mut *mut c_void,
    count: usize,
    compare: *const Ioc,
    _: *mut *mut c_void,
    compares: usize,
    result: *mut Ioc,
    _: *mut *mut c_void,
    results: usize,
    peer: Addr,
    at: u64,
    key: u64,
    datatype: u32,
    op: u32,
    context: *mut c_void,
) -> isize {
    let call = Call { peer, at, key, context, flags: None, silent: false };
    let (compare, result) = (Numbers { ioc: compare, count: compares }, Numbers { ioc: result, count: results });
    // SAFETY: the caller's contract is ours.
    unsafe { run(ep, &call, (datatype, op), Numbers { ioc, count }, Some(compare), Some(result)) }
}

unsafe extern "C" fn writemsg(ep: *mut EpFid, msg: *const MsgAtomic, flags: u64) -> isize {
    // SAFETY: the caller's contract is ours.
    unsafe { message(ep, msg, flags, None, None) }
}

unsafe extern "C" fn readwritemsg(
    ep: *mut EpFid,
    msg: *const MsgAtomic,
    result: *mut Ioc,
    _: *mut *mut c_void,
    results: usize,
    flags: u64,
) -> isize {
    // SAFETY: the caller's contract is ours.
    unsafe { message(ep, msg, flags, None, Some(Numbers { ioc: result, count: results })) }
}

unsafe extern "C" fn compwritemsg(
    ep: *mut EpFid,
    msg: *const MsgAtomic,
    compare: *const Ioc,
    _: *mut *mut c_void,
    compares: usize,
    result: *mut Ioc,
    _: *mut *mut c_void,
    results: usize,
    flags: u64,
) -> isize {
    let (compare, result) = (Numbers { ioc: compare, count: compares }, Numbers { ioc: result, count: results });
    // SAFETY: the caller's contract is ours.
    unsafe { message(ep, msg, flags, Some(compare), Some(result)) }
}

/// Does the operation of a description. We report a limit of one remote piece.
///
/// # Safety
/// As for [`run`]; the description is null or whole.
unsafe fn message(
    ep: *mut EpFid,
    msg: *const MsgAtomic,
    flags: u64,
    compare: Option<Numbers>,
    result: Option<Numbers>,
) -> isize {
    // SAFETY: by the caller.
    let Some(msg) = (unsafe { msg.as_ref() }) else { return -(EINVAL as isize) };
    if msg.rma_iov_count != 1 || msg.rma_iov.is_null() {
        return -(EINVAL as isize);
    }
    // SAFETY: one is there, by the caller.
    let place = unsafe { *msg.rma_iov };
    let call = Call {
        peer: msg.addr,
        at: place.addr,
        key: place.key,
        context: msg.context,
        flags: Some(flags),
        silent: false,
    };
    let operand = Numbers { ioc: msg.msg_iov, count: msg.iov_count };
    // SAFETY: by the caller.
    unsafe { run(ep, &call, (msg.datatype, msg.op), operand, compare, result) }
}

/// Whether there is such an operation, how many numbers it takes at most, and how large one is.
fn valid(datatype: u32, op: u32, flags: u64) -> Result<AtomicAttr, i32> {
    let (op, of) = kind(datatype, op)?;
    let compares = op.compares();
    let fits = match flags & (FETCH_ATOMIC | COMPARE_ATOMIC) {
        COMPARE_ATOMIC => compares,
        FETCH_ATOMIC => !compares,
        0 => !compares && op != AtomicOp::Read,
        _ => false,
    };
    fits.then(|| AtomicAttr { count: MAX / of.size(), size: of.size() }).ok_or(EOPNOTSUPP)
}

/// `fi_query_atomic`
pub(crate) unsafe extern "C" fn query(
    _domain: *mut DomainFid,
    datatype: u32,
    op: u32,
    attr: *mut AtomicAttr,
    flags: u64,
) -> c_int {
    guard(-EIO, || match valid(datatype, op, flags) {
        // SAFETY: a place for the answer, by the caller.
        Ok(found) => unsafe { crate::object::store(attr, found) },
        Err(errno) => -errno,
    })
}

fn answer(found: Result<AtomicAttr, i32>, count: *mut usize) -> c_int {
    match found {
        // SAFETY: a place for the number, or null, by the caller of the functions below.
        Ok(attr) => unsafe { crate::object::store(count, attr.count) },
        Err(errno) => -errno,
    }
}

unsafe extern "C" fn writevalid(_ep: *mut EpFid, datatype: u32, op: u32, count: *mut usize) -> c_int {
    guard(-EIO, || answer(valid(datatype, op, 0), count))
}

unsafe extern "C" fn readwritevalid(_ep: *mut EpFid, datatype: u32, op: u32, count: *mut usize) -> c_int {
    guard(-EIO, || answer(valid(datatype, op, FETCH_ATOMIC), count))
}

unsafe extern "C" fn compwritevalid(_ep: *mut EpFid, datatype: u32, op: u32, count: *mut usize) -> c_int {
    guard(-EIO, || answer(valid(datatype, op, COMPARE_ATOMIC), count))
}
