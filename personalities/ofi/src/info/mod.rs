//! What we can do: the answer to `fi_getinfo`.

mod build;
mod eager;
mod hints;
pub(crate) mod place;

use std::ffi::{c_char, c_int};

use crate::abi::errno::{EINVAL, ENODATA};
use crate::abi::info::Info;
use crate::guard;

pub(crate) use build::NAME;
pub(crate) use hints::bytes;

/// Capabilities a caller gets only if he asks for them, or asks for nothing.
const PRIMARY: u64 = {
    use crate::abi::flags::{ATOMIC, DIRECTED_RECV, MSG, RMA, TAGGED};
    MSG | RMA | TAGGED | ATOMIC | DIRECTED_RECV
};
/// The directions of the former.
const MODIFIERS: u64 = {
    use crate::abi::flags::{READ, RECV, REMOTE_READ, REMOTE_WRITE, SEND, WRITE};
    READ | WRITE | RECV | SEND | REMOTE_READ | REMOTE_WRITE
};
/// Capabilities that cost nothing.
const SECONDARY: u64 = {
    use crate::abi::flags::{LOCAL_COMM, MULTI_RECV, REMOTE_COMM, RMA_PMEM, SOURCE};
    MULTI_RECV | SOURCE | LOCAL_COMM | REMOTE_COMM | RMA_PMEM
};
/// Those of them that concern a domain.
const DOMAIN_CAPS: u64 = crate::abi::flags::LOCAL_COMM | crate::abi::flags::REMOTE_COMM;
/// Everything.
pub(crate) const CAPS: u64 = PRIMARY | MODIFIERS | SECONDARY;
/// What a sending side can have of it.
pub(crate) const TX_CAPS: u64 = {
    use crate::abi::flags::{ATOMIC, MSG, READ, RMA, RMA_PMEM, SEND, TAGGED, WRITE};
    MSG | RMA | TAGGED | ATOMIC | SEND | READ | WRITE | RMA_PMEM
};
/// What a receiving side can have of it.
pub(crate) const RX_CAPS: u64 = {
    use crate::abi::flags::{
        ATOMIC, DIRECTED_RECV, MSG, MULTI_RECV, RECV, REMOTE_READ, REMOTE_WRITE, RMA, RMA_PMEM, SOURCE, TAGGED,
    };
    MSG | RMA | TAGGED | ATOMIC | DIRECTED_RECV | RECV | REMOTE_READ | REMOTE_WRITE | RMA_PMEM | SOURCE | MULTI_RECV
};

/// Bytes that `fi_inject` and its kin take; who was told less, by [`eager`], gets no less.
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
/// The form of addresses nobody asked for another: ours, with every address of a host.
pub(crate) const OWN_FORMAT: u32 = 1 << 31 | 0x4d41;

/// What was asked for, after the hints were looked through.
struct Wanted {
    caps: u64,
    addr_format: u32,
    threading: u32,
    control_progress: u32,
    data_progress: u32,
    av_type: u32,
    mr_mode: c_int,
    tag_format: u64,
    tx_flags: u64,
    rx_flags: u64,
    inject: usize,
    source: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
}

/// `fi_getinfo`, called by libfabric with what the program asks for, once for each of its own programs and again for its utility
/// providers, which ask for kinds of endpoints we do not have: those are refused without a word.
pub(crate) unsafe extern "C" fn getinfo(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const Info,
    info: *mut *mut Info,
) -> c_int {
    guard(-ENODATA, || {
        if info.is_null() {
            return -EINVAL;
        }
        if madrigal::fabric::is_asking() {
            // Our own driver asks for providers below us.
            return -ENODATA;
        }
        // SAFETY: libfabric passes null or structures that live during the call, linked as its manual says.
        let wanted = unsafe { hints::read(version, hints.as_ref()) };
        let Some(mut wanted) = wanted else { return -ENODATA };
        // SAFETY: libfabric passes null or strings that end and live during the call.
        let names = unsafe { (place::text(node), place::text(service)) };
        if let Err(error) = place::find(&mut wanted, names, flags) {
            return -error;
        }
        match build::info(&wanted) {
            Some(found) => {
                // SAFETY: not null, as checked; libfabric offers it to be written.
                unsafe { info.write(found) };
                0
            }
            None => -crate::abi::errno::ENOMEM,
        }
    })
}
