//! Accepts connections of other daemons, and registers links.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use crate::daemon::Daemon;
use crate::descriptor::Descriptor;
use crate::link::channel::Channel;
use crate::link::peer::Dialled;
use crate::link::{Link, Stage};
use crate::poll::Token;
use crate::socket;

/// Connections that have not authenticated; beyond this number one of them is closed.
const MOST_UNAUTHENTICATED: usize = 128;
/// Connections that are accepted in one pass.
const ACCEPTS: usize = 64;

impl Daemon {
    /// Accepts connections of other daemons.
    pub(crate) fn accept_links(&mut self, port: Token) {
        // The listener is level-triggered: those that are left wait for the next pass.
        for _ in 0..ACCEPTS {
            let Some(listener) = self.ports.get(&port) else { return };
            match socket::accept(listener) {
                Ok(Some(socket)) => {
                    let address = socket::peer_addr(&socket);
                    let channel = self.channel_from(socket);
                    self.add_link(channel, None, address);
                }
                Ok(None) => return,
                Err(errno) => {
                    self.log_unauthenticated(&format!("cannot take a connection: {errno}"));
                    return self.evict_unauthenticated(1);
                }
            }
        }
    }

    /// Adds a link: one that we dialled, or an accepted one.
    pub(crate) fn add_link(
        &mut self,
        channel: Channel,
        dialled: Option<Dialled>,
        address: Option<SocketAddr>,
    ) -> Option<Token> {
        let token = match dialled {
            Some(Dialled { token, .. }) => token,
            None => {
                self.evict_unauthenticated(MOST_UNAUTHENTICATED);
                let token = self.new_token();
                self.poll.add(&channel, token).ok()?;
                token
            }
        };
        let joins = dialled.and_then(|dialled| dialled.joins);
        let dialled = dialled.map(|dialled| (dialled.peer, dialled.number));
        let proved_serial = self.credentials.as_ref().map(|credentials| credentials.own().serial).ok();
        let (since, stage) = (self.now, Stage::Greeting(Vec::new()));
        let (command, by_command, short_tried, offered, seen, punched) = (None, false, false, None, None, false);
        let greets = dialled.is_some() && !channel.is_encrypted();
        let link = Link {
            channel,
            counted: None,
            dialled,
            address,
            since,
            command,
            by_command,
            proved_serial,
            short_tried,
            seen,
            punched,
            offered,
            joins,
            stage,
        };
        self.descriptors.insert(token, Descriptor::Link);
        self.links.insert(token, link);
        // On an encrypted connection the other end has to authenticate first.
        if greets {
            self.greet(token);
        }
        self.unflushed.insert(token);
        self.measure_soon();
        Some(token)
    }

    /// The channel of an accepted connection.
    pub(crate) fn channel_from(&self, socket: OwnedFd) -> Channel {
        Channel::accepted(socket, self.credentials.as_ref().ok())
    }

    /// Adds a link that came by a command of another host. The other end greets first.
    pub(crate) fn add_command_link(&mut self, channel: Channel) {
        if let Some(link) = self.add_link(channel, None, None).and_then(|token| self.links.get_mut(&token)) {
            link.by_command = true;
        }
    }
}
