//! The identity of a resumable stream.

/// What a stream is called where it begins and where it ends.
#[derive(Clone)]
pub(crate) struct Origin {
    pub(crate) id: String,
    /// How often it was to go on by another way.
    pub(crate) epoch: u32,
    pub(crate) role: Role,
}

/// Which of the two this host is.
#[derive(Clone)]
pub(crate) enum Role {
    /// A call began here, to that port of that host, which takes that way.
    Caller { host: usize, port: u16, way: String },
    /// It is connected to a port of this host.
    Target { from: String },
}

impl Origin {
    /// For the log.
    pub(crate) fn spoken(&self) -> String {
        match &self.role {
            Role::Caller { port, way, .. } => format!("a stream to port {port}, {way} now"),
            Role::Target { from } => format!("a stream of {from}"),
        }
    }
}
