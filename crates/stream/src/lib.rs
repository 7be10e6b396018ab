//! Layer 2, abstraction: [`VLink`], a stream of bytes between two processes, whatever carries it.
//!
//! Five primitives are *posted*: [`VLink::read`], [`VLink::write`], [`VLink::close`], [`Acceptor::accept`], [`connect()`]. Posting never
//! blocks. A posted operation completes in one of two ways, chosen when it is posted:
//!
//! * by **descriptor**: the post returns an object to poll or to wait on;
//! * by **handler** (`..._with`): a function is called on a thread that runs the engine or waits, never inside the post. It may post again,
//!   wait, and run the engine.
//!
//! ```text
//!   user --post--> VLink (queues of posted reads, writes) --adapter--> driver's endpoint
//!                     ^------------- engine turns ------------------------'
//! ```
//! A read completes with at least one byte, or with none at the end of the stream; a write completes when every byte was taken.
//! Reads complete in the order they were posted, and so do writes. An [`Adapter`] makes the stream out of whatever endpoint a driver
//! has: [`adapter::Straight`] out of a stream, [`adapter::Cross`] out of packets.
//!
//! What a link costs: its two ends and two empty queues. A posted buffer is the link's until its operation completes; nothing else
//! is kept per link.
#![deny(unsafe_code)]

mod acceptor;
pub mod adapter;
mod buffer;
mod connect;
mod core;
mod half;
mod lane;
mod op;
mod stacked;
mod vlink;

pub use acceptor::Acceptor;
pub use adapter::Adapter;
pub use connect::{Attempting, connect, connect_with};
pub use half::Filled;
pub use op::{Handler, Op};
pub use stacked::{Below, MakeTls, StackRefused, Stacked, StackedMessages};
pub use vlink::{ReadOp, VLink, WriteOp};
