//! Layer 1, arbitration: which source is polled how often, and how a waiter waits.
//!
//! * [`driver`]: the contracts a driver keeps;
//! * [`message`]: the contract of drivers that carry messages among many nodes;
//! * [`engine`]: runs all sources of a process, whichever layer or personality they belong to;
//! * [`pace`]: how often a port of messages looks;
//! * [`wait`]: spin or sleep.

pub mod bell;
pub mod driver;
pub mod engine;
pub mod message;
pub mod pace;
pub mod wait;
