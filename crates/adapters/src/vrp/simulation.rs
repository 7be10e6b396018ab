//! Both ends over a network that loses, delays, doubles and reorders datagrams, in a time of its own. Each schedule follows from one
//! number, which a failure names: `SEED=4711 cargo test -p madrigal-adapters vrp::simulation` runs that one alone. `SCHEDULES=1000000` runs
//! as many.

use std::collections::{BTreeMap, VecDeque};

use madrigal_seeds::Random;

use super::wire::{NUMBER, PIECE};
use super::*;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

/// How the network is.
#[derive(Clone, Copy, Debug)]
struct Network {
    /// Lost, and doubled, of a thousand.
    loss: u64,
    twice: u64,
    /// One way, and up to so much longer.
    delay: u64,
    jitter: u64,
    /// Datagrams a millisecond, and bytes of each.
    rate: u64,
    longest: usize,
}

/// One way of it.
#[derive(Default)]
struct Way {
    datagrams: BTreeMap<(u64, u64), Vec<u8>>,
    stream: VecDeque<(u64, Vec<u8>)>,
    unread: Vec<u8>,
    count: u64,
}

impl Way {
    fn carry(&mut self, now: u64, network: &Network, random: &mut Random, datagram: &[u8]) {
        let copies =
            u64::from(random.below(1000) >= network.loss) * (1 + u64::from(random.below(1000) < network.twice));
        for _ in 0..copies {
            self.count += 1;
            let at = now + network.delay + random.below(network.jitter + 1);
            self.datagrams.insert((at, self.count), datagram.to_vec());
        }
    }

    /// A reliable stream: what is lost comes a round trip later, and everything behind it waits.
    fn stream(&mut self, now: u64, network: &Network, random: &mut Random, bytes: Vec<u8>) {
        let again = if random.below(1000) < network.loss { 2 * network.delay + MS } else { 0 };
        let last = self.stream.back().map_or(0, |(at, _)| *at);
        self.stream.push_back((last.max(now + network.delay + again), bytes));
    }

    fn due(&mut self, now: u64) -> Vec<Vec<u8>> {
        let later = self.datagrams.split_off(&(now, u64::MAX));
        std::mem::replace(&mut self.datagrams, later).into_values().collect()
    }

    fn bytes(&mut self, now: u64) -> &mut Vec<u8> {
        while let Some((_, bytes)) = self.stream.pop_front_if(|(at, _)| *at <= now) {
            self.unread.extend(bytes);
        }
        &mut self.unread
    }
}

/// A message, and what is known of it.
struct Record {
    bytes: Vec<u8>,
    sent: u64,
    arrived: Option<(u64, Option<Lost>)>,
    settled: Option<Option<Lost>>,
}

struct World {
    network: Network,
    random: Random,
    now: u64,
    sender: Sender,
    receiver: Receiver,
    there: Way,
    back: Way,
    record: Vec<Vec<Record>>,
    classes: Vec<Class>,
    /// Bytes of datagrams that came.
    carried: u64,
}

impl World {
    fn new(network: Network, seed: u64, classes: &[Class], backlog: usize) -> Self {
        let mut sender = Sender::new(classes, 0, backlog);
        let mut receiver = Receiver::new(classes, 0);
        sender.set_round_trip(2 * network.delay + network.jitter);
        receiver.set_round_trip(2 * network.delay + network.jitter);
        Self {
            network,
            random: Random::new(seed),
            now: 0,
            sender,
            receiver,
            there: Way::default(),
            back: Way::default(),
            record: classes.iter().map(|_| Vec::new()).collect(),
            classes: classes.to_vec(),
            carried: 0,
        }
    }

    fn send(&mut self, class: u8, bytes: Vec<u8>, deadline: Option<u64>) -> bool {
        let deadline = deadline.map(|after| self.now + after);
        let record = Record { bytes: bytes.clone(), sent: self.now, arrived: None, settled: None };
        match self.sender.send(class, Message { bytes, deadline }) {
            Ok(number) => {
                assert_eq!(number as usize, self.record[usize::from(class)].len());
                self.record[usize::from(class)].push(record);
                true
            }
            Err(Refused::Full(_)) => false,
            Err(e) => panic!("{e}"),
        }
    }

    /// A millisecond passes.
    fn step(&mut self) {
        self.now += MS;
        let (now, network) = (self.now, self.network);
        for datagram in self.there.due(now) {
            self.carried += datagram.len() as u64;
            self.receiver.receive(now, &datagram).expect("an honest peer");
        }
        let bytes = self.there.bytes(now);
        let taken = self.receiver.receive_control(now, bytes).expect("an honest peer");
        bytes.drain(..taken);
        let bytes = self.back.bytes(now);
        let taken = self.sender.receive_control(now, bytes).expect("an honest peer");
        bytes.drain(..taken);
        if self.sender.deadline() <= now {
            self.sender.handle_time(now);
            assert!(self.sender.deadline() > now, "it would turn for ever");
        }
        if self.receiver.deadline() <= now {
            self.receiver.handle_time(now).expect("an honest peer");
            assert!(self.receiver.deadline() > now, "it would turn for ever");
        }
        for _ in 0..network.rate {
            let mut datagram = Vec::new();
            if !self.sender.datagram(now, network.longest, &mut datagram) {
                break;
            }
            assert!(datagram.len() <= network.longest);
            self.there.carry(now, &network, &mut self.random, &datagram);
        }
        let mut bytes = [Vec::new(), Vec::new()];
        self.sender.control(1 + self.random.below(4000) as usize, &mut bytes[0]);
        self.receiver.control(1 + self.random.below(4000) as usize, &mut bytes[1]);
        let [there, back] = bytes;
        if !there.is_empty() {
            self.there.stream(now, &network, &mut self.random, there);
        }
        if !back.is_empty() {
            self.back.stream(now, &network, &mut self.random, back);
        }
        self.read();
    }

    /// Both programs learn what there is to learn.
    fn read(&mut self) {
        while let Some(arrived) = self.receiver.take() {
            let of_class = &mut self.record[usize::from(arrived.class)];
            let next = of_class.iter().position(|record| record.arrived.is_none());
            assert_eq!(next, Some(arrived.message as usize), "in order, and each once");
            let record = &mut of_class[arrived.message as usize];
            record.arrived = Some((self.now, arrived.lost.clone()));
            let Some(lost) = arrived.lost else { continue };
            let mut wanted = record.bytes.clone();
            lost.iter().for_each(|(from, to)| wanted[*from as usize..*to as usize].fill(0));
            assert!(wanted == arrived.bytes, "other bytes than those that were sent");
            let must = self.classes[usize::from(arrived.class)].must;
            assert!(lost.first().is_none_or(|(from, _)| *from >= must), "what must come is lost");
        }
        while let Some(settled) = self.sender.settled() {
            let record = &mut self.record[usize::from(settled.class)][settled.message as usize];
            assert!(record.settled.is_none(), "settled twice");
            record.settled = Some(settled.lost);
        }
    }

    fn is_over(&self) -> bool {
        let over = |record: &Record| record.arrived.is_some() && record.settled.is_some();
        self.record.iter().flatten().all(over)
    }

    fn run_out(&mut self) {
        let end = self.now + 1000 * SECOND;
        while !self.is_over() || self.sender.held() > 0 || self.receiver.held() > 0 {
            assert!(self.now < end, "it does not come to an end, or something is held for ever");
            self.step();
        }
    }

    /// Both ends report the same of each message, and of each class no more is lost than may be.
    fn judge(&self) {
        for (record, class) in self.record.iter().zip(&self.classes) {
            let mut lost = Vec::new();
            for record in record {
                let (_, of) = record.arrived.as_ref().expect("it arrived");
                assert_eq!(Some(of), record.settled.as_ref(), "the ends differ");
                let begin = lost.len();
                lost.resize(begin + record.bytes.len(), 0u64);
                let spans = of.iter().flatten();
                spans.for_each(|(from, to)| lost[begin + *from as usize..begin + *to as usize].fill(1));
                let behind_must = |byte: u32| (byte - class.must).is_multiple_of(class.granularity);
                assert!(
                    of.iter().flatten().all(
                        |(from, to)| behind_must(*from) && (behind_must(*to) || *to as usize == record.bytes.len())
                    )
                );
            }
            let fits = |n: u64, of: u64| n * 1000 <= u64::from(class.tolerance) * of;
            assert!(fits(lost.iter().sum(), lost.len() as u64), "too much of all is lost");
            let window = class.window as usize;
            let mut within: u64 = 0;
            for at in 0..lost.len() {
                within += lost[at];
                within -= if at >= window { lost[at - window] } else { 0 };
                assert!(fits(within, class.window), "too much of a window is lost");
            }
        }
    }
}

/// Any network, any classes, any messages.
fn any(seed: u64) {
    let mut random = Random::new(seed);
    let delay = random.below(20) * MS;
    let granularity = [1, 1, 7, 40][random.below(4) as usize];
    let network = Network {
        loss: [0, 20, 70, 300][random.below(4) as usize],
        twice: [0, 100][random.below(2) as usize],
        delay,
        jitter: [0, delay / 2 + MS, 4 * delay][random.below(3) as usize],
        rate: 1 + random.below(6),
        longest: NUMBER + PIECE + 40 + random.below(80) as usize,
    };
    let class = |random: &mut Random| Class {
        tolerance: [0, 50, 100, 500, 1000][random.below(5) as usize],
        window: 100 + random.below(3000),
        granularity,
        must: [0, 0, 16, 400][random.below(4) as usize],
    };
    let classes: Vec<Class> = (0..1 + random.below(3)).map(|_| class(&mut random)).collect();
    let mut world = World::new(network, seed ^ 0x5555, &classes, 20_000);
    let mut left = 5 + random.below(25);
    while left > 0 {
        let len = [1, 1, 100, 1500][random.below(4) as usize] + random.below(300) as usize;
        let deadline = random.once_in(3).then(|| random.below(100) * MS);
        let bytes = (0..len).map(|_| 1 + random.below(255) as u8).collect();
        if world.send(random.below(classes.len() as u64) as u8, bytes, deadline) {
            left -= 1;
        }
        for _ in 0..random.below(10) {
            world.step();
        }
    }
    world.run_out();
    world.judge();
}

#[test]
fn what_is_lost_is_never_more_than_may_be_and_both_ends_know_it() {
    let count = std::env::var("SCHEDULES").ok().and_then(|count| count.parse().ok());
    madrigal_seeds::run(count.unwrap_or(5000), any);
}

/// 8 Mbit/s, 100 ms, 7 % lost, of which 10 % may be: a message of 10 KB every 10 ms.
#[test]
fn a_lossy_line_is_used_whole_and_nobody_waits() {
    let network = Network { loss: 70, twice: 0, delay: 50 * MS, jitter: 0, rate: 1, longest: 1000 };
    let classes = [Class { tolerance: 100, must: 16, ..Class::default() }];
    let mut world = World::new(network, 7, &classes, 1 << 20);
    let (mut datagrams, mut messages) = (0u64, 0);
    while messages < 3000 {
        // Nine tenths of what the line carries, so that what goes again has room.
        if (world.now / MS).is_multiple_of(11) && world.send(0, vec![7; 9000], None) {
            messages += 1;
        }
        datagrams += 1;
        world.step();
    }
    world.run_out();
    world.judge();
    let of = |record: &Record| record.bytes.len() as u64;
    let lost = |record: &Record| {
        record
            .arrived
            .iter()
            .flat_map(|(_, lost)| lost.iter().flatten())
            .map(|(from, to)| u64::from(to - from))
            .sum::<u64>()
    };
    let read: u64 = world.record[0].iter().map(|record| of(record) - lost(record)).sum();
    assert!(read as f64 >= 0.95 * world.carried as f64, "{read} of {} bytes that the network carried", world.carried);
    let mut delays: Vec<u64> =
        world.record[0].iter().filter_map(|record| Some(record.arrived.as_ref()?.0 - record.sent)).collect();
    delays.sort_unstable();
    let late = delays[delays.len() * 99 / 100];
    assert!(late <= 150 * MS, "the 99th of 100 messages takes {} ms, {datagrams} ms in all", late / MS);
}

/// With nothing to be lost everything comes, and what is wholly to be lost is never sent again.
#[test]
fn tolerance_is_from_none_to_all() {
    let network = Network { loss: 200, twice: 0, delay: 5 * MS, jitter: 0, rate: 4, longest: 200 };
    for tolerance in [0, 1000] {
        let classes = [Class { tolerance, ..Class::default() }];
        let mut world = World::new(network, 3, &classes, 1 << 20);
        (0..20).for_each(|_| assert!(world.send(0, vec![1; 5000], None)));
        let mut sent = 0;
        while !world.is_over() {
            world.step();
            sent = sent.max(world.there.count);
        }
        world.judge();
        let lost = world.record[0]
            .iter()
            .filter_map(|record| record.arrived.as_ref())
            .flat_map(|(_, lost)| lost.iter().flatten());
        let lost: u32 = lost.map(|(from, to)| to - from).sum();
        assert_eq!(lost > 0, tolerance > 0);
        // 29 datagrams a message: of which as many came as were not lost.
        assert!(tolerance == 0 || sent < 20 * 29, "{sent} datagrams");
    }
}

/// A peer that sends anything gets a reason, and makes no end hold more than there is room for.
#[test]
fn a_lying_peer_is_refused() {
    madrigal_seeds::run(300, |seed| {
        let mut random = Random::new(seed);
        let classes = [Class { tolerance: 500, must: 4, ..Class::default() }; 2];
        let (mut sender, mut receiver) = (Sender::new(&classes, 0, 1 << 20), Receiver::new(&classes, 0));
        let mut out = Vec::new();
        for _ in 0..200 {
            let _ = sender.send(random.below(2) as u8, Message { bytes: vec![1; 500], deadline: None });
            sender.datagram(0, 300, &mut out);
            sender.control(1000, &mut out);
            let mut byte = |most: u64| if random.once_in(3) { random.below(most) as u8 } else { 0 };
            let mut bytes = vec![1 + byte(6), byte(3)];
            bytes.extend((0..90).map(|_| byte(4)));
            let _ = (receiver.receive(0, &bytes), receiver.receive_control(0, &bytes), receiver.handle_time(SECOND));
            let _ = sender.receive_control(0, &bytes);
            sender.handle_time(SECOND);
            while sender.settled().is_some() || receiver.take().is_some() {}
            assert!(sender.held() < 2 << 20 && receiver.held() <= LEAST_WINDOW);
        }
    });
}

/// What each frame may contain, and what not.
#[test]
fn what_cannot_be_is_named() {
    let control = |frame: wire::Frame| {
        let mut bytes = Vec::new();
        frame.write(&mut bytes);
        bytes
    };
    let about = |message, total, at| wire::About { class: 0, message, total, at };
    let piece = |about| {
        let mut out = vec![0; wire::NUMBER];
        wire::Piece { about, from: 0, bytes: b"x" }.write(&mut out);
        out
    };
    let mut receiver = Receiver::new(&[Class::default()], 0);
    assert_eq!(receiver.receive(0, &piece(about(1, 10, 30))), Ok(()));
    for wrong in [about(1, 11, 30), about(0, 31, 0), about(0, 29, 1), about(2, 9, 41), about(3, 9, 40)] {
        let refused = receiver.receive(0, &piece(wrong));
        assert!(matches!(refused, Err(Broken::Message { .. })), "{wrong:?}: {refused:?}");
    }
    let other = wire::About { class: 1, ..about(0, 4, 0) };
    assert_eq!(
        receiver.receive_control(0, &control(wire::Frame::Reach { about: other, to: 4 })),
        Err(Broken::Class(1))
    );
    let many =
        (0..4).map(|n| receiver.receive(0, &piece(about(2 + n, LONGEST as u32, 40 + u64::from(n) * LONGEST as u64))));
    assert!(many.into_iter().any(|result| matches!(result, Err(Broken::Credit { .. }))));
    let mut sender = Sender::new(&[Class { must: 2, ..Class::default() }], 0, 1 << 20);
    sender.send(0, Message { bytes: vec![1; 10], deadline: None }).unwrap();
    let done = |lost| control(wire::Frame::Done { class: 0, message: 0, lost });
    assert!(matches!(sender.receive_control(0, &done(Lost::new())), Err(Broken::Message { .. })), "it was not sent");
    let mut out = Vec::new();
    assert!(sender.datagram(0, 100, &mut out));
    assert!(matches!(sender.receive_control(0, &done(vec![(0, 3)])), Err(Broken::Message { .. })), "it must come");
    let credit = control(wire::Frame::Credit { taken: 1 << 40 });
    assert!(matches!(sender.receive_control(0, &credit), Err(Broken::Unsent { .. })));
    assert!(sender.receive_control(0, &done(vec![(3, 5)])).is_ok());
    assert_eq!(sender.settled(), Some(Settled { class: 0, message: 0, lost: Some(vec![(3, 5)]) }));
    assert_eq!(sender.send(0, Message::default()), Err(Refused::Length(0)));
    assert_eq!(sender.send(1, Message { bytes: vec![1], deadline: None }), Err(Refused::Class(1)));
}
