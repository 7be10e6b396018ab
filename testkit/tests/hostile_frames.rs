//! A peer that sends arbitrary frames, over loopback and over a stack: an endpoint neither panics nor writes outside the memory lent to it, and other peers go on.
//!
//! Features (docs/features.md): A3, B20.

use std::io::IoSlice;
use std::sync::Arc;

use madrigal::endpoint::{PeerId, Put, Receive, Region, Send};
use madrigal::{Endpoint, Worker};
use madrigal_base::node::{NodeAddress, NodeId};
use madrigal_message::worker::Options;
use madrigal_progress::message::{LinkError, LinkIndex, MessageDriver, Placement, Port, Sent, Sink};
use madrigal_sys::piece::Piece;
use madrigal_testkit::{place, stacked};
use proptest::prelude::*;

/// Guard bytes around every buffer.
const GUARD: usize = 64;

/// A buffer between guards.
struct Guarded(Box<[u8]>);

impl Guarded {
    fn new(len: usize) -> Self {
        let mut all = vec![0xA5; len + 2 * GUARD];
        all[GUARD..GUARD + len].fill(0);
        Self(all.into())
    }

    fn piece(&mut self) -> Piece {
        let len = self.0.len() - 2 * GUARD;
        // SAFETY: the buffer is kept to the end of the test, after every endpoint.
        #[allow(unsafe_code)]
        unsafe {
            Piece::lend(self.0.as_mut_ptr().wrapping_add(GUARD), len)
        }
    }

    fn is_intact(&self) -> bool {
        let end = self.0.len() - GUARD;
        self.0[..GUARD].iter().chain(&self.0[end..]).all(|byte| *byte == 0xA5)
    }
}

/// The hostile node: a bare port.
struct Hostile {
    port: Box<dyn Port>,
    recorder: Recorder,
}

/// It gives no place for bodies.
#[derive(Default)]
struct Recorder {
    up: Option<LinkIndex>,
    down: bool,
}

impl Sink for Recorder {
    fn up(&mut self, link: LinkIndex, _: NodeId) {
        self.up = Some(link);
    }

    fn down(&mut self, _: LinkIndex, _: LinkError) {
        self.down = true;
    }

    fn frame(&mut self, _: LinkIndex, _: &[u8], _: &[u8]) {}

    fn place(&mut self, _: LinkIndex, _: &[u8], _: usize, _: &mut Placement) {}

    fn arrived(&mut self, _: LinkIndex, _: &[u8]) {}
}

impl Hostile {
    fn open(driver: &dyn MessageDriver, to: &NodeAddress) -> Self {
        let id = NodeId::new(madrigal_sys::process::random()).expect("random");
        let mut port = driver.open(id, &place()).expect("opens");
        port.link(to).expect("links");
        Self { port, recorder: Recorder::default() }
    }

    /// Waits until it is linked with a worker.
    fn meet(&mut self, ours: &Worker) -> LinkIndex {
        loop {
            self.port.poll(&mut self.recorder);
            ours.progress();
            if let Some(link) = self.recorder.up.filter(|_| !ours.reached().is_empty()) {
                return link;
            }
        }
    }

    /// Sends a frame, whole unless we were cut off meanwhile.
    fn send(&mut self, ours: &Worker, head: &[u8], body: &[u8]) {
        let link = self.recorder.up.expect("is linked");
        let mut skip = 0;
        while let Ok(Sent::Part(taken)) = self.port.send(link, head, &[IoSlice::new(body)], skip) {
            skip += taken;
            self.port.poll(&mut self.recorder);
            ours.progress();
            if self.recorder.down {
                return;
            }
        }
    }
}

fn loopback() -> &'static dyn MessageDriver {
    madrigal::message_driver("loopback").expect("always there")
}

fn worker(driver: &dyn MessageDriver) -> Arc<Worker> {
    Worker::open(&Options { drivers: &[driver], place: place(), max_spin_ns: 0 }).expect("opens")
}

/// A head: mostly plausible, with small numbers, sometimes any bytes.
fn head() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        6 => 0..8u64,
        2 => 0..100_000u64,
        // The first operations of a worker have numbers like these.
        3 => (0..6u64, 1..4u64).prop_map(|(at, age)| age << 32 | at),
        1 => Just(u64::MAX),
        1 => any::<u64>(),
    ];
    let plausible = (1..=12u8, any::<u8>(), 0..3u16, 0..3u16, 0..0x1400u16, prop::collection::vec(word, 0..7));
    let plausible = plausible.prop_map(|(what, flags, to, from, extra, words)| {
        let mut head = vec![what, flags];
        head.extend([to, from, extra].into_iter().flat_map(u16::to_le_bytes));
        head.extend(words.into_iter().flat_map(u64::to_le_bytes));
        head
    });
    prop_oneof![20 => plausible, 1 => prop::collection::vec(any::<u8>(), 1..=64)]
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => prop::collection::vec(any::<u8>(), 0..40),
        1 => Just(Vec::new()),
        // Above what is short, so that it is placed.
        1 => (4_000..9_000usize).prop_map(|len| vec![7; len]),
        1 => Just(vec![7; (1 << 20) + 5]),
    ]
}

/// Operations to and from the hostile node, so that its frames have something to name.
fn provoke(endpoint: &Endpoint, hostile: PeerId, buffers: &mut [Guarded]) {
    let pieces: Vec<_> = buffers.iter_mut().map(Guarded::piece).collect();
    for (i, piece) in pieces.iter().enumerate() {
        let tag = [None, Some(i as u64 % 4)][i % 2];
        let parts = [*piece];
        let receive = Receive { from: None, tag, ignore: 0, parts: &parts, token: 1, multi: (i % 5 == 4).then_some(8) };
        let _ = endpoint.receive(&receive);
    }
    let big = pieces[pieces.len() - 1];
    for delivery in [false, true] {
        let send = Send { to: hostile, tag: Some(1), data: None, parts: &[big], token: 2, inject: false, delivery };
        let _ = endpoint.send(&send);
    }
    let _ = endpoint.put(&Put { to: hostile, key: 1, at: 0, parts: &[big], data: Some(1), token: 3, inject: false });
    let get = madrigal::endpoint::Get { from: hostile, key: 1, at: 0, parts: &[pieces[0]], token: 4 };
    let _ = endpoint.get(&get);
}

/// Sends frames to an endpoint over which operations are under way.
fn attack(driver: &dyn MessageDriver, frames: &[(Vec<u8>, Vec<u8>)]) {
    let mut buffers: Vec<_> = [8, 0, 100, 5_000, 300, 20_000, 9, 64_000].into_iter().map(Guarded::new).collect();
    let mut exposed = Guarded::new(10_000);
    {
        let (ours, other) = (worker(driver), worker(driver));
        let endpoint = ours.endpoint(ours.space()).expect("opens");
        let friend = other.endpoint(other.space()).expect("opens");
        let region = Region { key: 1, memory: exposed.piece(), origin: 0, read: true, write: true };
        endpoint.expose(region).expect("exposes");
        let mut hostile = Hostile::open(driver, &endpoint.address());
        hostile.meet(&ours);
        let id = ours.reached().first().expect("it has come").node;
        let peer = endpoint.peer(&NodeAddress::bare(id));
        provoke(&endpoint, peer, &mut buffers);
        for (head, body) in frames {
            hostile.send(&ours, head, body);
            ours.progress();
            endpoint.poll(&mut |_| {});
        }
        // Whatever it did, others are served.
        let mut room = Guarded::new(8);
        let parts = [room.piece()];
        let from = Some(endpoint.peer(&friend.address()));
        let receive = Receive { from, tag: Some(77), ignore: 0, parts: &parts, token: 9, multi: None };
        endpoint.receive(&receive).expect("receives");
        let to = friend.peer(&endpoint.address());
        let mut word = *b"friendly";
        // SAFETY: injected, so read during the call only.
        #[allow(unsafe_code)]
        let piece = unsafe { Piece::lend(word.as_mut_ptr(), 8) };
        let send = Send { to, tag: Some(77), data: None, parts: &[piece], token: 0, inject: true, delivery: false };
        friend.send(&send).expect("sends");
        let mut got = false;
        while !got {
            other.progress();
            endpoint.poll(&mut |done| got |= done.token == 9);
        }
        assert!(parts[0].bytes() == b"friendly" && room.is_intact());
    }
    assert!(exposed.is_intact() && buffers.iter().all(Guarded::is_intact));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn nothing_outside_what_was_lent_is_touched(frames in prop::collection::vec((head(), body()), 1..40)) {
        attack(loopback(), &frames);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, ..ProptestConfig::default() })]
    #[test]
    fn nor_over_a_stack(frames in prop::collection::vec((head(), body()), 1..40)) {
        attack(stacked::message_drivers()[0], &frames);
    }
}

/// A head of a frame from channel 0 to channel 0.
fn head_of(what: u8, flags: u8, extra: u16, words: &[u64]) -> Vec<u8> {
    let mut head = vec![what, flags, 0, 0, 0, 0];
    head.extend(extra.to_le_bytes());
    head.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    head
}

/// Sends the same frame until the worker will have no more of it; why.
fn flood(head: &[u8], body: &[u8], takes_answers: bool) -> String {
    const MOST: usize = 400_000;
    let ours = worker(loopback());
    let endpoint = ours.endpoint(ours.space()).expect("opens");
    let mut exposed = Guarded::new(4096);
    let region = Region { key: 1, memory: exposed.piece(), origin: 0, read: true, write: true };
    endpoint.expose(region).expect("exposes");
    let mut hostile = Hostile::open(loopback(), &endpoint.address());
    let link = hostile.meet(&ours);
    for _ in 0..MOST {
        if takes_answers {
            hostile.port.poll(&mut hostile.recorder);
        }
        let _ = hostile.port.send(link, head, &[IoSlice::new(body)], 0);
        ours.progress();
        let why = ours.reached().into_iter().find_map(|reached| Some((reached.node, reached.why?)));
        if let Some((node, why)) = why {
            let text = why.to_string();
            assert!(text.contains(&node.to_string()), "the peer is named: {text}");
            return text;
        }
    }
    panic!("{MOST} frames were taken")
}

#[test]
fn who_sends_without_end_is_cut_off() {
    // A message of 1,000 bytes; a rendezvous of 1 MiB in two pieces.
    let why = flood(&head_of(1, 1, 0, &[5]), &[7; 1000], true);
    assert!(why.contains("Eager"), "{why}");
    let pieces = [1u64, 1 << 19, 2, 1 << 19].map(u64::to_le_bytes).concat();
    let why = flood(&head_of(2, 1, 0, &[9, 1 << 20, 5]), &pieces, true);
    assert!(why.contains("Rendezvous"), "{why}");
}

#[test]
fn who_asks_without_end_and_takes_no_answers_is_cut_off() {
    // Reads of 4,096 numbers of a byte each, and of bytes.
    let read = head_of(8, 16, 10 << 8 | 1, &[1, 0, 4096, 77]);
    let why = flood(&read, &[], false);
    assert!(why.contains("takes no answers"), "{why}");
}
