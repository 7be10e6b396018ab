//! The promises of `Circuit`, over any driver of messages: groups of nodes in one process, each on a thread of its own.
//!
//! Features (docs/features.md): A4, B4, B5, B6.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use madrigal::circuit::{BULK, CircuitError, Group, Packed, Packs, Unpacks};
use madrigal::endpoint::Send;
use madrigal::{Circuit, Endpoint, Worker};
use madrigal_message::worker::Options;
use madrigal_progress::message::MessageDriver;
use madrigal_sys::piece::Piece;

use crate::noise::Noise;
use crate::{Case, place};

/// What a case gets: a driver that joins workers of this process.
pub struct Context {
    drivers: Vec<&'static dyn MessageDriver>,
}

/// Makes the context for a driver.
pub fn context(driver: &'static dyn MessageDriver) -> Context {
    Context { drivers: vec![driver] }
}

/// The suite.
pub static CASES: &[Case<Context>] = &[
    Case { name: "every_pair_of_modes_keeps_its_promise", run: matrix },
    Case { name: "any_node_to_any_other", run: any_to_any },
    Case { name: "express_pieces_say_what_follows", run: express },
    Case { name: "sides_that_disagree_are_told", run: disagree },
    Case { name: "a_node_that_leaves_is_told", run: leaves },
    Case { name: "messages_of_non_members_are_passed_over", run: non_members },
    Case { name: "who_outruns_a_receiver_waits_for_it", run: outruns },
    Case { name: "a_group_of_threads_speaks_with_a_circuit", run: group_and_circuit },
];

impl Context {
    fn worker(&self) -> Arc<Worker> {
        Worker::open(&Options { drivers: &self.drivers, place: place(), max_spin_ns: 50_000 }).expect("opens")
    }

    /// A group, each node with its own worker.
    fn group(&self, size: usize) -> Vec<Circuit> {
        let endpoints: Vec<_> = (0..size).map(|_| Circuit::endpoint(&self.worker()).expect("opens")).collect();
        let group: Vec<_> = endpoints.iter().map(Endpoint::address).collect();
        endpoints.into_iter().map(|endpoint| Circuit::join(endpoint, &group).expect("is in it")).collect()
    }

    fn pair(&self) -> (Circuit, Circuit) {
        let mut group = self.group(2);
        let two = group.pop().expect("two");
        (group.pop().expect("two"), two)
    }
}

/// What a sender may promise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sends {
    Safer,
    Later,
    Cheaper,
}

/// A piece as both sides know it.
#[derive(Clone, Copy, Debug)]
struct Plan {
    seed: u64,
    len: usize,
    sends: Sends,
    receives: Unpacks,
}

impl Plan {
    fn bytes(self) -> Vec<u8> {
        let mut noise = Noise::new(self.seed);
        (0..self.len).map(|_| noise.next_u64() as u8).collect()
    }
}

/// The pieces of a message: every mode, lengths on both sides of every limit, from none to more than one call takes.
fn plan(noise: &mut Noise, number: u64) -> Vec<Plan> {
    let count = [0, 1, 1, 2, 3, 5, 15, 16, 17, 40][noise.below(10)];
    let piece = |i: usize, noise: &mut Noise| Plan {
        seed: number << 16 | i as u64,
        len: [0, 1, 8, 100, BULK - 1, BULK, BULK + 1, 30_000, 200_000][noise.below(if count > 10 { 6 } else { 9 })],
        sends: [Sends::Safer, Sends::Later, Sends::Cheaper][noise.below(3)],
        receives: [Unpacks::Express, Unpacks::Cheaper][noise.below(2)],
    };
    (0..count).map(|i| piece(i, noise)).collect()
}

/// Sends a message, changing buffers as far as the modes allow.
fn send(circuit: &mut Circuit, to: usize, plan: &[Plan]) -> Result<(), CircuitError> {
    let mut buffers: Vec<_> = plan.iter().map(|piece| piece.bytes()).collect();
    // Pieces that are packed for later still change.
    for (piece, buffer) in plan.iter().zip(&mut buffers) {
        if piece.sends == Sends::Later {
            buffer.fill(0x11);
        }
    }
    let cells: Vec<&[Cell<u8>]> =
        buffers.iter_mut().map(|buffer| Cell::from_mut(&mut buffer[..]).as_slice_of_cells()).collect();
    let cheaper: Vec<_> = plan.iter().map(|piece| piece.bytes()).collect();
    let mut packing = circuit.begin_packing(to)?;
    for (i, piece) in plan.iter().enumerate() {
        match piece.sends {
            Sends::Cheaper => packing.pack(&cheaper[i], Packs::Cheaper),
            Sends::Later => packing.pack_later(cells[i]),
            Sends::Safer => {
                let mut bytes = piece.bytes();
                packing.pack_safer(&bytes);
                bytes.fill(0x22);
            }
        }
    }
    for (i, piece) in plan.iter().enumerate().filter(|(_, piece)| piece.sends == Sends::Later) {
        cells[i].iter().zip(piece.bytes()).for_each(|(cell, byte)| cell.set(byte));
    }
    packing.end()?;
    // The caller may wait for other threads next, and make no progress.
    circuit.flush();
    // Every buffer is free now: its bytes are never sent.
    cells.iter().copied().flatten().for_each(|cell| cell.set(0x33));
    Ok(())
}

/// Receives a message and checks it, each piece when it must be there.
fn receive(circuit: &mut Circuit, plan: &[Plan]) -> usize {
    let mut buffers: Vec<_> = plan.iter().map(|piece| vec![0x44; piece.len]).collect();
    let mut unpacking = circuit.begin_unpacking().expect("comes");
    let from = unpacking.from();
    for (piece, buffer) in plan.iter().zip(&mut buffers) {
        if piece.receives == Unpacks::Express {
            unpacking.unpack_express(buffer).expect("is there");
            assert!(*buffer == piece.bytes(), "express is there at once");
        } else {
            unpacking.unpack(buffer, Unpacks::Cheaper).expect("is there");
        }
    }
    unpacking.end().expect("is whole");
    for (piece, buffer) in plan.iter().zip(&buffers) {
        assert!(*buffer == piece.bytes(), "{piece:?} came as it was");
    }
    from
}

fn matrix(at: &Context) {
    const MESSAGES: u64 = 150;
    let (mut sender, mut receiver) = at.pair();
    let plans = || {
        let mut noise = Noise::new(0xB5);
        (0..MESSAGES).map(move |number| plan(&mut noise, number))
    };
    std::thread::scope(|scope| {
        let sending = scope.spawn(move || {
            plans().for_each(|plan| send(&mut sender, 1, &plan).expect("sends"));
            // The other side may still have to take what is copied.
            receive(&mut sender, &[]);
        });
        plans().for_each(|plan| assert_eq!(receive(&mut receiver, &plan), 0));
        send(&mut receiver, 0, &[]).expect("sends");
        sending.join().expect("sends all");
    });
}

fn any_to_any(at: &Context) {
    const NODES: usize = 4;
    const ROUNDS: u64 = 30;
    let group = at.group(NODES);
    let plan_of = |from: usize, round: u64| {
        let len = [8, 500, 10_000][(from + round as usize) % 3];
        // Copied: no sender waits for a receiver that sends first.
        [Plan { seed: from as u64 * 1_000 + round, len, sends: Sends::Safer, receives: Unpacks::Express }]
    };
    std::thread::scope(|scope| {
        for (me, mut circuit) in group.into_iter().enumerate() {
            scope.spawn(move || {
                assert_eq!((circuit.rank(), circuit.size()), (me, NODES));
                let mut rounds = [0; NODES];
                for round in 0..ROUNDS {
                    for to in (0..NODES).filter(|to| *to != me) {
                        send(&mut circuit, to, &plan_of(me, round)).expect("sends");
                    }
                }
                for _ in 0..ROUNDS * (NODES as u64 - 1) {
                    let mut unpacking = circuit.begin_unpacking().expect("comes");
                    let from = unpacking.from();
                    let [plan] = plan_of(from, rounds[from]);
                    let mut buffer = vec![0; plan.len];
                    unpacking.unpack_express(&mut buffer).expect("is there");
                    assert!(buffer == plan.bytes(), "in the order they were sent");
                    unpacking.end().expect("is whole");
                    rounds[from] += 1;
                }
            });
        }
    });
}

fn express(at: &Context) {
    let (mut sender, mut receiver) = at.pair();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for len in [0usize, 10, 50_000] {
                let body = vec![7; len];
                let mut packing = sender.begin_packing(1).expect("begins");
                packing.pack_safer(&len.to_le_bytes());
                packing.pack(&body, Packs::Cheaper);
                packing.end().expect("sends");
                sender.flush();
            }
            receive(&mut sender, &[]);
        });
        for expected in [0, 10, 50_000] {
            let (mut len, mut body) = ([0; 8], Vec::new());
            let mut unpacking = receiver.begin_unpacking().expect("comes");
            unpacking.unpack_express(&mut len).expect("is there");
            body.resize(usize::from_le_bytes(len), 0);
            unpacking.unpack(&mut body, Unpacks::Cheaper).expect("is there");
            unpacking.end().expect("is whole");
            assert!(body.len() == expected && body.iter().all(|byte| *byte == 7));
        }
        send(&mut receiver, 0, &[]).expect("sends");
    });
}

fn disagree(at: &Context) {
    let (mut sender, mut receiver) = at.pair();
    const SIZES: [(usize, usize); 4] = [(8, 4), (8, 9), (0, 1), (100, 0)];
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for len in SIZES.map(|(sent, _)| sent).into_iter().chain([3]) {
                let mut packing = sender.begin_packing(1).expect("begins");
                packing.pack_safer(&vec![1; len]);
                packing.end().expect("sends");
                sender.flush();
            }
            receive(&mut sender, &[]);
        });
        for (here, asked) in SIZES {
            let mut buffer = vec![0; asked];
            let mut unpacking = receiver.begin_unpacking().expect("comes");
            unpacking.unpack_express(&mut buffer).expect("small pieces are told of at the end");
            assert_eq!(unpacking.end(), Err(CircuitError::Mismatch { rank: 0, here, asked }));
        }
        // The next message is not touched by that.
        let mut buffer = [0; 3];
        let mut unpacking = receiver.begin_unpacking().expect("comes");
        unpacking.unpack_express(&mut buffer).expect("is there");
        unpacking.end().expect("is whole");
        assert_eq!(buffer, [1; 3]);
        send(&mut receiver, 0, &[]).expect("sends");
    });
}

fn leaves(at: &Context) {
    let (mut stays, mut goes) = at.pair();
    let plan = [Plan { seed: 1, len: 8, sends: Sends::Safer, receives: Unpacks::Express }];
    std::thread::scope(|scope| {
        scope.spawn(move || {
            send(&mut goes, 0, &plan).expect("sends");
            receive(&mut goes, &plan);
        });
        assert_eq!(receive(&mut stays, &plan), 1);
        send(&mut stays, 1, &plan).expect("sends");
    });
    let big = Plan { len: 1 << 20, ..plan[0] };
    let lost = loop {
        if let Err(error) = send(&mut stays, 1, &[Plan { sends: Sends::Cheaper, ..big }]) {
            break error;
        }
    };
    assert!(matches!(lost, CircuitError::Lost { rank: 1, .. }), "{lost}");
    assert_eq!(stays.begin_packing(2).err(), Some(CircuitError::NoSuchNode));
}

fn non_members(at: &Context) {
    let endpoint = Circuit::endpoint(&at.worker()).expect("opens");
    let address = endpoint.address();
    let mut alone = Circuit::join(endpoint, std::slice::from_ref(&address)).expect("is in it");
    let other = Circuit::endpoint(&at.worker()).expect("opens");
    let to = other.peer(&address);
    let send = Send { to, tag: None, data: None, parts: &[Piece::EMPTY], token: 0, inject: true, delivery: false };
    other.send(&send).expect("sends");
    for _ in 0..100 {
        other.worker().progress();
        assert!(alone.try_unpacking().expect("nothing is wrong").is_none());
    }
}

fn outruns(at: &Context) {
    const LEN: usize = 4096;
    const MESSAGES: u64 = 40_000;
    /// More than is kept in any case, and less than all.
    const MOST: u64 = (80 << 20) / LEN as u64;
    /// Turns in which no more was sent: the sender waits, or the scheduler has forgotten it.
    const PATIENCE: u32 = 20_000;
    let workers = [at.worker(), at.worker()];
    let endpoints = workers.each_ref().map(|worker| Circuit::endpoint(worker).expect("opens"));
    let group = endpoints.each_ref().map(Endpoint::address);
    let [mut sender, mut receiver] = endpoints.map(|endpoint| Circuit::join(endpoint, &group).expect("is in it"));
    let sent = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..MESSAGES {
                let mut bytes = [7; LEN];
                bytes[..8].copy_from_slice(&number.to_le_bytes());
                let mut packing = sender.begin_packing(1).expect("begins");
                packing.pack(&bytes, Packs::Cheaper);
                packing.end().expect("sends");
                sent.store(number + 1, Ordering::Relaxed);
            }
            receive(&mut sender, &[]);
        });
        let (mut seen, mut polls) = (0, 0);
        while polls < PATIENCE && seen <= MOST {
            workers[1].progress();
            let now = sent.load(Ordering::Relaxed);
            (seen, polls) = (now, if now == seen && now > 0 { polls + 1 } else { 0 });
            std::thread::yield_now();
        }
        let most = seen;
        for number in 0..MESSAGES {
            let mut bytes = [0; LEN];
            let mut unpacking = receiver.begin_unpacking().expect("comes");
            unpacking.unpack_express(&mut bytes).expect("is there");
            unpacking.end().expect("is whole");
            assert!(bytes[..8] == number.to_le_bytes() && bytes[8..].iter().all(|byte| *byte == 7));
        }
        send(&mut receiver, 0, &[]).expect("sends");
        assert!(most <= MOST, "{most} messages went to a node that unpacked none");
    });
}

/// A short piece and one that travels alone, each way.
fn group_and_circuit(c: &Context) {
    let endpoints = [(); 2].map(|()| Circuit::endpoint(&c.worker()).expect("opens"));
    let addresses = endpoints.each_ref().map(Endpoint::address);
    let [one, other] = endpoints;
    let mut circuit = Circuit::join(one, &addresses).expect("is in it");
    let group = Group::join(other, &addresses).expect("is in it");
    let long: Vec<_> = (0..3 * BULK).map(|at| (at * 7) as u8).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut short, mut got) = ([0; 5], vec![0; long.len()]);
            let mut message = circuit.begin_unpacking().expect("comes");
            message.unpack_express(&mut short).expect("is there");
            message.unpack(&mut got, Unpacks::Cheaper).expect("comes");
            assert_eq!((message.from(), message.end()), (1, Ok(())));
            assert!(short == *b"hello" && got == long);
            let mut answer = circuit.begin_packing(1).expect("is in it");
            answer.pack(b"fine!", Packs::Safer);
            answer.pack(&got, Packs::Cheaper);
            answer.end().expect("goes");
        });
        let mut question = Packed::default();
        question.copy(b"hello");
        question.copy(&long);
        group.send(0, question).expect("goes");
        let (mut short, mut got) = ([0; 5], vec![0; long.len()]);
        let mut answer = loop {
            match group.try_receive().expect("comes") {
                Some(message) => break message,
                None => {
                    group.worker().idle();
                }
            }
        };
        answer.unpack(&group, lend(&mut short), true).expect("is there");
        answer.unpack(&group, lend(&mut got), false).expect("comes");
        assert_eq!((answer.from(), answer.end(&group)), (0, Ok(())));
        assert!(short == *b"fine!" && got == long);
    });
}

/// Lends memory to a message that ends before its owner looks at it.
#[allow(unsafe_code)]
fn lend(bytes: &mut [u8]) -> Piece {
    // SAFETY: writable, and no other code accesses it before the message has ended.
    unsafe { Piece::lend(bytes.as_mut_ptr(), bytes.len()) }
}
