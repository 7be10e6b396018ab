//! How fast a stripe is: in virtual time, so exactly the same each time.

use super::*;

/// So many bytes over such streams, with a window; in nanoseconds.
fn transfer(kinds: &[Kind], bytes: u64, window: usize) -> u64 {
    let mut net = Net::new(Limits { window, backlog: window }, 7);
    for kind in kinds {
        net.add(*kind);
    }
    net.wanted[0] = bytes;
    net.finish(2000 * SECOND)
}

fn mbit(bytes: u64, time: u64) -> f64 {
    bytes as f64 * 8000.0 / time as f64
}

/// Bytes that come in so many milliseconds, in Mbit/s.
fn over(net: &mut Net, milliseconds: u64) -> f64 {
    let before = net.read[1];
    net.run(milliseconds);
    mbit(net.read[1] - before, milliseconds * MS)
}

#[test]
fn two_streams_of_50_mbit_with_20_and_60_ms_carry_more_than_90() {
    let time = transfer(&[Kind::new(50, 20), Kind::new(50, 60)], 100_000_000, 16 << 20);
    assert!(mbit(100_000_000, time) >= 90.0, "{} Mbit/s", mbit(100_000_000, time));
}

#[test]
fn sixteen_streams_with_losses_carry_what_they_can() {
    let kind = Kind { loss: 400, jitter: 2 * MS, ..Kind::new(6, 100) };
    let time = transfer(&[kind; 16], 100_000_000, 16 << 20);
    assert!(mbit(100_000_000, time) >= 0.9 * 96.0, "{} Mbit/s", mbit(100_000_000, time));
}

#[test]
fn a_stream_that_breaks_costs_no_more_than_what_it_would_have_carried() {
    let mut net = Net::new(Limits::default(), 3);
    let lanes = [20, 40, 60].map(|round_trip| net.add(Kind::new(100, round_trip)));
    net.wanted[0] = 200_000_000;
    net.run(2000);
    assert!(net.read[1] > 65_000_000, "{}", net.read[1]);
    let now = net.now;
    let wire = net.wire(lanes[1]);
    wire.pipes.iter_mut().for_each(|pipe| *pipe = Pipe::default());
    (wire.ends, wire.kind.rate) = ([now, now + 20 * MS], 0);
    let left = 200_000_000 - net.read[1];
    let time = net.finish(60 * SECOND);
    assert!(mbit(left, time) >= 0.95 * 200.0, "{} Mbit/s", mbit(left, time));
}

#[test]
fn a_stream_that_says_nothing_any_more_holds_up_nothing_for_long() {
    let mut net = Net::new(Limits::default(), 3);
    let lanes = [20, 20].map(|round_trip| net.add(Kind::new(100, round_trip)));
    net.wanted[0] = 150_000_000;
    net.run(1000);
    net.wire(lanes[1]).frozen = u64::MAX;
    net.run(1000);
    let rate = over(&mut net, 2000);
    assert!(rate >= 95.0, "{rate} Mbit/s");
    // It comes back.
    net.wire(lanes[1]).frozen = 0;
    net.run(300);
    let rate = over(&mut net, 1000);
    assert!(rate >= 190.0, "{rate} Mbit/s");
}

/// A link that knows its streams, and has nothing to do.
fn warm(kinds: [Kind; 2]) -> (Net, [Lane; 2]) {
    let mut net = Net::new(Limits::default(), 3);
    let lanes = kinds.map(|kind| net.add(kind));
    (net.open, net.wanted[0]) = (true, 20_000_000);
    net.run(6000);
    assert_eq!(net.read[1], net.wanted[0]);
    (net, lanes)
}

/// Milliseconds until everything came.
fn until_read(net: &mut Net) -> u64 {
    let began = net.now;
    while net.read[1] < net.wanted[0] {
        net.step();
        assert!(net.now - began < 60 * SECOND, "{:?} of {:?}", net.read, net.wanted);
    }
    (net.now - began) / MS
}

#[test]
fn what_is_short_goes_by_the_fast_stream_alone_or_by_another_if_that_is_silent() {
    let (mut net, [fast, _]) = warm([Kind::new(100, 20), Kind::new(10, 300)]);
    let before = net.carried[0];
    net.wanted[0] += 600_000;
    // More than one piece. 48 ms to send, 10 ms on the way; nothing twice.
    let time = until_read(&mut net);
    assert!(time <= 65, "{time} ms");
    net.run(1000);
    assert!(net.carried[0] - before < 605_000, "{} bytes", net.carried[0] - before);
    net.wire(fast).frozen = u64::MAX;
    net.wanted[0] += 600_000;
    let time = until_read(&mut net);
    assert!((600..1500).contains(&time), "{time} ms");
}

#[test]
fn what_hangs_at_the_end_goes_by_the_fastest_stream_a_second_time() {
    let (mut net, [_, other]) = warm([Kind::new(50, 40), Kind::new(50, 40)]);
    net.wanted[0] += 2_000_000;
    net.run(100);
    // It goes on, at ten bytes a millisecond, so that it is not silent.
    net.wire(other).kind.rate = 10_000;
    let time = until_read(&mut net);
    assert!(time <= 1000, "{time} ms");
}

#[test]
fn a_rate_that_changes_tenfold_is_followed_within_two_seconds() {
    let mut net = Net::new(Limits { window: 8 << 20, backlog: 8 << 20 }, 3);
    let lanes = [40, 40].map(|round_trip| net.add(Kind::new(50, round_trip)));
    net.wanted[0] = 1_000_000_000;
    net.run(5000);
    for (rate, expected) in [(5, 55.0), (50, 100.0), (5, 55.0), (50, 100.0)] {
        net.wire(lanes[0]).kind.rate = rate * MBIT;
        net.run(2000);
        let (known, true_rate) = (net.ends[0].sender.figures(lanes[0]).rate, rate * MBIT);
        assert!(known.abs_diff(true_rate) * 4 <= true_rate, "{known} bytes/s known of {true_rate}");
        let measured = over(&mut net, 2000);
        assert!(measured >= 0.95 * expected, "{measured} Mbit/s of {expected}");
    }
}

/// Whatever second stream there is, however small the window: no slower than the better one alone.
#[test]
fn a_bad_stream_never_makes_a_good_one_slower() {
    let bytes = 32_000_000;
    for window in [256 << 10, 2 << 20, 16 << 20] {
        for fast in [Kind::new(20, 20), Kind::new(100, 60)] {
            let alone = transfer(&[fast], bytes, window);
            for slow in [(1, 20), (1, 600), (10, 300), (50, 1000), (100, 60)] {
                let slow = Kind::new(slow.0, slow.1);
                let alone = if slow.rate > fast.rate { alone.min(transfer(&[slow], bytes, window)) } else { alone };
                for kinds in [[fast, slow], [slow, fast]] {
                    let both = transfer(&kinds, bytes, window);
                    let share = alone as f64 / both as f64;
                    assert!(share >= 0.97, "{share:.3} of what one alone gives, of {kinds:?}, window {window}");
                }
            }
        }
    }
}
