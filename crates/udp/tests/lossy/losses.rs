//! What a line loses, and what the ends are told.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use madrigal_udp::lossy::{Arrived, Class, LONGEST, LossyLink, Lost, Received, SendError, Settled};

use crate::bed::{Pair, SECOND, class, within};

pub(crate) static CASES: &[(&str, fn())] = &[
    ("both_ends_are_told_of_the_same_losses_and_the_rest_is_right", both_ends),
    ("nothing_is_lost_of_a_class_without_tolerance", reliable),
    ("classes_have_their_own_order_and_tolerance", classes),
    ("what_is_too_late_fails_at_both_ends", too_late),
    ("the_end_is_behind_the_last_message", the_end),
    ("there_is_no_room_without_end", no_room),
    ("the_end_of_a_full_link_is_told", full_end),
];

/// The content of a message, by its class and number.
fn content(class: u8, number: u32, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u32 ^ number.wrapping_mul(31) ^ u32::from(class) << 3) as u8 | 1).collect()
}

fn receive(link: &LossyLink) -> Arrived {
    match link.receive(within(30 * SECOND)).expect("a link") {
        Received::Message(arrived) => arrived,
        other => panic!("a message is wanted: {other:?}"),
    }
}

/// Compares what came with what was sent; how many bytes are lost.
fn check(arrived: &Arrived, len: usize) -> u64 {
    let lost = arrived.lost.as_ref().expect("it did not fail");
    let mut wanted = content(arrived.class, arrived.message, len);
    lost.iter().for_each(|(from, to)| wanted[*from as usize..*to as usize].fill(0));
    assert!(arrived.bytes == wanted, "message {} of class {}", arrived.message, arrived.class);
    lost.iter().map(|(from, to)| u64::from(to - from)).sum()
}

/// Reports of so many messages.
fn reports(link: &LossyLink, count: usize) -> BTreeMap<(u8, u32), Option<Lost>> {
    let report = |_| {
        let Settled { class, message, lost } = link.settled(within(30 * SECOND)).expect("a report");
        ((class, message), lost)
    };
    (0..count).map(report).collect()
}

fn both_ends() {
    const COUNT: u32 = 400;
    const LEN: usize = 5000;
    let lossy = Class { tolerance: 200, window: 64 << 10, granularity: 100, must: 40 };
    let pair = Pair::new(&[lossy], 100);
    let (near, far) = (&pair.near, &pair.far);
    let got: BTreeMap<_, _> = std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..COUNT {
                assert_eq!(near.send(0, content(0, number, LEN), None), Ok(number));
            }
        });
        (0..COUNT)
            .map(|_| receive(far))
            .map(|arrived| (arrived.message, (check(&arrived, LEN), arrived.lost)))
            .collect()
    });
    let told = reports(near, COUNT as usize);
    let (mut all, mut at) = (0, Vec::new());
    for (number, (count, lost)) in &got {
        assert_eq!(told[&(0, *number)], *lost, "message {number}");
        all += count;
        let spans = lost.as_ref().expect("it did not fail");
        let is_record = |(from, to): &(u32, u32)| {
            *from >= 40 && (from - 40) % 100 == 0 && ((to - 40) % 100 == 0 || *to as usize == LEN)
        };
        assert!(spans.iter().all(is_record), "records are lost whole: {spans:?}");
        at.extend(spans.iter().map(|(from, to)| (u64::from(*number) * LEN as u64 + u64::from(*from), to - from)));
    }
    assert!(all > 0 && pair.line.lost.load(Ordering::Relaxed) > 0, "a line that loses a tenth");
    // The tolerance holds for all, and for the bytes behind any place where a loss begins.
    assert!(all * 1000 <= 200 * u64::from(COUNT) * LEN as u64, "{all} bytes");
    for (begin, _) in &at {
        let within: u64 = at
            .iter()
            .filter(|(from, _)| (*begin..begin + lossy.window).contains(from))
            .map(|(_, len)| u64::from(*len))
            .sum();
        assert!(within * 1000 <= 200 * lossy.window + 1000 * 4096, "{within} bytes behind {begin}");
    }
}

fn reliable() {
    let pair = Pair::new(&[class(0)], 100);
    let lens = [1, 40, 1200, 30_000, 400_000, 2_000_000];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            lens.iter().enumerate().for_each(|(number, len)| {
                assert_eq!(pair.near.send(0, content(0, number as u32, *len), None), Ok(number as u32));
            })
        });
        for len in lens {
            assert_eq!(check(&receive(&pair.far), len), 0);
        }
    });
    assert_eq!(pair.near.flush(within(30 * SECOND)), Ok(true));
    assert!(pair.line.lost.load(Ordering::Relaxed) > 0);
}

fn classes() {
    let pair = Pair::new(&[class(0), class(1000), class(50)], 100);
    for number in 0..100 {
        for class in 0..3 {
            assert_eq!(pair.far.send(class, content(class, number, 3000), None), Ok(number));
        }
    }
    let (mut next, mut lost) = ([0; 3], [0; 3]);
    for _ in 0..300 {
        let arrived = receive(&pair.near);
        let class = usize::from(arrived.class);
        assert_eq!(arrived.message, next[class], "class {class} in order");
        next[class] += 1;
        lost[class] += check(&arrived, 3000);
    }
    assert!(lost[0] == 0 && lost[1] > 0 && lost[2] * 1000 <= 50 * 300_000, "{lost:?}");
    let refused = pair.far.send(3, vec![1], None);
    assert!(matches!(refused, Err(SendError::Refused { .. })), "there is none behind the last: {refused:?}");
    assert!(matches!(pair.far.send(0, vec![], None), Err(SendError::Refused { .. })));
}

fn too_late() {
    let pair = Pair::new(&[class(0)], 0);
    pair.line.loss.store(1000, Ordering::Relaxed);
    for number in 0..5 {
        assert_eq!(pair.near.send(0, content(0, number, 2000), Some(SECOND / 20)), Ok(number));
    }
    assert_eq!(pair.far.receive(within(SECOND / 5)), Ok(Received::Nothing));
    pair.line.loss.store(0, Ordering::Relaxed);
    assert_eq!(pair.near.send(0, content(0, 5, 2000), None), Ok(5));
    for number in 0..5 {
        let failed = receive(&pair.far);
        assert_eq!((failed.message, failed.lost, failed.bytes.len()), (number, None, 0));
    }
    assert_eq!(check(&receive(&pair.far), 2000), 0);
    let told = reports(&pair.near, 6);
    assert!((0..5).all(|number| told[&(0, number)].is_none()) && told[&(0, 5)] == Some(vec![]), "{told:?}");
}

fn the_end() {
    let pair = Pair::new(&[class(0), class(100)], 50);
    for number in 0..50 {
        assert_eq!(pair.near.send((number % 2) as u8, vec![7; 10_000], None), Ok(number / 2));
    }
    pair.near.close();
    assert!(matches!(pair.near.send(0, vec![1], None), Err(SendError::Closed { .. })));
    (0..50).for_each(|_| drop(receive(&pair.far)));
    for _ in 0..2 {
        assert_eq!(pair.far.receive(within(30 * SECOND)), Ok(Received::End), "it stays");
    }
    // The connection ends once all is settled.
    while !matches!(pair.far.send(0, vec![1], None), Err(SendError::Gone { .. })) {
        assert_ne!(pair.far.flush(within(30 * SECOND)), Ok(false), "nothing is in the way");
    }
}

fn full_end() {
    let pair = Pair::new(&[class(0)], 0);
    let sent = (0..).find(|_| pair.near.send(0, vec![1; LONGEST], None).is_err()).expect("it is full");
    pair.near.close();
    (0..sent).for_each(|_| drop(receive(&pair.far)));
    assert_eq!(pair.far.receive(within(30 * SECOND)), Ok(Received::End));
}

fn no_room() {
    let pair = Pair::new(&[class(0)], 0);
    let mut sent = 0;
    let full = loop {
        match pair.near.send(0, vec![1; 1 << 20], None) {
            Ok(_) => sent += 1,
            Err(error) => break error,
        }
        assert!(sent < 1000, "1 GiB is taken of a link that nobody reads");
    };
    assert!(matches!(full, SendError::Full { .. }), "{full}");
    while sent > 0 {
        drop(receive(&pair.far));
        sent -= 1;
    }
    assert!(pair.near.wait_for_room(1 << 20, within(30 * SECOND)));
    assert!(pair.near.send(0, vec![1; 1 << 20], None).is_ok());
}
