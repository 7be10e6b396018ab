//! A second link with a host, for urgent streams. On a long way a lost packet holds up everything behind it on its connection for a round
//! trip or more, so what is urgent does not share a connection with other streams. The second link has one connection, and no adapters.
//!
//! ```text
//!   a -- link: data, bulk ------------ b      an urgent stream that began here moves (`migrations.rs`)
//!   a -- link: urgent streams only --- b      dialled by the end that dialled the first one, if a rule has urgent streams
//! ```
//! Without the first link it carries everything, until there is another one (`Rank`).

use madrigal_proto::mux::Class;

use crate::daemon::Daemon;
use crate::link::Purpose;
use crate::poll::Token;
use crate::streams::origin::{Origin, Role};
use crate::streams::pipe::{End, Pipe};
use crate::units::SECOND;
use crate::wire::StreamHeader;

/// The pause between attempts to make such a link with a host.
const PAUSE: u64 = 10 * SECOND;

impl Daemon {
    /// The link for a stream of a class whose way begins with `link`. If there should be one for urgent streams, it is made.
    pub(crate) fn link_for(&mut self, link: Token, class: Class) -> Token {
        if class != Class::Urgent {
            return link;
        }
        let urgent = self.urgent_link(link);
        if urgent.is_none() {
            self.make_urgent_link(link);
        }
        urgent.unwrap_or(link)
    }

    /// The link for urgent streams with the host that `link` leads to.
    fn urgent_link(&self, link: Token) -> Option<Token> {
        let peer = self.links.get(&link)?.up()?.peer;
        let with = self.links.iter().filter_map(|(token, link)| Some((*token, link.up()?)));
        let urgent = with.filter(|(_, up)| up.peer == peer && up.purpose == Purpose::Urgent);
        urgent.min_by_key(|(_, up)| &up.rank).map(|(token, _)| token)
    }

    /// Dials a link for urgent streams beside `link`, or asks the other end to, if the way is long.
    pub(crate) fn make_urgent_link(&mut self, link: Token) {
        let now = self.now;
        let Some(beside) = self.links.get_mut(&link).filter(|beside| beside.channel.is_far() && !beside.punched) else {
            return;
        };
        let Some(peer) = beside.up().map(|up| up.peer) else { return };
        let known = &mut self.peers[peer];
        match (beside.method(), beside.address) {
            ("direct", Some(address)) if known.urgent_dial_at <= now => {
                known.urgent_dial_at = now + PAUSE;
                let short = known.short_segments.contains(&address);
                self.peers[peer].urgent_dial = self.dial_at(peer, address, short, None);
            }
            ("reverse", _) if known.urgent_request_at <= now => {
                known.urgent_request_at = now + PAUSE;
                let request = beside.mux().map(|mux| mux.open(Class::Urgent, &StreamHeader::UrgentLink.bytes()));
                if let Some(Ok(_)) = request {
                    self.unflushed.insert(link);
                }
            }
            _ => {}
        }
    }

    /// Whether we dialled a connection for a link of urgent streams.
    pub(crate) fn is_urgent_dial(&self, token: Token) -> bool {
        self.peers.iter().any(|peer| peer.urgent_dial == Some(token))
    }

    /// Makes the links for urgent streams that rules want and that are not there: never made, or broken.
    pub(crate) fn make_urgent_links(&mut self) {
        let up = self.links.iter().filter_map(|(token, link)| Some((*token, link.up()?)));
        let wants = up.filter(|(_, up)| up.purpose == Purpose::Streams && self.grid.has_urgent(up.peer));
        for link in wants.map(|(token, _)| token).collect::<Vec<_>>() {
            self.link_for(link, Class::Urgent);
        }
    }

    /// A link is up: a rule may want one for urgent streams beside it, and streams that it is for move to it.
    pub(crate) fn use_new_link(&mut self, link: Token) {
        self.make_urgent_links();
        let peer_of = |link: Token| Some(self.links.get(&link)?.up()?.peer);
        let peer = peer_of(link);
        let with = self.pipes.iter().filter(|(_, pipe)| link_of(pipe).and_then(peer_of) == peer);
        for pipe in with.map(|(token, _)| *token).collect::<Vec<_>>() {
            if self.other_link(pipe).is_some_and(|(to, _)| to == link) {
                self.try_better_way(pipe);
            }
        }
    }

    /// The link that a pipe's stream should move to, because it is for such streams and the stream's own is not; and the stream's way, which
    /// stays the same.
    pub(crate) fn other_link(&self, pipe: Token) -> Option<(Token, String)> {
        let pipe = self.pipes.get(&pipe)?;
        let Some(Origin { role: Role::Caller { host, port, way }, .. }) = &pipe.origin else { return None };
        let own = link_of(pipe)?;
        let up = self.links.get(&own)?.up()?;
        let wanted = match (self.grid.class(*host, *port), up.purpose) {
            (Class::Urgent, _) => self.urgent_link(own)?,
            (_, Purpose::Urgent) => self.link_to(up.peer)?,
            _ => own,
        };
        (wanted != own).then(|| (wanted, way.clone()))
    }
}

/// The link that carries the resumable stream of a pipe.
fn link_of(pipe: &Pipe) -> Option<Token> {
    let side = pipe.sides.iter().find(|side| side.resumable.is_some())?;
    if let End::Stream((link, _)) = side.end { Some(link) } else { None }
}
