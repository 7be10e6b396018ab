//! Makes the structures libfabric gets. It frees them with free(3), each by itself, so each comes from calloc(3).

use std::ffi::{CStr, c_char, c_void};

use super::offered::{DOMAIN_CAPS, MAX_MESSAGE, OBJECTS, ORDER, PIECES, QUEUE, RX_CAPS, TX_CAPS, Wanted};
use crate::abi::flags::{EP_RDM, RM_ENABLED};
use crate::abi::info::{DomainAttr, EpAttr, FabricAttr, Info, RxAttr, TxAttr};

/// The name of the provider, of its fabric and of its domain.
pub(crate) const NAME: &CStr = c"madrigal";
/// What stands for our protocol; the upper bit marks numbers that libfabric does not give out.
pub(super) const PROTOCOL: u32 = 1 << 31 | 0x4d41;
/// Its version. Nodes of different versions do not talk to each other.
const PROTOCOL_VERSION: u32 = 1;
/// All 64 bits of a tag can be used, in fields of one.
const TAG_FORMAT: u64 = 0xaaaa_aaaa_aaaa_aaaa;
/// Formats of tags below this are names of uses.
const NAMED_FORMATS: u64 = 1 << 16;
/// Zero bytes behind each structure: a later libfabric may look there for what it added.
const SPARE: usize = 64;

/// One description with all it points to; `None` without memory.
pub(super) fn info(wanted: &Wanted) -> Option<*mut Info> {
    let info = zeroed::<Info>()?;
    let made = fill(info, wanted);
    if made.is_none() {
        free(info);
    }
    made.map(|()| info.as_ptr())
}

fn fill(info: Zeroed<Info>, wanted: &Wanted) -> Option<()> {
    // SAFETY: just allocated, zero bytes are a valid value of it, and there is no other reference to it yet.
    let info = unsafe { &mut *info.as_ptr() };
    info.caps = wanted.caps;
    info.addr_format = wanted.addr_format;
    (info.src_addr, info.src_addrlen) = copy(wanted.source.as_deref())?;
    (info.dest_addr, info.dest_addrlen) = copy(wanted.target.as_deref())?;
    info.tx_attr = put(sending(wanted))?;
    info.rx_attr = put(receiving(wanted))?;
    info.ep_attr = put(endpoint(wanted))?;
    let name = string(NAME)?;
    info.domain_attr = put(domain(wanted, name)).or_else(|| forget(name))?;
    let name = string(NAME)?;
    // The provider's name and versions are libfabric's to fill in.
    let fabric = FabricAttr {
        fabric: std::ptr::null_mut(),
        name,
        prov_name: std::ptr::null_mut(),
        prov_version: 0,
        api_version: 0,
    };
    info.fabric_attr = put(fabric).or_else(|| forget(name))?;
    Some(())
}

fn sending(wanted: &Wanted) -> TxAttr {
    TxAttr {
        caps: wanted.caps & TX_CAPS,
        mode: 0,
        op_flags: wanted.tx_flags,
        msg_order: ORDER,
        comp_order: 0,
        inject_size: wanted.inject,
        size: QUEUE,
        iov_limit: PIECES,
        rma_iov_limit: 1,
        tclass: 0,
    }
}

fn receiving(wanted: &Wanted) -> RxAttr {
    RxAttr {
        caps: wanted.caps & RX_CAPS,
        mode: 0,
        op_flags: wanted.rx_flags,
        msg_order: ORDER,
        comp_order: 0,
        total_buffered_recv: 0,
        size: QUEUE,
        iov_limit: PIECES,
    }
}

fn endpoint(wanted: &Wanted) -> EpAttr {
    EpAttr {
        kind: EP_RDM,
        protocol: PROTOCOL,
        protocol_version: PROTOCOL_VERSION,
        max_msg_size: MAX_MESSAGE,
        msg_prefix_size: 0,
        max_order_raw_size: 0,
        max_order_war_size: 0,
        max_order_waw_size: 0,
        mem_tag_format: if (1..NAMED_FORMATS).contains(&wanted.tag_format) { wanted.tag_format } else { TAG_FORMAT },
        tx_ctx_cnt: 1,
        rx_ctx_cnt: 1,
        auth_key_size: 0,
        auth_key: std::ptr::null_mut(),
    }
}

fn domain(wanted: &Wanted, name: *mut c_char) -> DomainAttr {
    DomainAttr {
        domain: std::ptr::null_mut(),
        name,
        threading: wanted.threading,
        control_progress: wanted.control_progress,
        data_progress: wanted.data_progress,
        resource_mgmt: RM_ENABLED,
        av_type: wanted.av_type,
        mr_mode: wanted.mr_mode,
        mr_key_size: 8,
        cq_data_size: 8,
        cq_cnt: OBJECTS,
        ep_cnt: OBJECTS,
        tx_ctx_cnt: OBJECTS,
        rx_ctx_cnt: OBJECTS,
        max_ep_tx_ctx: 1,
        max_ep_rx_ctx: 1,
        max_ep_stx_ctx: 0,
        max_ep_srx_ctx: 0,
        cntr_cnt: OBJECTS,
        mr_iov_limit: 1,
        caps: DOMAIN_CAPS,
        mode: 0,
        auth_key: std::ptr::null_mut(),
        auth_key_size: 0,
        max_err_data: 0,
        mr_cnt: OBJECTS,
        tclass: 0,
        max_ep_auth_key: 0,
        max_group_id: 0,
        max_cntr_value: u64::MAX,
        max_err_cntr_value: u64::MAX,
    }
}

type Zeroed<T> = std::ptr::NonNull<T>;

/// Memory for a `T` and some spare, all zero.
fn zeroed<T>() -> Option<Zeroed<T>> {
    // SAFETY: calloc may be called with any numbers.
    Zeroed::new(unsafe { libc::calloc(1, size_of::<T>() + SPARE) }.cast())
}

/// Memory with that in it.
fn put<T>(value: T) -> Option<*mut T> {
    let place = zeroed::<T>()?;
    // SAFETY: just allocated, large and aligned enough.
    unsafe { place.write(value) };
    Some(place.as_ptr())
}

/// A string for libfabric to free.
fn string(text: &CStr) -> Option<*mut c_char> {
    // SAFETY: a string that ends.
    let made = unsafe { libc::strdup(text.as_ptr()) };
    (!made.is_null()).then_some(made)
}

/// Bytes for libfabric to free; none where there are none; `None` without memory.
fn copy(bytes: Option<&[u8]>) -> Option<(*mut c_void, usize)> {
    let Some(bytes) = bytes else { return Some((std::ptr::null_mut(), 0)) };
    // SAFETY: calloc may be called with any numbers.
    let place = unsafe { libc::calloc(1, bytes.len()) };
    if place.is_null() {
        return None;
    }
    // SAFETY: just allocated with that length.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place.cast(), bytes.len()) };
    Some((place, bytes.len()))
}

fn forget<T>(name: *mut c_char) -> Option<T> {
    // SAFETY: it came from strdup, and there is no other pointer to it.
    unsafe { libc::free(name.cast()) };
    None
}

/// Frees what could not be finished.
fn free(info: Zeroed<Info>) {
    // SAFETY: all of it came from calloc or is null, nobody else knows it, and it is not used again. The names are inside the last
    // two structures, which are only there once they own theirs.
    unsafe {
        let it = info.as_ref();
        if let Some(domain) = it.domain_attr.as_ref() {
            libc::free(domain.name.cast());
        }
        for part in [
            it.src_addr,
            it.dest_addr,
            it.tx_attr.cast(),
            it.rx_attr.cast(),
            it.ep_attr.cast(),
            it.domain_attr.cast(),
            it.fabric_attr.cast(),
        ] {
            libc::free(part);
        }
        libc::free(info.as_ptr().cast());
    }
}
