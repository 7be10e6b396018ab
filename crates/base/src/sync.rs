//! The atomics of the ring protocol: the real ones, or shuttle's when the protocol is explored by a scheduler.

#[cfg(not(feature = "shuttle"))]
pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(feature = "shuttle")]
pub use shuttle::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
