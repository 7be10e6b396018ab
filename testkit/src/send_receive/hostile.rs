//! Processes that send what no port sends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use madrigal::endpoint::{PeerId, Send};
use madrigal::ports::{Change, Item, PortAddress, Ports};
use madrigal::{Endpoint, Worker};
use madrigal_sys::piece::Piece;

use super::common::{Context, after, connected, kind, message_of, nothing, soon};
use crate::noise::Noise;

/// A process without ports, and the one that it sends to.
pub(super) struct Stranger {
    worker: Arc<Worker>,
    endpoint: Endpoint,
    to: PeerId,
}

impl Stranger {
    pub(super) fn of(c: &Context, at: &PortAddress) -> Self {
        let worker = c.worker();
        let endpoint = worker.endpoint(worker.space()).expect("opens");
        let to = endpoint.peer(&at.node);
        Self { worker, endpoint, to }
    }

    /// Asks for a connection to a port, by a type: why there is none.
    pub(super) fn asks_for(&self, port: &str, kind: &str, far: &Ports) -> Option<String> {
        while !self.post(None, None, &connect_to(port, kind)) {}
        loop {
            far.turn(Some(0));
            self.worker.progress();
            if let Some((_, answer)) = self.endpoint.take_plain() {
                // A refusal: the version, its kind, the attempt's number, and the reason behind its length.
                return Some(String::from_utf8(answer.get(8..)?.to_vec()).expect("a text")).filter(|_| answer[1] == 3);
            }
        }
    }

    /// Sends a message. False: there is no room now.
    fn post(&self, tag: Option<u64>, data: Option<u64>, bytes: &[u8]) -> bool {
        // SAFETY: injected, so that the bytes are read before the call returns.
        #[allow(unsafe_code)]
        let parts = [unsafe { Piece::lend(bytes.as_ptr(), bytes.len()) }];
        let send = Send { to: self.to, tag, data, parts: &parts, token: 0, inject: true, delivery: false };
        let posted = self.endpoint.send(&send).is_ok();
        if !posted {
            self.worker.progress();
        }
        posted
    }
}

/// A call that asks for a connection to a port of a type.
fn connect_to(port: &str, kind: &str) -> Vec<u8> {
    let mut connect = vec![1, 1, 9, 0, 0, 0, 0];
    for text in [port, "stranger", kind] {
        connect.extend((text.len() as u16).to_le_bytes());
        connect.extend(text.as_bytes());
    }
    connect
}

/// A receiver answers that a connection is there, and in the same moment that it is closed.
pub(super) fn closes_at_once(c: &Context) {
    let near = c.ports();
    let stranger = Stranger::of(c, &near.receive_port("asked", &kind("")).expect("a port").address());
    let to = PortAddress { name: "in".to_owned(), node: stranger.endpoint.address() };
    for number in 1..=20u8 {
        let mut out = near.send_port("out", &kind("")).expect("a port");
        thread::scope(|scope| {
            let (out, to) = (&mut out, &to);
            let connects = scope.spawn(move || out.connect(to, soon()));
            let asked = loop {
                if let Some((_, call)) = stranger.endpoint.take_plain() {
                    break call;
                }
            };
            let attempt = &asked[2..6];
            let accept = [&[1, 2][..], attempt, &[number, 0, 0, 0, 1, 0, 0, 0]].concat();
            while !stranger.post(None, None, &accept) {}
            while !stranger.post(None, None, &[1, 4, number, 0, 0, 0]) {}
            while !connects.is_finished() {
                stranger.worker.progress();
            }
            assert_eq!(connects.join().expect("ends"), Ok(()));
        });
        while !out.connected().is_empty() {
            stranger.worker.progress();
        }
        let lost = out.take_lost();
        assert!(lost.len() == 1 && lost[0].1.to_string().contains("the receive port is closed"), "{lost:?}");
    }
}

/// A long head is announced, and its sender stops: who waits goes on at its deadline, and has the message once it comes.
pub(super) fn late_head(c: &Context) {
    let far = c.ports();
    let into = far.receive_port("in", &kind("")).expect("a port");
    let stranger = Stranger::of(c, &into.address());
    while !stranger.post(None, None, &connect_to("in", "")) {}
    let accept = loop {
        far.turn(Some(0));
        stranger.worker.progress();
        if let Some((_, answer)) = stranger.endpoint.take_plain() {
            break answer;
        }
    };
    let number = |at: usize| u64::from(u32::from_le_bytes(accept[at..at + 4].try_into().expect("four")));
    let (connection, port, text) = (number(6), number(10), vec![b'x'; 4 << 20]);
    let head = [&[0x20][..], &(text.len() as u32).to_le_bytes(), &text].concat();
    // SAFETY: there, and unchanged, until the send is complete, for which this waits below.
    #[allow(unsafe_code)]
    let parts = [unsafe { Piece::lend(head.as_ptr(), head.len()) }];
    let (tag, data) = (Some(1 << 62 | port), Some(connection));
    let send = Send { to: stranger.to, tag, data, parts: &parts, token: 1, inject: false, delivery: false };
    stranger.endpoint.send(&send).expect("is sent");
    // It may be copied without the sender, or need it.
    let mut came = (0..5).find_map(|_| into.receive(after(5_000_000)).expect("none is being read"));
    let mut is_sent = false;
    while came.is_none() || !is_sent {
        is_sent |= stranger.endpoint.next(true).is_some_and(|done| done.token == 1);
        came = came.or_else(|| into.receive(Some(0)).expect("none is being read"));
    }
    let mut message = came.expect("the message");
    assert_eq!(message.read_text().map(|text| text.len()), Ok(4 << 20));
    message.finish().expect("the end");
}

/// Calls come all the time, and no answer is taken: who waits for a message goes on at its deadline.
pub(super) fn flood(c: &Context) {
    let far = c.ports();
    let into = far.receive_port("in", &kind("connection=one-to-one")).expect("a port");
    let stranger = Stranger::of(c, &into.address());
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let connect = connect_to("none", "");
            while !stop.load(Ordering::Acquire) {
                stranger.post(None, None, &connect);
            }
        });
        for _ in 0..20 {
            nothing(&into, 5_000_000);
        }
        stop.store(true, Ordering::Release);
    });
}

/// What is no message ends its connection only.
pub(super) fn no_messages(c: &Context) {
    let (near, far) = (c.ports(), c.ports());
    let into = far.receive_port("in", &kind("")).expect("a port");
    let mut honest = connected(&near, &into.address(), "", &far);
    // Its connection is the first one, the other's the second one.
    let stranger = Stranger::of(c, &into.address());
    let mut noise = Noise::new(5);
    let post = |tag: Option<u64>, data: Option<u64>, bytes: &[u8]| {
        while !stranger.post(tag, data, bytes) {
            far.turn(Some(0));
        }
    };
    for round in 0..300u64 {
        let bytes: Vec<u8> = (0..noise.below(60)).map(|_| noise.next_u64() as u8).collect();
        post(None, None, &bytes);
        // Of the honest one's connection, of none, and of one that was asked for.
        post(Some(1 << 62 | 1), Some(round % 4), &bytes);
        post(Some((1 << 62) | (noise.next_u64() % 3)), None, &bytes);
        if round % 50 == 0 {
            post(None, None, &connect_to("in", ""));
        }
        stranger.worker.progress();
        if let Some(mut message) = into.receive(Some(0)).expect("none is being read") {
            assert_eq!(message.from(), "stranger");
            while message.peek().is_ok_and(|item| item != Item::Nothing) && message.read_text().is_ok() {}
        }
    }
    let mut message = honest.message();
    message.write(77u32);
    honest.send(&message).expect("is sent");
    assert!(near.flush(soon()));
    let got = loop {
        let mut message = message_of(&into);
        if message.from() == "out" {
            break message.read::<u32>();
        }
    };
    assert_eq!(got, Ok(77));
    let lost: Vec<_> = into.changes().into_iter().filter(|change| matches!(change, Change::Lost { .. })).collect();
    assert!(lost.iter().all(|change| matches!(change, Change::Lost { from, .. } if from == "stranger")), "{lost:?}");
}
