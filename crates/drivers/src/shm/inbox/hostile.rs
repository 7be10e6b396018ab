//! A linked peer that writes anything anywhere: into every word it shares with us, and onto its socket. Nothing panics, nothing outside is
//! touched, reported lengths fit, and other links go on.

use core::sync::atomic::{AtomicU64, Ordering};
use std::io::IoSlice;
use std::os::fd::AsFd;

use madrigal_base::node::{NodeAddress, NodeId};
use madrigal_progress::driver::Place;
use madrigal_progress::message::{LinkError, LinkIndex, MAX_HEAD, MessageDriver, Placement, Port, Sent, Sink};
use madrigal_sys::fd::Fd;
use madrigal_sys::mem::{self, SharedMap};
use madrigal_sys::piece::Piece;
use madrigal_sys::process;
use proptest::prelude::*;
use rustix::net::SendFlags;

use super::greet::{self, DIALER, Greeting};
use super::layout::{PAGE_BYTES, PAIR_BYTES, Word, cells_at};
use super::{ShmMessages, name};

const WORD: usize = size_of::<AtomicU64>();

fn random_node() -> NodeId {
    NodeId::new(process::random() | 1).unwrap()
}

/// Takes what the port reports, and checks what any layer above may rely on.
#[derive(Default)]
struct Wary {
    up: Vec<(LinkIndex, NodeId)>,
    down: Vec<(LinkIndex, LinkError)>,
    placed: Option<Vec<u8>>,
    frames: usize,
}

impl Sink for Wary {
    fn up(&mut self, link: LinkIndex, node: NodeId) {
        self.up.push((link, node));
    }

    fn down(&mut self, link: LinkIndex, why: LinkError) {
        self.placed = None;
        assert!(self.down.iter().all(|(down, _)| *down != link), "told once");
        self.down.push((link, why));
    }

    fn frame(&mut self, _: LinkIndex, head: &[u8], body: &[u8]) {
        assert!(head.len() <= MAX_HEAD && body.len() <= 8 << 10);
        self.frames += 1;
    }

    fn place(&mut self, _: LinkIndex, head: &[u8], len: usize, placement: &mut Placement) {
        assert!(head.len() <= MAX_HEAD && placement.is_empty() && self.placed.is_none());
        let memory = self.placed.insert(vec![0; len.min(20_000)]);
        // SAFETY: kept until `arrived` or `down`.
        placement.push(unsafe { Piece::lend(memory.as_mut_ptr(), memory.len()) });
    }

    fn arrived(&mut self, _: LinkIndex, head: &[u8]) {
        assert!(head.len() <= MAX_HEAD && self.placed.take().is_some());
        self.frames += 1;
    }
}

/// Our port, and all its peer has: the memory and the socket.
struct Attacked {
    port: Box<dyn Port>,
    sink: Wary,
    link: LinkIndex,
    pair: SharedMap,
    page: SharedMap,
    socket: Option<Fd>,
}

impl Attacked {
    fn new() -> Self {
        let (me, attacker) = (random_node(), random_node());
        let mut port = ShmMessages.open(me, &Place::default()).unwrap();
        let pair_fd = mem::sealed_memfd(c"madrigal-pair", PAIR_BYTES).unwrap();
        let page_fd = mem::sealed_memfd(c"madrigal-notify", PAGE_BYTES).unwrap();
        let socket = name::connect(me).unwrap();
        let greeting = Greeting { from: attacker, to: me, slot: 3, nonce_at: 16, nonce: [1, 2] };
        greet::send(&socket, greeting, &[pair_fd.as_fd(), page_fd.as_fd()]).unwrap();
        let mut sink = Wary::default();
        while sink.up.is_empty() {
            port.poll(&mut sink);
        }
        let (pair, page) = (map(&pair_fd, PAIR_BYTES), map(&page_fd, PAGE_BYTES));
        Self { port, link: sink.up[0].0, sink, pair, page, socket: Some(socket) }
    }

    fn scribble(&self, place: usize, value: u64) {
        // The lines, the cells we read, and the attacker's own notification page.
        let (map, offset) = match place {
            0..100 => (&self.pair, place * WORD),
            100..1_000 => (&self.pair, cells_at(0) + (place - 100) * WORD),
            _ => (&self.page, (place - 1_000) * WORD),
        };
        // SAFETY: an atomic word; the map lives as long as we do.
        unsafe { map.shared::<AtomicU64>(offset) }.unwrap().store(value, Ordering::SeqCst);
    }

    fn call(&mut self, call: u8, len: usize) {
        match call {
            0..=4 => _ = self.port.poll(&mut self.sink),
            5..=7 => {
                let body = vec![9; len];
                let (head, pieces) = ([1; 30], [IoSlice::new(&body[..len / 3]), IoSlice::new(&body[len / 3..])]);
                let mut skip = 0;
                while let Ok(Sent::Part(n @ 1..)) = self.port.send(self.link, &head, &pieces, skip) {
                    skip += n;
                    assert!(skip < 30 + len);
                }
            }
            8 => {
                let _ = (self.port.arm(), self.port.woken(), self.port.peer(self.link), self.port.deadline());
            }
            9 => {
                if let Some(socket) = &self.socket {
                    // Full is as good.
                    let _ = rustix::net::send(socket, &[7; 100], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
                }
            }
            _ => self.socket = None,
        }
    }
}

fn map(fd: impl AsFd, len: usize) -> SharedMap {
    let map = SharedMap::map(fd, len, true).unwrap();
    map.reserve(0, len.min(64 << 10)).unwrap();
    map
}

fn garbage() -> impl Strategy<Value = u64> {
    // A frame we expect now or soon, of any kind and length.
    let frame = |(number, direction, rest): (u64, u64, u64)| (number << 1 | direction) << 20 | rest;
    let whole = |(number, kind, head, len): (u64, u64, u64, u64)| number << 21 | len << 11 | head << 4 | kind;
    prop_oneof![
        2 => any::<u64>(),
        2 => 0..5u64,
        2 => 0..1u64 << 21,
        1 => (0..5000u64).prop_map(|less| u64::MAX - less),
        1 => (1..4u64, 0..9000u64).prop_map(|(class, at)| class << 56 | at),
        4 => (1..4u64, 0..2u64, 0..1u64 << 20).prop_map(frame),
        6 => (1..4u64, 0..6u64, 0..70u64, 0..100u64).prop_map(whole),
        3 => (1..4u64, 2..5u64, Just(0u64), prop_oneof![Just(8u64), Just(16)]).prop_map(whole),
    ]
}

fn places() -> impl Strategy<Value = usize> {
    // The common line, the lines, the first cells, other cells, the notification page.
    prop_oneof![4 => 0..8usize, 4 => 0..100usize, 8 => 100..132usize, 1 => 100..1_000usize, 1 => 1_000..1_400usize]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn a_peer_that_writes_anything_anywhere_does_no_harm(
        steps in prop::collection::vec((places(), garbage(), 0..11u8, 0..200_000usize), 1..40),
    ) {
        let mut attacked = Attacked::new();
        for (place, value, call, len) in steps {
            attacked.scribble(place, value);
            // Lengths of all magnitudes; the socket is closed seldom.
            attacked.call(if call == 10 && len % 8 != 0 { 0 } else { call }, len >> (value % 18));
        }
    }
}

#[test]
fn a_corrupt_link_goes_down_and_others_stay() {
    let mut attacked = Attacked::new();
    let other = random_node();
    let mut peer = ShmMessages.open(other, &Place::default()).unwrap();
    let mut theirs = Wary::default();
    let address = NodeAddress::bare(other);
    let link = attacked.port.link(&address).unwrap();
    while !(attacked.sink.up.contains(&(link, other)) && theirs.up.len() == 1) {
        attacked.port.poll(&mut attacked.sink);
        peer.poll(&mut theirs);
    }
    // A frame of a kind there is not, in the first cell and in the common line.
    attacked.scribble(100, Word::read(1 << 21 | 15).bits());
    while attacked.sink.down.is_empty() {
        attacked.port.poll(&mut attacked.sink);
    }
    assert!(matches!(attacked.sink.down[..], [(down, LinkError::Corrupt { .. })] if down == attacked.link));
    assert!(attacked.port.send(attacked.link, b"head", &[], 0).is_err());
    assert_eq!(attacked.port.send(link, b"head", &[IoSlice::new(b"body")], 0), Ok(Sent::All));
    while theirs.frames == 0 {
        peer.poll(&mut theirs);
    }
}

#[test]
fn who_is_not_meant_is_not_answered() {
    let me = random_node();
    let mut port = ShmMessages.open(me, &Place::default()).unwrap();
    let fd = mem::sealed_memfd(c"madrigal-pair", PAIR_BYTES).unwrap();
    let small = mem::sealed_memfd(c"madrigal-pair", 4096 * 2).unwrap();
    let good = Greeting { from: random_node(), to: me, slot: 0, nonce_at: 0, nonce: [0; 2] };
    let page = mem::sealed_memfd(c"madrigal-notify", PAGE_BYTES).unwrap();
    let cases = [
        (Greeting { to: random_node(), ..good }, fd.as_fd(), page.as_fd()),
        (Greeting { from: me, ..good }, fd.as_fd(), page.as_fd()),
        (good, small.as_fd(), page.as_fd()),
        (good, fd.as_fd(), small.as_fd()),
    ];
    let mut sink = Wary::default();
    for (greeting, pair, page) in cases {
        let socket = name::connect(me).unwrap();
        greet::send(&socket, greeting, &[pair, page]).unwrap();
        while !matches!(greet::receive(&socket, DIALER), greet::Received::End) {
            port.poll(&mut sink);
        }
    }
    assert!(sink.up.is_empty());
}
