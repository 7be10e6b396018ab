//! Units of time, in nanoseconds.

/// A second.
pub(crate) const SECOND: u64 = 1_000_000_000;
/// A millisecond.
pub(crate) const MILLISECOND: u64 = 1_000_000;
