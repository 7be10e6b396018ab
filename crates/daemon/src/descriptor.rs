//! What a registered descriptor is.

use crate::poll::Token;

/// What a descriptor is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Thing {
    /// Daemons call here.
    Port,
    /// Clients call here.
    Listener,
    /// A connection to a daemon.
    Link,
    /// One that is being made.
    Dial,
    /// A client's.
    Client,
    /// Listens for a client.
    Forward,
    /// Waits for a call to be answered.
    Caller(Token),
    /// Connects to a port of this host.
    Egress,
    /// An end of a pipe.
    Socket(Token),
    /// An address is tried, to answer a question.
    Check(Token),
    /// What the command of a link says.
    Errors(Token),
    /// Connects to a program's socket.
    Parked,
}
