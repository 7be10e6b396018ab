//! Vocabulary of Madrigal: names that every layer shares. No unsafe code, no system call.
//!
//! * [`locator`]: where something can be reached (`tcp://127.0.0.1:9000`) and by which path (`shm`);
//! * [`ids`]: which host, which user, which process, which link;
//! * [`error`]: one error type per operation, each with its errno;
//! * [`config`]: the `MADRIGAL_*` keys, their defaults, their values; [`network`]: those about the network;
//! * [`sync`]: the atomics of the shared-memory protocols.
#![forbid(unsafe_code)]

pub mod config;
pub mod error;
pub mod ids;
pub mod locator;
pub mod network;
pub mod node;
pub mod sync;
