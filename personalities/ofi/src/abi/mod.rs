//! libfabric's binary interface: its structures as they are in version 2.6, whose tails older versions never look at.
//!
//! Only what a provider of reliable datagrams needs. Names follow libfabric's without the prefix (`fi_tx_attr` is `TxAttr`), so
//! that its manual pages serve as documentation. `layout_tests.rs` compares sizes and offsets with the installed headers.

pub(crate) mod endpoint;
pub(crate) mod errno;
pub(crate) mod flags;
pub(crate) mod info;
#[cfg(test)]
mod layout_tests;
pub(crate) mod object;
pub(crate) mod queue;

/// How a version is packed, as `FI_VERSION` does it.
pub(crate) const fn version(major: u32, minor: u32) -> u32 {
    major << 16 | minor
}

/// Where an address stands in an address vector.
pub(crate) type Addr = u64;

/// No address, or any.
pub(crate) const ADDR_UNSPEC: Addr = u64::MAX;
