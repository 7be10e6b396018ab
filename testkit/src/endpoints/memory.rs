//! Memory that peers reach.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use madrigal::endpoint::atomic::{AtomicOp, AtomicType};
use madrigal::endpoint::{Atomic, Get, Kind, PeerId, Posted, Put, Region, Status};
use madrigal_sys::piece::Piece;

use super::party::{Context, Lent, Party, copies, noise, wait_for};

fn region(key: u64, memory: Piece) -> Region {
    Region { key, memory, origin: 0, read: true, write: true }
}

fn put(party: &Party, to: PeerId, key: u64, at: u64, piece: Piece, data: Option<u64>) -> Posted {
    let put = Put { to, key, at, parts: &[piece], data, token: 1, inject: false };
    party.endpoint.put(&put).expect("puts")
}

fn put_wait(parties: &mut [Party], to: PeerId, key: u64, at: u64, piece: Piece) -> Status {
    match put(&parties[0], to, key, at, piece, None) {
        Posted::Done => Status::Ok,
        Posted::Pending => wait_for(parties, 0, Kind::Put, 1).status,
    }
}

fn get_wait(parties: &mut [Party], from: PeerId, key: u64, at: u64, piece: Piece) -> Status {
    match parties[0].endpoint.get(&Get { from, key, at, parts: &[piece], token: 2 }).expect("gets") {
        Posted::Done => Status::Ok,
        Posted::Pending => wait_for(parties, 0, Kind::Got, 2).status,
    }
}

pub(super) fn put_and_get(at: &Context) {
    let mut lent = Lent::default();
    let (mut parties, peers) = at.pair();
    let memory = lent.room(4 << 20);
    // Named by offsets, and by addresses.
    for (key, origin) in [(7, 0), (8, memory.at() as u64)] {
        parties[1].endpoint.expose(Region { origin, ..region(key, memory) }).expect("exposes");
        for (i, len) in [0, 1, 8, 2_048, 4_097, 100_000, 3 << 20].into_iter().enumerate() {
            let (bytes, place) = (noise(i as u64, len), 1_000 * i as u64);
            assert_eq!(put_wait(&mut parties, peers[0], key, origin + place, lent.bytes(&bytes)), Status::Ok);
            assert!(memory.part(place as usize, len).bytes() == bytes, "{len} bytes were put");
            let room = lent.room(len);
            assert_eq!(get_wait(&mut parties, peers[0], key, origin + place, room), Status::Ok);
            assert!(room.bytes() == bytes, "{len} bytes were got");
        }
    }
    // With a number the owner is notified; the bytes are there by then.
    for len in [8, 100_000] {
        let bytes = noise(99, len);
        if put(&parties[0], peers[0], 7, 5, lent.bytes(&bytes), Some(4711)) == Posted::Pending {
            wait_for(&mut parties, 0, Kind::Put, 1);
        }
        let told = wait_for(&mut parties, 1, Kind::RemotePut, 0);
        assert_eq!((told.data, told.len, told.from), (Some(4711), len, Some(peers[1])));
        assert!(memory.part(5, len).bytes() == bytes);
    }
    // An injected buffer is free at once.
    let mut bytes = *b"injected";
    // SAFETY: read during the call only.
    #[allow(unsafe_code)]
    let piece = unsafe { Piece::lend(bytes.as_mut_ptr(), 8) };
    let posted = parties[0].endpoint.put(&Put {
        to: peers[0],
        key: 7,
        at: 0,
        parts: &[piece],
        data: None,
        token: 1,
        inject: true,
    });
    bytes.fill(0);
    if posted == Ok(Posted::Pending) {
        assert_eq!(wait_for(&mut parties, 0, Kind::Put, 1).status, Status::Ok);
    }
    assert_eq!(memory.part(0, 8).bytes(), b"injected");
}

/// Threads that want all processors until they are dropped.
struct Busy(Arc<AtomicBool>, Vec<JoinHandle<()>>);

impl Busy {
    fn begin() -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let run = |over: Arc<AtomicBool>| {
            std::thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    core::hint::spin_loop();
                }
            })
        };
        let threads = (0..2 * processors + 1).map(|_| run(Arc::clone(&over))).collect();
        Self(over, threads)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        self.1.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Puts until one must have been done at once, where that can be.
const TRIES: usize = 1000;

pub(super) fn crowded(at: &Context) {
    let mut lent = Lent::default();
    let (mut parties, peers) = at.pair();
    let memory = lent.room(10_000);
    parties[1].endpoint.expose(region(1, memory)).expect("exposes");
    let whole = lent.bytes(&noise(1, 10_000));
    assert_eq!(put_wait(&mut parties, peers[0], 1, 0, whole), Status::Ok);
    if !copies(&parties[0]) {
        return;
    }
    // The first one asked where the region is; the answer may come when that one is done.
    let is_known = (0..TRIES).any(|_| {
        let posted = put(&parties[0], peers[0], 1, 0, whole, None);
        if posted == Posted::Pending {
            assert_eq!(wait_for(&mut parties, 0, Kind::Put, 1).status, Status::Ok);
        }
        posted == Posted::Done
    });
    assert!(is_known, "what can be copied is there without its owner");
    let busy = Busy::begin();
    let short = lent.bytes(b"short");
    // It takes a while until it is noticed that processors are scarce.
    loop {
        for _ in 0..64 {
            parties[0].endpoint.worker().idle();
        }
        if put(&parties[0], peers[0], 1, 7, short, None) == Posted::Done {
            break;
        }
        assert_eq!(wait_for(&mut parties, 0, Kind::Put, 1).status, Status::Ok);
        memory.part(7, 5).fill(b"empty");
    }
    drop(busy);
    assert_eq!(memory.part(7, 5).bytes(), b"short", "without a look of its owner");
}

pub(super) fn denied(at: &Context) {
    let mut lent = Lent::default();
    let (mut parties, peers) = at.pair();
    let (memory, secret) = (lent.room(1_000_000), lent.room(1_000_000));
    parties[1].endpoint.expose(Region { origin: 50, ..region(1, memory) }).expect("exposes");
    parties[1].endpoint.expose(Region { write: false, ..region(2, secret) }).expect("exposes");
    parties[1].endpoint.expose(Region { read: false, ..region(3, secret) }).expect("exposes");
    assert!(parties[1].endpoint.expose(region(3, secret)).is_err(), "the key is taken");
    for len in [8usize, 10_000, 600_000] {
        let (bytes, room) = (lent.bytes(&vec![1; len]), lent.room(len));
        let end = 1_000_050 - len as u64;
        // Twice each: the first time nothing is known of the region.
        for _ in 0..2 {
            for (key, place) in [(1, 49), (1, end + 1), (1, u64::MAX), (1, u64::MAX - len as u64), (2, 0), (9, 0)] {
                assert_eq!(put_wait(&mut parties, peers[0], key, place, bytes), Status::Denied, "{key} {place} {len}");
            }
            for (key, place) in [(1, 49), (1, end + 1), (1, u64::MAX), (3, 0), (9, 0)] {
                assert_eq!(get_wait(&mut parties, peers[0], key, place, room), Status::Denied, "{key} {place} {len}");
            }
        }
        assert!(memory.bytes().iter().chain(secret.bytes()).chain(room.bytes()).all(|b| *b == 0xEE));
        assert_eq!(put_wait(&mut parties, peers[0], 1, end, lent.bytes(&vec![0xEE; len])), Status::Ok);
    }
}

pub(super) fn withdrawn(at: &Context) {
    let mut lent = Lent::default();
    let (mut parties, peers) = at.pair();
    let (one, two) = (lent.room(500_000), lent.room(500_000));
    for memory in [one, two] {
        parties[1].endpoint.expose(region(1, memory)).expect("exposes");
        for _ in 0..3 {
            assert_eq!(put_wait(&mut parties, peers[0], 1, 0, lent.bytes(&noise(1, 100_000))), Status::Ok);
        }
        assert!(memory.part(0, 100_000).bytes() == noise(1, 100_000));
        parties[1].endpoint.withdraw(1).expect("nothing arrives");
        // The withdrawal travels as a frame, of which a port may take a byte at a time.
        for _ in 0..200 {
            parties.iter_mut().for_each(Party::poll);
        }
        // SAFETY: the region is withdrawn, so no peer uses the memory.
        memory.fill(&vec![0x55; 500_000]);
        for _ in 0..3 {
            assert_eq!(put_wait(&mut parties, peers[0], 1, 0, lent.bytes(&noise(1, 100_000))), Status::Denied);
        }
        assert!(memory.bytes().iter().all(|b| *b == 0x55));
    }
}

pub(super) fn atomics(at: &Context) {
    let mut lent = Lent::default();
    let (mut parties, peers) = at.pair();
    let memory = lent.bytes(&[0; 8_192]);
    parties[1].endpoint.expose(region(1, memory)).expect("exposes");
    let number = |piece: Piece| u64::from_ne_bytes(*piece.bytes().first_chunk().expect("eight"));
    let ask = |parties: &mut [Party], op, operand: &[Piece], compare: &[Piece], result: &[Piece], count| {
        let atomic =
            Atomic { to: peers[0], key: 1, at: 0, op, of: AtomicType::U64, count, operand, compare, result, token: 3 };
        assert_eq!(parties[0].endpoint.atomic(&atomic), Ok(Posted::Pending));
        wait_for(parties, 0, Kind::Atomic, 3).status
    };
    let (five, nine, old) = (lent.bytes(&5u64.to_ne_bytes()), lent.bytes(&9u64.to_ne_bytes()), lent.room(8));
    assert_eq!(ask(&mut parties, AtomicOp::Sum, &[five], &[], &[], 1), Status::Ok);
    assert_eq!(ask(&mut parties, AtomicOp::Sum, &[five], &[], &[old], 1), Status::Ok);
    assert_eq!((number(old), number(memory)), (5, 10));
    assert_eq!(ask(&mut parties, AtomicOp::SwapIfEqual, &[nine], &[five], &[old], 1), Status::Ok);
    assert_eq!((number(old), number(memory)), (10, 10));
    assert_eq!(ask(&mut parties, AtomicOp::Read, &[], &[], &[old], 1), Status::Ok);
    assert_eq!(number(old), 10);
    // As many as there may be, more than fits a short frame.
    let (ones, before) = (lent.bytes(&vec![1; 4_096]), lent.room(4_096));
    assert_eq!(ask(&mut parties, AtomicOp::SwapMasked, &[ones], &[ones], &[before], 512), Status::Ok);
    assert!(number(before) == 10 && memory.bytes()[8..4_096].iter().all(|b| *b == 1) && memory.bytes()[4_096] == 0);
    let out = Atomic {
        to: peers[0],
        key: 1,
        at: 8_190,
        op: AtomicOp::Sum,
        of: AtomicType::U64,
        count: 1,
        operand: &[five],
        compare: &[],
        result: &[],
        token: 3,
    };
    assert_eq!(parties[0].endpoint.atomic(&out), Ok(Posted::Pending));
    assert_eq!(wait_for(&mut parties, 0, Kind::Atomic, 3).status, Status::Denied);
}
