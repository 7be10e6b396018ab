//! Processes that send what no process with mailboxes sends.

use std::sync::Arc;

use madrigal::endpoint::{PeerId, Send};
use madrigal::mailbox::{Data, Filter, Held, Mailbox, Policy, PortAddress};
use madrigal::{Endpoint, Worker};
use madrigal_sys::piece::Piece;

use super::common::{Context, after, bytes, got, letter, soon};
use crate::noise::Noise;

/// A process without mailboxes, and the one that it sends to.
struct Stranger {
    // Closed before its worker.
    endpoint: Endpoint,
    worker: Arc<Worker>,
    to: PeerId,
}

impl Stranger {
    fn of(c: &Context, to: &Mailbox) -> Self {
        let worker = c.worker();
        let endpoint = worker.endpoint(worker.space()).expect("opens");
        let to = endpoint.peer(&to.address().node);
        Self { endpoint, worker, to }
    }

    /// Sends a call, as soon as there is room.
    fn sends(&self, bytes: &[u8]) {
        // SAFETY: injected, so that the bytes are read before the call returns.
        #[allow(unsafe_code)]
        let parts = [unsafe { Piece::lend(bytes.as_ptr(), bytes.len()) }];
        let send = Send { to: self.to, tag: None, data: None, parts: &parts, token: 0, inject: true, delivery: false };
        while self.endpoint.send(&send).is_err() {
            self.worker.progress();
        }
        self.worker.progress();
    }
}

/// A call that asks for a line.
fn open(line: u32, to: &str) -> Vec<u8> {
    let mut bytes = vec![1, 1];
    bytes.extend(line.to_le_bytes());
    for text in [to, "stranger"] {
        bytes.extend((text.len() as u16).to_le_bytes());
        bytes.extend(text.as_bytes());
    }
    bytes
}

/// A call with fields that are likely: numbers are small, so that some name what there is.
fn call(noise: &mut Noise) -> Vec<u8> {
    let code = 1 + noise.below(17) as u8;
    let mut bytes = vec![1, code];
    let mut small = |bytes: &mut Vec<u8>, len: usize| {
        let number = [noise.below(12) as u64, noise.next_u64()][usize::from(noise.below(20) == 0)];
        bytes.extend(&number.to_le_bytes()[..len]);
    };
    match code {
        1 => {
            small(&mut bytes, 4);
            for text in ["in", "stranger"] {
                bytes.extend((text.len() as u16).to_le_bytes());
                bytes.extend(text.as_bytes());
            }
        }
        4 => {
            small(&mut bytes, 4);
            bytes.extend([1, noise.below(3) as u8]);
            let mut small = |bytes: &mut Vec<u8>| bytes.extend((noise.below(12) as u64).to_le_bytes());
            (0..3).for_each(|_| small(&mut bytes));
            bytes.push(1);
            small(&mut bytes);
            bytes.push(0);
        }
        6 => {
            small(&mut bytes, 4);
            bytes.push(1);
        }
        5 => {
            small(&mut bytes, 4);
            bytes.push(1);
            small(&mut bytes, 4);
        }
        2 => (0..3).for_each(|_| small(&mut bytes, 4)),
        7 | 8 => small(&mut bytes, 4),
        9 => (0..2).for_each(|_| small(&mut bytes, 8)),
        10 | 11 => small(&mut bytes, 8),
        12 => {
            (0..3).for_each(|_| small(&mut bytes, 8));
            bytes.extend([0, 0, 0]);
        }
        _ => bytes.extend((0..noise.below(60)).map(|_| noise.next_u64() as u8)),
    }
    bytes
}

/// One that is said to offer memory answers nothing: another one is asked, also by one who has no deadline.
pub(super) fn says_nothing(c: &Context) {
    let [sender, receiver, third] = c.processes();
    third.all.offer(1 << 20);
    let (out, into, store) = (sender.mailbox("out", 4), receiver.mailbox("in", 4), third.mailbox("store", 1));
    let silent = Stranger::of(c, &into);
    sender.all.add_store(&PortAddress { name: "none".to_owned(), node: silent.endpoint.address() });
    sender.all.add_store(&store.address());
    assert_eq!(out.put(&[into.address()], letter(1, Policy::Elsewhere), Data::Bytes(&[1; 9000]), None), Ok(1));
    assert_eq!(got(&into).1.len(), 9000);
}

/// The name of a sender is one that a mailbox may have.
pub(super) fn has_no_name(c: &Context) {
    let receiver = c.process();
    let into = receiver.mailbox("in", 4);
    let stranger = Stranger::of(c, &into);
    stranger.sends(&[&[1, 1, 7, 0, 0, 0, 2, 0][..], b"in", &[1, 0], b"\n"].concat());
    let answer = loop {
        stranger.worker.progress();
        if let Some((_, answer)) = stranger.endpoint.take_plain() {
            break answer;
        }
    };
    let told = String::from_utf8_lossy(&answer);
    assert!(told.contains(r"`\n` is no name of a mailbox"), "{told}");
}

/// More is asked than answers are kept for, and none is taken: whoever else asks has an answer.
pub(super) fn takes_nothing(c: &Context) {
    let [sender, receiver] = c.processes();
    let (out, into) = (sender.mailbox("out", 4), receiver.mailbox("in", 4));
    let stranger = Stranger::of(c, &into);
    // 64 MiB of these may be unread on either side, and 4096 answers are kept.
    let none = open(1, &"x".repeat(5000));
    (0..31_000).for_each(|_| stranger.sends(&none));
    assert_eq!(out.put(&[into.address()], letter(1, Policy::Sender), Data::Bytes(&[1; 9000]), soon()), Ok(1));
    assert_eq!(got(&into).1.len(), 9000);
}

/// Calls that are none, or of others' numbers, harm nobody but their sender; nothing of them is left.
pub(super) fn nonsense(c: &Context) {
    let [sender, receiver] = c.processes();
    receiver.all.offer(1 << 20);
    let (out, into) = (sender.mailbox("out", 4), receiver.mailbox("in", 4));
    let stranger = Stranger::of(c, &into);
    let mut noise = Noise::new(77);
    for round in 0..3000u64 {
        stranger.sends(&call(&mut noise));
        if round % 100 == 0 {
            let data = super::common::bytes(round, 10_000);
            let policy = if round % 200 == 0 { Policy::Sender } else { Policy::Receiver };
            assert_eq!(out.put(&[into.address()], letter(round, policy), Data::Bytes(&data), soon()), Ok(1));
            let source = Some(out.address());
            let header = into.wait(&Filter { source, ..Filter::default() }, soon()).expect("open").expect("a message");
            assert_eq!(into.get(header.id, soon()).as_deref().ok(), Some(&data[..]));
        }
    }
    drop(stranger);
    // What it claimed to have is got by nobody, and let go of.
    let left = || into.list(&Filter { tag: None, ..Filter::default() }, 99);
    for header in left() {
        assert_eq!(header.source.name, "stranger");
        let _ = into.get(header.id, after(1_000_000));
        into.discard(header.id)
            .or_else(|_| if left().iter().any(|at| at.id == header.id) { Err(()) } else { Ok(()) })
            .expect("it goes");
    }
    receiver.comes_to_hold(Held::default());
    let data = bytes(1, 100_000);
    assert_eq!(out.put(&[into.address()], letter(1, Policy::Receiver), Data::Bytes(&data), soon()), Ok(1));
    assert_eq!(&got(&into).1[..], &data);
}
