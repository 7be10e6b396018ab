//!
//! ```text
//!  quantity   100M, 20ms, 5%: as people write them
//!  direction  one direction, without I/O and clock
//!  train      packets as the kernel hands them over: one, or many of one connection
//! ```

pub mod direction;
pub mod quantity;
pub mod settings;
pub mod train;
