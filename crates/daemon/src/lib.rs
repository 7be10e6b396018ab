//! The daemon: one per host and user, without root, on one port. It holds the links that leave the host, and carries connections of
//! local programs over them to ports of other hosts; as a relay also from one link to another.
//!
//! ```text
//!  grid       grid.toml: the hosts            daemon    what is held, the loop       wire      what is said
//!  runtime    where clients find it           links     connections, the mux         channel   bytes on the wire
//!  start      where it listens                peers     who is dialled when          socket poll log
//!  client     asks a daemon                   calls     a stream to another host
//!  status     what it says of itself          landings  a connection to this host    pipes     two ends joined
//!                                             clients   local programs
//! ```
//! One thread, one epoll, nothing blocks. Everything that waits has a deadline. What peers and strangers send is bounded and checked; none
//! of it panics or decides where memory goes.
#![forbid(unsafe_code)]

mod calls;
mod channel;
pub mod client;
mod clients;
mod daemon;
pub mod grid;
mod landings;
mod links;
mod log;
mod peers;
mod pipes;
mod poll;
mod runtime;
mod socket;
mod start;
mod status;
mod wire;

pub use daemon::Daemon;
pub use madrigal_document::FileError;
pub use runtime::{Runtime, RuntimeError};
pub use start::StartError;
pub use status::{LinkStatus, PeerStatus, Status};
