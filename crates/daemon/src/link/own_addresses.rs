//! Changes of this host's own addresses and routes, as the kernel reports them (rtnetlink(7)). `address_changes.rs` acts on them.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

use crate::socket::{self, Recv};
use crate::units::{MILLISECOND, SECOND};

/// The time from a change to the reaction: the kernel reports that an address is gone before it removes its route, and that there is a
/// new one before it has a route.
const SETTLE: u64 = 50 * MILLISECOND;
/// The least time between two dials for changes.
const PAUSE: u64 = SECOND;
/// Bytes of changes that are read at once. The kernel reports that changes were lost if they do not fit.
const READ: usize = 16 << 10;
/// Reads in one pass: the routes of some hosts change all the time.
const READS: usize = 16;
/// The length of a message's header (`struct nlmsghdr`).
const HEADER: usize = 16;
/// The kind of a message: an address is gone.
const ADDRESS_GONE: u16 = 21;

/// The changes that the kernel reported.
pub(crate) struct OwnAddresses {
    socket: Option<OwnedFd>,
    /// An address is gone.
    gone: bool,
    /// When the changes are acted on; none: `u64::MAX`.
    pub(crate) due: u64,
    /// Hosts are not dialled because of changes before this.
    not_before: u64,
}

/// The reaction to changes.
#[derive(Default)]
pub(crate) struct Wanted {
    /// Connections from addresses that are gone end.
    pub(crate) end: bool,
    /// Hosts without a link are dialled.
    pub(crate) dial: bool,
}

impl OwnAddresses {
    /// Nothing is reported before [`OwnAddresses::listen_at`].
    pub(crate) fn new() -> Self {
        Self { socket: None, gone: false, due: u64::MAX, not_before: 0 }
    }

    /// Sets the socket at which the kernel reports changes: that of [`socket::changes_of_addresses`].
    pub(crate) fn listen_at(&mut self, socket: OwnedFd) {
        self.socket = Some(socket);
    }

    /// Reads the kernel's reports. Returns whether there may be more.
    pub(crate) fn read(&mut self, now: u64) -> bool {
        let Some(socket) = &self.socket else { return false };
        let mut buffer = vec![0; READ];
        for _ in 0..READS {
            match socket::recv(socket, &mut buffer) {
                Ok(Recv::Bytes(count)) => {
                    let mut kinds = kinds(buffer.get(..count).unwrap_or_default());
                    self.gone |= kinds.any(|kind| kind == ADDRESS_GONE);
                }
                // Reports did not fit and were lost.
                Err(Errno::NOBUFS) => self.gone = true,
                Ok(Recv::WouldBlock | Recv::End) | Err(_) => return false,
            }
            self.due = self.due.min(now + SETTLE);
        }
        true
    }

    /// The reaction that is due now.
    pub(crate) fn take_wanted(&mut self, now: u64) -> Wanted {
        if self.due > now {
            return Wanted::default();
        }
        let (end, dial) = (std::mem::take(&mut self.gone), now >= self.not_before);
        if dial {
            (self.due, self.not_before) = (u64::MAX, now + PAUSE);
        } else {
            self.due = self.not_before;
        }
        Wanted { end, dial }
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
        // A length of 0 does not stop it.
        assert_eq!(kinds(&[0; 40]).collect::<Vec<_>>(), [0, 0]);
        assert_eq!(kinds(&[0xff; 20]).collect::<Vec<_>>(), [0xffff]);
    }

    #[test]
    fn hosts_are_dialled_once_a_second_and_what_is_gone_is_looked_for_each_time() {
        let mut own = OwnAddresses::new();
        let mut change = |now: u64, gone: bool| {
            (own.due, own.gone) = (own.due.min(now), gone);
            let wanted = own.take_wanted(now);
            (wanted.end, wanted.dial, own.due)
        };
        let begin = 5 * SECOND;
        assert_eq!(change(begin, true), (true, true, u64::MAX));
        assert_eq!(change(begin + 1, true), (true, false, begin + PAUSE));
        assert_eq!(change(begin + PAUSE, false), (false, true, u64::MAX));
    }

    #[test]
    fn an_address_of_this_host_is_told_from_others() {
        let is_own = |at: &str| socket::is_own_address(at.parse().unwrap());
        assert!(is_own("127.0.0.1:7780") && is_own("127.9.9.9:1"));
        // For documentation alone (RFC 5737, RFC 3849).
        assert!(!is_own("203.0.113.77:7780") && !is_own("[2001:db8::77]:7780"));
    }
}
