//! Datagrams on a tunnel: a flow and its bytes. On a stream there is the length before them.
//!
//! ```text
//!   stream:   length (2) flow (4) bytes        message of QUIC:   flow (4) bytes
//! ```
//! Flow 0 is a [`Note`] of the other end, as JSON. Numbers are little-endian.

use serde::{Deserialize, Serialize};

/// A control message from one end of a tunnel to the other.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Note {
    /// On the stream: the port where this end speaks QUIC, if it does, so that the other end connects. The far end sends it first; the
    /// near end sends its own if it could not connect.
    Offer {
        /// The port.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port: Option<u16>,
        /// The far end's secret. A connection by QUIC has to present it; only the ends of the stream know it.
        secret: String,
        /// Without a port: why.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        lack: String,
    },
    /// On the stream: a relay sees this end of QUIC there. The near end sends it where neither end could connect; the far end answers.
    Seen {
        /// The address; empty where there is none.
        at: String,
        /// Without an address: why.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        lack: String,
    },
    /// By QUIC, from the end that connected: the connection is for the tunnel with this secret.
    Join {
        /// The secret.
        secret: String,
    },
    /// By QUIC, from the other end: it accepts this.
    Joined,
}

/// The flow of notes.
pub(crate) const NOTES: u32 = 0;
/// The longest datagram of UDP.
pub(crate) const LONGEST: usize = 65_507;
/// Bytes before those of a datagram, on a stream.
const HEAD: usize = 6;

/// Adds a datagram to the bytes of a stream.
pub(crate) fn write(flow: u32, bytes: &[u8], out: &mut Vec<u8>) {
    let bytes = bytes.get(..LONGEST).unwrap_or(bytes);
    out.extend((bytes.len() as u16).to_le_bytes());
    out.extend(flow.to_le_bytes());
    out.extend(bytes);
}

/// The first datagram of a stream's bytes: its flow, its bytes, and where it ends. `None`: it is incomplete.
pub(crate) fn take(inbox: &[u8]) -> Option<(u32, &[u8], usize)> {
    let (len, rest) = inbox.split_first_chunk::<2>()?;
    let (flow, rest) = rest.split_first_chunk::<4>()?;
    let len = usize::from(u16::from_le_bytes(*len));
    Some((u32::from_le_bytes(*flow), rest.get(..len)?, HEAD + len))
}

/// Encodes a datagram as a message of QUIC.
pub(crate) fn message(flow: u32, bytes: &[u8]) -> Vec<u8> {
    [&flow.to_le_bytes(), bytes].concat()
}

/// Decodes a message of QUIC.
pub(crate) fn read_message(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (flow, rest) = bytes.split_first_chunk::<4>()?;
    Some((u32::from_le_bytes(*flow), rest))
}

impl Note {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_taken_wherever_it_is_cut() {
        let mut stream = Vec::new();
        write(7, b"seven", &mut stream);
        write(8, b"", &mut stream);
        for cut in 0..11 {
            assert_eq!(take(&stream[..cut]), None);
        }
        assert_eq!(take(&stream), Some((7, &b"seven"[..], 11)));
        assert_eq!(take(&stream[11..]), Some((8, &b""[..], 6)));
        assert_eq!(read_message(&message(9, b"nine")), Some((9, &b"nine"[..])));
        assert_eq!(read_message(&[1, 0, 0]), None);
    }
}
