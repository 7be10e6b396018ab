//! The one message of a connection's set-up: which arena, which slot, and the arena's descriptor beside it.

use madrigal_sys::fd::Fd;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::AsFd;

use madrigal_sys::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};

/// What the connecting side sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Hello {
    /// The arena's random number.
    pub(super) arena: u64,
    /// The slot of it that is this connection.
    pub(super) slot: u32,
}

/// The result of reading a hello.
pub(super) enum Received {
    /// It is complete.
    Whole(Hello, Fd),
    /// Nothing yet.
    NotYet,
    /// No hello of ours will come.
    Bad,
}

const MAGIC: u64 = u64::from_le_bytes(*b"mdr-shm\x01");
const LEN: usize = 24;

impl Hello {
    fn to_bytes(self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.arena.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.slot.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8; LEN]) -> Option<Self> {
        let word = |at: usize| bytes.get(at..at + 8)?.try_into().map(u64::from_le_bytes).ok();
        let (magic, arena, rest) = (word(0)?, word(8)?, word(16)?);
        let slot = u32::try_from(rest).ok()?;
        (magic == MAGIC).then_some(Self { arena, slot })
    }
}

/// Sends a hello. A fresh socket has room for it.
pub(super) fn send(socket: impl AsFd, hello: Hello, arena: impl AsFd) -> Result<(), Errno> {
    let mut space = [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [arena.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&fds));
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent = rustix::net::sendmsg(socket, &[IoSlice::new(&hello.to_bytes())], &mut control, flags)?;
    if sent == LEN { Ok(()) } else { Err(Errno::AGAIN) }
}

/// Receives a hello. Doorbells behind it stay in the socket.
pub(super) fn receive(socket: impl AsFd) -> Received {
    let mut bytes = [0; LEN];
    let mut space = [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    match rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
        Err(Errno::AGAIN | Errno::INTR) => return Received::NotYet,
        Ok(received) if received.bytes == LEN => {}
        _ => return Received::Bad,
    }
    let mut fd = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            fd = fds.into_iter().next().map(Fd::from);
        }
    }
    match (Hello::from_bytes(&bytes), fd) {
        (Some(hello), Some(fd)) => Received::Whole(hello, fd),
        _ => Received::Bad,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_on_the_wire_stay_what_they_are() {
        let hello = Hello { arena: 0x0102_0304_0506_0708, slot: 9 };
        let golden = *b"mdr-shm\x01\x08\x07\x06\x05\x04\x03\x02\x01\x09\0\0\0\0\0\0\0";
        assert_eq!(hello.to_bytes(), golden);
        assert_eq!(Hello::from_bytes(&golden), Some(hello));
        let mut other = golden;
        other[7] = 2;
        assert_eq!(Hello::from_bytes(&other), None);
    }
}
