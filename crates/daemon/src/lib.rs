//! The daemon: one per host and user, without root, on one port. It holds the links that leave the host, and carries connections of
//! local programs over them to ports of other hosts; as a relay also from one link to another.
//!
//! ```text
//!  grid       grid.toml: the hosts            daemon    what is held, the loop       wire      what is said
//!  runtime    where clients find it           links     connections, the mux         channel   bytes on the wire
//!  start      where it listens                peers     who is dialled, pace when    socket poll log
//!  client     asks a daemon                   command   links by ssh and its like    pipes     two ends joined
//!  status     what it says of itself          ways      those to a host              measure   what links are like
//!  reload     grid.toml, read again
//!  answers    why, and doctor                 table     what relays say of them      knowledge what is remembered
//!  health     what they say of a host         calls     a stream to another host     notify    the service manager
//!  judge      who may be at the other end     egress    a connection to this host    moves     a stream goes another way
//!  unauthenticated  how many of them          clients   local programs                streams   of links, and whose they are
//!  hosts      what programs may know          routes    their connections to other hosts    failover  when, and whether at all
//!                                             parked    their connects, until those are complete
//! ```
//! Links that leave the host are enciphered by TLS 1.3, both ends with a certificate of the grid (`madrigal-identity`), unless the grid
//! declares their network trusted. One thread, one epoll, nothing blocks. Everything that waits has a
//! deadline. What peers send, authenticated or not, is bounded and checked; none of it panics or decides where memory goes.
#![forbid(unsafe_code)]

mod answers;
mod calls;
mod channel;
pub mod client;
mod clients;
mod command;
mod daemon;
mod egress;
mod failover;
pub mod grid;
mod health;
mod hosts;
mod judge;
mod knowledge;
mod links;
mod local;
mod log;
mod measure;
mod moves;
mod notify;
mod origin;
mod pace;
mod parked;
mod peers;
mod pipes;
mod poll;
mod record;
mod reload;
mod routes;
mod runtime;
#[cfg(test)]
mod simulation;
mod socket;
mod start;
mod status;
mod streams;
mod table;
mod unauthenticated;
mod ways;
mod wire;

pub use daemon::Daemon;
pub use hosts::ToldHosts;
pub use madrigal_document::FileError;
pub use madrigal_selector::route::Figures;
pub use reload::Reloaded;
pub use routes::RouteStatus;
pub use runtime::{Runtime, RuntimeError};
pub use start::StartError;
pub use status::{
    Certificate, Examination, Explanation, Health, LinkStatus, PeerStatus, State, Status, Tried, WayStatus,
};
