//! The channel of a link: bytes on the wire, plain or encrypted (TLS 1.3, with certificates at both ends; `session.rs`). It queues little: the
//! less waits between the multiplexer and the wire, the sooner urgent bytes arrive.

use std::io::Write as _;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use madrigal_identity::{Credentials, server_name};
use madrigal_sys::tcp;
use rustix::io::Errno;
use rustix::net::sockopt::{set_tcp_congestion, tcp_congestion};
use rustls::pki_types::CertificateDer;
use rustls::{ClientConnection, Connection, ServerConfig, ServerConnection};

use crate::link::session::{Broken, MOST_QUEUED, Session, records};
use crate::socket::{self, Recv};

/// The form of the bytes on the wire.
enum Cipher {
    /// Plain.
    Plain,
    /// Encrypted.
    Tls(Box<Session>),
    /// Not known before the first byte of the connecting end; with our configuration of TLS, if we have a certificate.
    Open(Option<Arc<ServerConfig>>),
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

/// Unsent bytes that may wait in the kernel, and the most on a fast link: urgent ones queue behind them.
pub(super) const UNSENT: usize = 128 << 10;
const MOST_UNSENT: usize = 1 << 20;
/// The shortest round trip of a long way, in microseconds: on a shorter one losses are made up for soon.
const FAR: u32 = 1000;
/// The congestion control of a long way without a rule.
pub(super) const BY_RATE: &str = "bbr";
/// Every kernel has it, and lets every process use it.
const ALWAYS_THERE: &str = "reno";
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
        Ok(Self::new(socket, Cipher::Tls(Session::new(made.map_err(records)?.into()))))
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

    /// The peer has greeted, and the channel stays as it is: from now on as much is read at once as there is.
    pub(crate) fn greeted(&mut self) {
        if let Cipher::Tls(session) = &mut self.cipher {
            session.read_many();
        }
    }

    /// Gives the session of an encrypted connection away, for a link that has it above all of its connections. What waits is encrypted before;
    /// everything behind it goes as it is. Nothing was read behind the record that ended the peer's greeting: see [`Session`].
    pub(crate) fn take_session(&mut self) -> Option<Connection> {
        let mut connection = match std::mem::replace(&mut self.cipher, Cipher::Plain) {
            Cipher::Tls(session) => session.connection,
            other => {
                self.cipher = other;
                return None;
            }
        };
        let waiting = self.out.split_off(self.sent);
        (self.out, self.sent) = (Vec::new(), 0);
        connection.set_buffer_limit(None);
        // Without a limit, and into memory, neither fails.
        let _ = connection.writer().write_all(&waiting);
        while connection.wants_write() && connection.write_tls(&mut self.out).is_ok() {}
        Some(connection)
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
                    Cipher::Tls(Session::new(ServerConnection::new(config.clone()).map_err(records)?.into()))
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

#[cfg(test)]
mod tests;
