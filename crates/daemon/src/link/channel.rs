//! The channel of a link: bytes on the wire, plain or encrypted (TLS 1.3, with certificates at both ends). It queues little: the less waits
//! between the multiplexer and the wire, the sooner urgent bytes arrive.

use std::io::{self, IoSlice, Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use madrigal_identity::{Credentials, Refusal, server_name};
use madrigal_sys::tcp;
use rustix::io::Errno;
use rustix::net::sockopt::{set_tcp_congestion, tcp_congestion};
use rustls::pki_types::CertificateDer;
use rustls::{ClientConnection, Connection, ServerConfig, ServerConnection};

use crate::socket::{self, Recv};

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

/// The form of the bytes on the wire.
enum Cipher {
    /// Plain.
    Plain,
    /// Encrypted.
    Tls(Box<Tls>),
    /// Not known before the first byte of the connecting end; with our configuration of TLS, if we have a certificate.
    Open(Option<Arc<ServerConfig>>),
}

/// A TLS connection.
struct Tls {
    connection: Connection,
    /// Bytes of the handshake that came.
    received: usize,
    /// The end of the handshake was reported.
    reported: bool,
    /// The other end closed the connection.
    ended: bool,
}

/// A connection to another daemon.
pub(crate) struct Channel {
    socket: OwnedFd,
    cipher: Cipher,
    /// Bytes to be sent or encrypted, from `sent` on.
    out: Vec<u8>,
    sent: usize,
    /// The error of a flush whose caller could not take it.
    broken: Option<Broken>,
    /// More bytes follow at once: the kernel may hold the last packet back until then.
    more: bool,
    corked: bool,
    most_unsent: usize,
}

/// Bytes that may wait for the wire, before encryption and after it.
const MOST_QUEUED: usize = 256 << 10;
/// Unsent bytes that may wait in the kernel, and the most on a fast link: urgent ones queue behind them.
pub(super) const UNSENT: usize = 128 << 10;
const MOST_UNSENT: usize = 1 << 20;
/// The shortest round trip of a long way, in microseconds: on a shorter one losses are made up for soon.
const FAR: u32 = 1000;
/// The congestion control of a long way without a rule.
pub(super) const BY_RATE: &str = "bbr";
/// Every kernel has it, and lets every process use it.
const ALWAYS_THERE: &str = "reno";
/// The longest handshake, ten times that of three certificates.
const LONGEST_HANDSHAKE: usize = 32 << 10;
/// The first byte of a TLS connection: the type of a handshake record.
const HANDSHAKE: u8 = 0x16;
/// The alert `handshake_failure`, for peers that request TLS where this host has no certificate.
const NO_TLS: [u8; 7] = [0x15, 3, 3, 0, 2, 2, 40];

impl Channel {
    /// A plain connection that we made.
    pub(crate) fn plain(socket: OwnedFd) -> Self {
        Self::new(socket, Cipher::Plain)
    }

    /// An encrypted connection that we made.
    pub(crate) fn tls(socket: OwnedFd, credentials: &Credentials) -> Result<Self, Broken> {
        let made = ClientConnection::new(credentials.client(), server_name());
        Ok(Self::new(socket, Cipher::Tls(Tls::new(made.map_err(records)?.into()))))
    }

    /// An accepted connection. Its first byte decides whether it is plain or encrypted.
    pub(crate) fn accepted(socket: OwnedFd, credentials: Option<&Credentials>) -> Self {
        Self::new(socket, Cipher::Open(credentials.map(Credentials::server)))
    }

    fn new(socket: OwnedFd, cipher: Cipher) -> Self {
        let mut channel =
            Self { socket, cipher, out: Vec::new(), sent: 0, broken: None, more: false, corked: false, most_unsent: 0 };
        channel.limit_unsent(UNSENT);
        channel
    }

    /// At most so many unsent bytes wait in the kernel, and half as many here, where that is not little.
    pub(crate) fn limit_unsent(&mut self, bytes: usize) {
        let bytes = bytes.min(MOST_UNSENT);
        if bytes != self.most_unsent {
            self.most_unsent = bytes;
            // A socket that is no TCP has no such option.
            let _ = tcp::set_most_unsent(self.socket.as_raw_fd(), i32::try_from(bytes).unwrap_or(i32::MAX));
        }
    }

    /// Whether the way is so long that adapters, and another congestion control, may be worth it.
    pub(crate) fn is_far(&self) -> bool {
        let info = tcp::info(self.socket.as_raw_fd()).ok();
        info.is_some_and(|info| FAR <= if info.min_rtt == u32::MAX { info.rtt } else { info.min_rtt })
    }

    /// Has BBR find the rate as on a new connection, twice as much each round trip. By itself it adds a quarter in eight: after a time with
    /// little to send, on a way of 150 ms, a transfer took 20 s to have the line. Returns whether it does.
    pub(crate) fn begin_rate_anew(&self) -> bool {
        let is_used = tcp_congestion(&self.socket).is_ok_and(|used| used == BY_RATE);
        // Setting the one that is used changes nothing, and shows whether this process may.
        let may = is_used && set_tcp_congestion(&self.socket, BY_RATE).is_ok();
        may && set_tcp_congestion(&self.socket, ALWAYS_THERE).is_ok()
            && set_tcp_congestion(&self.socket, BY_RATE).is_ok()
    }

    /// Whether it is encrypted.
    pub(crate) fn is_encrypted(&self) -> bool {
        matches!(self.cipher, Cipher::Tls(_))
    }

    /// Whether the first bytes of an accepted connection have come, and are unread.
    pub(crate) fn is_beginning(&self) -> bool {
        matches!(self.cipher, Cipher::Open(_)) && matches!(socket::peek(&self.socket), Ok((Recv::Bytes(_), _)))
    }

    /// The certificates of the other end, once the handshake is done.
    pub(crate) fn chain(&self) -> Option<&[CertificateDer<'static>]> {
        match &self.cipher {
            Cipher::Tls(tls) if !tls.connection.is_handshaking() => tls.connection.peer_certificates(),
            _ => None,
        }
    }

    /// Whether the handshake is done. True once.
    pub(crate) fn take_handshake_done(&mut self) -> bool {
        match &mut self.cipher {
            Cipher::Tls(tls) if !tls.connection.is_handshaking() => !std::mem::replace(&mut tls.reported, true),
            _ => false,
        }
    }

    /// A secret of an encrypted connection that only its two ends know: that for proofs of this end, or of the other one.
    pub(crate) fn secret(&self, ours: bool) -> Option<[u8; 32]> {
        let Cipher::Tls(tls) = &self.cipher else { return None };
        let is_client = matches!(tls.connection, Connection::Client(_)) == ours;
        let context: &[u8] = if is_client { b"client" } else { b"server" };
        tls.connection.export_keying_material([0; 32], b"EXPORTER-madrigal-renewal", Some(context)).ok()
    }

    /// Reads what came. The buffer has room for some TLS records.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Result<Recv, Broken> {
        if let Cipher::Open(config) = &self.cipher {
            let first = match socket::peek(&self.socket)? {
                (Recv::Bytes(_), first) => first,
                (other, _) => return Ok(other),
            };
            self.cipher = match (first, config) {
                (HANDSHAKE, Some(config)) => {
                    Cipher::Tls(Tls::new(ServerConnection::new(config.clone()).map_err(records)?.into()))
                }
                (HANDSHAKE, None) => {
                    let _ = socket::send(&self.socket, &NO_TLS);
                    return Err(Broken::NoCertificate);
                }
                _ => Cipher::Plain,
            };
        }
        match &mut self.cipher {
            Cipher::Tls(tls) => tls.read(&self.socket, buffer),
            Cipher::Plain | Cipher::Open(_) => Ok(socket::recv(&self.socket, buffer)?),
        }
    }

    /// How many more bytes it should be given now.
    pub(crate) fn room(&self) -> usize {
        let most = (self.most_unsent / 2).max(self.most_unsent.min(UNSENT / 2)).min(MOST_QUEUED);
        most.saturating_sub(self.out.len() - self.sent)
    }

    /// The queue, for bytes to be added.
    pub(crate) fn out(&mut self) -> &mut Vec<u8> {
        if self.sent == self.out.len() || self.sent >= MOST_QUEUED {
            self.out.drain(..self.sent);
            self.sent = 0;
        }
        &mut self.out
    }

    /// Sends what the wire takes, while more bytes follow. Returns whether that was all. The next [`Self::flush`] reports an error.
    pub(crate) fn flush_for_more(&mut self) -> bool {
        self.more = true;
        let done = self.flush();
        self.more = false;
        done.unwrap_or_else(|broken| {
            self.broken = Some(broken);
            false
        })
    }

    /// Sends what the wire takes. Returns whether that was all.
    pub(crate) fn flush(&mut self) -> Result<bool, Broken> {
        if let Some(broken) = self.broken.take() {
            return Err(broken);
        }
        loop {
            let rest = self.out.get(self.sent..).unwrap_or_default();
            let sent = match &mut self.cipher {
                Cipher::Plain if rest.is_empty() => Ok((0, true)),
                // Until it would block: the epoll reports room only after that.
                Cipher::Plain => socket::send_more(&self.socket, rest, self.more).map(|count| (count, count > 0)),
                Cipher::Tls(tls) => tls.write(&self.socket, rest, self.more),
                Cipher::Open(_) => Ok((0, true)),
            };
            let (taken, drained) = sent.map_err(|errno| self.send_error(errno))?;
            self.sent += taken;
            if taken > 0 {
                self.corked = self.more;
            } else if self.corked && !self.more {
                self.corked = false;
                socket::push(&self.socket);
            }
            if !drained || taken == 0 {
                return Ok(drained && self.sent == self.out.len());
            }
        }
    }

    /// The cause of a failed send: an alert that came before may name it.
    fn send_error(&mut self, errno: Errno) -> Broken {
        let Cipher::Tls(tls) = &mut self.cipher else { return errno.into() };
        let mut buffer = vec![0; MOST_QUEUED];
        loop {
            match tls.read(&self.socket, &mut buffer) {
                Ok(Recv::Bytes(_)) => {}
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
        connection.set_buffer_limit(Some(MOST_QUEUED));
        Box::new(Self { connection, received: 0, reported: false, ended: false })
    }

    /// Reads and decrypts. A third of the buffer is for the records, so that their payload, with that of an earlier partial record, fits in the
    /// rest.
    fn read(&mut self, socket: &OwnedFd, buffer: &mut [u8]) -> Result<Recv, Broken> {
        let (clear, raw) = buffer.split_at_mut(buffer.len() - buffer.len() / 3);
        let mut filled = 0;
        while filled == 0 && !self.ended {
            let count = match socket::recv(socket, raw)? {
                Recv::Bytes(count) => count,
                other => return Ok(other),
            };
            let mut rest = raw.get(..count).unwrap_or_default();
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
    fn write(&mut self, socket: &OwnedFd, bytes: &[u8], more: bool) -> Result<(usize, bool), Errno> {
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

fn records(error: rustls::Error) -> Broken {
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

#[cfg(test)]
mod tests;
