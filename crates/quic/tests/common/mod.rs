//! Two ends with a line between them, in a time of their own.

mod cubic;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::PathBuf;

use madrigal_adapters::vrp::Class;
use madrigal_identity::{Authority, Credentials, DAY, Name, Validity};
use madrigal_quic::{Admission, Event, Key, Messages, QuicEndpoint};
use madrigal_seeds::Random;

use cubic::Cubic;

const MS: u64 = 1_000_000;
const STEP: u64 = MS / 5;
/// What UDP and IP add to a datagram.
const HEADERS: u64 = 28;

/// How a line is, both ways.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    pub(crate) mbit: u64,
    /// Nanoseconds one way.
    pub(crate) delay: u64,
    /// Bytes that wait for the line; what comes when there are as many is lost.
    pub(crate) queue: u64,
    /// Lost of a thousand datagrams.
    pub(crate) loss: u64,
}

/// One way of it.
#[derive(Default)]
struct Way {
    /// When the line is free again.
    free: u64,
    flight: VecDeque<(u64, Vec<u8>)>,
    /// Bytes of datagrams that came out.
    carried: u64,
}

impl Way {
    /// A packet of so many bytes takes the line: when it comes out, if it does.
    fn pass(&mut self, now: u64, line: &Line, random: &mut Random, bytes: u64) -> Option<u64> {
        let time_of = |bytes: u64| bytes * 8 * 1000 / line.mbit;
        let begin = self.free.max(now);
        if begin - now > time_of(line.queue) {
            return None;
        }
        self.free = begin + time_of(bytes);
        (random.below(1000) >= line.loss).then_some(self.free + line.delay)
    }

    fn carry(&mut self, now: u64, line: &Line, random: &mut Random, datagram: &[u8]) {
        let out = self.pass(now, line, random, datagram.len() as u64 + HEADERS);
        self.flight.extend(out.map(|at| (at, datagram.to_vec())));
    }

    fn due(&mut self, now: u64) -> Option<Vec<u8>> {
        let datagram = self.flight.pop_front_if(|(at, _)| *at <= now)?.1;
        self.carried += datagram.len() as u64;
        Some(datagram)
    }
}

pub(crate) struct End {
    endpoint: QuicEndpoint,
    key: Option<Key>,
    pub(crate) messages: Messages,
    address: SocketAddr,
    /// The other end has said where it sees this one.
    pub(crate) seen: bool,
}

pub(crate) struct Pair {
    line: Line,
    random: Random,
    pub(crate) now: u64,
    pub(crate) ends: [End; 2],
    ways: [Way; 2],
    /// TCP beside it, to the second end.
    beside: Option<Cubic>,
    folder: PathBuf,
}

impl Drop for Pair {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Pair {
    /// Two hosts of a grid, of which the first one dials the second.
    pub(crate) fn new(name: &str, classes: &[Class], line: Line) -> Self {
        let folder = std::env::temp_dir().join(format!("madrigal-quic-{}-{name}", std::process::id()));
        let of = |text: &str| Name::parse(text).unwrap();
        let ca = Authority::create(&folder, &of("lyon"), Validity::seconds(DAY), true).unwrap();
        let end = |host: &str, port: u16, messages| {
            let own = folder.join(host);
            ca.issue_host(&of(host), Validity::seconds(DAY)).unwrap().install(&own, true).unwrap();
            let credentials = Credentials::load(&own).unwrap();
            let endpoint = QuicEndpoint::new(credentials.client(), credentials.server()).unwrap();
            End { endpoint, key: None, messages, address: SocketAddr::from(([127, 0, 0, 1], port)), seen: false }
        };
        let ends = [end("a1", 1, Messages::dial(classes, 0, 4 << 20)), end("b1", 2, Messages::accept(0, 4 << 20))];
        let mut pair =
            Self { line, random: Random::new(7), now: 0, ends, ways: Default::default(), beside: None, folder };
        let to = pair.ends[1].address;
        pair.ends[0].endpoint.connect(0, to).unwrap();
        while pair.ends.iter().any(|end| end.key.is_none() || !end.messages.is_ready()) {
            assert!(pair.now < 20_000 * MS, "no connection");
            pair.step();
        }
        pair
    }

    /// Bytes of datagrams that the line carried to the second end.
    pub(crate) fn carried(&self) -> u64 {
        self.ways[0].carried
    }

    /// From now on a flow of TCP shares the line.
    pub(crate) fn share(&mut self) {
        self.beside = Some(Cubic::new(self.now));
    }

    /// Bytes that the line carried of it.
    pub(crate) fn carried_beside(&self) -> u64 {
        self.beside.as_ref().map_or(0, |beside| beside.delivered * cubic::PACKET)
    }

    /// Somebody tells the first end that nobody is at the other one's address.
    pub(crate) fn doubt(&mut self) {
        let (now, at) = (self.now, self.ends[1].address);
        self.ends[0].endpoint.doubt(now, at);
    }

    /// A moment passes.
    pub(crate) fn step(&mut self) {
        self.now += STEP;
        let now = self.now;
        if let Some(beside) = &mut self.beside {
            let back = self.line.delay;
            beside.step(now, || Some(self.ways[0].pass(now, &self.line, &mut self.random, cubic::PACKET)? + back));
        }
        for n in 0..2 {
            let from = self.ends[1 - n].address;
            while let Some(datagram) = self.ways[1 - n].due(now) {
                self.ends[n].endpoint.receive(now, (from, None), &datagram, |_| Admission::Take);
            }
            let end = &mut self.ends[n];
            if end.endpoint.deadline() <= now {
                end.endpoint.handle_time(now);
            }
            while let Some(event) = end.endpoint.event() {
                match event {
                    Event::Connected { key, dialled, chain } => {
                        assert!(dialled == (n == 0) && !chain.is_empty());
                        end.key = Some(key);
                    }
                    Event::Seen { at, .. } => {
                        assert_eq!(at, end.address);
                        end.seen = true;
                    }
                    Event::Closed { why, .. } => panic!("closed: {why}"),
                }
            }
            // What is taken makes room for more, until there is none.
            loop {
                if let Some(connection) = end.key.and_then(|key| end.endpoint.connection(key)) {
                    end.messages.pump(now, connection).expect("an honest peer");
                }
                let mut bytes = Vec::new();
                let Some(outgoing) = end.endpoint.transmit(now, &mut bytes) else { break };
                assert_eq!(outgoing.to, from);
                for datagram in bytes.chunks(outgoing.segment.unwrap_or(bytes.len())) {
                    self.ways[n].carry(now, &self.line, &mut self.random, datagram);
                }
            }
        }
    }
}
