//! Several workers in one process, and the completions of their endpoints.

use std::sync::Arc;

use madrigal::endpoint::{Completion, Kind, PeerId, Posted, Receive, Send};
use madrigal::{Endpoint, Worker};
use madrigal_message::worker::Options;
use madrigal_progress::message::MessageDriver;
use madrigal_sys::piece::Piece;

use crate::noise::Noise;
use crate::place;

/// What a case gets: a driver that joins workers of this process.
pub struct Context {
    pub(super) drivers: Vec<&'static dyn MessageDriver>,
}

/// Makes the context for a driver.
pub fn context(driver: &'static dyn MessageDriver) -> Context {
    Context { drivers: vec![driver] }
}

/// An endpoint with its completions.
pub(super) struct Party {
    pub(super) endpoint: Endpoint,
    pub(super) done: Vec<Completion>,
}

/// Memory that operations use: it stays where it is until the test is over. Made before the parties, so that it goes after them: a send may
/// be under way when all that is looked at was received.
#[derive(Default)]
pub(super) struct Lent(Vec<Box<[u8]>>);

impl Lent {
    /// Lends a copy of bytes.
    pub(super) fn bytes(&mut self, bytes: &[u8]) -> Piece {
        self.0.push(bytes.into());
        let memory = self.0.last_mut().expect("just pushed");
        // SAFETY: the box stays, and is only looked at after the operation is over.
        #[allow(unsafe_code)]
        unsafe {
            Piece::lend(memory.as_mut_ptr(), memory.len())
        }
    }

    pub(super) fn room(&mut self, len: usize) -> Piece {
        self.bytes(&vec![0xEE; len])
    }
}

impl Context {
    pub(super) fn worker(&self) -> Arc<Worker> {
        Worker::open(&Options { drivers: &self.drivers, place: place(), max_spin_ns: 50_000 }).expect("opens")
    }

    pub(super) fn party(&self) -> Party {
        let worker = self.worker();
        let endpoint = worker.endpoint(worker.space()).expect("a channel");
        Party { endpoint, done: Vec::new() }
    }

    /// Two parties, and what each is to the other.
    pub(super) fn pair(&self) -> ([Party; 2], [PeerId; 2]) {
        let parties = [self.party(), self.party()];
        let peers = [parties[0].peer(&parties[1]), parties[1].peer(&parties[0])];
        (parties, peers)
    }
}

impl Party {
    pub(super) fn peer(&self, other: &Self) -> PeerId {
        self.endpoint.peer(&other.endpoint.address())
    }

    pub(super) fn poll(&mut self) {
        let done = &mut self.done;
        self.endpoint.poll(&mut |completion| done.push(completion));
    }

    pub(super) fn send(&self, to: PeerId, tag: u64, piece: Piece, token: u64) -> Posted {
        let send = Send { to, tag: Some(tag), data: None, parts: &[piece], token, inject: false, delivery: false };
        self.endpoint.send(&send).expect("sends")
    }

    pub(super) fn receive(&self, from: Option<PeerId>, tag: u64, piece: Piece, token: u64) {
        self.endpoint.receive(&receive(from, tag, &[piece], token)).expect("receives");
    }

    /// The completion of that token, taken out.
    pub(super) fn take(&mut self, kind: Kind, token: u64) -> Option<Completion> {
        let at = self.done.iter().position(|done| (done.kind, done.token) == (kind, token))?;
        Some(self.done.remove(at))
    }
}

pub(super) fn receive<'a>(from: Option<PeerId>, tag: u64, parts: &'a [Piece], token: u64) -> Receive<'a> {
    Receive { from, tag: Some(tag), ignore: 0, parts, token, multi: None }
}

/// Polls all parties until one has what it waits for.
pub(super) fn wait_for(parties: &mut [Party], by: usize, kind: Kind, token: u64) -> Completion {
    loop {
        if let Some(done) = parties[by].take(kind, token) {
            return done;
        }
        for party in &mut *parties {
            party.poll();
        }
    }
}

/// Polls everybody until something holds.
pub(super) fn until(parties: &mut [Party], mut holds: impl FnMut(&mut [Party]) -> bool) {
    while !holds(parties) {
        for party in &mut *parties {
            party.poll();
        }
    }
}

pub(super) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut noise = Noise::new(seed);
    (0..len).map(|_| noise.next_u64() as u8).collect()
}

/// Whether a party reaches its peer by shared memory, and copies straight out of and into the peer's.
pub(super) fn copies(party: &Party) -> bool {
    let is_so = |(driver, path): (&str, String)| driver == "shm" && path.contains("single copy");
    party.endpoint.worker().reached().into_iter().any(|reached| reached.path.is_some_and(is_so))
}
