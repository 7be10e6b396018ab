//! Control: the requests of commands to the daemon, and the runtime directory with the control socket.
//!
//! ```text
//!  runtime              the directory, its lock and the control socket's path
//!  client, carry        the commands' side of the control socket
//!  connection, clients  the daemon's side
//!  status, report       its status; explain: ways; check, questions: doctor; health: this host
//!  description, reload  grid.toml, read again
//!  notify               the service manager
//! ```

mod carry;
pub(crate) mod check;
pub mod client;
mod clients;
pub(crate) mod connection;
pub(crate) mod description;
mod explain;
pub(crate) mod health;
pub(crate) mod notify;
mod questions;
mod reload;
mod report;
pub(crate) mod runtime;
pub(crate) mod status;
