//! Layer 2, abstraction: messages between the nodes of a job, whatever carries them.
//!
//! * A [`Worker`] holds a process's ports of messages, one per driver, and the way to each node it talks to;
//! * an [`Endpoint`] is a channel of a worker: it sends, matches and receives messages, and reaches the memory of any number of peers;
//! * a [`Circuit`] packs and unpacks messages among a fixed group of nodes;
//! * [`ports`] send and receive typed messages, one way, among any processes that connect;
//! * a [`mailbox`] has the headers of messages, whose data lie elsewhere until they are read.
//!
//! ```text
//!   Circuit --pack--> Endpoint --match, eager or rendezvous--> Worker --state of a node--> a driver's port
//! ```
#![deny(unsafe_code)]

pub mod circuit;
pub mod endpoint;
mod fields;
mod filing;
pub mod mailbox;
mod memory;
pub mod ports;
mod slab;
pub mod worker;

pub use circuit::Circuit;
pub use endpoint::Endpoint;
pub use worker::Worker;
