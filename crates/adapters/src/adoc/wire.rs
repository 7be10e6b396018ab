//! What the two ends of a compressed link send each other: eight bytes, and after those of a block its encoded bytes.
//!
//! ```text
//!   0 kind, 1   1 bytes of the block, 3   4 encoded bytes, 4      numbers have their little end first
//!
//!   raw    0          1..1 MiB   as many          end    2          0              0
//!   lz4    1          1..1 MiB   fewer            speed  3          kind of block  KiB a second that this end decompresses of it
//!   zstd   64+level   1..1 MiB   fewer
//! ```

use super::codec::Codec;
use crate::contract::Broken;

/// Bytes of a header.
pub(super) const HEADER: usize = 8;
/// The most bytes of a block.
pub(super) const LONGEST: usize = 1 << 20;

/// A parsed header of eight bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Header {
    /// A block: its length, and the length of what follows.
    Block { codec: Codec, raw: usize, encoded: usize },
    /// Nothing more follows.
    End,
    /// How fast the other end decompresses, KiB a second.
    Speed { codec: Codec, kib: u32 },
}

impl Header {
    /// Its bytes.
    pub(super) fn bytes(self) -> [u8; HEADER] {
        // Lengths of blocks fit.
        let (kind, first, second) = match self {
            Self::Block { codec, raw, encoded } => (kind(codec), raw as u32, encoded as u32),
            Self::End => (END, 0, 0),
            Self::Speed { codec, kib } => (SPEED, kind(codec).into(), kib),
        };
        (u64::from(kind) | u64::from(first & 0xFF_FFFF) << 8 | u64::from(second) << 32).to_le_bytes()
    }

    /// Reads them.
    pub(super) fn read(bytes: [u8; HEADER]) -> Result<Self, Broken> {
        let word = u64::from_le_bytes(bytes);
        let (kind, first, second) = (word as u8, (word >> 8) as usize & 0xFF_FFFF, (word >> 32) as u32);
        let header = match kind {
            END if first == 0 && second == 0 => Some(Self::End),
            SPEED => u8::try_from(first).ok().and_then(codec).map(|codec| Self::Speed { codec, kib: second }),
            _ => codec(kind).and_then(|codec| {
                let (raw, encoded) = (first, second as usize);
                let fits = if codec == Codec::Raw { encoded == raw } else { (1..raw).contains(&encoded) };
                (fits && (1..=LONGEST).contains(&raw)).then_some(Self::Block { codec, raw, encoded })
            }),
        };
        header.ok_or(Broken::Header { adapter: "adoc", kind, first: first as u64, second: second.into() })
    }
}

const END: u8 = 2;
const SPEED: u8 = 3;
const ZSTD: u8 = 64;
/// The highest level of zstd.
const HIGHEST: u8 = 22;

/// A codec as a byte.
pub(super) fn kind(codec: Codec) -> u8 {
    match codec {
        Codec::Raw => 0,
        Codec::Lz4 => 1,
        Codec::Zstd(level) => ZSTD | level,
    }
}

fn codec(kind: u8) -> Option<Codec> {
    match kind {
        0 => Some(Codec::Raw),
        1 => Some(Codec::Lz4),
        _ => kind.checked_sub(ZSTD).filter(|level| (1..=HIGHEST).contains(level)).map(Codec::Zstd),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_bytes_are_fixed() {
        let block = |codec, raw, encoded| Header::Block { codec, raw, encoded };
        for (header, bytes) in [
            (block(Codec::Raw, 0x130201, 0x130201), None),
            (block(Codec::Raw, 5, 4), None),
            (block(Codec::Raw, 0x100000, 0x100000), Some([0, 0, 0, 16, 0, 0, 16, 0])),
            (block(Codec::Lz4, 5, 5), None),
            (block(Codec::Zstd(3), 5, 0), None),
            (block(Codec::Lz4, 0x0f0201, 0x010203), Some([1, 1, 2, 15, 3, 2, 1, 0])),
            (block(Codec::Zstd(3), 5, 4), Some([67, 5, 0, 0, 4, 0, 0, 0])),
            (Header::End, Some([2, 0, 0, 0, 0, 0, 0, 0])),
            (Header::Speed { codec: Codec::Zstd(9), kib: 0x04030201 }, Some([3, 73, 0, 0, 1, 2, 3, 4])),
        ] {
            assert_eq!(Header::read(header.bytes()).ok(), bytes.map(|_| header), "{header:?}");
            assert!(bytes.is_none_or(|bytes| bytes == header.bytes()));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: [u8; HEADER], kind in 0u8..70, raw in 0u32..3, encoded in 0u32..3) {
            for bytes in [bytes, (u64::from(kind) | u64::from(raw) << 8 | u64::from(encoded) << 32).to_le_bytes()] {
                if let Ok(header) = Header::read(bytes) {
                    prop_assert_eq!(header.bytes(), bytes);
                    if let Header::Block { codec, raw, encoded } = header {
                        prop_assert!(raw <= LONGEST && encoded <= raw && (codec == Codec::Raw) == (encoded == raw));
                    }
                }
            }
        }
    }
}
