//! A stripe over streams with a rate, a delay, jitter, losses and a life, in a time of their own. Each schedule follows from one number,
//! which a failure names: `SEED=4711 cargo test -p madrigal-adapters stripe::simulation` runs that one alone.

mod random;
mod speed;

use std::collections::VecDeque;

use madrigal_seeds::Random;

use super::store::CHUNK;
use super::{Limits, Stripe};
use crate::contract::{Adapter as _, Lane};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;
/// Bytes a second of one Mbit/s.
const MBIT: u64 = 125_000;
/// A stream takes bytes while so many wait in it (TCP_NOTSENT_LOWAT).
const LOWAT: usize = 128 << 10;

/// How a stream is.
#[derive(Clone, Copy, Debug)]
struct Kind {
    /// Bytes a second, and nanoseconds one way.
    rate: u64,
    delay: u64,
    /// Up to so much longer.
    jitter: u64,
    /// Once in so many milliseconds something is lost, and what follows waits until it has come again; 0: never.
    loss: u64,
}

impl Kind {
    fn new(mbit: u64, round_trip: u64) -> Self {
        Self { rate: mbit * MBIT, delay: round_trip * MS / 2, jitter: 0, loss: 0 }
    }
}

/// One direction of a stream.
#[derive(Default)]
struct Pipe {
    queue: Vec<u8>,
    /// Bytes, by a million, that it may carry beyond whole ones.
    fraction: u64,
    flight: VecDeque<(u64, Vec<u8>)>,
    last: u64,
}

struct Wire {
    lane: Lane,
    kind: Kind,
    pipes: [Pipe; 2],
    /// Which ends know of it, and when each is notified of its end.
    has: [bool; 2],
    ends: [u64; 2],
    /// Nothing passes until then, and neither end is notified.
    frozen: u64,
}

/// Two ends, and the streams between them.
struct Net {
    ends: [Stripe; 2],
    limits: Limits,
    wires: Vec<Wire>,
    next: u32,
    now: u64,
    random: Random,
    /// What each end is to send, has written, and has read of the other's.
    wanted: [u64; 2],
    written: [u64; 2],
    read: [u64; 2],
    /// Whether more will be wanted.
    open: bool,
    /// What each end reads in a millisecond, at most.
    appetite: [u64; 2],
    /// Bytes that streams carried, each way.
    carried: [u64; 2],
}

/// A byte of the link.
fn byte(end: usize, at: u64) -> u8 {
    (at ^ (at >> 8).wrapping_mul(31) ^ (at >> 16).wrapping_mul(17)) as u8 ^ end as u8
}

impl Net {
    fn new(limits: Limits, seed: u64) -> Self {
        Self {
            ends: [Stripe::new(limits), Stripe::new(limits)],
            limits,
            wires: Vec::new(),
            next: 0,
            now: 0,
            random: Random::new(seed),
            wanted: [0; 2],
            written: [0; 2],
            read: [0; 2],
            open: false,
            appetite: [u64::MAX; 2],
            carried: [0; 2],
        }
    }

    fn add(&mut self, kind: Kind) -> Lane {
        let lane = Lane(self.next);
        self.next += 1;
        self.ends.iter_mut().for_each(|end| end.add(self.now, lane).unwrap());
        let pipes = Default::default();
        self.wires.push(Wire { lane, kind, pipes, has: [true; 2], ends: [u64::MAX; 2], frozen: 0 });
        lane
    }

    fn wire(&mut self, lane: Lane) -> &mut Wire {
        self.wires.iter_mut().find(|wire| wire.lane == lane).unwrap()
    }

    /// A millisecond passes.
    fn step(&mut self) {
        self.now += MS;
        for end in 0..2 {
            self.feed(end);
            if self.ends[end].deadline() <= self.now {
                self.ends[end].handle_time(self.now);
                assert!(self.ends[end].deadline() > self.now, "it would turn for ever");
            }
            for wire in self.wires.iter_mut().filter(|wire| wire.has[end]) {
                let queue = &mut wire.pipes[end].queue;
                let room = LOWAT.saturating_sub(queue.len());
                let before = queue.len();
                self.ends[end].transmit(self.now, wire.lane, room, queue);
                assert!(queue.len() - before <= room, "more than there is room for");
            }
        }
        for at in 0..self.wires.len() {
            (0..2).for_each(|end| self.carry(at, end));
        }
        for at in 0..self.wires.len() {
            (0..2).for_each(|end| self.bring(at, end));
        }
        (0..2).for_each(|end| self.read(end));
        let most = self.limits.window + self.limits.backlog + 24 * CHUNK;
        assert!(self.ends.iter().all(|end| end.held() <= most), "{} bytes", self.ends[0].held());
    }

    /// Writes what there is room for.
    fn feed(&mut self, end: usize) {
        while self.written[end] < self.wanted[end] {
            let from = self.written[end];
            let count = (self.wanted[end] - from).min(self.ends[end].room() as u64).min(50_000);
            if count == 0 {
                return;
            }
            let bytes: Vec<u8> = (from..from + count).map(|at| byte(end, at)).collect();
            assert_eq!(self.ends[end].write(&bytes), bytes.len());
            self.written[end] += count;
        }
        if !self.open {
            self.ends[end].finish();
        }
    }

    /// What leaves a stream's queue in this millisecond.
    fn carry(&mut self, at: usize, end: usize) {
        let (now, wire) = (self.now, &mut self.wires[at]);
        let pipe = &mut wire.pipes[end];
        if wire.frozen > now {
            return;
        }
        pipe.fraction += wire.kind.rate * MS / 1000;
        let count = pipe.queue.len().min((pipe.fraction / MS) as usize);
        pipe.fraction = if count == pipe.queue.len() { 0 } else { pipe.fraction - count as u64 * MS };
        if count > 0 {
            let mut due = now + wire.kind.delay + self.random.below(wire.kind.jitter + 1);
            if wire.kind.loss > 0 && self.random.once_in(wire.kind.loss) {
                due += 2 * wire.kind.delay + 10 * MS;
            }
            pipe.last = pipe.last.max(due);
            self.carried[end] += count as u64;
            pipe.flight.push_back((pipe.last, pipe.queue.drain(..count).collect()));
        }
    }

    /// What comes out of a stream, and that it is no more.
    fn bring(&mut self, at: usize, end: usize) {
        let (now, wire) = (self.now, &mut self.wires[at]);
        let other = 1 - end;
        while wire.has[other]
            && wire.frozen <= now
            && wire.pipes[end].flight.front().is_some_and(|(due, _)| *due <= now)
        {
            let (_, bytes) = wire.pipes[end].flight.pop_front().unwrap();
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let (piece, more) = rest.split_at((1 + self.random.below(100_000) as usize).min(rest.len()));
                let taken = self.ends[other].receive(now, wire.lane, piece).unwrap_or_else(|error| panic!("{error}"));
                assert_eq!(taken, piece.len());
                rest = more;
            }
        }
        if wire.has[other] && wire.ends[other] <= now {
            wire.has[other] = false;
            self.ends[other].remove(wire.lane);
        }
    }

    fn read(&mut self, end: usize) {
        let mut left = self.appetite[end];
        while left > 0 {
            let front = self.ends[end].front();
            let count = front.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            if count == 0 {
                return;
            }
            let from = self.read[end];
            let wrong = front[..count].iter().zip(from..).position(|(found, at)| *found != byte(1 - end, at));
            assert_eq!(wrong, None, "another byte behind {from}");
            self.read[end] += count as u64;
            self.ends[end].consume(count);
            left -= count as u64;
        }
    }

    fn is_done(&self) -> bool {
        (0..2).all(|end| self.ends[end].is_at_end() && self.ends[end].is_flushed())
    }

    /// Milliseconds pass.
    fn run(&mut self, milliseconds: u64) {
        (0..milliseconds).for_each(|_| self.step());
    }

    /// Until everything came, in nanoseconds; no longer than that.
    fn finish(&mut self, most: u64) -> u64 {
        let began = self.now;
        while !self.is_done() {
            self.step();
            assert!(self.now - began <= most, "{:?} of {:?} after {} ms", self.read, self.wanted, most / MS);
        }
        assert_eq!([self.read[1], self.read[0]], self.wanted);
        self.now - began
    }
}
