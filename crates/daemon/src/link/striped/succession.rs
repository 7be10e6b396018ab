//! A model of two ends whose connections end and come at random, the own ones among them, with what is on their way. Each end hears of it in
//! its own time. The link goes on, and every byte comes once; or it ends, and then because bytes were not kept.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use madrigal_proto::mux::{Class, Limits as MuxLimits, Mux, Read, StreamId};
use madrigal_seeds::Random;

use super::*;

/// Bytes of a run.
const BYTES: usize = 1 << 20;

/// A connection: what is on its way to each end, and which ends have it.
#[derive(Default)]
struct Wire {
    to: [VecDeque<Vec<u8>>; 2],
    has: [bool; 2],
    broken: bool,
}

struct Model {
    ends: [(Mux, Striped); 2],
    wires: BTreeMap<Lane, Wire>,
    random: Random,
    /// The own connection of a fast link passes bytes that are not kept.
    fast: bool,
    now: u64,
    next: u32,
    ended: bool,
    /// Own connections whose place another one took.
    succeeded: usize,
}

impl Model {
    fn new(seed: u64, fast: bool) -> Self {
        let end = |dialled| {
            let striped = Striped::new(0, [1, 4], Congestion::ByLoss, Vec::new()).expect("a link");
            (Mux::new(dialled, MuxLimits::default(), 0), striped)
        };
        let first = Wire { has: [true; 2], ..Wire::default() };
        let mut model = Self {
            ends: [end(true), end(false)],
            wires: [(ONLY, first)].into(),
            random: Random::new(seed),
            fast,
            now: 0,
            next: 1,
            ended: false,
            succeeded: 0,
        };
        model.mark_fast(ONLY);
        model
    }

    fn mark_fast(&mut self, lane: Lane) {
        for (_, striped) in self.ends.iter_mut().filter(|_| self.fast) {
            striped.carries.insert(lane, Carries { rate: Some(FAST), round_trip: 0 });
        }
    }

    fn step(&mut self) {
        self.now += 1_000_000;
        let whole = self.wires.values().filter(|wire| !wire.broken).count();
        if whole < 4 && self.random.once_in(20) {
            self.join();
        }
        if whole > 1 && self.random.once_in(20) {
            self.break_one();
        }
        (0..2).for_each(|end| self.hear(end));
        (0..2).for_each(|end| self.send(end));
        (0..2).for_each(|end| self.deliver(end));
        self.wires.retain(|_, wire| wire.has != [false; 2]);
    }

    fn join(&mut self) {
        let lane = Lane(self.next);
        self.next += 1;
        for (_, striped) in &mut self.ends {
            striped.join(self.now, lane, lane.0.into()).expect("a connection");
        }
        self.wires.insert(lane, Wire { has: [true; 2], ..Wire::default() });
        self.mark_fast(lane);
    }

    /// What was on its way is gone, at once or but for what comes before the end.
    fn break_one(&mut self) {
        let whole: Vec<Lane> = self.wires.iter().filter(|(_, wire)| !wire.broken).map(|(lane, _)| *lane).collect();
        let lane = whole[self.random.below(whole.len() as u64) as usize];
        let wire = self.wires.get_mut(&lane).expect("it is there");
        wire.broken = true;
        for queue in &mut wire.to {
            let left = self.random.below(queue.len() as u64 + 1);
            queue.truncate(left as usize);
        }
    }

    /// An end hears that a connection is broken, once it has read what came before.
    fn hear(&mut self, end: usize) {
        let striped = &mut self.ends[end].1;
        for (lane, wire) in &mut self.wires {
            if wire.broken && wire.has[end] && wire.to[end].is_empty() && self.random.once_in(3) {
                wire.has[end] = false;
                if *lane != striped.own() {
                    striped.leave(*lane);
                } else if striped.succeed().is_some() {
                    self.succeeded += 1;
                } else {
                    // A broken one that it has not heard of would have done.
                    assert!(striped.further() == 0 || !striped.stripe.can_lose_one(), "it ends without need");
                    self.ended = true;
                }
            }
        }
    }

    fn send(&mut self, end: usize) {
        let (mux, striped) = &mut self.ends[end];
        let mut source = |out: &mut Vec<u8>, room| mux.transmit(out, room);
        striped.handle_time(self.now);
        striped.take_from(&mut source);
        for (lane, _) in striped.connections(0) {
            let (mut out, room) = (Vec::new(), 40 + self.random.below(6000) as usize);
            striped.transmit(self.now, lane, room, &mut out, &mut source);
            let wire = self.wires.get_mut(&lane).expect("a connection of an end");
            if !wire.broken && !out.is_empty() {
                wire.to[1 - end].push_back(out);
            }
        }
    }

    fn deliver(&mut self, end: usize) {
        let (mux, striped) = &mut self.ends[end];
        for (lane, wire) in self.wires.iter_mut().filter(|(_, wire)| wire.has[end]) {
            while self.random.below(3) > 0
                && let Some(bytes) = wire.to[end].pop_front()
            {
                let mut deliver = |bytes: &[u8]| mux.receive(self.now, bytes).map_err(|broken| broken.to_string());
                striped.receive(self.now, *lane, &bytes, &mut deliver).expect("frames");
            }
        }
    }

    /// Carries the bytes; what came.
    fn run(&mut self) -> Vec<u8> {
        let sent: Vec<u8> = bytes().collect();
        let stream: StreamId = self.ends[0].0.open(Class::Data, b"test").expect("a stream");
        let (mut written, mut got, mut buffer) = (0, Vec::new(), [0; 9000]);
        while got.len() < sent.len() && !self.ended {
            written += self.ends[0].0.write(stream, &sent[written..]).expect("it is open");
            self.step();
            for (mux, _) in &mut self.ends {
                while mux.event().is_some() {}
            }
            while let Read::Bytes(count) = self.ends[1].0.read(stream, &mut buffer).unwrap_or(Read::Nothing) {
                got.extend_from_slice(&buffer[..count]);
            }
            assert!(self.now < 600_000_000_000, "it stands still at {}", got.len());
        }
        got
    }
}

fn bytes() -> impl Iterator<Item = u8> {
    (0..BYTES as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
}

/// Every connection may end, the one with which the link began, too, while another one is left.
#[test]
fn a_link_whose_bytes_are_kept_outlives_every_connection() {
    let succeeded = AtomicUsize::new(0);
    madrigal_seeds::run(40, |seed| {
        let mut model = Model::new(seed, false);
        let got = model.run();
        assert!(!model.ended, "seed {seed}: the link ended");
        assert!(got.into_iter().eq(bytes()), "seed {seed}: other bytes");
        succeeded.fetch_add(model.succeeded, Relaxed);
    });
    let succeeded = succeeded.into_inner();
    println!("the place of an own connection was taken {succeeded} times");
    assert!(succeeded > 0);
}

/// Where the only connection of a fast link passes bytes on, its end may be the link's: no byte is left out, none comes twice.
#[test]
fn a_link_that_passes_bytes_on_goes_on_or_ends_and_loses_none_between() {
    let ended = [0, 0].map(AtomicUsize::new);
    madrigal_seeds::run(40, |seed| {
        let mut model = Model::new(seed, true);
        let got = model.run();
        assert!(got.iter().copied().zip(bytes()).all(|(came, sent)| came == sent), "seed {seed}: other bytes");
        assert!(model.ended || got.len() == BYTES, "seed {seed}");
        ended[usize::from(model.ended)].fetch_add(1, Relaxed);
    });
    println!("{ended:?} links went on, and ended");
}
