//! WAN links: what a long line does to packets.
//!
//! ```text
//!  quantity   100M, 20ms, 5%: as people write them
//!  settings   what a link does
//!  direction  one direction, without I/O and clock
//!  train      packets as the kernel hands them over: one, or many of one connection
//!  link       the process that carries packets between two TUN devices
//! ```

pub mod direction;
pub mod link;
pub mod quantity;
pub mod settings;
pub mod train;
