//! The messages of a link's set-up: our node id, the id we expect of the peer, and the descriptors of memory beside them.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};

use madrigal_base::node::NodeId;
use madrigal_sys::Errno;
use madrigal_sys::fd::Fd;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};

/// What both sides send each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Greeting {
    /// The sender.
    pub(super) from: NodeId,
    /// The node that the sender expects at the other end.
    pub(super) to: NodeId,
    /// Which bit of its notification page stands for the link.
    pub(super) slot: u32,
    /// Where in its memory the nonce lies, ...
    pub(super) nonce_at: u64,
    /// ... and what it is.
    pub(super) nonce: [u64; 2],
}

/// Descriptors of the side that dials: the pair and its notification page. The other side answers with its page alone.
pub(super) const DIALER: usize = 2;
/// See [`DIALER`].
pub(super) const ANSWERER: usize = 1;

/// The result of receiving a greeting.
pub(super) enum Received {
    /// It is complete.
    Whole(Greeting, Vec<Fd>),
    /// Nothing yet.
    NotYet,
    /// The peer closed.
    End,
    /// Something else came.
    Bad,
}

const MAGIC: u64 = u64::from_le_bytes(*b"mdr-box\x01");
const LEN: usize = 56;

impl Greeting {
    fn to_bytes(self) -> [u8; LEN] {
        let words = [
            MAGIC,
            self.from.number(),
            self.to.number(),
            self.slot.into(),
            self.nonce_at,
            self.nonce[0],
            self.nonce[1],
        ];
        let mut bytes = [0; LEN];
        for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        bytes
    }

    fn from_bytes(bytes: &[u8; LEN]) -> Option<Self> {
        let mut words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        let mut word = || words.next();
        let (magic, from, to, slot) = (word()?, NodeId::new(word()?)?, NodeId::new(word()?)?, word()?);
        let greeting = Self { from, to, slot: u32::try_from(slot).ok()?, nonce_at: word()?, nonce: [word()?, word()?] };
        (magic == MAGIC && greeting.to_bytes() == *bytes).then_some(greeting)
    }
}

/// Sends a greeting, with descriptors beside it. A fresh socket has room for it.
pub(super) fn send(socket: impl AsFd, greeting: Greeting, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DIALER))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(fds));
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent = rustix::net::sendmsg(socket, &[IoSlice::new(&greeting.to_bytes())], &mut control, flags)?;
    if sent == LEN { Ok(()) } else { Err(Errno::AGAIN) }
}

/// Receives a greeting that comes with `count` descriptors. Doorbells behind it stay in the socket.
pub(super) fn receive(socket: impl AsFd, count: usize) -> Received {
    let mut bytes = [0; LEN];
    let mut space = [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DIALER))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags);
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights.map(Fd::from));
        }
    }
    match received {
        Err(Errno::AGAIN | Errno::INTR) => Received::NotYet,
        Ok(received) if received.bytes == 0 => Received::End,
        Ok(received) if received.bytes == LEN && fds.len() == count => {
            Greeting::from_bytes(&bytes).map_or(Received::Bad, |greeting| Received::Whole(greeting, fds))
        }
        Err(_) => Received::End,
        Ok(_) => Received::Bad,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_on_the_wire_stay_what_they_are() {
        let (from, to) = (NodeId::new(0x0102).unwrap(), NodeId::new(0x0304).unwrap());
        let greeting = Greeting { from, to, slot: 5, nonce_at: 6, nonce: [7, 8] };
        let golden = *b"mdr-box\x01\x02\x01\0\0\0\0\0\0\x04\x03\0\0\0\0\0\0\x05\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0\
            \x07\0\0\0\0\0\0\0\x08\0\0\0\0\0\0\0";
        assert_eq!(greeting.to_bytes(), golden);
        assert_eq!(Greeting::from_bytes(&golden), Some(greeting));
        for at in [0, 7, 8 + 7, 24 + 5] {
            let mut other = golden;
            other[at] ^= 0x80;
            assert_eq!(Greeting::from_bytes(&other), None, "byte {at}");
        }
    }
}
