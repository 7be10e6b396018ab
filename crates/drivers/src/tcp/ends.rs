//! The two ends of a TCP connection.

use core::net::SocketAddr;
use std::io::IoSlice;
use std::sync::Arc;

use madrigal_base::error::{ReadError, WriteError};
use madrigal_base::locator::Locator;
use madrigal_progress::driver::{ByteRx, ByteTx, Connection, Ends, Read, Watched, Wrote};
use madrigal_sys::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, sockopt};

use super::silence;
use super::socket::{NAME, Socket, os, own};

/// How often the kernel asks at most, in vain, before it gives a connection up: whoever wanted that it asks ends it sooner.
const MOST_ASKED: u32 = 100;

/// What a driver gives: both ends, and their names.
pub(super) fn connection(socket: Arc<Socket>, peer: Locator) -> Connection {
    // Without it everything works, only slower.
    let _ = sockopt::set_tcp_nodelay(&socket.fd, true);
    let local = own(&socket.fd).unwrap_or_else(|| SocketAddr::from(([0, 0, 0, 0], 0)));
    let ends = ends(&socket, &peer);
    Connection { ends, signal: socket, local: Locator::inet(NAME, local), peer }
}

/// Both ends of a connected socket.
fn ends(socket: &Arc<Socket>, peer: &Locator) -> Ends {
    let end = || End { socket: Arc::clone(socket), peer: peer.clone() };
    Ends::Bytes(Box::new(end()), Box::new(end()))
}

/// Either end: the socket is closed when both are dropped.
struct End {
    socket: Arc<Socket>,
    peer: Locator,
}

impl Watched for End {
    /// The kernel reports every change since the last try, so there is nothing to announce.
    fn arm(&mut self) -> bool {
        false
    }

    fn ask_after(&mut self) {
        silence::ask(&self.socket.fd, MOST_ASKED);
    }

    fn unanswered_s(&self) -> u64 {
        silence::unanswered_s(&self.socket.fd)
    }
}

impl ByteRx for End {
    fn read(&mut self, buf: &mut [u8]) -> Result<Read, ReadError> {
        if buf.is_empty() {
            return Ok(Read::Bytes(0));
        }
        loop {
            return match rustix::net::recv(&self.socket.fd, &mut *buf, RecvFlags::DONTWAIT) {
                Ok((0, _)) if self.socket.was_reset() => Err(self.read_error(Errno::CONNRESET)),
                Ok((0, _)) => Ok(Read::End),
                Ok((n, _)) => Ok(Read::Bytes(n)),
                Err(Errno::AGAIN) => Ok(Read::WouldBlock),
                Err(Errno::INTR) => continue,
                Err(errno) => Err(self.read_error(errno)),
            };
        }
    }
}

impl ByteTx for End {
    fn write(&mut self, bufs: &[IoSlice<'_>]) -> Result<Wrote, WriteError> {
        if bufs.iter().all(|buf| buf.is_empty()) {
            return Ok(Wrote::Bytes(0));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            let sent = self.socket.send(|| match bufs {
                [one] => rustix::net::send(&self.socket.fd, one, flags),
                many => rustix::net::sendmsg(&self.socket.fd, many, &mut SendAncillaryBuffer::default(), flags),
            });
            return match sent {
                Ok(n) => Ok(Wrote::Bytes(n)),
                Err(Errno::AGAIN) => Ok(Wrote::WouldBlock),
                Err(Errno::INTR) => continue,
                Err(errno) => Err(self.write_error(errno)),
            };
        }
    }
}

impl End {
    #[cold]
    fn read_error(&self, errno: Errno) -> ReadError {
        match errno {
            Errno::CONNRESET | Errno::PIPE => ReadError::Reset { peer: self.peer.clone() },
            errno => ReadError::System { peer: self.peer.clone(), os: os(errno) },
        }
    }

    #[cold]
    fn write_error(&self, errno: Errno) -> WriteError {
        match errno {
            Errno::PIPE | Errno::CONNRESET => WriteError::PeerGone { peer: self.peer.clone() },
            errno => WriteError::System { peer: self.peer.clone(), os: os(errno) },
        }
    }
}
