//! A stream of a link, and who owns it.

use madrigal_proto::mux::StreamId;

use crate::poll::Token;

/// A stream of a link.
pub(crate) type Stream = (Token, StreamId);

/// Who has a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Holder {
    /// A call that waits for a verdict.
    Call(Token),
    /// A connection to a port of this host that is being made.
    Egress(Token),
    /// A pipe.
    Pipe(Token),
    /// A pipe whose stream is to move there.
    Move(Token),
    /// A question that is not answered yet.
    Check(Token),
    /// What comes means nothing.
    Probe,
    /// A relay tells where it leads.
    RouteUpdate,
    /// The link: its peer proves that it has another certificate.
    Renewal,
}
