//! What the two ends of a stripe send each other: sixteen bytes, and after those of data the bytes.
//!
//! ```text
//!   0 offset, 8   8 length, 4   12 kind, 1   13 stream, 3          numbers have their little end first
//!
//!   data    1  where it lies in the link     bytes, 1..1 MiB       credit  3  position that all came up to   bytes that may follow it
//!   end     2  where the link ends           0                     got     4  bytes that came by the stream  0
//!                                                                  retire  5  0                              0
//! ```
//! The stream is the one that it goes by, but for `got`, which may go by any. Positions count the end of the link as one byte more.

use crate::contract::{Broken, Lane};

/// Bytes of a header.
pub(super) const HEADER: usize = 16;
/// The longest piece.
pub(super) const LONGEST: u64 = 1 << 20;
/// Numbers of streams are less.
pub(super) const LANES: u32 = 1 << 24;

/// A parsed header of sixteen bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Header {
    /// Bytes of the link from `from` to `to` follow.
    Data { from: u64, to: u64 },
    /// The link ends here.
    End { at: u64 },
    /// Everything up to a position came, and the peer may send that many bytes behind it.
    Credit { position: u64, window: u32 },
    /// So many bytes came by a stream.
    Got { lane: Lane, count: u64 },
    /// By this stream no more data will come, and none are wanted.
    Retire,
}

impl Header {
    /// Adds its bytes, to go by that stream.
    pub(super) fn write(self, by: Lane, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes(by));
    }

    /// Its bytes, to go by that stream.
    pub(super) fn bytes(self, by: Lane) -> [u8; HEADER] {
        let (kind, lane, first, second) = match self {
            // No piece is longer than its length field holds.
            Self::Data { from, to } => (DATA, by, from, u32::try_from(to - from).unwrap_or(0)),
            Self::End { at } => (END, by, at, 0),
            Self::Credit { position, window } => (CREDIT, by, position, window),
            Self::Got { lane, count } => (GOT, lane, count, 0),
            Self::Retire => (RETIRE, by, 0, 0),
        };
        let word = u32::from(kind) | lane.0 << 8;
        (u128::from(first) | u128::from(second) << 64 | u128::from(word) << 96).to_le_bytes()
    }

    /// Reads what came by that stream.
    pub(super) fn read(bytes: [u8; HEADER], by: Lane) -> Result<Self, Broken> {
        let word = u128::from_le_bytes(bytes);
        let (first, second) = (word as u64, (word >> 64) as u32);
        let (kind, lane) = ((word >> 96) as u8, Lane((word >> 104) as u32));
        let length = u64::from(second);
        let header = match kind {
            DATA if (1..=LONGEST).contains(&length) => {
                first.checked_add(length).filter(|to| *to < u64::MAX).map(|to| Self::Data { from: first, to })
            }
            END if length == 0 && first < u64::MAX => Some(Self::End { at: first }),
            CREDIT => Some(Self::Credit { position: first, window: second }),
            GOT if length == 0 => Some(Self::Got { lane, count: first }),
            RETIRE if first == 0 && length == 0 => Some(Self::Retire),
            _ => None,
        };
        let header = header.filter(|_| kind == GOT || lane == by);
        header.ok_or(Broken::Header { adapter: "stripe", kind, first, second: length })
    }
}

const DATA: u8 = 1;
const END: u8 = 2;
const CREDIT: u8 = 3;
const GOT: u8 = 4;
const RETIRE: u8 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    const BY: Lane = Lane(0x0003_0201);

    fn bytes(header: Header) -> [u8; HEADER] {
        let mut out = Vec::new();
        header.write(BY, &mut out);
        out.try_into().unwrap()
    }

    #[test]
    fn the_bytes_are_fixed() {
        let cases: [(Header, [u8; HEADER]); 5] = [
            (
                Header::Data { from: 0x0807_0605_0403_0201, to: 0x0807_0605_0413_0201 },
                [1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 16, 0, 1, 1, 2, 3],
            ),
            (Header::End { at: 5 }, [5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 1, 2, 3]),
            (Header::Credit { position: 6, window: 7 }, [6, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 3, 1, 2, 3]),
            (Header::Got { lane: Lane(9), count: 8 }, [8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 9, 0, 0]),
            (Header::Retire, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 1, 2, 3]),
        ];
        for (header, expected) in cases {
            assert_eq!(bytes(header), expected, "{header:?}");
            assert_eq!(Header::read(expected, BY), Ok(header));
        }
    }

    #[test]
    fn what_nobody_may_send_is_refused() {
        let data = bytes(Header::Data { from: 1, to: 2 });
        let with = |at: usize, byte: u8, of: [u8; HEADER]| {
            let mut bytes = of;
            bytes[at] = byte;
            bytes
        };
        let mut far = data;
        far[..8].copy_from_slice(&(u64::MAX - 1).to_le_bytes());
        for wrong in [
            with(12, 0, data),
            with(12, 6, data),
            with(8, 0, data),
            with(10, 0x11, data),
            with(13, 7, data),
            far,
            with(8, 1, bytes(Header::End { at: 5 })),
            with(8, 1, bytes(Header::Got { lane: Lane(9), count: 8 })),
            with(0, 1, bytes(Header::Retire)),
            with(13, 7, bytes(Header::Credit { position: 6, window: 7 })),
        ] {
            assert!(matches!(Header::read(wrong, BY), Err(Broken::Header { adapter: "stripe", .. })), "{wrong:?}");
        }
        // The other end's last byte but one is the end of what numbers can express.
        assert!(Header::read(with(10, 0x10, with(8, 0, data)), BY).is_ok());
    }
}
