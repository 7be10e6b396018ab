//! What is offered, and which part of it was requested.

use std::ffi::c_int;

/// Capabilities that a caller gets only if it requests them, or if it requests none.
pub(super) const PRIMARY: u64 = {
    use crate::abi::flags::{ATOMIC, DIRECTED_RECV, MSG, RMA, TAGGED};
    MSG | RMA | TAGGED | ATOMIC | DIRECTED_RECV
};
/// The directions of the former.
pub(super) const MODIFIERS: u64 = {
    use crate::abi::flags::{READ, RECV, REMOTE_READ, REMOTE_WRITE, SEND, WRITE};
    READ | WRITE | RECV | SEND | REMOTE_READ | REMOTE_WRITE
};
/// Capabilities that cost nothing.
pub(super) const SECONDARY: u64 = {
    use crate::abi::flags::{LOCAL_COMM, MULTI_RECV, REMOTE_COMM, RMA_PMEM, SOURCE};
    MULTI_RECV | SOURCE | LOCAL_COMM | REMOTE_COMM | RMA_PMEM
};
/// Those of them that concern a domain.
pub(super) const DOMAIN_CAPS: u64 = crate::abi::flags::LOCAL_COMM | crate::abi::flags::REMOTE_COMM;
/// Everything.
pub(crate) const CAPS: u64 = PRIMARY | MODIFIERS | SECONDARY;
/// The part for a sending side.
pub(crate) const TX_CAPS: u64 = {
    use crate::abi::flags::{ATOMIC, MSG, READ, RMA, RMA_PMEM, SEND, TAGGED, WRITE};
    MSG | RMA | TAGGED | ATOMIC | SEND | READ | WRITE | RMA_PMEM
};
/// The part for a receiving side.
pub(crate) const RX_CAPS: u64 = {
    use crate::abi::flags::{
        ATOMIC, DIRECTED_RECV, MSG, MULTI_RECV, RECV, REMOTE_READ, REMOTE_WRITE, RMA, RMA_PMEM, SOURCE, TAGGED,
    };
    MSG | RMA | TAGGED | ATOMIC | DIRECTED_RECV | RECV | REMOTE_READ | REMOTE_WRITE | RMA_PMEM | SOURCE | MULTI_RECV
};

/// Bytes that `fi_inject` and its kin take, also where [`super::eager`] reported fewer.
pub(crate) const INJECT: usize = 64 << 10;
/// Pieces a buffer may have.
pub(crate) const PIECES: usize = 16;
/// Bytes a message may have.
pub(crate) const MAX_MESSAGE: usize = 1 << 40;
/// Operations that may be under way on an endpoint. Nothing of that size is allocated.
pub(crate) const QUEUE: usize = 4096;
/// Objects of one kind a domain may have.
pub(crate) const OBJECTS: usize = 1 << 15;
/// The order that is kept: messages of one sender, and atomics of one origin.
pub(crate) const ORDER: u64 = crate::abi::flags::ORDER_SAS | crate::abi::flags::ORDER_ATOMIC;
/// The format of addresses if no other one was requested: ours, with every address of a host.
pub(crate) const OWN_FORMAT: u32 = 1 << 31 | 0x4d41;

/// The request, after the hints were checked.
pub(super) struct Wanted {
    pub(super) caps: u64,
    pub(super) addr_format: u32,
    pub(super) threading: u32,
    pub(super) control_progress: u32,
    pub(super) data_progress: u32,
    pub(super) av_type: u32,
    pub(super) mr_mode: c_int,
    pub(super) tag_format: u64,
    pub(super) tx_flags: u64,
    pub(super) rx_flags: u64,
    pub(super) inject: usize,
    pub(super) source: Option<Vec<u8>>,
    pub(super) target: Option<Vec<u8>>,
}
