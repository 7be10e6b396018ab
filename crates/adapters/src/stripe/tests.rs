use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;
const LIMITS: Limits = Limits { window: 1 << 20, backlog: 1 << 20 };
const A: Lane = Lane(1);
const B: Lane = Lane(2);

fn stripe(lanes: &[Lane]) -> Stripe {
    let mut stripe = Stripe::new(LIMITS);
    lanes.iter().for_each(|lane| stripe.add(0, *lane).unwrap());
    stripe
}

/// What a peer sends by a stream.
fn encoded(by: Lane, headers: &[Header]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for header in headers {
        header.write(by, &mut bytes);
        if let Header::Data { from, to } = header {
            bytes.extend((*from..*to).map(|at| at as u8));
        }
    }
    bytes
}

fn data(from: u64, to: u64) -> Header {
    Header::Data { from, to }
}

fn refused(by: Lane, headers: &[Header]) -> Broken {
    stripe(&[A, B]).receive(0, by, &encoded(by, headers)).unwrap_err()
}

fn sent(stripe: &mut Stripe, now: u64, by: Lane) -> Vec<u8> {
    let mut bytes = Vec::new();
    stripe.transmit(now, by, 1 << 20, &mut bytes);
    bytes
}

/// The headers of what was sent, without the bytes.
fn headers(by: Lane, mut bytes: &[u8]) -> Vec<Header> {
    let mut found = Vec::new();
    while let Some((header, rest)) = bytes.split_first_chunk::<HEADER>() {
        let header = Header::read(*header, by).unwrap();
        bytes = if let Header::Data { from, to } = header { &rest[(to - from) as usize..] } else { rest };
        found.push(header);
    }
    found
}

#[test]
fn what_nobody_may_send_is_refused_by_name() {
    assert_eq!(refused(A, &[data(0, 300 << 10)]), Broken::Credit { to: 300 << 10, credit: 256 << 10 });
    assert_eq!(refused(A, &[Header::End { at: 10 }, data(5, 11)]), Broken::End { end: 10, at: 11 });
    assert_eq!(refused(A, &[Header::End { at: 10 }, Header::End { at: 11 }]), Broken::End { end: 11, at: 10 });
    assert_eq!(refused(A, &[data(5, 11), Header::End { at: 10 }]), Broken::End { end: 10, at: 11 });
    assert_eq!(refused(A, &[Header::End { at: 257 << 10 }]), Broken::Credit { to: 257 << 10, credit: 256 << 10 });
    assert_eq!(refused(A, &[Header::Credit { position: 1, window: 0 }]), Broken::Unsent { got: 1, sent: 0 });
    assert_eq!(refused(B, &[Header::Got { lane: A, count: 1 }]), Broken::Unsent { got: 1, sent: 0 });
    assert_eq!(refused(A, &[Header::Retire, data(0, 1)]), Broken::Retired(A));
    assert_eq!(
        refused(Lane(9), &[Header::Retire]).to_string(),
        "stripe: bytes by stream 9, which the link does not have"
    );
    let holes: Vec<Header> = (0..5000).map(|hole| data(2 * hole + 1, 2 * hole + 2)).collect();
    assert_eq!(refused(A, &holes), Broken::Holes(4096));
    // A report about a stream that is gone, or never was, changes nothing.
    assert_eq!(stripe(&[A]).receive(0, A, &encoded(A, &[Header::Got { lane: B, count: 1 }])), Ok(HEADER));
}

#[test]
fn streams_are_added_once_and_not_without_end() {
    let mut stripe = stripe(&[A]);
    assert_eq!(stripe.add(0, A), Err(AddError::Twice(A)));
    assert_eq!(stripe.add(0, Lane(1 << 24)), Err(AddError::Number(Lane(1 << 24))));
    (2..=64).for_each(|lane| stripe.add(0, Lane(lane)).unwrap());
    assert_eq!((stripe.add(0, Lane(65)), stripe.lanes()), (Err(AddError::Many), 64));
    stripe.remove(B);
    stripe.remove(B);
    assert_eq!((stripe.add(0, Lane(65)), stripe.lanes()), (Ok(()), 64));
}

#[test]
fn bytes_are_acknowledged_after_10_milliseconds_or_one_where_they_are_many_or_with_others() {
    let credit = |position| Header::Credit { position, window: (1 << 20) - position as u32 };
    let mut end = stripe(&[A]);
    assert_eq!(headers(A, &sent(&mut end, 0, A)), [Header::Credit { position: 0, window: 1 << 20 }]);
    end.receive(MS, A, &encoded(A, &[data(0, 100)])).unwrap();
    assert_eq!((sent(&mut end, 10 * MS, A).len(), end.deadline()), (0, 11 * MS));
    let got = Header::Got { lane: A, count: 100 };
    assert_eq!(headers(A, &sent(&mut end, 11 * MS, A)), [got, credit(100)]);
    end.receive(20 * MS, A, &encoded(A, &[data(100, 100 + (64 << 10))])).unwrap();
    assert_eq!((sent(&mut end, 20 * MS, A).len(), end.deadline()), (0, 21 * MS));
    assert_eq!(headers(A, &sent(&mut end, 21 * MS, A)).len(), 2);
    end.receive(21 * MS, A, &encoded(A, &[data(70_000, 70_001)])).unwrap();
    end.write(b"answer");
    let with: Vec<Header> = headers(A, &sent(&mut end, 21 * MS, A));
    assert_eq!(with, [Header::Got { lane: A, count: 101 + (64 << 10) }, credit(100 + (64 << 10)), data(0, 6)]);
    // What was not read is not credited.
    end.receive(50 * MS, A, &encoded(A, &[data(100 + (64 << 10), 300_000)])).unwrap();
    assert_eq!(headers(A, &sent(&mut end, 51 * MS, A))[1], credit(300_000));
    while !end.front().is_empty() {
        end.consume(end.front().len());
    }
    assert_eq!(headers(A, &sent(&mut end, 52 * MS, A)), [Header::Credit { position: 300_000, window: 1 << 20 }]);
}

#[test]
fn what_a_lost_stream_had_goes_by_another_but_for_what_came() {
    let mut end = stripe(&[A, B]);
    let bytes: Vec<u8> = (0..40_000).map(|at| at as u8).collect();
    end.write(&bytes);
    let mut first = Vec::new();
    end.transmit(0, A, 20_000, &mut first);
    assert_eq!(headers(A, &first[HEADER..2 * HEADER + (16 << 10)]), [data(0, 16 << 10)]);
    end.receive(MS, B, &encoded(B, &[Header::Got { lane: A, count: 1000 }])).unwrap();
    end.remove(A);
    let by_b = sent(&mut end, 2 * MS, B);
    // The rest of the first piece, the second one as a whole though a part of it was sent, and what was not begun.
    let span = |header| if let Header::Data { from, to } = header { Some((from, to)) } else { None };
    let spans: Vec<(u64, u64)> = headers(B, &by_b).into_iter().filter_map(span).collect();
    assert_eq!((spans[0].0, spans.last().unwrap().1), (1000, 40_000));
    assert!(spans.windows(2).all(|pair| pair[0].1 == pair[1].0), "{spans:?}");
}

#[test]
fn bytes_that_come_twice_are_taken_once() {
    let mut end = stripe(&[A, B]);
    end.receive(0, A, &encoded(A, &[data(0, 10)])).unwrap();
    // Other bytes in their place, as one sends for what came already.
    let mut twice = encoded(B, &[data(5, 20)]);
    twice[HEADER..HEADER + 5].fill(0xEE);
    end.receive(0, B, &twice).unwrap();
    assert_eq!(end.front(), (0..20).collect::<Vec<u8>>());
    end.consume(20);
    end.receive(0, B, &encoded(B, &[data(0, 20), Header::End { at: 20 }, Header::End { at: 20 }])).unwrap();
    assert!(end.front().is_empty() && end.is_at_end());
}

#[test]
fn the_end_is_where_the_link_ends_and_not_before_all_has_come() {
    let (mut from, mut to) = (stripe(&[A, B]), stripe(&[A, B]));
    from.write(&[1; 100]);
    from.finish();
    assert_eq!((from.room(), from.write(b"more")), (0, 0));
    let first = sent(&mut from, 0, A);
    assert_eq!(
        headers(A, &first),
        [Header::Credit { position: 0, window: 1 << 20 }, data(0, 100), Header::End { at: 100 }]
    );
    // The end comes by the other one before the bytes.
    to.receive(0, B, &encoded(B, &[Header::End { at: 100 }])).unwrap();
    assert!(!to.is_at_end());
    to.receive(0, A, &first).unwrap();
    assert!(!to.is_at_end() && to.front().len() == 100 && !from.is_flushed());
    to.consume(100);
    assert!(to.is_at_end());
    from.receive(20 * MS, A, &sent(&mut to, 10 * MS, A)).unwrap();
    assert!(from.is_flushed());
}

/// Passes bytes by a stream, and what else goes by it.
fn passed(stripe: &mut Stripe, now: u64, by: Lane, mut bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    stripe.transmit_passing(now, by, 1 << 20, &mut out, &mut |out, room| {
        let (first, rest) = bytes.split_at(bytes.len().min(room));
        out.extend_from_slice(first);
        bytes = rest;
    });
    out
}

#[test]
fn bytes_of_an_only_stream_pass_without_being_kept() {
    let (mut from, mut to, mut got) = (stripe(&[A]), stripe(&[A]), Vec::new());
    from.receive(0, A, &sent(&mut to, 0, A)).unwrap();
    assert!(from.is_passing(A));
    let first = passed(&mut from, 0, A, &[7; 1000]);
    assert_eq!(headers(A, &first), [data(0, 1000), Header::Credit { position: 0, window: 1 << 20 }]);
    // They come in two parts.
    let mut read = |bytes: &[u8]| {
        got.extend_from_slice(bytes);
        true
    };
    to.receive_passing(0, A, &first[..500], &mut read).unwrap();
    to.receive_passing(0, A, &first[500..], &mut read).unwrap();
    assert_eq!((from.held(), to.held(), got), (0, 0, vec![7; 1000]));
    // Acknowledged by itself after a time, not at once.
    assert_eq!(passed(&mut to, MS, A, &[]), []);
    let acks = passed(&mut to, 11 * MS, A, &[]);
    assert_eq!(headers(A, &acks)[0], Header::Got { lane: A, count: 1000 });
    from.receive(11 * MS, A, &acks).unwrap();
    assert!(from.is_flushed());
}

/// A stream that comes beside an only one does not make good what passed by that; once the other end has it, either may be lost.
#[test]
fn what_passed_is_lost_with_its_stream_until_the_other_end_has_it() {
    let (mut from, mut to) = (stripe(&[A]), stripe(&[A, B]));
    assert!(from.can_lose_one());
    let first = passed(&mut from, 0, A, &[7; 1000]);
    from.add(0, B).unwrap();
    assert!(!from.can_lose_one());
    from.write(&[8; 1000]);
    let second = sent(&mut from, 0, B);
    to.receive(0, B, &second).unwrap();
    to.receive(0, A, &first[..600]).unwrap();
    from.receive(MS * 20, B, &sent(&mut to, MS * 20, B)).unwrap();
    assert!(!from.can_lose_one());
    to.receive(MS * 20, A, &first[600..]).unwrap();
    from.receive(MS * 40, A, &sent(&mut to, MS * 40, A)).unwrap();
    assert!(from.can_lose_one());
}

#[test]
fn what_was_kept_goes_before_what_passes() {
    let mut end = stripe(&[A]);
    end.write(b"kept");
    assert!(!end.is_passing(A));
    assert_eq!(headers(A, &passed(&mut end, 0, A, b"waits"))[1], data(0, 4));
    assert_eq!(headers(A, &passed(&mut end, 0, A, b"passes")), [data(4, 10)]);
    // Nothing passes where there are two, and no other stream repeats what did.
    end.add(0, B).unwrap();
    assert!(!end.is_passing(A) && !end.is_passing(B));
    end.handle_time(60_000 * MS);
    end.remove(A);
    let by_b = sent(&mut end, 60_000 * MS, B);
    assert_eq!(headers(B, &by_b)[1..], [data(0, 4)]);
}

#[test]
fn no_more_passes_than_there_is_credit_for() {
    let mut end = stripe(&[A]);
    let (mut sent, bytes) = (0, vec![1; 50_000]);
    while end.is_passing(A) {
        passed(&mut end, 0, A, &bytes);
        sent += bytes.len();
    }
    assert!((256 << 10) - SLACK - bytes.len() < sent && sent <= 256 << 10, "{sent}");
    assert_eq!(passed(&mut end, 0, A, &bytes), []);
}

/// A header, near to what one may send.
fn any_header() -> impl Strategy<Value = Header> {
    let place = prop_oneof![0u64..5000, 0u64..1 << 20, any::<u64>()];
    (0u8..6, place, 1u64..3000, any::<u32>()).prop_map(|(kind, from, length, number)| match kind {
        0 | 1 => Header::Data { from: from.min(u64::MAX - 4000), to: from.min(u64::MAX - 4000) + length },
        2 => Header::End { at: from },
        3 => Header::Credit { position: from, window: number },
        4 => Header::Got { lane: Lane(number % 3), count: from },
        _ => Header::Retire,
    })
}

proptest! {
    /// Headers in any order, with bytes that are cut short: taken or refused, within bounds, while the end itself sends what it has.
    #[test]
    fn a_hostile_peer_gets_no_memory_and_no_panic(steps in prop::collection::vec((any_header(), any::<bool>(), 0usize..4000, any::<u8>()), 1..60)) {
        let mut end = stripe(&[A, B]);
        let mut now = 0;
        for (header, first, cut, what) in steps {
            now += u64::from(what) * MS;
            let by = if first { A } else { B };
            let mut bytes = encoded(by, &[header]);
            if what % 8 == 0 {
                bytes.truncate(cut);
            }
            let _ = end.write(&vec![what; cut]);
            let taken = end.receive(now, by, &bytes);
            prop_assert!(end.held() <= LIMITS.window + LIMITS.backlog + 24 * (64 << 10));
            match what % 16 {
                1 => end.consume(end.front().len()),
                2 => end.remove(B),
                3 => end.retire(A),
                4 => end.handle_time(now),
                _ => {}
            }
            let mut out = Vec::new();
            end.transmit(now, by, 3000, &mut out);
            prop_assert!(out.len() <= 3000);
            if taken.is_err() {
                break;
            }
        }
    }

    /// Whatever is kept, passes, or goes by a second stream that comes and goes: every byte arrives once and in order, while the first stream lives.
    #[test]
    fn every_byte_arrives_whether_it_passes_or_is_kept(steps in prop::collection::vec((0u8..8, 1usize..90_000), 1..80)) {
        let (mut from, mut to) = (stripe(&[A]), stripe(&[A]));
        let (mut number, mut got, mut second) = (0u64, 0u64, None);
        let mut lanes = 2..;
        let mut fresh = |count: usize| (0..count).map(|_| { number += 1; (number % 251) as u8 }).collect::<Vec<_>>();
        let mut now = 0;
        for (what, count) in steps.into_iter().chain([(6, 1); 40]) {
            now += MS;
            let mut wires = Vec::new();
            match what {
                0..=2 if from.is_passing(A) => wires.push((A, passed(&mut from, now, A, &fresh(count.min(60_000))))),
                0..=3 => {
                    let room = from.room().min(count);
                    let bytes = fresh(room);
                    prop_assert_eq!(from.write(&bytes), room);
                }
                4 if second.is_none() => {
                    let lane = Lane(lanes.next().unwrap());
                    second = Some(lane);
                    from.add(now, lane).unwrap();
                    to.add(now, lane).unwrap();
                }
                5 => if let Some(lane) = second.take() {
                    from.remove(lane);
                    to.remove(lane);
                },
                _ => {}
            }
            for lane in [Some(A), second].into_iter().flatten() {
                wires.push((lane, sent(&mut from, now, lane)));
            }
            for (lane, bytes) in wires {
                let mut wrong = 0;
                let mut read = |bytes: &[u8]| {
                    for byte in bytes {
                        got += 1;
                        wrong += u64::from(*byte != (got % 251) as u8);
                    }
                    true
                };
                to.receive_passing(now, lane, &bytes, &mut read).unwrap();
                while !to.front().is_empty() {
                    let count = to.front().len();
                    read(to.front());
                    to.consume(count);
                }
                prop_assert_eq!(wrong, 0);
            }
            for lane in [Some(A), second].into_iter().flatten() {
                let back = sent(&mut to, now, lane);
                from.receive(now, lane, &back).unwrap();
            }
        }
        prop_assert_eq!(got, number);
    }

    /// Credit that lies: what is sent is bounded by what was written, and every byte can still be sent again.
    #[test]
    fn credit_that_lies_changes_nothing(window: u32, count in 1usize..300_000) {
        let mut end = stripe(&[A, B]);
        end.receive(0, A, &encoded(A, &[Header::Credit { position: 0, window }])).unwrap();
        let written = end.write(&vec![7; count]);
        prop_assert!(written <= LIMITS.backlog);
        let mut out = Vec::new();
        (0..100).for_each(|step| end.transmit(step, A, 1 << 20, &mut out));
        let most = (window as usize).max(256 << 10).min(written);
        let sent: u64 = headers(A, &out).iter().map(|header| if let Header::Data { from, to } = header { to - from } else { 0 }).sum();
        prop_assert!(sent as usize <= most);
        end.remove(A);
        out.clear();
        (0..100).for_each(|step| end.transmit(step, B, 1 << 20, &mut out));
        let again: u64 = headers(B, &out).iter().map(|header| if let Header::Data { from, to } = header { to - from } else { 0 }).sum();
        prop_assert_eq!(again as usize, most);
    }
}
