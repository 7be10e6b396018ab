//! The promises of `Endpoint`, over any driver of messages: several workers in one process.
//!
//! Features (docs/features.md): A3, A4, B4, B20, G11.

use madrigal::Endpoint;
use madrigal::endpoint::{Claim, Kind, PostError, Posted, Receive, Send, Status, Wanted};
use madrigal_sys::piece::Piece;

use crate::Case;

mod crowd;
mod flood;
mod memory;
mod party;

pub use party::{Context, context};
use party::{Lent, Party, copies, noise, receive, until, wait_for};

/// The suite.
pub static CASES: &[Case<Context>] = &[
    Case { name: "sends_to_itself", run: itself },
    Case { name: "every_length_arrives_expected_or_not", run: lengths },
    Case { name: "a_sender_that_rests_holds_nobody_up", run: rests },
    Case { name: "pairs_are_matched_in_order_whatever_the_size", run: order },
    Case { name: "tags_masks_and_sources_choose", run: choose },
    Case { name: "plain_and_tagged_messages_do_not_meet", run: apart },
    Case { name: "a_buffer_too_short_is_told_the_length", run: truncates },
    Case { name: "injected_buffers_are_free_at_once", run: inject },
    Case { name: "a_number_comes_along", run: number },
    Case { name: "delivery_is_told_when_it_was_received", run: delivery },
    Case { name: "peeks_claims_and_discards", run: claims },
    Case { name: "a_receive_can_be_cancelled", run: cancels },
    Case { name: "many_messages_go_into_one_buffer", run: crowd::many },
    Case { name: "channels_do_not_meet", run: crowd::channels },
    Case { name: "a_peer_that_leaves_ends_what_waits_for_it", run: crowd::leaves },
    Case { name: "who_receives_nothing_is_not_flooded", run: flood::rendezvous },
    Case { name: "who_receives_nothing_is_not_flooded_by_what_is_injected", run: flood::injected },
    Case { name: "who_receives_nothing_is_not_flooded_by_announcements", run: flood::long },
    Case { name: "memory_is_put_and_got", run: memory::put_and_get },
    Case { name: "short_puts_need_nobody_where_processors_are_scarce", run: memory::crowded },
    Case { name: "memory_out_of_reach_is_denied", run: memory::denied },
    Case { name: "numbers_are_added_where_they_lie", run: memory::atomics },
    Case { name: "a_region_that_was_withdrawn_is_gone", run: memory::withdrawn },
    Case { name: "random_all_to_all", run: crowd::all_to_all },
];

fn itself(at: &Context) {
    // What carries messages to others need not carry a node's own.
    let loopback = madrigal::message_driver("loopback").expect("always there");
    let at = Context { drivers: vec![loopback, at.drivers[0]] };
    let mut lent = Lent::default();
    let party = at.party();
    let me = party.peer(&party);
    let mut parties = [party];
    for (token, len) in [8, 9_000, 3 << 20].into_iter().enumerate() {
        let bytes = noise(1, len);
        let room = lent.room(len);
        parties[0].receive(Some(me), 5, room, token as u64);
        parties[0].send(me, 5, lent.bytes(&bytes), 100);
        let done = wait_for(&mut parties, 0, Kind::Received, token as u64);
        assert_eq!((done.status, done.len, done.from), (Status::Ok, len, Some(me)));
        assert!(room.bytes() == bytes);
    }
}

const LENGTHS: [usize; 13] = [0, 1, 8, 63, 1_000, 4_096, 4_097, 8_192, 8_193, 65_537, 300_000, 1 << 20, (9 << 20) + 1];

fn lengths(at: &Context) {
    let mut lent = Lent::default();
    let (mut parties, peers) = at.pair();
    for (i, len) in LENGTHS.into_iter().enumerate() {
        for expected in [true, false] {
            let (bytes, room) = (noise(len as u64, len), lent.room(len));
            let token = 1 + 2 * i as u64 + u64::from(expected);
            if expected {
                parties[1].receive(Some(peers[1]), token, room, token);
            }
            let posted = parties[0].send(peers[0], token, lent.bytes(&bytes), token);
            if !expected {
                let wanted = Wanted { from: None, tag: Some(token), ignore: 0 };
                until(&mut parties, |parties| parties[1].endpoint.peek(&wanted).is_some_and(|seen| seen.len == len));
                parties[1].receive(None, token, room, token);
            }
            let done = wait_for(&mut parties, 1, Kind::Received, token);
            assert_eq!((done.status, done.len, done.tag, done.from), (Status::Ok, len, token, Some(peers[1])));
            assert!(room.bytes() == bytes, "{len} bytes as they were sent, expected: {expected}");
            if posted == Posted::Pending {
                let sent = wait_for(&mut parties, 0, Kind::Sent, token);
                assert_eq!((sent.status, sent.len), (Status::Ok, len));
            }
        }
    }
    assert!(parties.iter().all(|party| party.done.is_empty()), "nothing is told twice");
}

/// Looks of a receiver alone, many times longer than it waits for a sender that was asked.
const ALONE: usize = 500_000;

fn rests(at: &Context) {
    let mut lent = Lent::default();
    let (mut parties, peers) = at.pair();
    parties[1].receive(None, 0, lent.room(8), 0);
    if parties[0].send(peers[0], 0, lent.bytes(&[1; 8]), 0) == Posted::Pending {
        wait_for(&mut parties, 0, Kind::Sent, 0);
    }
    wait_for(&mut parties, 1, Kind::Received, 0);
    let copies = copies(&parties[1]);
    for (i, len) in [100_000, 1 << 20, (9 << 20) + 1].into_iter().enumerate() {
        for posted_first in [true, false] {
            let (bytes, room) = (noise(len as u64, len), lent.room(len));
            let token = 1 + 2 * i as u64 + u64::from(posted_first);
            if posted_first {
                parties[1].receive(Some(peers[1]), token, room, token);
            }
            assert_eq!(parties[0].send(peers[0], token, lent.bytes(&bytes), token), Posted::Pending);
            if !posted_first {
                parties[1].poll();
                parties[1].receive(Some(peers[1]), token, room, token);
            }
            let alone = (0..ALONE).find_map(|_| {
                parties[1].poll();
                parties[1].take(Kind::Received, token)
            });
            assert!(alone.is_some() || !copies, "what can be copied is there without its sender");
            let done = alone.unwrap_or_else(|| wait_for(&mut parties, 1, Kind::Received, token));
            assert_eq!((done.status, done.len), (Status::Ok, len));
            let sent = wait_for(&mut parties, 0, Kind::Sent, token);
            assert_eq!((sent.status, sent.len), (Status::Ok, len));
            // What the sender sends late goes nowhere.
            (0..100).for_each(|_| parties.iter_mut().for_each(Party::poll));
            assert!(room.bytes() == bytes, "{len} bytes as they were sent");
        }
    }
    assert!(parties.iter().all(|party| party.done.is_empty()), "nothing is told twice");
}

fn order(at: &Context) {
    let mut lent = Lent::default();
    let (mut parties, peers) = at.pair();
    let sizes: Vec<_> = (0..60).map(|i| LENGTHS[(i * 5) % (LENGTHS.len() - 1)]).collect();
    for (i, len) in sizes.iter().enumerate() {
        parties[0].send(peers[0], 3, lent.bytes(&noise(i as u64, *len)), 1_000 + i as u64);
        if i % 3 == 0 {
            parties[1].poll();
        }
    }
    let rooms: Vec<_> = sizes.iter().map(|len| lent.room(*len)).collect();
    for (i, room) in rooms.iter().enumerate() {
        parties[1].receive([None, Some(peers[1])][i % 2], 3, *room, i as u64);
    }
    for (i, room) in rooms.iter().enumerate() {
        let done = wait_for(&mut parties, 1, Kind::Received, i as u64);
        assert_eq!((done.status, done.len), (Status::Ok, sizes[i]));
        assert!(room.bytes() == noise(i as u64, sizes[i]), "message {i} went into receive {i}");
    }
}

fn choose(at: &Context) {
    let mut parties = [at.party(), at.party(), at.party()];
    let from = [parties[0].peer(&parties[1]), parties[0].peer(&parties[2])];
    let to = [parties[1].peer(&parties[0]), parties[2].peer(&parties[0])];
    let mut lent = Lent::default();
    let rooms: Vec<_> = (0..5).map(|_| lent.room(8)).collect();
    // By source; any source; by a part of the tag; anything.
    parties[0].receive(Some(from[1]), 7, rooms[0], 0);
    parties[0].receive(None, 8, rooms[1], 1);
    let ignoring = |ignore, i: usize| Receive { ignore, ..receive(None, 0x100, &rooms[i..=i], i as u64) };
    parties[0].endpoint.receive(&ignoring(0xff, 2)).expect("receives");
    parties[0].endpoint.receive(&ignoring(u64::MAX, 3)).expect("receives");
    let mut send = |parties: &mut [Party], by: usize, tag: u64| {
        let piece = lent.bytes(&tag.to_le_bytes());
        parties[by].send(to[by - 1], tag, piece, 50);
    };
    send(&mut parties, 1, 0x1aa);
    assert_eq!(wait_for(&mut parties, 0, Kind::Received, 2).from, Some(from[0]));
    send(&mut parties, 2, 8);
    assert_eq!(wait_for(&mut parties, 0, Kind::Received, 1).from, Some(from[1]));
    send(&mut parties, 1, 7);
    assert_eq!(wait_for(&mut parties, 0, Kind::Received, 3).tag, 7, "7 is directed to another source");
    send(&mut parties, 2, 7);
    assert_eq!(wait_for(&mut parties, 0, Kind::Received, 0).from, Some(from[1]));
    assert_eq!(rooms[0].bytes(), 7u64.to_le_bytes());
}

fn apart(at: &Context) {
    let mut lent = Lent::default();
    let (mut parties, peers) = at.pair();
    let (plain, tagged) = (lent.room(4), lent.room(4));
    parties[1].endpoint.receive(&Receive { tag: None, ..receive(None, 0, &[plain], 1) }).expect("receives");
    parties[1].endpoint.receive(&Receive { ignore: u64::MAX, ..receive(None, 0, &[tagged], 2) }).expect("receives");
    parties[0].send(peers[0], 0, lent.bytes(b"tags"), 0);
    let piece = lent.bytes(b"none");
    let send = Send { to: peers[0], tag: None, data: None, parts: &[piece], token: 0, inject: false, delivery: false };
    parties[0].endpoint.send(&send).expect("sends");
    assert!(!wait_for(&mut parties, 1, Kind::Received, 1).tagged);
    assert!(wait_for(&mut parties, 1, Kind::Received, 2).tagged);
    assert_eq!((plain.bytes(), tagged.bytes()), (&b"none"[..], &b"tags"[..]));
}

fn truncates(at: &Context) {
    let mut lent = Lent::default();
    let (mut parties, peers) = at.pair();
    for (i, (len, room)) in
        [(8, 4), (8, 0), (5_000, 4_999), (100_000, 10), (2 << 20, 1 << 20), (2 << 20, 0)].into_iter().enumerate()
    {
        for expected in [true, false] {
            let (bytes, room) = (noise(i as u64, len), lent.room(room));
            if expected {
                parties[1].receive(None, 0, room, 1);
            }
            let posted = parties[0].send(peers[0], 0, lent.bytes(&bytes), 2);
            if !expected {
                let wanted = Wanted { from: None, tag: Some(0), ignore: 0 };
                until(&mut parties, |parties| parties[1].endpoint.peek(&wanted).is_some());
                parties[1].receive(None, 0, room, 1);
            }
            let done = wait_for(&mut parties, 1, Kind::Received, 1);
            assert_eq!((done.status, done.len), (Status::Truncated(len), room.len()));
            assert!(room.bytes() == &bytes[..room.len()], "what fitted");
            if posted == Posted::Pending {
                assert_eq!(wait_for(&mut parties, 0, Kind::Sent, 2).status, Status::Ok);
            }
        }
    }
}

fn inject(at: &Context) {
    let mut lent = Lent::default();
    let (mut parties, peers) = at.pair();
    let sizes = [8usize, 5_000, 65_536];
    for len in sizes {
        let mut bytes = vec![len as u8 ^ 1; len];
        // SAFETY: an injected buffer is free when the call returns; `bytes` outlives it.
        #[allow(unsafe_code)]
        let piece = unsafe { Piece::lend(bytes.as_mut_ptr(), len) };
        let send =
            Send { to: peers[0], tag: Some(1), data: None, parts: &[piece], token: 9, inject: true, delivery: false };
        assert_eq!(parties[0].endpoint.send(&send), Ok(Posted::Done));
        bytes.fill(0);
    }
    for len in sizes {
        let room = lent.room(len);
        parties[1].receive(None, 1, room, 3);
        wait_for(&mut parties, 1, Kind::Received, 3);
        assert!(room.bytes().iter().all(|b| *b == len as u8 ^ 1));
    }
    let piece = lent.room(Endpoint::INJECT + 1);
    let send =
        Send { to: peers[0], tag: Some(1), data: None, parts: &[piece], token: 9, inject: true, delivery: false };
    assert_eq!(parties[0].endpoint.send(&send), Err(PostError::TooLong));
    assert!(parties[0].done.is_empty(), "an injected message completes silently");
}

fn number(at: &Context) {
    let mut lent = Lent::default();
    let (mut parties, peers) = at.pair();
    for len in [0, 8, 70_000] {
        let piece = lent.bytes(&noise(1, len));
        let data = Some(len as u64 + 1);
        let send = Send { to: peers[0], tag: Some(1), data, parts: &[piece], token: 9, inject: false, delivery: false };
        parties[0].endpoint.send(&send).expect("sends");
        parties[1].receive(None, 1, lent.room(len), 3);
        assert_eq!(wait_for(&mut parties, 1, Kind::Received, 3).data, data);
    }
}

fn delivery(at: &Context) {
    let mut lent = Lent::default();
    let (mut parties, peers) = at.pair();
    for (i, len) in [0, 8, 5_000, 100_000].into_iter().enumerate() {
        let (piece, token) = (lent.bytes(&noise(1, len)), i as u64);
        let send =
            Send { to: peers[0], tag: Some(1), data: None, parts: &[piece], token, inject: false, delivery: true };
        assert_eq!(parties[0].endpoint.send(&send), Ok(Posted::Pending));
        for _ in 0..200 {
            parties.iter_mut().for_each(Party::poll);
        }
        assert!(parties[0].done.is_empty(), "nobody received {len} bytes yet");
        parties[1].receive(None, 1, lent.room(len), 3);
        assert_eq!(wait_for(&mut parties, 0, Kind::Sent, token).status, Status::Ok);
        wait_for(&mut parties, 1, Kind::Received, 3);
    }
}

fn claims(at: &Context) {
    let mut lent = Lent::default();
    let (mut parties, peers) = at.pair();
    let wanted = Wanted { from: Some(peers[1]), tag: Some(1), ignore: 0 };
    assert_eq!(parties[1].endpoint.peek(&wanted), None);
    for len in [8, 100_000] {
        for byte in 0..3u8 {
            parties[0].send(peers[0], 1, lent.bytes(&vec![byte; len]), u64::from(byte));
        }
        let mut claimed = Vec::new();
        while claimed.len() < 2 {
            parties.iter_mut().for_each(Party::poll);
            claimed.extend(parties[1].endpoint.claim(&wanted));
        }
        assert!(claimed.iter().all(|(seen, _)| (seen.len, seen.from, seen.tag) == (len, peers[1], 1)));
        let rooms = [lent.room(len), lent.room(len)];
        parties[1].receive(None, 1, rooms[0], 2);
        wait_for(&mut parties, 1, Kind::Received, 2);
        assert!(rooms[0].bytes().iter().all(|b| *b == 2), "the claimed ones are out of the way");
        let mut claimed = claimed.into_iter().map(|(_, claim)| claim);
        let (first, second) = (claimed.next().expect("two"), claimed.next().expect("two"));
        let number = second.into_number();
        let again = (Claim::from_number(number), Claim::from_number(number));
        parties[1].endpoint.receive_claimed(again.0, &receive(None, 0, &[rooms[1]], 7)).expect("claimed");
        wait_for(&mut parties, 1, Kind::Received, 7);
        assert!(rooms[1].bytes().iter().all(|b| *b == 1));
        assert_eq!(parties[1].endpoint.discard(again.1), Err(PostError::Invalid), "it is gone");
        parties[1].endpoint.discard(first).expect("claimed");
        // The sender of a discarded message gets the completion of a send.
        if len > 8 {
            for byte in 0..3 {
                assert_eq!(wait_for(&mut parties, 0, Kind::Sent, byte).status, Status::Ok);
            }
        }
        parties[0].done.clear();
    }
}

fn cancels(at: &Context) {
    let mut lent = Lent::default();
    let (mut parties, peers) = at.pair();
    let rooms = [lent.room(8), lent.room(8)];
    parties[1].receive(None, 1, rooms[0], 1);
    parties[1].receive(None, 1, rooms[1], 2);
    assert!(parties[1].endpoint.cancel(1) && !parties[1].endpoint.cancel(1) && !parties[1].endpoint.cancel(77));
    assert_eq!(wait_for(&mut parties, 1, Kind::Received, 1).status, Status::Canceled);
    parties[0].send(peers[0], 1, lent.bytes(b"uncalled"), 0);
    assert_eq!(wait_for(&mut parties, 1, Kind::Received, 2).status, Status::Ok);
    assert_eq!((rooms[0].bytes()[0], rooms[1].bytes()), (0xEE, &b"uncalled"[..]));
    assert!(!parties[1].endpoint.cancel(2), "it is over");
}
