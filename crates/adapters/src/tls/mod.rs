//! TLS 1.3 between two ends that have certificates of one grid: one handshake for a whole link, above all of its streams.
//!
//! ```text
//!   write --> [ up to 128 KiB ] --> records of up to 16 KiB --> transmit
//!   front <-- [ opened records ] <-- receive
//! ```
//! * Nothing is enciphered before the other end is known, and nothing can be read. The accepting end's first byte says whether it lets the
//!   connecting end in, so that a connect fails with the reason.
//! * The alert `close_notify` is the end of the link: one that stops without it is cut off.
//! * Certificates are those of [`Credentials`], which reads their files again when they change.
//! * A link of daemons begins with a handshake of its first stream, and has its session above all streams from then on ([`Tls::of`]).

use std::io::{self, Read as _, Write as _};

use madrigal_identity::{Credentials, Refusal, peer, server_name};
use rustls::{ClientConnection, Connection, ServerConnection};

use crate::contract::{Adapter, Broken, Lane};

/// Bytes that may wait to be enciphered, and that may be opened and unread.
const BACKLOG: usize = 128 << 10;
/// The longest record's content (RFC 8446, section 5.1).
const RECORD: usize = 16 << 10;
/// The longest handshake, ten times that of three certificates.
const LONGEST_HANDSHAKE: usize = 32 << 10;
/// The accepting end lets the other one in, or does not.
const WELCOME: u8 = 1;
/// See [`WELCOME`].
const OTHER_USER: u8 = 2;

/// Which end of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The one that connects.
    Connecting,
    /// The one that accepts.
    Accepting,
}

/// One end of an enciphered link.
pub struct Tls {
    connection: Connection,
    credentials: Credentials,
    role: Role,
    state: State,
    /// Bytes of the handshake that came.
    handshake: usize,
    /// What was written; from `begun` on it is not enciphered.
    unsent: Vec<u8>,
    begun: usize,
    finished: bool,
    close_sent: bool,
    /// What can be read, from `read` on.
    inbox: Vec<u8>,
    read: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Handshake,
    /// The other end is known. The connecting one waits to be let in.
    Judged,
    /// Bytes go both ways.
    Open,
    /// The other end has written everything.
    Ended,
    /// It is not let in, or has broken the protocol: what is left to be sent says so.
    Broken,
}

impl Tls {
    /// An end of a new link.
    pub fn new(credentials: &Credentials, role: Role) -> Result<Self, String> {
        let connection = match role {
            Role::Connecting => ClientConnection::new(credentials.client(), server_name()).map(Connection::from),
            Role::Accepting => ServerConnection::new(credentials.server()).map(Connection::from),
        };
        Ok(Self::on(connection.map_err(|error| error.to_string())?, credentials, role))
    }

    /// An end that goes on with a session: its handshake is done, the other end is known and let in, and no bytes of it wait.
    pub fn of(session: Connection, credentials: &Credentials) -> Self {
        let role = if matches!(session, Connection::Client(_)) { Role::Connecting } else { Role::Accepting };
        let mut tls = Self::on(session, credentials, role);
        tls.state = State::Open;
        tls
    }

    /// A secret of the session that only its two ends know, for this purpose (RFC 8446, section 7.5); none before it is known who they are.
    pub fn secret(&self, label: &[u8], context: &[u8]) -> Option<[u8; 32]> {
        self.connection.export_keying_material([0; 32], label, Some(context)).ok()
    }

    fn on(mut connection: Connection, credentials: &Credentials, role: Role) -> Self {
        connection.set_buffer_limit(None);
        Self {
            connection,
            credentials: credentials.clone(),
            role,
            state: State::Handshake,
            handshake: 0,
            unsent: Vec::new(),
            begun: 0,
            finished: false,
            close_sent: false,
            inbox: Vec::new(),
            read: 0,
        }
    }

    /// Opens the records that are whole, and judges the other end once its certificates have come.
    fn open(&mut self) -> Result<(), Broken> {
        let opened = self.connection.process_new_packets();
        let state = opened.map_err(|error| self.refuse(Refusal::of(&error).to_string()))?;
        if self.state == State::Handshake && !self.connection.is_handshaking() {
            self.judge()?;
        }
        self.take(state.plaintext_bytes_to_read())?;
        if state.peer_has_closed() && self.state == State::Open {
            self.state = State::Ended;
        }
        Ok(())
    }

    /// The handshake has proved who the other end is; whether its links are wanted here.
    fn judge(&mut self) -> Result<(), Broken> {
        self.state = State::Judged;
        let chain = self.connection.peer_certificates().unwrap_or_default();
        let admitted = peer(chain).and_then(|peer| self.credentials.admits(&peer));
        if self.role == Role::Accepting {
            let word = if admitted.is_ok() { WELCOME } else { OTHER_USER };
            // The buffer has no limit.
            let _ = self.connection.writer().write(&[word]);
            self.state = State::Open;
        }
        admitted.map_err(|refusal| self.refuse(refusal.to_string()))
    }

    /// Takes so many opened bytes. The first one of the accepting end is its answer.
    fn take(&mut self, mut count: usize) -> Result<(), Broken> {
        if count > 0 && self.state == State::Judged {
            let mut word = [0];
            self.read_opened(&mut word)?;
            count -= 1;
            match word {
                [WELCOME] => self.state = State::Open,
                [OTHER_USER] => {
                    return Err(self.refuse("the other end belongs to another user, and lets in its own".to_owned()));
                }
                [other] => return Err(self.refuse(format!("the other end answers with {other}"))),
            }
        }
        let from = self.inbox.len();
        self.inbox.resize(from + count, 0);
        let mut inbox = std::mem::take(&mut self.inbox);
        let read = self.read_opened(inbox.get_mut(from..).unwrap_or_default());
        self.inbox = inbox;
        read
    }

    fn read_opened(&mut self, room: &mut [u8]) -> Result<(), Broken> {
        let read = self.connection.reader().read_exact(room);
        read.map_err(|error| self.refuse(error.to_string()))
    }

    /// Enciphers what comes next, if there is anything.
    fn encipher(&mut self) {
        if self.connection.is_handshaking() || !matches!(self.state, State::Judged | State::Open | State::Ended) {
            return;
        }
        let rest = self.unsent.get(self.begun..).unwrap_or_default();
        let record = rest.get(..rest.len().min(RECORD)).unwrap_or_default();
        if !record.is_empty() {
            // The buffer has no limit.
            let _ = self.connection.writer().write(record);
            self.begun += record.len();
        } else if self.finished && !self.close_sent {
            self.close_sent = true;
            self.connection.send_close_notify();
        }
    }

    /// The link is over, for the other end's sake.
    fn refuse(&mut self, why: String) -> Broken {
        self.state = State::Broken;
        Broken::Tls { why }
    }
}

impl Adapter for Tls {
    fn is_ready(&self) -> bool {
        matches!(self.state, State::Open | State::Ended)
    }

    fn room(&self) -> usize {
        let is_over = self.finished || self.state == State::Broken;
        if is_over { 0 } else { BACKLOG - (self.unsent.len() - self.begun) }
    }

    fn write(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.room());
        if self.begun == self.unsent.len() || self.begun >= BACKLOG {
            self.unsent.drain(..self.begun);
            self.begun = 0;
        }
        self.unsent.extend_from_slice(bytes.get(..taken).unwrap_or_default());
        taken
    }

    fn finish(&mut self) {
        self.finished = true;
    }

    fn is_flushed(&self) -> bool {
        let is_sent =
            self.begun == self.unsent.len() && !self.connection.wants_write() && !self.connection.is_handshaking();
        is_sent && self.finished == self.close_sent
    }

    fn transmit(&mut self, _now: u64, _lane: Lane, room: usize, out: &mut Vec<u8>) {
        let mut out = Room { end: out.len() + room, out };
        loop {
            if !self.connection.wants_write() {
                self.encipher();
            }
            if !self.connection.wants_write() || self.connection.write_tls(&mut out).is_err() {
                return;
            }
        }
    }

    fn receive(&mut self, _now: u64, _lane: Lane, bytes: &[u8]) -> Result<usize, Broken> {
        let mut taken = 0;
        while let Some(mut rest) = bytes.get(taken..).filter(|rest| !rest.is_empty()) {
            if self.state == State::Ended {
                return Ok(bytes.len());
            }
            if self.inbox.len() - self.read >= BACKLOG {
                break;
            }
            let read = self.connection.read_tls(&mut rest);
            let count = read.map_err(|error| self.refuse(error.to_string()))?;
            if self.state == State::Handshake {
                self.handshake += count;
                if self.handshake > LONGEST_HANDSHAKE {
                    return Err(self.refuse("the handshake does not end".to_owned()));
                }
            }
            self.open()?;
            if count == 0 {
                break;
            }
            taken += count;
        }
        Ok(taken)
    }

    fn front(&self) -> &[u8] {
        let is_known = self.is_ready();
        self.inbox.get(self.read..).filter(|_| is_known).unwrap_or_default()
    }

    fn consume(&mut self, count: usize) {
        self.read += count;
        if self.read == self.inbox.len() {
            self.inbox.clear();
            self.read = 0;
        } else if self.read >= BACKLOG {
            self.inbox.drain(..self.read);
            self.read = 0;
        }
    }

    fn is_at_end(&self) -> bool {
        self.state == State::Ended && self.read == self.inbox.len()
    }

    fn deadline(&self) -> u64 {
        u64::MAX
    }

    fn handle_time(&mut self, _now: u64) {}

    fn held(&self) -> usize {
        self.unsent.capacity() + self.inbox.capacity() + 2 * RECORD
    }
}

/// Takes as many bytes as there is room for.
struct Room<'a> {
    out: &'a mut Vec<u8>,
    end: usize,
}

impl io::Write for Room<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(self.end - self.out.len());
        if count == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.out.extend_from_slice(bytes.get(..count).unwrap_or_default());
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
