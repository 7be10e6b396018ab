//! The bytes between two daemons, as they go over the wire: plain, or enciphered (TLS 1.3, both ends with certificates). What is to be
//! sent waits here, little of it: the less lies between the mux and the wire, the sooner what is urgent arrives.

use std::io::{self, IoSlice, Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use madrigal_identity::{Credentials, Refusal, server_name};
use rustix::io::Errno;
use rustls::pki_types::CertificateDer;
use rustls::{ClientConnection, Connection, ServerConfig, ServerConnection};

use crate::socket::{self, Got};

/// Why a connection cannot go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    /// The system says so.
    #[error("{0}")]
    System(#[from] Errno),
    /// One of the two does not let the other in.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// Records that nobody should send.
    #[error("no TLS 1.3 of a grid: {0}")]
    Records(String),
    /// More bytes than certificates need, and no end of the handshake.
    #[error("too long a handshake")]
    Long,
    /// It begins with TLS, and there is nothing to show it.
    #[error("it asks for TLS, and this host has no certificate")]
    Nothing,
}

/// How the bytes look on the wire.
enum Cipher {
    /// As they are.
    Plain,
    /// Enciphered.
    Tls(Box<Tls>),
    /// Whoever connected shows it by the first byte; with a configuration where we could.
    Open(Option<Arc<ServerConfig>>),
}

/// A connection of TLS.
struct Tls {
    connection: Connection,
    /// Bytes that came before the handshake was done.
    received: usize,
    /// Whoever has the channel knows that the handshake is done.
    told: bool,
    /// The other end said that nothing more comes.
    ended: bool,
}

/// A connection to another daemon.
pub(crate) struct Channel {
    socket: OwnedFd,
    cipher: Cipher,
    /// Waits to be sent or enciphered, from `sent` on.
    out: Vec<u8>,
    sent: usize,
    /// What was wrong as it was flushed in between.
    broken: Option<Broken>,
    /// More is to be added: the kernel may keep the last packet until then, and does.
    more: bool,
    kept: bool,
}

/// Bytes that may wait for the wire, before the cipher, and behind it.
const MOST: usize = 64 << 10;
/// Bytes that may wait in the kernel besides those on their way: what is urgent stands behind them.
const UNSENT: i32 = 128 << 10;
/// Bytes with which a handshake must be done: three certificates are a tenth of it.
const LONGEST_HANDSHAKE: usize = 32 << 10;
/// The first byte of a TLS connection: a record of the handshake.
const HANDSHAKE: u8 = 0x16;
/// What those hear who ask for TLS where there is none: the alert `handshake_failure`.
const NO_TLS: [u8; 7] = [0x15, 3, 3, 0, 2, 2, 40];

impl Channel {
    /// A connection of ours to one who need not prove who it is.
    pub(crate) fn plain(socket: OwnedFd) -> Self {
        Self::new(socket, Cipher::Plain)
    }

    /// A connection of ours to one who proves who it is, and to whom we do.
    pub(crate) fn tls(socket: OwnedFd, credentials: &Credentials) -> Result<Self, Broken> {
        let made = ClientConnection::new(credentials.client(), server_name());
        Ok(Self::new(socket, Cipher::Tls(Tls::new(made.map_err(records)?.into()))))
    }

    /// Another's connection, who begins one way or the other.
    pub(crate) fn accepted(socket: OwnedFd, credentials: Option<&Credentials>) -> Self {
        Self::new(socket, Cipher::Open(credentials.map(Credentials::server)))
    }

    fn new(socket: OwnedFd, cipher: Cipher) -> Self {
        // Where it is no TCP, there is nothing to be set.
        let _ = madrigal_sys::tcp::set_most_unsent(socket.as_raw_fd(), UNSENT);
        Self { socket, cipher, out: Vec::new(), sent: 0, broken: None, more: false, kept: false }
    }

    /// Whether it is enciphered.
    pub(crate) fn is_enciphered(&self) -> bool {
        matches!(self.cipher, Cipher::Tls(_))
    }

    /// Whether the first bytes of another's connection are here, and nobody has read them.
    pub(crate) fn is_beginning(&self) -> bool {
        matches!(self.cipher, Cipher::Open(_)) && matches!(socket::peek(&self.socket), Ok((Got::Bytes(_), _)))
    }

    /// What the other end showed of itself, and proved, on an enciphered connection.
    pub(crate) fn chain(&self) -> Option<&[CertificateDer<'static>]> {
        match &self.cipher {
            Cipher::Tls(tls) if !tls.connection.is_handshaking() => tls.connection.peer_certificates(),
            _ => None,
        }
    }

    /// Whether the handshake was done since this was asked last.
    pub(crate) fn is_newly_proven(&mut self) -> bool {
        match &mut self.cipher {
            Cipher::Tls(tls) if !tls.connection.is_handshaking() => !std::mem::replace(&mut tls.told, true),
            _ => false,
        }
    }

    /// A secret that only the two ends of this connection know, of this end or of the other one; of an enciphered one.
    pub(crate) fn secret(&self, ours: bool) -> Option<[u8; 32]> {
        let Cipher::Tls(tls) = &self.cipher else { return None };
        let is_client = matches!(tls.connection, Connection::Client(_)) == ours;
        let context: &[u8] = if is_client { b"client" } else { b"server" };
        tls.connection.export_keying_material([0; 32], b"EXPORTER-madrigal-renewal", Some(context)).ok()
    }

    /// Reads what came; a buffer of some ten thousand bytes.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Result<Got, Broken> {
        if let Cipher::Open(config) = &self.cipher {
            let first = match socket::peek(&self.socket)? {
                (Got::Bytes(_), first) => first,
                (other, _) => return Ok(other),
            };
            self.cipher = match (first, config) {
                (HANDSHAKE, Some(config)) => {
                    Cipher::Tls(Tls::new(ServerConnection::new(config.clone()).map_err(records)?.into()))
                }
                (HANDSHAKE, None) => {
                    let _ = socket::send(&self.socket, &NO_TLS);
                    return Err(Broken::Nothing);
                }
                _ => Cipher::Plain,
            };
        }
        match &mut self.cipher {
            Cipher::Tls(tls) => tls.read(&self.socket, buffer),
            Cipher::Plain | Cipher::Open(_) => Ok(socket::recv(&self.socket, buffer)?),
        }
    }

    /// How many more bytes should be given to it now.
    pub(crate) fn room(&self) -> usize {
        MOST.saturating_sub(self.out.len() - self.sent)
    }

    /// Where bytes to be sent are added.
    pub(crate) fn out(&mut self) -> &mut Vec<u8> {
        if self.sent == self.out.len() || self.sent >= MOST {
            self.out.drain(..self.sent);
            self.sent = 0;
        }
        &mut self.out
    }

    /// Sends what the wire takes, while more is to be added; whether that was all. What was wrong is told by the next [`Self::flush`].
    pub(crate) fn make_room(&mut self) -> bool {
        self.more = true;
        let done = self.flush();
        self.more = false;
        done.unwrap_or_else(|broken| {
            self.broken = Some(broken);
            false
        })
    }

    /// Sends what the wire takes; whether that was all.
    pub(crate) fn flush(&mut self) -> Result<bool, Broken> {
        if let Some(broken) = self.broken.take() {
            return Err(broken);
        }
        loop {
            let rest = self.out.get(self.sent..).unwrap_or_default();
            let sent = match &mut self.cipher {
                Cipher::Plain if rest.is_empty() => Ok((0, true)),
                // Until it takes no more: only then are we told when it does.
                Cipher::Plain => socket::send_more(&self.socket, rest, self.more).map(|count| (count, count > 0)),
                Cipher::Tls(tls) => tls.write(&self.socket, rest, self.more),
                Cipher::Open(_) => Ok((0, true)),
            };
            let (taken, gone) = sent.map_err(|errno| self.last_words(errno))?;
            self.sent += taken;
            if taken > 0 {
                self.kept = self.more;
            } else if self.kept && !self.more {
                self.kept = false;
                socket::push(&self.socket);
            }
            if !gone || taken == 0 {
                return Ok(gone && self.sent == self.out.len());
            }
        }
    }

    /// Nothing can be sent any more; what came before that may say why.
    fn last_words(&mut self, errno: Errno) -> Broken {
        let Cipher::Tls(tls) = &mut self.cipher else { return errno.into() };
        let mut buffer = vec![0; MOST];
        loop {
            match tls.read(&self.socket, &mut buffer) {
                Ok(Got::Bytes(_)) => {}
                Err(why @ Broken::Refused(_)) => return why,
                _ => return errno.into(),
            }
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Tls {
    fn new(mut connection: Connection) -> Box<Self> {
        connection.set_buffer_limit(Some(MOST));
        Box::new(Self { connection, received: 0, told: false, ended: false })
    }

    /// Reads and deciphers. A third of the buffer is for what comes, so that all of it, and the record that it ends, fit in the rest.
    fn read(&mut self, socket: &OwnedFd, buffer: &mut [u8]) -> Result<Got, Broken> {
        let (clear, raw) = buffer.split_at_mut(buffer.len() - buffer.len() / 3);
        let mut filled = 0;
        while filled == 0 && !self.ended {
            let count = match socket::recv(socket, raw)? {
                Got::Bytes(count) => count,
                other => return Ok(other),
            };
            let mut rest = raw.get(..count).unwrap_or_default();
            while !rest.is_empty() && !self.ended {
                self.ended =
                    self.connection.read_tls(&mut rest).map_err(|error| Broken::Records(error.to_string()))? == 0;
                if let Err(error) = self.connection.process_new_packets() {
                    let why = Refusal::of(&error);
                    // The other end is told, as far as an alert can.
                    let _ = self.connection.write_tls(&mut Wire(socket, false));
                    return Err(why.into());
                }
                filled += self.take(clear.get_mut(filled..).unwrap_or_default())?;
            }
            if self.connection.is_handshaking() {
                self.received += count;
                if self.received > LONGEST_HANDSHAKE {
                    return Err(Broken::Long);
                }
            }
        }
        Ok(if filled > 0 { Got::Bytes(filled) } else { Got::End })
    }

    /// Takes what is deciphered.
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

    /// Enciphers and sends; how many bytes were taken, and whether the wire took all there was.
    fn write(&mut self, socket: &OwnedFd, bytes: &[u8], more: bool) -> Result<(usize, bool), Errno> {
        if !self.send(socket, more)? {
            return Ok((0, false));
        }
        // Before the handshake is done nothing is enciphered.
        if bytes.is_empty() || self.connection.is_handshaking() {
            return Ok((0, true));
        }
        let taken = self.connection.writer().write(bytes).map_err(|_| Errno::IO)?;
        Ok((taken, self.send(socket, more)?))
    }

    /// Sends the records there are; whether that was all.
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

fn records(error: rustls::Error) -> Broken {
    Broken::Records(error.to_string())
}

/// The socket, as TLS writes to it; and whether more follows.
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

#[cfg(test)]
mod tests;
