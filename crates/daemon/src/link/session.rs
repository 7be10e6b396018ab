//! A TLS connection over one socket: the handshake, and what is read and written.

use std::io::{self, IoSlice, Read as _, Write as _};
use std::os::fd::OwnedFd;

use madrigal_identity::Refusal;
use rustix::io::Errno;
use rustls::Connection;

use crate::socket::{self, Recv};

/// The longest handshake, ten times that of three certificates.
const LONGEST_HANDSHAKE: usize = 32 << 10;
/// Bytes that may wait to be sent, before encryption and after it.
pub(crate) const MOST_QUEUED: usize = 256 << 10;
/// Bytes of the head of a record: type, version, and length (RFC 8446, section 5.1).
const HEAD: usize = 5;

/// Why a channel failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    /// An error of the system.
    #[error("{0}")]
    System(#[from] Errno),
    /// One end refuses the other.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// Invalid TLS records.
    #[error("no TLS 1.3 of a grid: {0}")]
    Records(String),
    /// The handshake has more bytes than any certificates need.
    #[error("too long a handshake")]
    TooLong,
    /// The peer requests TLS, and this host has no certificate.
    #[error("it asks for TLS, and this host has no certificate")]
    NoCertificate,
}

/// A TLS connection over a socket. Until the peer has greeted no more is read at once than the record that has begun: on a link that has the
/// session above all of its connections, what follows that is no record of this connection.
pub(crate) struct Session {
    pub(crate) connection: Connection,
    /// Bytes of the handshake that came.
    received: usize,
    /// The end of the handshake was reported.
    pub(crate) reported: bool,
    /// The other end closed the connection.
    ended: bool,
    /// The record that is being read, while they are read one by one.
    record: Option<Record>,
}

/// How far the records are known that have been read.
#[derive(Default)]
struct Record {
    head: [u8; HEAD],
    /// Bytes of the head that came.
    filled: usize,
    /// Bytes of the record that did not.
    left: usize,
}

impl Record {
    /// How many bytes may be read at once.
    fn wanted(&self) -> usize {
        if self.left > 0 { self.left } else { HEAD - self.filled }
    }

    /// So many were read, or fewer.
    fn take(&mut self, bytes: &[u8]) {
        if self.left > 0 {
            self.left = self.left.saturating_sub(bytes.len());
            return;
        }
        if let Some(room) = self.head.get_mut(self.filled..self.filled + bytes.len()) {
            room.copy_from_slice(bytes);
            self.filled += bytes.len();
        }
        if let (HEAD, [.., high, low]) = (self.filled, self.head) {
            (self.filled, self.left) = (0, usize::from(u16::from_be_bytes([high, low])));
        }
    }
}

impl Session {
    /// Of a new connection.
    pub(crate) fn new(mut connection: Connection) -> Box<Self> {
        connection.set_buffer_limit(Some(MOST_QUEUED));
        Box::new(Self { connection, received: 0, reported: false, ended: false, record: Some(Record::default()) })
    }

    /// From now on as much is read at once as there is.
    pub(crate) fn read_many(&mut self) {
        self.record = None;
    }

    /// Reads and decrypts. A third of the buffer is for the records, so that their payload, with that of an earlier partial record, fits in the
    /// rest.
    pub(crate) fn read(&mut self, socket: &OwnedFd, buffer: &mut [u8]) -> Result<Recv, Broken> {
        let (clear, raw) = buffer.split_at_mut(buffer.len() - buffer.len() / 3);
        let mut filled = 0;
        while filled == 0 && !self.ended {
            let most = self.record.as_ref().map_or(raw.len(), |record| record.wanted().min(raw.len()));
            let count = match socket::recv(socket, raw.get_mut(..most).unwrap_or_default())? {
                Recv::Bytes(count) => count,
                other => return Ok(other),
            };
            let mut rest = raw.get(..count).unwrap_or_default();
            if let Some(record) = &mut self.record {
                record.take(rest);
            }
            while !rest.is_empty() && !self.ended {
                self.ended =
                    self.connection.read_tls(&mut rest).map_err(|error| Broken::Records(error.to_string()))? == 0;
                if let Err(error) = self.connection.process_new_packets() {
                    let why = Refusal::of(&error);
                    // The alert carries the reason, as far as alerts can.
                    let _ = self.connection.write_tls(&mut Wire(socket, false));
                    return Err(why.into());
                }
                filled += self.take(clear.get_mut(filled..).unwrap_or_default())?;
            }
            if self.connection.is_handshaking() {
                self.received += count;
                if self.received > LONGEST_HANDSHAKE {
                    return Err(Broken::TooLong);
                }
            }
        }
        Ok(if filled > 0 { Recv::Bytes(filled) } else { Recv::End })
    }

    /// Takes what is decrypted.
    fn take(&mut self, clear: &mut [u8]) -> Result<usize, Broken> {
        let mut filled = 0;
        while let Some(room) = clear.get_mut(filled..).filter(|room| !room.is_empty()) {
            match self.connection.reader().read(room) {
                Ok(0) => {
                    self.ended = true;
                    break;
                }
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(Broken::Records(error.to_string())),
            }
        }
        Ok(filled)
    }

    /// Encrypts and sends. Returns how many bytes were taken, and whether the wire took everything.
    pub(crate) fn write(&mut self, socket: &OwnedFd, bytes: &[u8], more: bool) -> Result<(usize, bool), Errno> {
        if !self.send(socket, more)? {
            return Ok((0, false));
        }
        // Nothing is encrypted before the handshake is done.
        if bytes.is_empty() || self.connection.is_handshaking() {
            return Ok((0, true));
        }
        let taken = self.connection.writer().write(bytes).map_err(|_| Errno::IO)?;
        Ok((taken, self.send(socket, more)?))
    }

    /// Sends the records that there are. Returns whether that was all.
    fn send(&mut self, socket: &OwnedFd, more: bool) -> Result<bool, Errno> {
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut Wire(socket, more)) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
            }
        }
        Ok(true)
    }
}

/// What TLS finds wrong with records.
pub(crate) fn records(error: rustls::Error) -> Broken {
    Broken::Records(error.to_string())
}

/// The socket, for TLS to write to; and whether more bytes follow.
struct Wire<'a>(&'a OwnedFd, bool);

impl io::Write for Wire<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, records: &[IoSlice<'_>]) -> io::Result<usize> {
        match socket::send_all(self.0, records, self.1)? {
            0 if records.iter().any(|record| !record.is_empty()) => Err(io::ErrorKind::WouldBlock.into()),
            count => Ok(count),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
