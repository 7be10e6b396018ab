//! A program's connection that goes through this daemon, as `madrigal why` shows it.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::poll::Token;

/// A connection of a program, and what it is reported as.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) id: u64,
    /// The kernel's cookie of the program's socket.
    pub(crate) cookie: u64,
    pub(crate) since: u64,
    /// The pipe that carries it.
    pub(crate) pipe: Option<Token>,
    /// The error of the program's connect, if it failed.
    pub(crate) errno: Option<Errno>,
    /// Where the program wants to be told why it failed.
    pub(crate) told: Option<OwnedFd>,
    pub(crate) status: ConnectionStatus,
}

/// All connections of programs, oldest first.
#[derive(Default)]
pub(crate) struct Connections {
    /// The last id.
    pub(crate) last: u64,
    pub(crate) all: VecDeque<Connection>,
}

/// A connection of a program through a daemon.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug, Default)]
pub struct ConnectionStatus {
    /// The program's process.
    pub pid: u32,
    /// The address of its socket, as the kernel has it.
    pub local: Option<String>,
    /// The address that the program asked for.
    pub asked: String,
    /// The name of the target host.
    pub host: String,
    /// The target port.
    pub port: u16,
    /// The hosts on its way, from this one to the target; empty while there is no way.
    pub hops: Vec<String>,
    /// Its first hop is encrypted.
    pub tls: bool,
    /// Why it goes through the daemon.
    pub why: String,
    /// Why it does not migrate to a better way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stays: Option<String>,
    /// It is open.
    pub open: bool,
    /// Why it failed.
    pub error: Option<String>,
    /// Seconds since it was asked for.
    pub age: u64,
    /// For a connection that comes from another host: the address of the server's socket. `local` is the daemon's end of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
}
