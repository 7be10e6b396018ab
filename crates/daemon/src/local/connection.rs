//! A program's connection that goes through this daemon, as `madrigal why` shows it.

use std::collections::VecDeque;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::poll::Token;

/// A connection of a program.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(crate) id: u64,
    /// The kernel's name of the program's socket.
    pub(crate) cookie: u64,
    pub(crate) since: u64,
    /// What joins its ends.
    pub(crate) pipe: Option<Token>,
    pub(crate) errno: Option<Errno>,
    pub(crate) told: RouteStatus,
}

/// Those there are, oldest first.
#[derive(Default)]
pub(crate) struct Routes {
    pub(crate) last: u64,
    pub(crate) all: VecDeque<Route>,
}

/// A connection of a program through a daemon.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug, Default)]
pub struct RouteStatus {
    /// The program's process.
    pub pid: u32,
    /// The address of its socket, as the kernel has it.
    pub local: Option<String>,
    /// The address that the program asked for.
    pub asked: String,
    /// The host that this is.
    pub host: String,
    /// And the port.
    pub port: u16,
    /// The hosts that carry it, from this one to that one; empty while none is found.
    pub hops: Vec<String>,
    /// Its first hop is enciphered.
    pub tls: bool,
    /// Why it does not go by itself.
    pub why: String,
    /// Why it does not take a better way that there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stays: Option<String>,
    /// It is open.
    pub open: bool,
    /// Why there is none.
    pub error: Option<String>,
    /// Seconds since it was asked for.
    pub age: u64,
    /// Of a connection that comes from another host: the address of the server's end; `local` is that of this daemon's, whose peer it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
}
