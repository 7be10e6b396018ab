//! A connection whose peer writes anything anywhere: into every word of the slot and of the arena's header, and onto the socket.
//! Nothing panics, nothing outside the mapping is touched (it would fault), and what is no hello is refused.

use core::sync::atomic::{AtomicU64, Ordering};
use madrigal_sys::fd::Fd;
use std::io::IoSlice;
use std::os::fd::AsFd;
use std::sync::Arc;

use madrigal_base::locator::Locator;
use madrigal_progress::driver::{ByteRx, ByteTx, Ends, Read, Signal, Wrote};
use madrigal_sys::Errno;
use madrigal_sys::mem::SharedMap;
use proptest::prelude::*;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socketpair};

use super::ends::ends;
use super::hello::{self, Hello, Received};
use super::link::Side;
use super::shared::Shared;
use madrigal_shm_ring::arena::{ARENA_BYTES, Arena};
use madrigal_shm_ring::layout::SLOT_BYTES;

/// Where slots begin.
const HEADER: usize = 64 << 10;
const WORD: usize = size_of::<AtomicU64>();

fn sockets() -> (Fd, Fd) {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (near, far) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    (near.into(), far.into())
}

/// Our side of a connection, and all the peer has: the memory and the other socket.
struct Attacked {
    rx: Box<dyn ByteRx>,
    tx: Box<dyn ByteTx>,
    side: Arc<Side>,
    memory: SharedMap,
    slot: usize,
    socket: Option<Fd>,
}

impl Attacked {
    fn new(side: usize) -> Self {
        let shared = Arc::new(Shared::create().unwrap());
        let memory = SharedMap::map(shared.fd.as_ref().unwrap(), ARENA_BYTES, true).unwrap();
        let slot = shared.take_slot().unwrap();
        let (ours, theirs) = sockets();
        let peer = Locator::name("shm", "attacker").unwrap();
        let side = Arc::new(Side::new(shared, slot, side, ours, peer).unwrap());
        let Ends::Bytes(rx, tx) = ends(&side) else { panic!("not a stream") };
        Self { rx, tx, side, memory, slot: HEADER + slot as usize * SLOT_BYTES, socket: Some(theirs) }
    }

    fn scribble(&self, place: usize, value: u64) {
        // Words of the slot mostly, some of the header: its first line and the map of lent blocks.
        let words = SLOT_BYTES / WORD;
        let offset = if place < words { self.slot + place * WORD } else { (place - words) * WORD };
        // SAFETY: an atomic word; the map lives as long as we do.
        let word = unsafe { self.memory.shared::<AtomicU64>(offset) };
        word.unwrap().store(value, Ordering::SeqCst);
    }

    fn call(&mut self, call: u8, len: usize) {
        let mut buf = vec![9; len];
        match call {
            0..=2 => {
                if let Ok(Read::Bytes(n)) = self.rx.read(&mut buf) {
                    assert!(n <= len);
                }
            }
            3..=5 => {
                let (a, b) = buf.split_at(len / 3);
                let parts = [IoSlice::new(a), IoSlice::new(b)];
                let parts = if call == 3 { &parts[..1] } else { &parts[..] };
                if let Ok(Wrote::Bytes(n)) = self.tx.write(parts) {
                    assert!(n <= len);
                }
            }
            6 => _ = (self.rx.arm(), self.rx.patience_ns(), self.tx.arm(), self.side.woken()),
            7 => {
                if let Some(socket) = &self.socket {
                    // Full is as good.
                    let _ = rustix::net::send(socket, &buf[..len.min(100)], SendFlags::NOSIGNAL);
                }
            }
            _ => self.socket = None,
        }
    }
}

fn garbage() -> impl Strategy<Value = u64> {
    let block = |kib: u64, log: u64| kib << 8 | log;
    prop_oneof![
        2 => any::<u64>(),
        2 => 0..4u64,
        2 => 0..1u64 << 21,
        1 => (0..64u64).prop_map(|shift| 1 << shift),
        1 => (0..5000u64).prop_map(|less| u64::MAX - less),
        2 => (0..2 * (ARENA_BYTES as u64 >> 10), 0..70u64).prop_map(move |(kib, log)| block(kib, log)),
        // A message of the express line: a length, and a place near the beginning of the ring.
        2 => (0..100u64, 0..256u64).prop_map(|(at, len)| at << 8 | len),
    ]
}

fn places() -> impl Strategy<Value = usize> {
    let slot = SLOT_BYTES / WORD;
    // The lines of the slot; the rings and what is between; the header.
    prop_oneof![12 => 0..12 * 64 / WORD, 1 => 0..slot, 1 => slot..slot + 60]
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { failure_persistence: None, cases, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config(1_000))]

    #[test]
    fn a_peer_that_writes_anything_anywhere_does_no_harm(
        side in 0..2usize,
        steps in prop::collection::vec((places(), garbage(), 0..9u8, 0..200_000usize), 1..30),
    ) {
        let mut attacked = Attacked::new(side);
        for (place, value, call, len) in steps {
            attacked.scribble(place, value);
            // Lengths of all magnitudes.
            attacked.call(call, len >> (value % 18));
        }
    }

    #[test]
    fn no_bytes_are_mistaken_for_a_hello(bytes in prop::collection::vec(any::<u8>(), 1..60)) {
        let (near, far) = sockets();
        rustix::net::send(&near, &bytes, SendFlags::NOSIGNAL).unwrap();
        prop_assert!(matches!(hello::receive(&far), Received::Bad));
    }

    #[test]
    fn a_hello_is_heard_as_it_was_said(arena: u64, slot: u32) {
        let (near, far) = sockets();
        prop_assert!(matches!(hello::receive(&far), Received::NotYet));
        let sent = Hello { arena, slot };
        hello::send(&near, sent, &near).unwrap();
        let Received::Whole(received, _fd) = hello::receive(&far) else { panic!("not heard") };
        prop_assert_eq!(received, sent);
    }
}

#[test]
fn an_arena_that_could_be_cut_short_is_refused() {
    let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
    let unsealed = Fd::from(rustix::fs::memfd_create("madrigal-arena", flags).unwrap());
    let refused = |fd: &Fd| Arena::attach(fd.as_fd(), 1).err();
    assert_eq!(refused(&unsealed), Some(Errno::INVAL), "empty: the first look would fault");
    rustix::fs::ftruncate(&unsealed, ARENA_BYTES as u64).unwrap();
    assert_eq!(refused(&unsealed), Some(Errno::INVAL), "its owner may still shrink it");
    let (socket, _) = sockets();
    assert!(refused(&socket).is_some(), "no file at all");
}
