//! Programs of this host: their connections through the daemon, and the hosts file that they read.
//!
//! ```text
//!  libc_socket              sockets to programs, by the C library
//!  decoy, parked, park      a program's connect waits, and is completed
//!  connection, connections  connections of unmodified programs
//!  forward, forwards        local ports that lead to another host
//!  hosts, publish           the hosts file
//! ```

pub(crate) mod connection;
mod connections;
pub(crate) mod decoy;
pub(crate) mod forward;
mod forwards;
pub(crate) mod hosts;
pub(crate) mod libc_socket;
mod park;
pub(crate) mod parked;
mod publish;
