//! How a further connection proves that it is one of a link that is enciphered above all of its connections (`enciphered.rs`). It has no
//! handshake of its own: each end shows a secret of the link's session, another one for each number of a connection and for each end
//! (RFC 8446, section 7.5: exporters), and the dialling end shows its own first.
//!
//! ```text
//!   dialled --- JOIN: link, number, secret(dialling end, number) --------> accepted: such a link, a number that was not there, that secret
//!           <-- JOIN: link, number, secret(accepting end, number) -------- a connection of the link
//!           pieces of the link's records, both ways
//! ```
//! * Who does not have the session cannot know the secret of any number, and has 2^-256 of a chance to guess one: such a connection is refused,
//!   and the link has not heard of it.
//! * Who reads the network sees secrets that were shown. Each joins once: numbers never come again (`numbers.rs`), and what the accepting end
//!   shows is none of the dialling end's.
//! * Who changes what is on its way could as well take over a connection that has joined: nothing proves where its pieces are from. They are
//!   pieces of records: what is not of the session ends the link, tells nothing, and is delivered to nobody. (Where each connection has a
//!   handshake of its own it ends that connection, and the link goes on by others: docs/adapters.md, "tls".)
//!
//! Who the other end is, whether it is let in, and whether its certificate holds is a matter of the link ([`crate::link::Proved`]).

use madrigal_adapters::contract::Lane;
use subtle::ConstantTimeEq as _;

use crate::daemon::Daemon;
use crate::link::Link;
use crate::link::enciphered::Enciphered;
use crate::link::lanes::GONE;
use crate::poll::Token;
use crate::wire::{self, Joining};

/// The label of the secrets.
const LABEL: &[u8] = b"EXPORTER-madrigal-connection";
/// Why a connection is refused.
const NO_PROOF: &str = "it does not prove that it is a connection of that link";

/// Which end shows a secret.
#[derive(Clone, Copy)]
enum Shows {
    Dialling,
    Accepting,
}

impl Daemon {
    /// The greeting of a further connection that we dialled, if its link is enciphered above all connections.
    pub(crate) fn joining(&self, link: &Link) -> Option<Vec<u8>> {
        let (of, lane) = link.joins?;
        let enciphered = self.links.get(&of).and_then(Link::session)?;
        Some(wire::joining(&shown(enciphered, Shows::Dialling, lane)?))
    }

    /// A further connection shows its secret, or the answer to ours. `rest` came behind it.
    pub(crate) fn handle_joining(&mut self, token: Token, body: &[u8], rest: &[u8]) -> Result<(), String> {
        let joining = Joining::read(body).ok_or(NO_PROOF)?;
        let link = self.links.get(&token).ok_or(GONE)?;
        let (of, expected) = match (link.joins, link.dialled) {
            (Some((of, lane)), _) if lane.0 == joining.lane => (of, Shows::Accepting),
            (None, None) => (self.link_of(&joining).ok_or(GONE)?, Shows::Dialling),
            _ => return Err(NO_PROOF.to_owned()),
        };
        let lane = Lane(joining.lane);
        let enciphered = self.links.get(&of).and_then(Link::session).ok_or(GONE)?;
        let secret = shown(enciphered, expected, lane).ok_or(NO_PROOF)?;
        if !bool::from(secret.secret.ct_eq(&joining.secret)) || secret.link != joining.link {
            return Err(NO_PROOF.to_owned());
        }
        let answer = shown(enciphered, Shows::Accepting, lane).map(|answer| wire::joining(&answer));
        if let Some(peer) = self.links.get(&of).and_then(Link::up).map(|up| up.peer) {
            self.choose_congestion(token, peer);
        }
        self.add_to_link(token, (of, lane), answer.unwrap_or_default(), rest)
    }

    /// The link that a peer began and names.
    fn link_of(&self, joining: &Joining) -> Option<Token> {
        let is = |link: &Link| {
            link.dialled.is_none() && link.session().and_then(Enciphered::name).is_some_and(|name| name == joining.link)
        };
        self.links.iter().find(|(_, link)| is(link)).map(|(token, _)| *token)
    }
}

/// What one end shows for a connection.
fn shown(enciphered: &Enciphered, shows: Shows, lane: Lane) -> Option<Joining> {
    let end = match shows {
        Shows::Dialling => b'd',
        Shows::Accepting => b'a',
    };
    let [a, b, c, d] = lane.0.to_le_bytes();
    let secret = enciphered.secret(LABEL, &[end, a, b, c, d])?;
    Some(Joining { link: enciphered.name()?, lane: lane.0, secret })
}
