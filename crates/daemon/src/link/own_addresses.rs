//! This host's own addresses and routes change: the kernel tells so (rtnetlink(7)). A connection from an address that is gone says nothing
//! any more, and would be given up after its silence; it ends at once, and hosts are dialled again, from the addresses that there are now.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use crate::daemon::Daemon;
use crate::descriptor::Descriptor;
use crate::poll::Token;
use crate::socket::{self, Recv};
use crate::units::{MILLISECOND, SECOND};

/// The time from a change to what is done about it: the kernel tells that an address is gone before it takes its route away, and of a new one
/// before it has any.
const SETTLE: u64 = 50 * MILLISECOND;
/// The least time between two dials for changes.
const PAUSE: u64 = SECOND;
/// Bytes of changes that are read at once. Of those that do not fit the kernel tells that they were lost.
const READ: usize = 16 << 10;
/// The length of a message's header (`struct nlmsghdr`).
const HEADER: usize = 16;
/// The kind of a message: an address is gone.
const ADDRESS_GONE: u16 = 21;

/// What the kernel tells of.
pub(crate) struct OwnAddresses {
    socket: Option<OwnedFd>,
    /// An address is gone.
    gone: bool,
    /// When something is done about what has changed.
    pub(crate) due: u64,
    /// Hosts are not dialled for it before this.
    not_before: u64,
}

impl OwnAddresses {
    /// Nothing is told before [`Daemon::heed_addresses`].
    pub(crate) fn new() -> Self {
        Self { socket: None, gone: false, due: u64::MAX, not_before: 0 }
    }
}

impl Daemon {
    /// From now on changes are noticed. Where the kernel does not tell of them, they are as silences are.
    pub(crate) fn heed_addresses(&mut self) -> Result<(), Errno> {
        let Ok(socket) = socket::changes_of_addresses() else { return Ok(()) };
        let token = self.new_token();
        self.poll.add(&socket, token)?;
        self.descriptors.insert(token, Descriptor::OwnAddresses);
        self.own_addresses.socket = Some(socket);
        Ok(())
    }

    /// Something has changed.
    pub(crate) fn handle_address_changes(&mut self) {
        let Some(socket) = &self.own_addresses.socket else { return };
        let (mut buffer, mut any, mut gone) = (vec![0; READ], false, false);
        loop {
            match socket::recv(socket, &mut buffer) {
                Ok(Recv::Bytes(count)) => {
                    any = true;
                    gone |= kinds(buffer.get(..count).unwrap_or_default()).any(|kind| kind == ADDRESS_GONE);
                }
                // More than fits has changed.
                Err(Errno::NOBUFS) => (any, gone) = (true, true),
                Ok(Recv::WouldBlock | Recv::End) | Err(_) => break,
            }
        }
        self.own_addresses.gone |= gone;
        if any {
            self.own_addresses.due = self.own_addresses.due.min(self.now + SETTLE);
        }
    }

    fn end_connections_of_gone_addresses(&mut self) {
        let links = self.links.iter().map(|(token, link)| (*token, socket::local_addr(&link.channel)));
        let dials = self.dials.iter().map(|(token, dial)| (*token, socket::local_addr(&dial.socket)));
        let at: Vec<(Token, SocketAddr)> = links.chain(dials).filter_map(|(token, at)| Some((token, at?))).collect();
        for (token, at) in at.into_iter().filter(|(_, at)| !socket::is_own_address(*at)) {
            let why = format!("{} is no address of this host any more", at.ip().to_canonical());
            if self.dials.contains_key(&token) {
                self.dial_failed(token, &why);
            } else {
                self.drop_link(token, &why);
            }
        }
    }

    /// If something has changed, connections from an address that is gone end, and hosts without a link are dialled.
    pub(crate) fn follow_address_changes(&mut self) {
        if self.own_addresses.due > self.now {
            return;
        }
        if std::mem::take(&mut self.own_addresses.gone) {
            self.end_connections_of_gone_addresses();
        }
        if self.now < self.own_addresses.not_before {
            self.own_addresses.due = self.own_addresses.not_before;
            return;
        }
        (self.own_addresses.due, self.own_addresses.not_before) = (u64::MAX, self.now + PAUSE);
        (0..self.peers.len()).for_each(|peer| self.dial_soon(peer));
        self.wake_calls();
    }
}

/// The kinds of the messages that came.
fn kinds(mut bytes: &[u8]) -> impl Iterator<Item = u16> {
    std::iter::from_fn(move || {
        let header = bytes.first_chunk::<HEADER>()?;
        let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        // They begin at multiples of four.
        bytes = bytes.get(length.max(HEADER).next_multiple_of(4)..).unwrap_or_default();
        Some(u16::from_ne_bytes([header[4], header[5]]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_messages_are_read_one_after_another() {
        let message = |kind: u16, body: usize| {
            let mut bytes = ((HEADER + body) as u32).to_ne_bytes().to_vec();
            bytes.extend(kind.to_ne_bytes());
            bytes.resize((HEADER + body).next_multiple_of(4), 0);
            bytes
        };
        let bytes = [message(20, 24), message(ADDRESS_GONE, 5), message(24, 0)].concat();
        assert_eq!(kinds(&bytes).collect::<Vec<_>>(), [20, ADDRESS_GONE, 24]);
        assert_eq!(kinds(&bytes[..HEADER - 1]).count(), 0);
        // A length of nothing does not stop it.
        assert_eq!(kinds(&[0; 40]).collect::<Vec<_>>(), [0, 0]);
        assert_eq!(kinds(&[0xff; 20]).collect::<Vec<_>>(), [0xffff]);
    }

    #[test]
    fn an_address_of_this_host_is_told_from_others() {
        let is_own = |at: &str| socket::is_own_address(at.parse().unwrap());
        assert!(is_own("127.0.0.1:7780") && is_own("127.9.9.9:1"));
        // For documentation alone (RFC 5737, RFC 3849).
        assert!(!is_own("203.0.113.77:7780") && !is_own("[2001:db8::77]:7780"));
    }
}
