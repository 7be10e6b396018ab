//! Loss-tolerant messages over QUIC, between two ends and a line of a rate, a delay, a queue and losses, in a time of their own. Needs no
//! network: what it costs is cryptography.

mod common;

use common::{Line, Pair};
use madrigal_adapters::vrp::{Class, Message};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

/// Sends messages of so many bytes for a time, one every `every`, and reads them: bytes that were read of them, and how long each took.
fn run(pair: &mut Pair, class: u8, len: usize, every: u64, time: u64) -> (u64, Vec<u64>) {
    let (begin, mut next) = (pair.now, pair.now);
    let (mut sent, mut read, mut delays) = (Vec::new(), 0, Vec::new());
    let mut first = None;
    while pair.now < begin + time {
        if pair.now >= next && pair.ends[0].messages.room() >= len {
            let bytes = (0..len).map(|at| at as u8).collect();
            let number = pair.ends[0].messages.send(class, Message { bytes, deadline: None }).expect("room");
            assert_eq!((number - *first.get_or_insert(number)) as usize, sent.len());
            sent.push(pair.now);
            next = pair.now + every;
        }
        pair.step();
        while let Some(message) = pair.ends[1].messages.take() {
            let lost = message.lost.expect("no deadline");
            let is_lost = |at: u32| lost.iter().any(|(from, to)| (*from..*to).contains(&at));
            let wanted = |at: usize| if is_lost(at as u32) { 0 } else { at as u8 };
            assert!(
                message.bytes.iter().enumerate().all(|(at, byte)| *byte == wanted(at)),
                "other bytes than were sent"
            );
            read += len as u64 - lost.iter().map(|(from, to)| u64::from(to - from)).sum::<u64>();
            // Those of an earlier run are not timed.
            if let Some(number) = message.message.checked_sub(first.unwrap_or(u32::MAX)) {
                delays.push(pair.now - sent[number as usize]);
            }
        }
        while pair.ends[0].messages.settled().is_some() {}
    }
    delays.sort_unstable();
    (read, delays)
}

#[test]
fn a_line_without_losses_is_used() {
    let line = Line { mbit: 50, delay: 10 * MS, queue: 200_000, loss: 0 };
    let mut pair = Pair::new("whole", &[Class::default()], line);
    run(&mut pair, 0, 20_000, 0, SECOND);
    let (read, _) = run(&mut pair, 0, 20_000, 0, 4 * SECOND);
    let rate = read * 8 / 4;
    assert!(rate >= 42_000_000, "{rate} bit/s of 50 Mbit/s");
    assert!(pair.ends.iter().all(|end| end.seen), "an end was not told where it is seen");
}

/// The line of VRP's example: 8 Mbit/s, 100 ms, 7 % lost, of which 10 % may be.
const LOSSY: Line = Line { mbit: 8, delay: 50 * MS, queue: 100_000, loss: 70 };

#[test]
fn a_lossy_line_carries_what_it_lets_through() {
    let classes = [Class { tolerance: 100, must: 16, ..Class::default() }];
    let mut pair = Pair::new("lossy", &classes, LOSSY);
    run(&mut pair, 0, 10_000, 0, 5 * SECOND);
    let before = pair.carried();
    let (read, _) = run(&mut pair, 0, 10_000, 0, 20 * SECOND);
    let carried = pair.carried() - before;
    let [rate, all] = [read, carried].map(|bytes| bytes * 8 / 20 / 1000);
    println!("{rate} kbit/s of messages in {all} of datagrams, of 7440 that the line lets through");
    assert!(all >= 7000 && rate >= 6500, "{rate} kbit/s of messages in {all} of datagrams");
}

#[test]
fn nobody_waits_for_what_may_be_lost() {
    let classes = [Class { tolerance: 100, must: 16, ..Class::default() }];
    let mut pair = Pair::new("prompt", &classes, LOSSY);
    run(&mut pair, 0, 10_000, 16 * MS, 5 * SECOND);
    let (_, delays) = run(&mut pair, 0, 10_000, 16 * MS, 20 * SECOND);
    let late = delays[delays.len() * 99 / 100] / MS;
    println!("two thirds of the line: {} messages, 99 of 100 within {late} ms", delays.len());
    assert!(late <= 150, "99 of 100 messages within {late} ms");
}

/// Both ways are full: the reports of each end about what it has go by the same packets, and are not left behind.
#[test]
fn both_ways_may_be_full() {
    let classes = [Class { tolerance: 100, must: 16, ..Class::default() }];
    let mut pair = Pair::new("both", &classes, LOSSY);
    let (begin, mut read) = (pair.now, [0; 2]);
    while pair.now < begin + 20 * SECOND {
        for end in &mut pair.ends {
            while end.messages.send(0, Message { bytes: vec![7; 2000], deadline: None }).is_ok() {}
        }
        pair.step();
        for (n, end) in pair.ends.iter_mut().enumerate() {
            while end.messages.take().is_some() {
                read[n] += 2000;
            }
            while end.messages.settled().is_some() {}
        }
    }
    let rates = read.map(|bytes| bytes * 8 / 20 / 1000);
    println!("{rates:?} kbit/s of messages, of 7440 that the line lets through each way");
    assert!(rates.iter().all(|rate| *rate >= 3000) && rates.iter().sum::<u64>() >= 9500, "{rates:?}");
}

/// Beside TCP on a line whose queue grows neither has all of it.
#[test]
fn tcp_beside_it_has_its_share() {
    for queue in [50_000, 100_000, 300_000] {
        let line = Line { mbit: 20, delay: 20 * MS, queue, loss: 0 };
        let mut pair = Pair::new("fair", &[Class { tolerance: 1000, ..Class::default() }], line);
        pair.share();
        run(&mut pair, 0, 10_000, 0, 10 * SECOND);
        let before = [pair.carried(), pair.carried_beside()];
        run(&mut pair, 0, 10_000, 0, 60 * SECOND);
        let after = [pair.carried(), pair.carried_beside()];
        let [own, beside] = [0, 1].map(|n| (after[n] - before[n]) * 8 / 60_000);
        println!("queue of {queue}: {own} kbit/s, TCP {beside}, of 20000");
        assert!(own + beside > 17_000 && own > 2_500 && beside > 4_000, "{own} and {beside} kbit/s of 20000");
    }
}

/// A program that sends less than the line carries, on hosts that are busy now and then: what it sends does not wait.
#[test]
fn a_program_that_sends_little_loses_what_the_line_loses() {
    let line = Line { mbit: 100, delay: 10 * MS, queue: 200_000, loss: 50 };
    let mut pair = Pair::new("little", &[Class { tolerance: 1000, ..Class::default() }], line);
    let (begin, mut next, mut busy) = (pair.now, pair.now, pair.now);
    let (mut sent, mut came, mut late) = ([0; 2], [0; 2], 0);
    while pair.now < begin + 20 * SECOND {
        if pair.now >= busy {
            pair.now += 70 * MS;
            busy = pair.now + 50 * MS;
        }
        while next <= pair.now {
            for (n, end) in pair.ends.iter_mut().enumerate() {
                let bytes = next.to_le_bytes().repeat(70);
                let deadline = Some(pair.now + SECOND);
                sent[n] += u32::from(end.messages.send(0, Message { bytes, deadline }).is_ok());
            }
            next += MS;
        }
        pair.step();
        for (n, end) in pair.ends.iter_mut().enumerate() {
            while let Some(message) = end.messages.take_any() {
                let whole = message.lost.is_some_and(|lost| lost.is_empty());
                came[1 - n] += u32::from(whole);
                let at = message.bytes.first_chunk().map_or(0, |at| u64::from_le_bytes(*at));
                // At first the line's rate is unknown.
                late += u32::from(whole && at > begin + SECOND && pair.now > at + 250 * MS);
            }
            while end.messages.settled().is_some() {}
        }
    }
    println!("{came:?} of {sent:?} came, {late} of them late");
    for (came, sent) in came.into_iter().zip(sent) {
        assert!(sent > 19_900 && came > sent * 92 / 100, "{came} of {sent} came");
    }
    assert!(late < 100, "{late} came late");
}

/// A report that nobody is there, which anybody can forge, ends no connection though nothing is being sent.
#[test]
fn a_forged_report_ends_no_idle_connection() {
    let line = Line { mbit: 100, delay: 20 * MS, queue: 1 << 20, loss: 0 };
    let mut pair = Pair::new("doubted", &[Class::default()], line);
    for wait in [1000, 2900, 100, 3500] {
        // That an end is closed fails the step.
        (0..wait * 5).for_each(|_| pair.step());
        pair.doubt();
    }
    (0..5 * 5000).for_each(|_| pair.step());
    assert!(pair.ends[0].messages.send(0, Message { bytes: vec![1; 20], deadline: None }).is_ok());
    while pair.ends[1].messages.take().is_none() {
        pair.step();
    }
}
