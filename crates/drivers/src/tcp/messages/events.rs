//! What a port's epoll reports: the listener, connections that are not up, links.

use madrigal_proto::reach::Key;
use rustix::event::epoll::{EventData, EventFlags};

/// Everything about a connection, each change once.
pub(super) const ALL: EventFlags = EventFlags::IN.union(EventFlags::OUT).union(EventFlags::RDHUP).union(EventFlags::ET);
/// The listener: each connection that comes in.
pub(super) const LISTENER: EventFlags = EventFlags::IN.union(EventFlags::ET);
/// An end of the connection, or of its input.
pub(super) const END: EventFlags = EventFlags::RDHUP.union(EventFlags::HUP).union(EventFlags::ERR);

const OF_LISTENER: u64 = u64::MAX;

/// The object of an event.
pub(super) enum Whom {
    /// The listener.
    Listener,
    /// A connection that is not up.
    Half(Key),
    /// The link of that number.
    Link(u32),
}

pub(super) fn listener_token() -> EventData {
    EventData::new_u64(OF_LISTENER)
}

pub(super) fn key_token(key: Key) -> EventData {
    EventData::new_u64(key << 1 | 1)
}

pub(super) fn link_token(link: u32) -> EventData {
    EventData::new_u64(u64::from(link) << 1)
}

pub(super) fn whom(token: EventData) -> Whom {
    match token.u64() {
        OF_LISTENER => Whom::Listener,
        token if token & 1 == 1 => Whom::Half(token >> 1),
        token => Whom::Link((token >> 1) as u32),
    }
}
