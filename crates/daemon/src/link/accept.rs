//! Accepts connections of other daemons, and registers links.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use crate::daemon::Daemon;
use crate::descriptor::Thing;
use crate::link::channel::Channel;
use crate::link::{Link, Stage};
use crate::poll::Token;
use crate::socket;

/// Connections that have not yet; of more one goes.
const MOST_UNAUTHENTICATED: usize = 128;
/// Connections that are taken in one pass.
const ACCEPTS: usize = 64;

impl Daemon {
    /// Takes daemons that call.
    pub(crate) fn answer_port(&mut self, port: Token) {
        // Those who wait longer are told of again: links have their turn in between.
        for _ in 0..ACCEPTS {
            let Some(listener) = self.ports.get(&port) else { return };
            match socket::accept(listener) {
                Ok(Some(socket)) => {
                    let address = socket::peer(&socket);
                    let channel = self.channel_from(socket);
                    self.add_link(channel, None, address);
                }
                Ok(None) => return,
                Err(errno) => {
                    self.note_unauthenticated(&format!("cannot take a connection: {errno}"));
                    return self.make_room(1);
                }
            }
        }
    }

    /// A new connection: of our making, which speaks first and is registered already, or another's.
    pub(crate) fn add_link(
        &mut self,
        channel: Channel,
        dialled: Option<(usize, u64, Token)>,
        address: Option<SocketAddr>,
    ) -> Option<Token> {
        let token = match dialled {
            Some((.., token)) => token,
            None => {
                self.make_room(MOST_UNAUTHENTICATED);
                let token = self.token();
                self.poll.add(&channel, token).ok()?;
                token
            }
        };
        let dialled = dialled.map(|(peer, number, _)| (peer, number));
        let shown = self.credentials.as_ref().map(|credentials| credentials.own().serial).ok();
        let (since, stage) = (self.now, Stage::Greeting(Vec::new()));
        let (command, by_command, doubted) = (None, false, false);
        let mut link = Link { channel, dialled, address, since, command, by_command, shown, doubted, stage };
        // Where it is enciphered, the other end has to prove first that it is who was dialled.
        if let Some((_, number)) = dialled.filter(|_| !link.channel.is_enciphered()) {
            link.channel.out().extend(self.greeting(number));
        }
        self.things.insert(token, Thing::Link);
        self.links.insert(token, link);
        self.dirty.insert(token);
        self.measure_soon();
        Some(token)
    }

    /// A connection of another's making.
    pub(crate) fn channel_from(&self, socket: OwnedFd) -> Channel {
        Channel::accepted(socket, self.credentials.as_ref().ok())
    }

    /// A client leads to another daemon by a command: its connection becomes a link. The other end begins.
    pub(crate) fn add_command_link(&mut self, channel: Channel) {
        if let Some(link) = self.add_link(channel, None, None).and_then(|token| self.links.get_mut(&token)) {
            link.by_command = true;
        }
    }
}
