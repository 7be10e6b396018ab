//! Protocols as state machines: bytes and the time go in, bytes and a deadline come out. No unsafe code, no system call, no clock.
//!
//! * [`client`]: what programs request of the daemon of their host;
//! * [`frame`]: how frames lie in a stream of bytes;
//! * [`hosts`]: which address is which host of a grid, as programs read it;
//! * [`mux`]: many streams over one connection, with credits and classes;
//! * [`resumable`]: one connection over several streams, one after another, without losing a byte;
//! * [`talk`]: two processes that meet on a connection authenticate each other;
//! * [`race`]: every address of a peer is tried, until one answers or the time is over;
//! * [`reach`]: the whole of it, for all peers of a process: of many connections between two processes exactly one is kept.
//!
//! The owner of sockets and a clock drives them (`drivers/tcp`). So do the tests, with a virtual network and virtual time.
#![forbid(unsafe_code)]

pub mod client;
pub mod frame;
pub mod hosts;
pub mod mux;
pub mod race;
pub mod reach;
pub mod resumable;
mod siphash;
pub mod talk;
