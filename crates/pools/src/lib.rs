//! Pools: processes find each other by a pool's name, whatever host they are on. Feature I4.
//!
//! ```text
//!   program                        daemon of its host                     store of the pool
//!   client, view  --- wire --->  one session a program  --- records --->  a log: one order
//!                 <-- events --  a Pool, the same in every daemon <-----
//! ```
//! A pool is a log of records ([`record`]), in the order that its store gives them. Every daemon with a member applies the same records to
//! the same state machine ([`pool`]), which decides everything: who is let in, who is elected, what is told. So all decide alike, and the
//! order of the log is the order of the events. The machine has no clock and no I/O; a death is a record as any other.
//!
//! ```text
//!   limits   what names, texts and counts may be
//!   view     what a member knows of its pool, and the events by which it learns it
//!   record   what is in the log
//!   pool     the state machine: a record in, events out
//!   wire     frames between a program and its daemon
//!   client   a program's membership: blocking calls with deadlines, no thread
//! ```
//! The stores, and the daemon's side, are in `crates/daemon/src/pools`.
#![forbid(unsafe_code)]

pub mod client;
pub mod limits;
pub mod pool;
pub mod record;
pub mod view;
pub mod wire;

pub use client::{Membership, PoolError, Told, Wish};
pub use record::Refusal;
pub use view::{Change, Event, Member, MemberId, View};
