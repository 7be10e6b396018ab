//! Blocks, shorter: each by itself, so that nothing is kept from one to the next. None becomes longer than its header states when decoded.

use std::fmt;

use lz4_flex::block as lz4;
use zstd::bulk::{Compressor, Decompressor};

/// How a block is encoded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Codec {
    /// As it is.
    Raw,
    /// LZ4.
    Lz4,
    /// Zstandard of a level.
    Zstd(u8),
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Raw => f.write_str("raw"),
            Self::Lz4 => f.write_str("lz4"),
            Self::Zstd(level) => write!(f, "zstd {level}"),
        }
    }
}

/// Encodes blocks.
#[derive(Default)]
pub(super) struct Encoder {
    zstd: Option<(u8, Compressor<'static>)>,
    room: Vec<u8>,
}

impl Encoder {
    /// The encoded bytes of a block; `None` where they are not fewer, or cannot be made.
    pub(super) fn encode(&mut self, codec: Codec, block: &[u8]) -> Option<&[u8]> {
        let count = match codec {
            Codec::Raw => None,
            Codec::Lz4 => {
                self.make_room(lz4::get_maximum_output_size(block.len()));
                lz4::compress_into(block, &mut self.room).ok()
            }
            Codec::Zstd(level) => {
                self.make_room(block.len());
                self.compressor(level)?;
                let (_, compressor) = self.zstd.as_mut()?;
                compressor.compress_to_buffer(block, self.room.get_mut(..block.len())?).ok()
            }
        };
        count.filter(|count| *count < block.len()).and_then(|count| self.room.get(..count))
    }

    /// How many times shorter a sample becomes by the quickest codec, in thousandths.
    pub(super) fn sample(&mut self, bytes: &[u8]) -> u64 {
        let shorter = self.encode(Codec::Lz4, bytes).map_or(bytes.len(), <[u8]>::len);
        (1000 * bytes.len() / shorter.max(1)) as u64
    }

    /// Makes it compress by a level.
    fn compressor(&mut self, level: u8) -> Option<()> {
        match &mut self.zstd {
            Some((current, _)) if *current == level => {}
            Some((current, compressor)) => {
                compressor.set_compression_level(level.into()).ok()?;
                *current = level;
            }
            None => self.zstd = Some((level, Compressor::new(level.into()).ok()?)),
        }
        Some(())
    }

    fn make_room(&mut self, count: usize) {
        if self.room.len() < count {
            self.room.resize(count, 0);
        }
    }
}

/// Decodes blocks.
#[derive(Default)]
pub(super) struct Decoder {
    zstd: Option<Decompressor<'static>>,
}

impl Decoder {
    /// Fills `block`, exactly, with what was encoded.
    pub(super) fn decode(&mut self, codec: Codec, encoded: &[u8], block: &mut [u8]) -> Result<(), String> {
        let count = match codec {
            Codec::Raw if encoded.len() == block.len() => {
                block.copy_from_slice(encoded);
                block.len()
            }
            Codec::Raw => encoded.len(),
            Codec::Lz4 => lz4::decompress_into(encoded, block).map_err(|error| error.to_string())?,
            Codec::Zstd(_) => {
                if self.zstd.is_none() {
                    self.zstd = Some(Decompressor::new().map_err(|error| error.to_string())?);
                }
                let decompressor = self.zstd.as_mut().ok_or("no memory")?;
                decompressor.decompress_to_buffer(encoded, block).map_err(|error| error.to_string())?
            }
        };
        if count == block.len() { Ok(()) } else { Err(format!("they are {count} bytes")) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CODECS: [Codec; 5] = [Codec::Lz4, Codec::Zstd(1), Codec::Zstd(3), Codec::Zstd(6), Codec::Zstd(9)];

    /// Words, so that there is something to be found twice.
    fn text() -> impl Strategy<Value = Vec<u8>> {
        const WORDS: [&[u8]; 4] = [b"stream ", b"of bytes, ", &[0; 6], b"x"];
        prop::collection::vec(0..WORDS.len(), 0..3000)
            .prop_map(|words| words.into_iter().flat_map(|word| WORDS[word]).copied().collect())
    }

    proptest! {
        #[test]
        fn blocks_come_out_as_they_went_in(blocks in prop::collection::vec(prop_oneof![text(), any::<Vec<u8>>()], 1..4)) {
            let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
            for block in &blocks {
                for codec in CODECS {
                    let Some(encoded) = encoder.encode(codec, block).map(<[u8]>::to_vec) else { continue };
                    prop_assert!(encoded.len() < block.len());
                    let mut out = vec![0; block.len()];
                    prop_assert_eq!(decoder.decode(codec, &encoded, &mut out), Ok(()));
                    prop_assert_eq!(&out, block);
                    // A block of another length is refused, a longer one too.
                    for len in [block.len() - 1, block.len() + 1, 2 * block.len()] {
                        prop_assert!(decoder.decode(codec, &encoded, &mut vec![0; len]).is_err());
                    }
                }
            }
        }

        #[test]
        fn no_bytes_make_it_panic(mut bytes: Vec<u8>, at: usize, flip in 1u8.., good in text()) {
            let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
            for codec in CODECS {
                let _ = decoder.decode(codec, &bytes, &mut [0; 500]);
                if let Some(encoded) = encoder.encode(codec, &good) {
                    bytes = encoded.to_vec();
                    let at = at % bytes.len();
                    bytes[at] ^= flip;
                    let _ = decoder.decode(codec, &bytes, &mut vec![0; good.len()]);
                    prop_assert!(decoder.decode(codec, &bytes[..at], &mut vec![0; good.len()]).is_err());
                }
            }
        }
    }

    #[test]
    fn a_bomb_is_no_longer_than_it_says() {
        let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
        let zeros = vec![0; 1 << 20];
        for codec in CODECS {
            let bomb = encoder.encode(codec, &zeros).unwrap().to_vec();
            assert!(bomb.len() < 8000 && decoder.decode(codec, &bomb, &mut [0; 4096]).is_err());
        }
    }

    #[test]
    fn a_sample_tells_text_from_noise() {
        let mut encoder = Encoder::default();
        let mut seed = 1u64;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 56) as u8
        })
        .take(4096)
        .collect();
        assert_eq!(encoder.sample(&noise), 1000);
        assert!(encoder.sample(&b"a stream of bytes ".repeat(200)) > 5000);
    }
}
