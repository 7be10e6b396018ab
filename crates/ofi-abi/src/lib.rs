//! libfabric's binary interface: its structures as they are in version 2.6, whose tails older versions never look at.
//!
//! What a provider of reliable datagrams needs, and who uses one: types and numbers, nothing that runs. Names follow libfabric's
//! without the prefix (`fi_tx_attr` is `TxAttr`), so that its manual pages serve as documentation. `tests/layout.rs` compares sizes and
//! offsets with the installed headers.
#![allow(missing_docs, reason = "members are libfabric's, and documented there")]

pub mod endpoint;
pub mod errno;
mod fid;
pub mod flags;
pub mod info;
pub mod object;
pub mod queue;

/// How a version is packed, as `FI_VERSION` does it.
pub const fn version(major: u32, minor: u32) -> u32 {
    major << 16 | minor
}

/// Where an address stands in an address vector.
pub type Addr = u64;

/// No address, or any.
pub const ADDR_UNSPEC: Addr = u64::MAX;
