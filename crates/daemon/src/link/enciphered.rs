//! Encryption above all connections of a link, by one session ([`Tls`]): that of the handshake of its first connection, by which both ends are
//! known. From the greetings on its records go by any connection, in pieces. What proves that a further connection is one of the link's is
//! in `join.rs`.

use madrigal_adapters::contract::{Adapter as _, ONLY};
use madrigal_adapters::tls::Tls;
use madrigal_identity::Credentials;
use rustls::Connection;

/// The label of the link's name (RFC 8446, section 7.5).
const NAME: &[u8] = b"EXPORTER-madrigal-link";
/// Bytes that are taken from above at once: a few records.
const TAKEN: usize = 64 << 10;

/// One end of an enciphered link.
pub(crate) struct Enciphered {
    tls: Tls,
    name: Option<[u8; 16]>,
    /// Bytes from above, of which the session has taken so many.
    waiting: Vec<u8>,
    taken: usize,
}

impl Enciphered {
    /// Goes on with the session of a link's first connection.
    pub(crate) fn of(session: Connection, credentials: &Credentials) -> Self {
        let tls = Tls::of(session, credentials);
        let name = tls.secret(NAME, b"").and_then(|name| name.first_chunk().copied());
        Self { tls, name, waiting: Vec::new(), taken: 0 }
    }

    /// What both ends call the link. It is not secret, and tells nothing of them.
    pub(crate) fn name(&self) -> Option<[u8; 16]> {
        self.name
    }

    /// A secret of the link for this purpose.
    pub(crate) fn secret(&self, label: &[u8], context: &[u8]) -> Option<[u8; 32]> {
        self.tls.secret(label, context)
    }

    /// Adds records of what `source` gives to `out`, up to `room` bytes.
    pub(crate) fn transmit(
        &mut self,
        now: u64,
        room: usize,
        out: &mut Vec<u8>,
        source: &mut dyn FnMut(&mut Vec<u8>, usize),
    ) {
        let end = out.len() + room;
        loop {
            let before = (self.taken, out.len());
            self.taken += self.tls.write(self.waiting.get(self.taken..).unwrap_or_default());
            self.tls.transmit(now, ONLY, end.saturating_sub(out.len()), out);
            if out.len() >= end {
                return;
            }
            // Everything has gone that was taken before.
            if self.taken == self.waiting.len() {
                self.waiting.clear();
                self.taken = 0;
                source(&mut self.waiting, TAKEN.min(end - out.len()));
                if self.waiting.is_empty() {
                    return;
                }
            } else if (self.taken, out.len()) == before {
                // The session is broken, and takes nothing any more.
                return;
            }
        }
    }

    /// Takes records; what was enciphered is delivered.
    pub(crate) fn receive(
        &mut self,
        now: u64,
        mut bytes: &[u8],
        deliver: &mut dyn FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        while !bytes.is_empty() {
            let taken = self.tls.receive(now, ONLY, bytes).map_err(|broken| broken.to_string())?;
            let front = self.tls.front();
            let count = front.len();
            if count > 0 {
                deliver(front)?;
                self.tls.consume(count);
            }
            if self.tls.is_at_end() || taken + count == 0 {
                return Err("tls: the other end ended the session".to_owned());
            }
            bytes = bytes.get(taken..).unwrap_or_default();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
