//! Many messages into one buffer, and many parties: channels, parties that leave, messages of all to all.

use std::collections::HashMap;
use std::sync::Arc;

use madrigal::Worker;
use madrigal::endpoint::{Kind, PeerId, PostError, Posted, Receive, Send, Status};
use madrigal_sys::piece::Piece;

use super::party::{Context, Lent, Party, noise, receive, until, wait_for};
use crate::noise::Noise;

pub(super) fn many(at: &Context) {
    let mut lent = Lent::default();
    let (mut parties, peers) = at.pair();
    for early in [true, false] {
        let room = lent.room(40_000);
        let parts = [room];
        let all = Receive { multi: Some(10_000), ..receive(None, 1, &parts, 5) };
        if early {
            parties[1].endpoint.receive(&all).expect("receives");
        }
        let sizes = [100, 12_000, 1, 9_000, 11_000, 50];
        for (i, len) in sizes.into_iter().enumerate() {
            parties[0].send(peers[0], 1, lent.bytes(&noise(i as u64, len)), 60);
            parties[0].poll();
        }
        for _ in 0..50 {
            parties.iter_mut().for_each(Party::poll);
        }
        if !early {
            parties[1].endpoint.receive(&all).expect("receives");
        }
        // Five of them fill it so far that less than 10,000 are free; the sixth needs another buffer.
        let mut got = Vec::new();
        until(&mut parties, |parties| {
            got.extend(parties[1].take(Kind::Received, 5));
            got.len() == 5
        });
        assert_eq!(got.iter().filter(|done| done.last).count(), 1);
        assert!(got.last().expect("five").last, "the last one is told last");
        got.sort_by_key(|done| done.at);
        let mut used = room.at() as u64;
        for (i, done) in got.iter().enumerate() {
            assert_eq!((done.at, done.len, done.status), (used, sizes[i], Status::Ok));
            let part = room.part((used - room.at() as u64) as usize, done.len);
            assert!(part.bytes() == noise(i as u64, sizes[i]));
            used += done.len as u64;
        }
        parties[1].receive(None, 1, lent.room(50), 6);
        assert_eq!(wait_for(&mut parties, 1, Kind::Received, 6).len, 50);
        parties.iter_mut().for_each(|party| party.done.clear());
    }
}

pub(super) fn channels(at: &Context) {
    const CHANNELS: usize = 1_000;
    let (one, two) = (at.worker(), at.worker());
    let open = |worker: &Arc<Worker>| {
        let space = worker.space();
        let all = (0..CHANNELS).map(|_| Party { endpoint: worker.endpoint(space).expect("opens"), done: Vec::new() });
        all.collect::<Vec<_>>()
    };
    let (mut senders, mut receivers) = (open(&one), open(&two));
    let mut lent = Lent::default();
    let rooms: Vec<_> = receivers.iter().map(|_| lent.room(2)).collect();
    for (receiver, room) in receivers.iter().zip(&rooms) {
        receiver.receive(None, 0, *room, 1);
    }
    for (i, sender) in senders.iter_mut().enumerate().rev() {
        let to = sender.peer(&receivers[i]);
        if sender.send(to, 0, lent.bytes(&(i as u16).to_le_bytes()), 0) == Posted::Pending {
            // No party closes before its messages have left.
            while sender.take(Kind::Sent, 0).is_none() {
                sender.poll();
                two.progress();
            }
        }
    }
    // Some close at random; the others do not notice.
    let mut noise = Noise::new(9);
    let mut senders: Vec<_> = senders.into_iter().map(Some).collect();
    for _ in 0..CHANNELS / 2 {
        senders[noise.below(CHANNELS)] = None;
    }
    while receivers.iter_mut().any(|receiver| {
        receiver.poll();
        receiver.done.is_empty()
    }) {
        one.progress();
    }
    for (i, room) in rooms.iter().enumerate() {
        assert_eq!(room.bytes(), (i as u16).to_le_bytes());
        assert_eq!(receivers[i].done.len(), 1);
    }
}

pub(super) fn leaves(at: &Context) {
    let mut parties = [at.party(), at.party()];
    let mut lent = Lent::default();
    let leaver = at.party();
    let gone = parties[0].peer(&leaver);
    let other = parties[0].peer(&parties[1]);
    let back = leaver.peer(&parties[0]);
    leaver.send(back, 1, lent.bytes(b"hello"), 0);
    parties[0].receive(None, 1, lent.room(8), 0);
    {
        let mut all = [leaver];
        while parties[0].take(Kind::Received, 0).is_none() {
            parties[0].poll();
            all[0].poll();
        }
        // Directed, from any party, and a message without a receive that is too long for an eager send.
        parties[0].receive(Some(gone), 2, lent.room(8), 1);
        parties[0].receive(None, 2, lent.room(8), 2);
        parties[0].send(gone, 1, lent.bytes(&noise(1, 2 << 20)), 3);
        parties[0].poll();
    }
    assert_eq!(wait_for(&mut parties, 0, Kind::Received, 1).status, Status::Gone);
    assert_eq!(wait_for(&mut parties, 0, Kind::Sent, 3).status, Status::Gone);
    assert!(parties[0].endpoint.why(gone).is_some());
    let piece = lent.bytes(b"late");
    let send = Send { to: gone, tag: Some(1), data: None, parts: &[piece], token: 4, inject: false, delivery: false };
    assert_eq!(parties[0].endpoint.send(&send), Err(PostError::Unreachable));
    assert_eq!(parties[0].endpoint.receive(&receive(Some(gone), 1, &[piece], 5)), Err(PostError::Unreachable));
    // The receive from anybody stays.
    let to = parties[1].peer(&parties[0]);
    parties[1].send(to, 2, lent.bytes(b"still on"), 0);
    assert_eq!(wait_for(&mut parties, 0, Kind::Received, 2).from, Some(other));
}

/// The messages to one party: sender, tag, seed and length, in order.
type Sent = Vec<(usize, u64, u64, usize)>;

pub(super) fn all_to_all(at: &Context) {
    const PARTIES: usize = 5;
    const MESSAGES: usize = 400;
    let mut noise_of = Noise::new(0x0a11);
    let mut parties: Vec<_> = (0..PARTIES).map(|_| at.party()).collect();
    let peers: Vec<Vec<_>> =
        (0..PARTIES).map(|i| (0..PARTIES).map(|j| parties[i].peer(&parties[j])).collect()).collect();
    let mut lent = Lent::default();
    let mut model: HashMap<usize, Sent> = HashMap::new();
    let mut pending = 0;
    for seed in 0..MESSAGES as u64 {
        let by = noise_of.below(PARTIES);
        let to = (by + 1 + noise_of.below(PARTIES - 1)) % PARTIES;
        let (tag, len) = (noise_of.below(3) as u64, noise_of.size(200_000));
        let piece = lent.bytes(&noise(seed, len));
        if parties[by].send(peers[by][to], tag, piece, 1) == Posted::Pending {
            pending += 1;
        }
        model.entry(to).or_default().push((by, tag, seed, len));
        if noise_of.below(4) == 0 {
            let who = noise_of.below(PARTIES);
            parties[who].poll();
        }
    }
    let mut rooms: HashMap<(usize, u64), Piece> = HashMap::new();
    for (to, sent) in &model {
        for n in 0..sent.len() as u64 {
            let room = lent.room(200_000);
            rooms.insert((*to, n), room);
            // Any tag from any party: receives of exact senders and tags would have to know the order.
            let parts = [room];
            let any = Receive { ignore: u64::MAX, ..receive(None, 0, &parts, 1_000 + n) };
            parties[*to].endpoint.receive(&any).expect("receives");
        }
    }
    until(&mut parties, |parties| {
        let sent: usize = parties.iter().map(|party| party.done.iter().filter(|d| d.kind == Kind::Sent).count()).sum();
        let got: usize =
            parties.iter().map(|party| party.done.iter().filter(|d| d.kind == Kind::Received).count()).sum();
        sent == pending && got == MESSAGES
    });
    for (to, sent) in &model {
        check_received(*to, &parties[*to], &peers[*to], sent, &rooms);
    }
}

/// Messages of each pair went into receives in the order they were sent.
fn check_received(to: usize, party: &Party, peers: &[PeerId], sent: &Sent, rooms: &HashMap<(usize, u64), Piece>) {
    let mut got: Vec<_> = party.done.iter().filter(|done| done.kind == Kind::Received).collect();
    got.sort_by_key(|done| done.token);
    let mut queues: HashMap<PeerId, Vec<_>> = HashMap::new();
    for (by, tag, seed, len) in sent.iter().rev() {
        queues.entry(peers[*by]).or_default().push((*tag, *seed, *len));
    }
    for done in got {
        let (tag, seed, len) = queues.get_mut(&done.from.expect("known")).and_then(Vec::pop).expect("was sent");
        assert_eq!((done.status, done.tag, done.len), (Status::Ok, tag, len));
        let room = rooms[&(to, done.token - 1_000)];
        assert!(room.part(0, len).bytes() == noise(seed, len));
    }
}
