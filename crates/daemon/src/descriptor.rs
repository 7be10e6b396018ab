//! What a registered descriptor is.

use crate::poll::Token;

/// What a registered descriptor is, by its token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Descriptor {
    /// A listener for other daemons.
    Port,
    /// The control socket.
    Listener,
    /// A link.
    Link,
    /// A connection to another daemon that is being made.
    Dial,
    /// A connection to another daemon that both ends begin.
    Punch,
    /// A connection to the control socket.
    Client,
    /// A listener for connections that are forwarded.
    Forward,
    /// The caller of this call, until the call is answered.
    Caller(Token),
    /// A connection to a port of this host that is being made.
    Egress,
    /// A socket of this pipe.
    Socket(Token),
    /// An address that this check tries.
    Check(Token),
    /// The standard error of this link's command.
    CommandErrors(Token),
    /// The connection to a program's parked socket.
    Parked,
    /// Where programs send datagrams to, for a tunnel of this token.
    NearSocket,
    /// The stream of this tunnel.
    TunnelStream(Token),
    /// A flow's socket of this tunnel.
    FarSocket(Token),
    /// A socket of QUIC.
    Quic,
    /// The socket at which the kernel reports changes of addresses.
    OwnAddresses,
    /// Readable when SIGHUP has come.
    Hangups,
}
