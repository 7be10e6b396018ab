//! This host's own addresses and routes change. A connection from an address that is gone carries nothing any more, and would be given up
//! only after a time of silence. So it ends at once, and hosts are dialled again, from the present addresses.

use std::net::SocketAddr;

use rustix::io::Errno;

use crate::daemon::Daemon;
use crate::descriptor::Descriptor;
use crate::poll::Token;
use crate::socket;

impl Daemon {
    /// From now on changes are noticed. If the kernel does not report them, they are noticed as silence of the connections.
    pub(crate) fn heed_addresses(&mut self) -> Result<(), Errno> {
        let Ok(socket) = socket::changes_of_addresses() else { return Ok(()) };
        let token = self.new_token();
        self.poll.add(&socket, token)?;
        self.descriptors.insert(token, Descriptor::OwnAddresses);
        self.own_addresses.listen_at(socket);
        Ok(())
    }

    /// The kernel reports changes.
    pub(crate) fn read_address_changes(&mut self, token: Token) {
        if self.own_addresses.read(self.now) {
            self.runnable.push_back(token);
        }
    }

    /// If something has changed, connections from an address that is gone end, and hosts without a link are dialled.
    pub(crate) fn follow_address_changes(&mut self) {
        let wanted = self.own_addresses.take_wanted(self.now);
        if wanted.end {
            self.end_connections_of_gone_addresses();
        }
        if wanted.dial {
            (0..self.peers.len()).for_each(|peer| self.dial_soon(peer));
            self.wake_calls();
        }
    }

    fn end_connections_of_gone_addresses(&mut self) {
        let links = self.links.iter().map(|(token, link)| (*token, socket::local_addr(&link.channel)));
        let dials = self.dials.iter().map(|(token, dial)| (*token, socket::local_addr(&dial.socket)));
        let at: Vec<(Token, SocketAddr)> = links.chain(dials).filter_map(|(token, at)| Some((token, at?))).collect();
        let mut gone: Vec<_> = at.into_iter().filter(|(_, at)| !socket::is_own_address(*at)).collect();
        // Further connections first: none of them takes the place of a link's own.
        gone.sort_by_key(|(token, _)| self.links.get(token).is_some_and(|link| link.up().is_some()));
        for (token, at) in gone {
            let why = format!("{} is no address of this host any more", at.ip().to_canonical());
            if self.dials.contains_key(&token) {
                self.dial_failed(token, &why);
            } else {
                self.connection_lost(token, &why);
            }
        }
    }
}
