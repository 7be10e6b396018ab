use std::collections::VecDeque;

use super::*;
use crate::adoc::BLOCK;

/// What codecs give in truth: bytes a second both ways, and thousandths.
type Truth = [(u64, u64, u64); LADDER.len()];

/// As usual, but slower, or faster, and longer or shorter: times a hundred.
fn truth(compress: u64, decompress: u64, gain: u64) -> Truth {
    let mut truth = USUAL;
    for codec in truth.iter_mut().skip(1) {
        codec.0 = codec.0 / 100 * compress;
        codec.1 = codec.1 / 100 * decompress;
        codec.2 = 1000 + (codec.2 - 1000) * gain / 100;
    }
    truth
}

fn time(bytes: usize, speed: u64) -> u64 {
    u64::try_from(bytes as u128 * 1_000_000_000 / u128::from(speed)).unwrap()
}

/// A way in three steps, each of which works on one block while the others work on others; two blocks fit in between.
struct Line {
    truth: Truth,
    network: u64,
    chooser: Chooser,
    /// When each step is done with what it has; and with the blocks on the network.
    free: [u64; 3],
    sent: VecDeque<u64>,
    /// The other end's reports of its speed, and when they come.
    reports: VecDeque<(u64, Codec)>,
    bytes: [u64; LADDER.len()],
}

impl Line {
    fn new(truth: Truth, network: u64) -> Self {
        let mut chooser = Chooser::new();
        chooser.set_network(network);
        Self {
            truth,
            network,
            chooser,
            free: [0; 3],
            sent: VecDeque::new(),
            reports: VecDeque::new(),
            bytes: [0; LADDER.len()],
        }
    }

    /// One block goes; how many bytes it was.
    fn block(&mut self) -> usize {
        let waits = if self.sent.len() < 2 { 0 } else { self.sent.pop_front().unwrap() };
        let start = self.free[0].max(waits);
        while let Some((_, codec)) = self.reports.front().filter(|(when, _)| *when <= start).copied() {
            self.chooser.decompresses(codec, self.truth[place(codec).unwrap()].1);
            self.reports.pop_front();
        }
        let (mut codec, is_new) = self.chooser.choose();
        let raw = if is_new { TRIAL } else { BLOCK };
        let mut spent = 0;
        if codec != Codec::Raw {
            spent += time(4096, self.truth[1].0);
            if !self.chooser.sampled(self.truth[1].2) {
                codec = Codec::Raw;
            }
        }
        let (compress, decompress, ratio) = self.truth[place(codec).unwrap_or(0)];
        let encoded = (raw as u64 * 1000 / ratio) as usize;
        spent += time(raw, compress);
        self.chooser.encoded(codec, (raw, encoded), codec != Codec::Raw);
        if codec != Codec::Raw {
            self.chooser.compressing_took(codec, raw, spent);
        }
        self.free[0] = start + spent;
        self.free[1] = self.free[1].max(self.free[0]) + time(encoded, self.network);
        self.free[2] = self.free[2].max(self.free[1]) + time(raw, decompress);
        self.sent.push_back(self.free[1]);
        if codec != Codec::Raw {
            self.reports.push_back((self.free[2] + 50_000_000, codec));
        }
        self.bytes[place(codec).unwrap_or(0)] += raw as u64;
        raw
    }

    /// So many bytes go; bytes a second.
    fn run(&mut self, bytes: usize) -> u64 {
        let (began, mut left) = (self.free[2], bytes);
        while left > 0 {
            left = left.saturating_sub(self.block());
        }
        speed(bytes, self.free[2] - began)
    }

    /// The best that there is.
    fn best(&self) -> u64 {
        let through = |truth: &(u64, u64, u64)| {
            truth.0.min(truth.1).min((u128::from(self.network) * u128::from(truth.2) / 1000) as u64)
        };
        self.truth.iter().map(through).max().unwrap()
    }
}

const NETWORKS: [u64; 5] = [125_000, 1_250_000, 12_500_000, 125_000_000, 1_250_000_000];

#[test]
fn it_is_never_slower_than_without_and_near_the_best_of_all() {
    for network in NETWORKS {
        for compress in [1, 10, 50, 100, 400] {
            for decompress in [1, 10, 100, 400] {
                for gain in [0, 2, 10, 30, 100, 300] {
                    let mut line = Line::new(truth(compress, decompress, gain), network);
                    let given = format!("network {network}, {compress} {decompress} {gain}: {:?}", line.truth);
                    let rate = line.run(256 << 20);
                    assert!(rate * 100 >= network * 98, "{rate} bytes/s, {given}");
                    let rate = line.run(64 << 20);
                    // Where the network is faster than codecs usually are, they are not even tried.
                    assert!(
                        network > 500 * MB || rate * 100 >= line.best() * 80,
                        "{rate} of {}, {given}; {:?}",
                        line.best(),
                        line.bytes
                    );
                }
            }
        }
    }
}

#[test]
fn nor_where_codecs_are_like_nothing_usual() {
    let mut seed = 9u64;
    let mut random = |from: u64, to: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        from + (seed >> 33) % (to - from)
    };
    for round in 0..600 {
        let network = NETWORKS[round % NETWORKS.len()];
        let codec = |random: &mut dyn FnMut(u64, u64) -> u64| {
            let speed = |random: &mut dyn FnMut(u64, u64) -> u64| (1 << random(22, 31)) + random(0, MB);
            (speed(random), speed(random), random(1000, 6000))
        };
        let mut truth = USUAL;
        truth.iter_mut().skip(1).for_each(|place| *place = codec(&mut random));
        let mut line = Line::new(truth, network);
        let rate = line.run(256 << 20);
        assert!(rate * 100 >= network * 98, "{rate} bytes/s, network {network}, {truth:?}, {:?}", line.bytes);
    }
}

#[test]
fn text_goes_several_times_as_fast_over_slow_networks() {
    let rates: Vec<u64> =
        NETWORKS.iter().map(|network| Line::new(USUAL, *network).run(64 << 20) * 100 / network).collect();
    assert!(rates[1] >= 400 && rates[2] >= 400 && rates[3] >= 250 && rates[4] >= 98, "{rates:?}");
}

#[test]
fn other_data_and_other_speeds_are_followed() {
    let mut line = Line::new(truth(100, 100, 0), 12_500_000);
    line.run(64 << 20);
    assert_eq!(line.bytes[0], line.bytes.iter().sum::<u64>());
    // What cannot be compressed is sampled ever more rarely, and what can is found within so many blocks.
    line.truth = truth(100, 100, 100);
    line.run(MOST_SKIPPED as usize * BLOCK + (4 << 20));
    assert!(line.run(16 << 20) > 4 * 12_500_000);
    // The processor is busy: it gets less to do.
    line.truth = truth(10, 100, 100);
    line.run(4 << 20);
    let rate = line.run(16 << 20);
    assert!(rate * 100 >= line.best() * 80, "{rate} of {}", line.best());
    // The network is ten times as fast.
    line.chooser.set_network(125_000_000);
    line.network = 125_000_000;
    line.run(4 << 20);
    let rate = line.run(64 << 20);
    assert!(rate * 100 >= 98 * 125_000_000, "{rate}");
    // Nobody needs the processor any more; that is found late, for each try costs.
    line.truth = truth(100, 100, 100);
    line.run(2 << 30);
    let rate = line.run(64 << 20);
    assert!(rate >= 2 * 125_000_000, "{rate}");
}

#[test]
fn small_differences_change_nothing() {
    let mut chooser = Chooser::new();
    chooser.set_network(12_500_000);
    let (first, _) = chooser.choose();
    chooser.compressing_took(first, BLOCK, time(BLOCK, 60 * MB));
    for codec in &LADDER[1..] {
        chooser.encoded(*codec, (BLOCK, BLOCK / 4), false);
        chooser.compressing_took(*codec, BLOCK, time(BLOCK, 100 * MB));
        chooser.decompresses(*codec, 1000 * MB);
    }
    let (current, is_new) = chooser.choose();
    assert!(!is_new && current != Codec::Raw);
    // Eight percent better: not enough to change; twenty are.
    let other = if current == Codec::Zstd(6) { Codec::Zstd(3) } else { Codec::Zstd(6) };
    chooser.seen[place(other).unwrap()].ratio = 4 * 1080;
    assert_eq!(chooser.choose().0, current);
    chooser.seen[place(other).unwrap()].ratio = 4 * 1200;
    assert_eq!(chooser.choose().0, other);
    // A twentieth slower than without: not for one block.
    chooser.seen.iter_mut().for_each(|seen| seen.compress = 12 * MB);
    assert_eq!(chooser.choose().0, Codec::Raw);
}

#[test]
fn looks_in_vain_become_rare() {
    let mut chooser = Chooser::new();
    chooser.set_network(1_250_000);
    let mut samples = Vec::new();
    for block in 0..390 {
        if chooser.choose().0 != Codec::Raw {
            samples.push(block);
            assert!(!chooser.sampled(1099));
        }
    }
    let pauses: Vec<u64> = samples.windows(2).map(|pair| pair[1] - pair[0] - 1).collect();
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 64, 64, 64]);
    assert!(chooser.sampled(1100));
    assert_eq!(chooser.skip_next, 1);
}
