//! The identity of a resumable stream.

/// The identity of a resumable stream, at both of its ends.
#[derive(Clone)]
pub(crate) struct Origin {
    pub(crate) id: String,
    /// The number of attempts to resume it.
    pub(crate) epoch: u32,
    pub(crate) role: Role,
}

/// Which end this host is.
#[derive(Clone)]
pub(crate) enum Role {
    /// The calling end: the call is to this port of this host, and goes this way.
    Caller { host: usize, port: u16, way: String },
    /// The target end: the stream of this host is connected to a port here.
    Target { from: String },
}

impl Origin {
    /// The stream in words, for the log.
    pub(crate) fn describe(&self) -> String {
        match &self.role {
            Role::Caller { port, way, .. } => format!("a stream to port {port}, {way} now"),
            Role::Target { from } => format!("a stream of {from}"),
        }
    }
}
