use proptest::prelude::*;

use super::*;
use crate::contract::ONLY;

/// What an end may hold: of the longest block, encoded and decoded, and what waits to be sent.
const MOST: usize = 6 << 20;

/// Brings everything from one end to the other, by pieces of such lengths, until nothing moves; what could be read.
fn bring(from: &mut Adoc, to: &mut Adoc, lengths: &mut dyn FnMut() -> usize) -> Result<Vec<u8>, Broken> {
    let (mut wire, mut read) = (Vec::new(), Vec::new());
    loop {
        let before = wire.len();
        from.transmit(0, ONLY, lengths(), &mut wire);
        from.took(1_000_000);
        let came = wire.len() > before;
        let length = lengths().min(wire.len());
        let taken = to.receive(0, ONLY, &wire[..length])?;
        to.took(200_000);
        wire.drain(..taken);
        let count = lengths().min(to.front().len());
        read.extend_from_slice(&to.front()[..count]);
        to.consume(count);
        assert!(from.held() <= MOST && to.held() <= MOST, "{} {}", from.held(), to.held());
        if !came && wire.is_empty() && to.front().is_empty() {
            return Ok(read);
        }
    }
}

/// Bytes of a kind: of few words, of one, or of none.
fn content() -> impl Strategy<Value = Vec<u8>> {
    let seeds = (any::<u64>(), 0u8..4, prop_oneof![0usize..2000, 0usize..300_000]);
    seeds.prop_map(|(seed, kind, len)| {
        let mut seed = seed;
        let mut random = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize
        };
        let words: Vec<Vec<u8>> = (0..40).map(|_| (0..1 + random() % 12).map(|_| random() as u8).collect()).collect();
        let mut bytes = Vec::with_capacity(len + 12);
        while bytes.len() < len {
            match kind {
                0 => bytes.push(random() as u8),
                1 => bytes.push(7),
                _ => bytes.extend_from_slice(&words[random() % words.len()]),
            }
        }
        bytes.truncate(len);
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn what_is_written_is_read(pieces in prop::collection::vec(content(), 1..8), network in 0u64..200_000_000, secret: bool, seed: u64) {
        let mut from = if secret { Adoc::secret() } else { Adoc::new() };
        from.set_rate(network);
        let (mut to, mut seed) = (Adoc::new(), seed);
        let mut lengths = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            1 + (seed >> 33) as usize % (1 << ((seed >> 60) + 5))
        };
        let (mut sent, mut read) = (Vec::new(), Vec::new());
        for piece in &pieces {
            let mut rest = &piece[..];
            while !rest.is_empty() {
                let taken = from.write(rest);
                prop_assert!(taken > 0);
                rest = &rest[taken..];
                read.extend(bring(&mut from, &mut to, &mut lengths).unwrap());
                // What the other end sends.
                bring(&mut to, &mut from, &mut lengths).unwrap();
            }
            sent.extend_from_slice(piece);
        }
        prop_assert!(!to.is_at_end());
        from.finish();
        read.extend(bring(&mut from, &mut to, &mut lengths).unwrap());
        prop_assert!(read == sent && to.is_at_end());
        let counts = from.counts();
        prop_assert_eq!(counts.raw, sent.len() as u64);
        prop_assert!(counts.encoded <= counts.raw + 8 * counts.blocks);
        prop_assert!(!secret || counts.raw_blocks == counts.blocks);
    }

    /// A byte that is changed, bytes that are missing or come twice: refused, or other bytes; never a panic, never more memory.
    #[test]
    fn what_is_changed_on_the_way_is_bounded(piece in content(), at: usize, with: u8, cut: (usize, usize)) {
        let mut from = Adoc::new();
        from.set_rate(1_250_000);
        let mut wire = Vec::new();
        from.write(&piece);
        from.finish();
        for _ in 0..piece.len() / 10_000 + 10 {
            from.transmit(0, ONLY, 1 << 20, &mut wire);
        }
        let at = at % wire.len();
        wire[at] = with;
        let (first, last) = (cut.0 % wire.len(), cut.1 % wire.len());
        wire.drain(first.min(last)..first.max(last).min(first.min(last) + 100));
        let mut to = Adoc::new();
        let mut rest = &wire[..];
        while let Ok(count) = to.receive(0, ONLY, rest) {
            to.consume(to.front().len());
            prop_assert!(to.held() <= MOST);
            if count == 0 {
                break;
            }
            rest = &rest[count..];
        }
    }

    #[test]
    fn any_bytes_are_taken_or_refused(bytes: Vec<u8>, kinds in prop::collection::vec((0u8..70, 0u32..1 << 21, 0u32..3000), 0..5)) {
        let mut wire = Vec::new();
        for (kind, raw, encoded) in kinds {
            wire.extend_from_slice(&(u64::from(kind) | u64::from(raw) << 8 | u64::from(encoded) << 32).to_le_bytes());
            wire.extend_from_slice(&bytes);
        }
        let mut to = Adoc::new();
        for wire in [wire, bytes] {
            let mut rest = &wire[..];
            while let Ok(count) = to.receive(0, ONLY, rest) {
                prop_assert!(to.held() <= MOST);
                to.consume(to.front().len());
                if count == 0 {
                    break;
                }
                rest = &rest[count..];
            }
        }
    }
}

/// One write, and what is sent for it.
fn sent_for(from: &mut Adoc, bytes: &[u8]) -> Vec<u8> {
    let mut wire = Vec::new();
    assert_eq!(from.write(bytes), bytes.len());
    for _ in 0..20 {
        from.transmit(0, ONLY, 1 << 20, &mut wire);
        from.took(1000);
    }
    wire
}

#[test]
fn short_messages_go_at_once_and_as_they_are() {
    let mut from = Adoc::new();
    from.set_rate(125_000);
    let short = sent_for(&mut from, &[7; 511]);
    assert_eq!((short.len(), &short[..8]), (519, &[0, 255, 1, 0, 255, 1, 0, 0][..]));
    let long = sent_for(&mut from, &[7; 512]);
    assert!(long.len() < 60, "{}", long.len());
    assert_eq!(sent_for(&mut Adoc::secret(), &[7; 5000]).len(), 5008);
    // Nothing is known of the network.
    assert_eq!(sent_for(&mut Adoc::new(), &[7; 5000]).len(), 5008);
}

/// A peer waits for the speed of each codec that it tried, also where two came before anything went back.
#[test]
fn the_speed_of_each_codec_is_reported() {
    let (mut end, mut encoder) = (Adoc::new(), Encoder::default());
    let text = b"a stream of bytes that are not very different, ".repeat(500);
    for codec in [Codec::Lz4, Codec::Zstd(1)] {
        let bytes = encoder.encode(codec, &text).unwrap();
        let header = Header::Block { codec, raw: text.len(), encoded: bytes.len() }.bytes();
        end.receive(0, ONLY, &header).unwrap();
        end.receive(0, ONLY, bytes).unwrap();
        end.took(1_000_000);
        end.consume(text.len());
    }
    let sent = sent_for(&mut end, b"");
    let headers: Vec<_> = sent.as_chunks::<HEADER>().0.iter().map(|bytes| Header::read(*bytes).unwrap()).collect();
    let kib = (speed(text.len(), 1_000_000) >> 10) as u32;
    assert_eq!(headers, [Codec::Lz4, Codec::Zstd(1)].map(|codec| Header::Speed { codec, kib }));
}

#[test]
fn the_other_end_says_how_fast_it_is_and_is_believed() {
    let (mut from, mut to) = (Adoc::new(), Adoc::new());
    from.set_rate(1_250_000);
    let text = b"a stream of bytes that are not very different, ".repeat(5000);
    let first = sent_for(&mut from, &text);
    // One small block is tried; until the other end has reported its speed all else goes as it is.
    assert_eq!((from.counts().blocks - from.counts().raw_blocks, first.len() > text.len() - TRIAL), (1, true));
    let mut rest = &first[..];
    while !rest.is_empty() {
        let count = to.receive(0, ONLY, rest).unwrap();
        to.took(20_000);
        to.consume(to.front().len());
        rest = &rest[count..];
    }
    let mut report = Vec::new();
    to.transmit(0, ONLY, 1000, &mut report);
    assert_eq!((report.len(), report[0], report[1] >= 64), (8, 3, true));
    to.transmit(0, ONLY, 1000, &mut report);
    assert_eq!(report.len(), 8, "said once");
    from.receive(0, ONLY, &report).unwrap();
    let second = sent_for(&mut from, &text);
    assert!(second.len() < text.len() / 10, "{}", second.len());
}

#[test]
fn what_is_not_read_holds_up_what_comes() {
    let (mut from, mut to) = (Adoc::secret(), Adoc::new());
    let mut taken = 0;
    for _ in 0..11 {
        taken += to.receive(0, ONLY, &sent_for(&mut from, &[1; 100_000])).unwrap();
    }
    assert_eq!(to.front().len(), LONGEST);
    assert!(taken < (1 << 20) + 1000 && to.held() <= MOST);
}

#[test]
fn behind_the_end_nothing_may_come() {
    let mut to = Adoc::new();
    to.receive(0, ONLY, &Header::End.bytes()).unwrap();
    assert!(to.is_at_end() && to.receive(0, ONLY, &[0]).is_err());
}
