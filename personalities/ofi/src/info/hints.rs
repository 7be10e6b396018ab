//! Checks whether the hints can be fulfilled.

use std::ffi::{CStr, c_char, c_int};

use super::build::{NAME, PROTOCOL};
use super::offered::{
    CAPS, INJECT, MAX_MESSAGE, MODIFIERS, OBJECTS, ORDER, OWN_FORMAT, PIECES, PRIMARY, QUEUE, RX_CAPS, SECONDARY,
    TX_CAPS, Wanted,
};
use crate::abi::flags::{
    AV_TABLE, AV_UNSPEC, COMPLETION, DELIVERY_COMPLETE, EP_RDM, EP_UNSPEC, FORMAT_UNSPEC, INJECT as INJECT_FLAG,
    INJECT_COMPLETE, MR_BASIC, MR_SCALABLE, MULTI_RECV, PROGRESS_AUTO, PROGRESS_MANUAL, SOCKADDR, SOCKADDR_IN,
    THREAD_SAFE, TRANSMIT_COMPLETE,
};
use crate::abi::info::{DomainAttr, EpAttr, FabricAttr, Info, RxAttr, TxAttr};
use crate::abi::version;

/// Flags that may be given for all sends at once.
const TX_FLAGS: u64 = COMPLETION | INJECT_FLAG | INJECT_COMPLETE | TRANSMIT_COMPLETE | DELIVERY_COMPLETE;
/// Flags that may be given for all receives at once.
const RX_FLAGS: u64 = COMPLETION | MULTI_RECV;

impl Wanted {
    /// Nothing in particular.
    fn anything(version_asked: u32) -> Self {
        let scalable = version_asked < version(1, 5);
        Self {
            caps: CAPS,
            addr_format: OWN_FORMAT,
            threading: THREAD_SAFE,
            control_progress: PROGRESS_MANUAL,
            data_progress: PROGRESS_MANUAL,
            // Both kinds are the same here: the caller's, or none.
            av_type: AV_UNSPEC,
            mr_mode: if scalable { MR_SCALABLE } else { 0 },
            tag_format: 0,
            tx_flags: 0,
            rx_flags: 0,
            inject: super::eager::most(),
            source: None,
            target: None,
        }
    }
}

/// Reads the hints; `None`: not with us.
///
/// # Safety
/// What the hints point to is null or whole.
pub(super) unsafe fn read(version_asked: u32, hints: Option<&Info>) -> Option<Wanted> {
    let mut wanted = Wanted::anything(version_asked);
    let Some(hints) = hints else { return Some(wanted) };
    wanted.caps = caps(hints.caps)?;
    wanted.addr_format = match hints.addr_format {
        FORMAT_UNSPEC | OWN_FORMAT => OWN_FORMAT,
        SOCKADDR | SOCKADDR_IN => SOCKADDR_IN,
        _ => return None,
    };
    // SAFETY: null or whole, by the caller.
    let (tx, rx, ep, domain, fabric) = unsafe {
        (
            hints.tx_attr.as_ref(),
            hints.rx_attr.as_ref(),
            hints.ep_attr.as_ref(),
            hints.domain_attr.as_ref(),
            hints.fabric_attr.as_ref(),
        )
    };
    let fits = ep.is_none_or(|ep| endpoint(ep, &mut wanted))
        && tx.is_none_or(|tx| sending(tx, &mut wanted))
        && rx.is_none_or(|rx| receiving(rx, &mut wanted));
    if !fits {
        return None;
    }
    // SAFETY: the names in both are null or strings that end, by the caller.
    let fits = unsafe {
        domain.is_none_or(|attr| self::domain(attr, &mut wanted)) && fabric.is_none_or(|attr| self::fabric(attr))
    };
    // SAFETY: an address has the length that stands beside it, by the caller.
    unsafe {
        wanted.source = bytes(hints.src_addr.cast(), hints.src_addrlen);
        wanted.target = bytes(hints.dest_addr.cast(), hints.dest_addrlen);
    }
    fits.then_some(wanted)
}

/// The capabilities that are given for the requested ones, with those they imply; `None`: one is missing.
fn caps(asked: u64) -> Option<u64> {
    use crate::abi::flags::{ATOMIC, MSG, READ, RECV, REMOTE_READ, REMOTE_WRITE, RMA, SEND, TAGGED, WRITE};
    if asked & !CAPS != 0 {
        return None;
    }
    if asked & (PRIMARY | MODIFIERS) == 0 {
        return Some(CAPS);
    }
    let mut given = asked | SECONDARY;
    if given & (MSG | TAGGED) != 0 && given & (SEND | RECV) == 0 {
        given |= SEND | RECV;
    }
    if given & (RMA | ATOMIC) != 0 && given & (READ | WRITE | REMOTE_READ | REMOTE_WRITE) == 0 {
        given |= READ | WRITE | REMOTE_READ | REMOTE_WRITE;
    }
    Some(given)
}

fn endpoint(ep: &EpAttr, wanted: &mut Wanted) -> bool {
    wanted.tag_format = ep.mem_tag_format;
    matches!(ep.kind, EP_UNSPEC | EP_RDM)
        && matches!(ep.protocol, 0 | PROTOCOL)
        && ep.max_msg_size <= MAX_MESSAGE
        && ep.max_order_raw_size == 0
        && ep.max_order_war_size == 0
        && ep.max_order_waw_size == 0
        && ep.tx_ctx_cnt <= 1
        && ep.rx_ctx_cnt <= 1
        && ep.auth_key_size == 0
}

fn sending(tx: &TxAttr, wanted: &mut Wanted) -> bool {
    wanted.tx_flags = tx.op_flags;
    wanted.inject = wanted.inject.max(tx.inject_size);
    tx.caps & !(TX_CAPS | wanted.caps) == 0
        && tx.op_flags & !TX_FLAGS == 0
        && tx.msg_order & !ORDER == 0
        && tx.comp_order == 0
        && tx.inject_size <= INJECT
        && tx.size <= QUEUE
        && tx.iov_limit <= PIECES
        && tx.rma_iov_limit <= 1
}

fn receiving(rx: &RxAttr, wanted: &mut Wanted) -> bool {
    wanted.rx_flags = rx.op_flags;
    rx.caps & !(RX_CAPS | wanted.caps) == 0
        && rx.op_flags & !RX_FLAGS == 0
        && rx.msg_order & !ORDER == 0
        && rx.comp_order == 0
        && rx.size <= QUEUE
        && rx.iov_limit <= PIECES
}

/// Nothing behind `tclass` may be read: older versions end there.
///
/// # Safety
/// The name is null or a string that ends.
unsafe fn domain(attr: &DomainAttr, wanted: &mut Wanted) -> bool {
    let or = |asked: u32, default: u32| if asked == 0 { default } else { asked };
    wanted.threading = or(attr.threading, THREAD_SAFE);
    wanted.control_progress = or(attr.control_progress, PROGRESS_MANUAL);
    wanted.data_progress = or(attr.data_progress, PROGRESS_MANUAL);
    wanted.av_type = attr.av_type;
    wanted.mr_mode = registration(attr.mr_mode, wanted.mr_mode);
    // SAFETY: by the caller.
    let named = unsafe { is_ours(attr.name) };
    let counts = [attr.cq_cnt, attr.ep_cnt, attr.cntr_cnt, attr.tx_ctx_cnt, attr.rx_ctx_cnt];
    named
        && attr.data_progress != PROGRESS_AUTO
        && attr.control_progress != PROGRESS_AUTO
        && attr.av_type <= AV_TABLE
        && attr.mr_key_size <= 8
        && attr.cq_data_size <= 8
        && counts.iter().all(|&count| count <= OBJECTS)
        && attr.max_ep_tx_ctx <= 1
        && attr.max_ep_rx_ctx <= 1
        && attr.max_ep_stx_ctx == 0
        && attr.max_ep_srx_ctx == 0
        && attr.mr_iov_limit <= 1
        && attr.caps & !super::offered::DOMAIN_CAPS == 0
}

/// How memory will be registered: we require nothing, but callers of the first interface name one of two ways.
fn registration(asked: c_int, default: c_int) -> c_int {
    match asked {
        MR_BASIC => MR_BASIC,
        MR_SCALABLE => MR_SCALABLE,
        _ => default,
    }
}

/// # Safety
/// The name is null or a string that ends.
unsafe fn fabric(attr: &FabricAttr) -> bool {
    // SAFETY: by the caller.
    unsafe { is_ours(attr.name) }
}

/// # Safety
/// The name is null or a string that ends.
unsafe fn is_ours(name: *const c_char) -> bool {
    // SAFETY: not null where it is read, and it ends, by the caller.
    name.is_null() || unsafe { CStr::from_ptr(name) }.to_bytes().eq_ignore_ascii_case(NAME.to_bytes())
}

/// A copy of these; `None` where there are none.
///
/// # Safety
/// `at` is null or `len` bytes from there can be read.
pub(crate) unsafe fn bytes(at: *const u8, len: usize) -> Option<Vec<u8>> {
    if at.is_null() || len == 0 {
        return None;
    }
    // SAFETY: by the caller.
    Some(unsafe { std::slice::from_raw_parts(at, len) }.to_vec())
}
