//! The daemon: one process per host and user, without root, on one port. It holds the links between hosts. Over them it carries connections
//! of local programs to ports of other hosts. As a relay it also carries streams from one link to another.
//!
//! ```text
//!  link/        connections to other daemons: dialled, authenticated, measured
//!  routing/     the ways to other hosts: what relays advertise, what is known from earlier runs
//!  streams/     what goes over links: calls, egress, pipes, relaying, migration to another way
//!  datagrams/   datagrams of local programs to ports of other hosts, by QUIC or by a stream
//!  local/       programs of this host: parked connects, forwarded ports, the hosts file
//!  pools/       processes that find each other by a name, on a thread of their own
//!  control/     requests of commands: the control socket, status, explanations, the runtime directory
//!
//!  daemon       the state, and its construction        wire         frames and messages
//!  event_loop   the loop and its timers                socket poll  system calls, the epoll
//!  grid start   grid.toml; where the daemon listens    descriptor units log
//! ```
//! A folder has types with their methods, and the methods of [`Daemon`] that use these types. The types import nothing from `daemon.rs`;
//! `daemon.rs` imports the types; methods of the daemon import both.
//!
//! Links that leave the host are encrypted by TLS 1.3, with a certificate of the grid at both ends (`madrigal-identity`), unless the grid
//! declares their network trusted. There is one thread and one epoll, and nothing else blocks but the threads of `pools`. Every wait has a deadline. What peers send,
//! authenticated or not, is bounded and checked; none of it panics.
#![forbid(unsafe_code)]

mod control;
mod daemon;
mod datagrams;
mod descriptor;
mod event_loop;
pub mod grid;
mod link;
mod local;
mod log;
mod poll;
mod pools;
mod routing;
#[cfg(test)]
mod simulation;
mod socket;
mod start;
mod streams;
mod units;
mod wire;

pub use control::client;
pub use control::description::Reloaded;
pub use control::runtime::{Runtime, RuntimeError};
pub use control::status::{
    Certificate, Compression, DatagramStatus, Examination, Explanation, Health, LinkConnection, LinkStatus, PeerStatus,
    PoolMember, PoolStatus, State, Status, TrialReport, Tried, WayStatus,
};
pub use daemon::Daemon;
pub use local::connection::ConnectionStatus;
pub use local::hosts::HostsFile;
pub use madrigal_adapters::stack::Stack;
pub use madrigal_document::FileError;
pub use madrigal_selector::route::Figures;
pub use start::StartError;
pub use wire::VERSION as LINK_VERSION;
