//! Which codec is used: the slowest of network, compressor and decompressor decides how fast bytes go, so the codec is chosen with which
//! that one is fastest. Arithmetic without a clock: the caller measures how long things took.

use super::codec::Codec;

/// What is chosen from, the quickest first.
pub(super) const LADDER: [Codec; 6] =
    [Codec::Raw, Codec::Lz4, Codec::Zstd(1), Codec::Zstd(3), Codec::Zstd(6), Codec::Zstd(9)];

/// What one core gave once, of text: bytes a second compressed and decompressed, and how many times shorter, in thousandths. Others are
/// taken to be as much slower, or closer, as what was measured here.
const USUAL: [(u64, u64, u64); 6] = [
    (u64::MAX, u64::MAX, 1000),
    (530 * MB, 2000 * MB, 3000),
    (418 * MB, 1000 * MB, 4200),
    (346 * MB, 950 * MB, 4500),
    (114 * MB, 950 * MB, 4900),
    (60 * MB, 950 * MB, 5100),
];
const MB: u64 = 1_000_000;

/// Another codec takes over where it is so much faster, in thousandths; and raw where the one that is used is slower than that.
const BETTER: u64 = 1100;
/// What becomes no more than so many times shorter, in thousandths, is not compressed.
const WORTH: u64 = 1100;
/// Of what cannot be compressed so many blocks at most go without a sample.
const MOST_SKIPPED: u32 = 64;
/// A codec that was not used for so many blocks may have become better; then for twice as many, up to the most.
const STALE: (u32, u32) = (64, 4096);
/// Blocks that become so many times shorter or less short than those before, in thousandths, are other data.
const OTHER: u64 = 1500;
/// Bytes of the first block by a codec without measurements here: a mistake costs little.
pub(super) const TRIAL: usize = 16 << 10;

/// The measurements of a codec here.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Bytes a second; and thousandths. 0: not known.
    compress: u64,
    decompress: u64,
    ratio: u64,
    /// The other end was sent a block, and has not reported how fast it decompresses.
    asked: bool,
    /// Blocks since it was used, and after how many its measurements are old.
    age: u32,
    stale: u32,
    /// It is so old that the next measurement counts alone.
    old: bool,
}

/// Chooses.
#[derive(Clone, Debug)]
pub(super) struct Chooser {
    seen: [Seen; LADDER.len()],
    /// Place in the ladder.
    current: usize,
    /// Bytes a second of the network; 0: not known, and nothing is compressed.
    network: u64,
    /// Blocks that go without a sample, and how many after the next sample in vain.
    skip: u32,
    skip_next: u32,
}

impl Chooser {
    pub(super) fn new() -> Self {
        let seen = Seen { compress: 0, decompress: 0, ratio: 0, asked: false, age: 0, stale: STALE.0, old: true };
        Self { seen: [seen; LADDER.len()], current: 0, network: 0, skip: 0, skip_next: 1 }
    }

    /// One for unknown data, on the same network and processors.
    pub(super) fn for_other_data(&self) -> Self {
        Self { skip: 0, skip_next: 1, ..self.clone() }
    }

    /// How fast the network takes bytes.
    pub(super) fn set_network(&mut self, rate: u64) {
        self.network = rate;
    }

    /// The codec of the next block, and whether little is known of it.
    pub(super) fn choose(&mut self) -> (Codec, bool) {
        if self.skip > 0 {
            self.skip -= 1;
            return (Codec::Raw, false);
        }
        let through = |place: usize| self.through(place);
        // The quickest of equals.
        let best = (0..LADDER.len()).rev().max_by_key(|place| through(*place)).unwrap_or(0);
        let (now, raw) = (through(self.current), through(0));
        let much = u128::from(through(best)) * 1000 > u128::from(now) * u128::from(BETTER);
        if much {
            self.current = best;
        } else if now < raw || raw == 0 {
            // Never slower than without.
            self.current = 0;
        }
        let codec = LADDER.get(self.current).copied().unwrap_or(Codec::Raw);
        let is_new = |seen: &Seen| seen.old || seen.ratio == 0 || seen.decompress == 0;
        (codec, self.seen.get(self.current).is_some_and(is_new))
    }

    /// A sample of a block gave this ratio, in thousandths. Whether it is worth to compress the block.
    pub(super) fn sampled(&mut self, ratio: u64) -> bool {
        if ratio < WORTH {
            self.skip = self.skip_next;
            self.skip_next = (2 * self.skip_next).min(MOST_SKIPPED);
            return false;
        }
        self.skip_next = 1;
        true
    }

    /// A block became so much shorter; `went`: the other end gets it so.
    pub(super) fn encoded(&mut self, codec: Codec, (raw, encoded): (usize, usize), went: bool) {
        for seen in &mut self.seen {
            seen.age = seen.age.saturating_add(1);
            if seen.age >= seen.stale && seen.compress > 0 {
                // It may be tried again, if it was not much too slow. Where that is in vain, not so soon once more.
                (seen.ratio, seen.compress, seen.old) = (0, seen.compress.saturating_mul(2), true);
                (seen.stale, seen.age) = ((2 * seen.stale).min(STALE.1), 0);
            }
        }
        let ratio = (1000 * raw as u64) / (encoded.max(1) as u64);
        let Some(place) = place(codec) else { return };
        let known = self.seen.get(place).map_or(0, |seen| seen.ratio);
        if known > 0 && (ratio * 1000 > known * OTHER || known * 1000 > ratio * OTHER) {
            // What was known of the others is of other data.
            self.seen.iter_mut().for_each(|seen| (seen.ratio, seen.stale) = (0, STALE.0));
        }
        if let Some(seen) = self.seen.get_mut(place) {
            seen.ratio = blend(seen.ratio, ratio);
            seen.age = 0;
            seen.asked |= went && seen.decompress == 0;
        }
    }

    /// Compressing a block took so many nanoseconds.
    pub(super) fn compressing_took(&mut self, codec: Codec, raw: usize, time: u64) {
        if let Some(seen) = place(codec).and_then(|place| self.seen.get_mut(place)) {
            let known = if seen.old { 0 } else { seen.compress };
            (seen.compress, seen.old) = (blend(known, speed(raw, time)), false);
        }
    }

    /// The other end decompresses so many bytes a second.
    pub(super) fn decompresses(&mut self, codec: Codec, rate: u64) {
        if let Some(seen) = place(codec).and_then(|place| self.seen.get_mut(place)) {
            (seen.decompress, seen.asked) = (rate.max(1), false);
        }
    }

    /// Bytes a second that would go with a codec.
    fn through(&self, place: usize) -> u64 {
        let (Some(seen), Some(usual)) = (self.seen.get(place), USUAL.get(place)) else { return 0 };
        if place == 0 {
            return self.network;
        }
        // One question at a time.
        if seen.asked || (seen.decompress == 0 && self.seen.iter().any(|seen| seen.asked)) {
            return 0;
        }
        let or = |known: u64, usual: u64, of: fn(&Seen) -> u64, normal: fn(&(u64, u64, u64)) -> u64| {
            if known > 0 { known } else { self.scaled(usual, of, normal) }
        };
        let compress = or(seen.compress, usual.0, |seen| seen.compress, |usual| usual.0);
        let decompress = or(seen.decompress, usual.1, |seen| seen.decompress, |usual| usual.1);
        // Of a ratio what is more than 1 is in proportion.
        let ratio = if seen.ratio > 0 {
            seen.ratio
        } else {
            1000 + self.scaled(usual.2 - 1000, |seen| seen.ratio.saturating_sub(1000), |usual| usual.2 - 1000)
        };
        let network = u128::from(self.network) * u128::from(ratio) / 1000;
        compress.min(decompress).min(u64::try_from(network).unwrap_or(u64::MAX))
    }

    /// What is usual, as much slower or faster as the codec that was used last of those that are known is than usual.
    fn scaled(&self, usual: u64, of: fn(&Seen) -> u64, normal: fn(&(u64, u64, u64)) -> u64) -> u64 {
        let known = self.seen.iter().zip(&USUAL).skip(1).filter(|(seen, _)| of(seen) > 0);
        let Some((seen, like)) = known.min_by_key(|(seen, _)| seen.age) else { return usual };
        let scaled = u128::from(usual) * u128::from(of(seen)) / u128::from(normal(like).max(1));
        u64::try_from(scaled).unwrap_or(u64::MAX)
    }
}

fn place(codec: Codec) -> Option<usize> {
    LADDER.iter().position(|known| *known == codec).filter(|place| *place > 0)
}

/// Half of what was, and half of what is: a processor that others begin to use is noticed within a few blocks.
fn blend(known: u64, seen: u64) -> u64 {
    if known == 0 { seen.max(1) } else { (known / 2 + seen / 2).max(1) }
}

/// Bytes a second.
pub(super) fn speed(bytes: usize, time: u64) -> u64 {
    u64::try_from(bytes as u128 * 1_000_000_000 / u128::from(time.max(1))).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
