//! Reproducible noise: streams of bytes both sides can make, so that every byte is checked without sending a checksum.

/// A small generator (xorshift64*), good enough to distinguish any two places of a stream.
#[derive(Clone, Debug)]
pub struct Noise(u64);

impl Noise {
    /// The stream of that seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next_u64() >> 16) as usize % bound.max(1)
    }

    /// A size with many small, some middling and few large values, up to `max`, at least 1.
    pub fn size(&mut self, max: usize) -> usize {
        let bits = max.max(1).ilog2() as usize + 1;
        let magnitude = 1usize << self.below(bits);
        (1 + self.below(magnitude.max(2))).min(max.max(1))
    }
}

/// A stream of bytes of a seed, made and checked in pieces of any size.
#[derive(Clone, Debug)]
pub struct Stream {
    noise: Noise,
    word: [u8; 8],
    left: usize,
    /// Bytes so far.
    pub at: u64,
}

impl Stream {
    /// The stream of that seed.
    pub fn new(seed: u64) -> Self {
        Self { noise: Noise::new(seed), word: [0; 8], left: 0, at: 0 }
    }

    fn byte(&mut self) -> u8 {
        if self.left == 0 {
            self.word = self.noise.next_u64().to_le_bytes();
            self.left = 8;
        }
        self.left -= 1;
        self.at += 1;
        self.word[self.left]
    }

    /// The next bytes.
    pub fn fill(&mut self, buf: &mut [u8]) {
        buf.iter_mut().for_each(|byte| *byte = self.byte());
    }

    /// The next bytes, in a buffer of their own.
    pub fn take(&mut self, len: usize) -> Vec<u8> {
        let mut buf = vec![0; len];
        self.fill(&mut buf);
        buf
    }

    /// Panics unless these are the next bytes.
    pub fn check(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            let at = self.at;
            assert_eq!(byte, self.byte(), "byte {at} of the stream");
        }
    }
}
