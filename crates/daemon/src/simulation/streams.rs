//! Resumable streams between two hosts, over links that are cut for a while, fall silent, or are reset with all bytes in flight. Whatever
//! breaks, every byte comes once and in order, and in the end nothing is retained.

use std::collections::VecDeque;

use madrigal_proto::mux::{Class, Event, Limits, Mux, Read, StreamId};
use madrigal_proto::resumable::{Received, Resumable};

use super::{Random, run_seeds};
use crate::units::MILLISECOND;

/// A way between the two hosts: a connection, or none at one or both ends.
#[derive(Default)]
struct Way {
    /// The count of its connections.
    count: u64,
    ends: [Option<Mux>; 2],
    wires: [VecDeque<(u64, Vec<u8>)>; 2],
    /// When an end learns that the other one was closed.
    closed: [Option<u64>; 2],
    /// Until then nothing passes, and nothing is lost.
    cut: u64,
    delay: u64,
}

/// Where an end of a stream is: the way, the count of its connection, and the stream.
type Place = (usize, u64, StreamId);

struct Stream {
    resumable: [Resumable; 2],
    at: [Option<Place>; 2],
    /// The attempt of the calling end: where, its position then, since when, and what came of the reply.
    attempt: Option<(Place, u64, u64, Vec<u8>)>,
    epochs: [u32; 2],
    sent: [Vec<u8>; 2],
    len: [usize; 2],
    received: [Vec<u8>; 2],
    over: [bool; 2],
}

struct World {
    ways: Vec<Way>,
    streams: Vec<Stream>,
    now: u64,
    random: Random,
}

const LIMITS: fn() -> Limits = || Limits {
    window: 2000,
    widest: 20_000,
    budget: 40_000,
    backlog: 5000,
    idle: 400 * MILLISECOND,
    patience: 300 * MILLISECOND,
    ..Limits::default()
};

impl World {
    fn new(mut random: Random) -> Self {
        let way = |random: &mut Random| Way { delay: random.below(30) * MILLISECOND, ..Way::default() };
        let ways = (0..1 + random.below(3)).map(|_| way(&mut random)).collect();
        let stream = |random: &mut Random| Stream {
            resumable: [Resumable::new(), Resumable::new()],
            at: [None; 2],
            attempt: None,
            epochs: [0; 2],
            sent: Default::default(),
            len: [0; 2].map(|_| random.below(40_000) as usize),
            received: Default::default(),
            over: [false; 2],
        };
        let streams = (0..1 + random.below(4)).map(|_| stream(&mut random)).collect();
        Self { ways, streams, now: 0, random }
    }

    fn mux(&mut self, end: usize, place: Place) -> Option<&mut Mux> {
        let (way, count, _) = place;
        self.ways.get_mut(way).filter(|way| way.count == count)?.ends[end].as_mut()
    }

    fn is_there(&mut self, end: usize, place: Place) -> bool {
        self.mux(end, place).is_some_and(|mux| mux.contains(place.2))
    }

    /// One end of a connection is closed. The other end learns it, once the way passes anything.
    fn close(&mut self, way: usize, end: usize) {
        let way = &mut self.ways[way];
        way.ends[end] = None;
        way.wires[1 - end].clear();
        way.closed[1 - end] = Some(self.now.max(way.cut) + way.delay);
    }

    fn step_ways(&mut self, undisturbed: bool) {
        let now = self.now;
        for at in 0..self.ways.len() {
            let (fate, way) = (self.random.below(400), &mut self.ways[at]);
            match fate {
                0 if !undisturbed => way.cut = now + self.random.below(1500) * MILLISECOND,
                1 if !undisturbed => self.close(at, (now / MILLISECOND % 2) as usize),
                // A new connection replaces what one end may still have of an old one.
                2..20 if way.cut <= now && way.ends.iter().any(Option::is_none) => {
                    *way = Way { count: way.count + 1, delay: way.delay, cut: way.cut, ..Way::default() };
                    way.ends = [true, false].map(|dialled| Some(Mux::new(dialled, LIMITS(), now)));
                }
                _ => {}
            }
            for end in 0..2 {
                self.step_end(at, end);
            }
        }
    }

    fn step_end(&mut self, at: usize, end: usize) {
        let (now, way) = (self.now, &mut self.ways[at]);
        let waiting: usize = way.wires[1 - end].iter().map(|(_, bytes)| bytes.len()).sum();
        if let Some(mux) = &mut way.ends[end] {
            let mut bytes = Vec::new();
            if waiting < 20_000 {
                mux.transmit(&mut bytes, 1 + self.random.below(3000) as usize);
            }
            way.wires[1 - end].push_back((now + way.delay, bytes));
        }
        let mut ends = way.closed[end].is_some_and(|when| when <= now);
        while way.cut <= now && !ends && way.wires[end].front().is_some_and(|(due, _)| *due <= now) {
            let (_, bytes) = way.wires[end].pop_front().unwrap();
            way.ends[end].iter_mut().for_each(|mux| mux.receive(now, &bytes).unwrap());
        }
        ends |= way.ends[end].as_mut().is_some_and(|mux| mux.handle_time(now).is_err());
        if ends && way.ends[end].is_some() {
            self.close(at, end);
        }
    }

    /// Handles the events of the multiplexers: the target end takes opened streams.
    fn handle(&mut self) {
        for at in 0..self.ways.len() {
            for end in 0..2 {
                while let Some(event) = self.ways[at].ends[end].as_mut().and_then(Mux::event) {
                    if let Event::Opened { stream, about: header, .. } = event {
                        let place = (at, self.ways[at].count, stream);
                        self.resume(place, &header);
                    }
                }
            }
        }
    }

    /// The target end, as `handle_resume`.
    fn resume(&mut self, place: Place, header: &[u8]) {
        let (id, epoch) = (usize::from(header[0]), u32::from_le_bytes(header[1..5].try_into().unwrap()));
        let position = u64::from_le_bytes(header[5..13].try_into().unwrap());
        let stream = &mut self.streams[id];
        if epoch <= stream.epochs[1] {
            let mux = self.mux(1, place).unwrap();
            let _ = mux.reset(place.2, 0);
            return;
        }
        stream.epochs[1] = epoch;
        if position < stream.resumable[1].acked() {
            let mux = self.mux(1, place).unwrap();
            let _ = mux.reset(place.2, 0);
            return;
        }
        let ours = stream.resumable[1].got();
        assert!(stream.resumable[1].resume(ours, position), "{ours}, {position}: {:?}", stream.resumable[1]);
        let old = stream.at[1].replace(place);
        if let Some(old) = old
            && let Some(mux) = self.mux(1, old)
        {
            let _ = mux.reset(old.2, 2);
        }
        // The other end may be closed already, which shows later.
        let _ = self.mux(1, place).unwrap().write(place.2, &ours.to_le_bytes());
    }

    /// The calling end, as `try_any_way` and `handle_resume_reply`. At times it tries a way though it has one.
    fn try_ways(&mut self, id: usize) {
        let now = self.now;
        if let Some((place, position, since, mut received)) = self.streams[id].attempt.take() {
            let late = since + 300 * MILLISECOND < now;
            let Some(mux) = self.mux(0, place).filter(|mux| mux.contains(place.2)) else { return };
            if late {
                let _ = mux.reset(place.2, 2);
                return;
            }
            let mut rest = vec![0; 8 - received.len()];
            if let Ok(Read::Bytes(count)) = mux.read(place.2, &mut rest) {
                received.extend_from_slice(&rest[..count]);
            }
            let Ok(theirs) = <[u8; 8]>::try_from(&received[..]) else {
                self.streams[id].attempt = Some((place, position, since, received));
                return;
            };
            let stream = &mut self.streams[id];
            assert!(
                stream.resumable[0].resume(position, u64::from_le_bytes(theirs)),
                "{theirs:?}: {:?}",
                stream.resumable[0]
            );
            if let Some(old) = stream.at[0].replace(place)
                && let Some(mux) = self.mux(0, old)
            {
                let _ = mux.reset(old.2, 2);
            }
            return;
        }
        if self.streams[id].at[0].is_some() && !self.random.once_in(500) {
            return;
        }
        let at = self.random.below(self.ways.len() as u64) as usize;
        let (count, position, epoch) =
            (self.ways[at].count, self.streams[id].resumable[0].got(), self.streams[id].epochs[0] + 1);
        let Some(mux) = self.ways[at].ends[0].as_mut() else { return };
        let header = [&[id as u8][..], &epoch.to_le_bytes(), &position.to_le_bytes()].concat();
        let opened = mux.open(Class::Data, &header).unwrap();
        let stream = &mut self.streams[id];
        (stream.epochs[0], stream.attempt) = (epoch, Some(((at, count, opened), position, now, Vec::new())));
    }

    /// As `pump`.
    fn pump(&mut self, id: usize, end: usize) {
        let piece = self.random.below(3000) as usize;
        let stream = &mut self.streams[id];
        if stream.sent[end].len() < stream.len[end] {
            let from = stream.sent[end].len();
            let to = stream.len[end].min(from + piece);
            let bytes: Vec<u8> = (from..to).map(|at| (at * 7 + at / 251 + id * 31 + end) as u8).collect();
            stream.resumable[end].push(&bytes);
            stream.sent[end].extend(bytes);
        } else {
            stream.resumable[end].end();
        }
        let Some(place) = self.streams[id].at[end] else { return };
        if !self.is_there(end, place) {
            self.streams[id].at[end] = None;
            return;
        }
        let mut resumable = std::mem::take(&mut self.streams[id].resumable[end]);
        let mux = self.mux(end, place).unwrap();
        let mut buffer = [0; 1500];
        let (mut received, mut over) = (Vec::new(), false);
        while let Ok(Read::Bytes(count)) = mux.read(place.2, &mut buffer) {
            let mut rest = &buffer[..count];
            while !rest.is_empty() {
                let (frame, taken) = resumable.handle(rest).unwrap();
                match frame {
                    Received::Bytes(bytes) => received.extend_from_slice(bytes),
                    Received::End => over = true,
                    Received::Nothing => {}
                }
                rest = &rest[taken..];
            }
        }
        while let Some(pieces) = resumable.output() {
            let bytes = pieces.concat();
            let offered = bytes.len();
            let taken = mux.write(place.2, &bytes).unwrap();
            resumable.took(taken);
            if taken < offered {
                break;
            }
        }
        let stream = &mut self.streams[id];
        stream.resumable[end] = resumable;
        assert!(!stream.over[end] || (received.is_empty() && !over), "more behind the end");
        stream.received[end].extend(received);
        stream.over[end] |= over;
    }

    fn is_done(&self) -> bool {
        self.streams.iter().all(|stream| stream.resumable.iter().all(Resumable::is_done))
    }
}

fn one(random: Random) {
    let mut world = World::new(random);
    let disturbed = world.random.below(4000);
    for step in 0..60_000 {
        world.now += MILLISECOND;
        world.step_ways(step > disturbed);
        world.handle();
        for id in 0..world.streams.len() {
            world.try_ways(id);
            (0..2).for_each(|end| world.pump(id, end));
        }
        for mux in world.ways.iter().flat_map(|way| way.ends.iter().flatten()) {
            assert!(mux.held() <= mux.len() as u64 * (2000 + 5000) + 40_000, "{}", mux.held());
        }
        if world.is_done() {
            break;
        }
    }
    for (id, stream) in world.streams.iter().enumerate() {
        assert!(
            stream.received[0] == stream.sent[1] && stream.received[1] == stream.sent[0],
            "stream {id}: other bytes"
        );
        assert!(stream.resumable.iter().all(Resumable::is_done), "stream {id} has not ended: {:?}", stream.resumable);
        assert_eq!(stream.over, [true; 2]);
    }
}

#[test]
fn all_bytes_come_once_and_in_order_whatever_breaks() {
    run_seeds(1500, one);
}
