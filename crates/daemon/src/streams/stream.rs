//! A stream of a link, and its owner.

use madrigal_proto::mux::StreamId;

use crate::poll::Token;

/// A stream of a link: the link's token, and the stream's id on it.
pub(crate) type Stream = (Token, StreamId);

/// The owner of a stream: it handles what comes on the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StreamOwner {
    /// A call that waits for a reply.
    Call(Token),
    /// A connection to a port of this host that is being made.
    Egress(Token),
    /// A pipe.
    Pipe(Token),
    /// A pipe that tries to migrate to this stream.
    Migration(Token),
    /// A question that is not answered yet.
    Check(Token),
    /// A trial of a stack: the question, or what goes by its link.
    Trial(Token),
    /// An attempt to connect from both ends at once.
    Punch(Token),
    /// No owner: received bytes are discarded.
    Discard,
    /// The routing table: a relay sends an update.
    RouteUpdate,
    /// The link: its peer proves that it has a new certificate.
    Renewal,
}
