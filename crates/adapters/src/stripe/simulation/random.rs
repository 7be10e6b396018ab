//! Streams that come, go, freeze and change at random moments: every byte comes once and in order, within the time that the one stream
//! needs that nothing happens to.

use super::*;

/// A net with streams of all kinds, and things to send both ways.
fn world(seed: u64) -> Net {
    let mut random = Random::new(seed ^ 0xD1CE);
    let window = (256 << 10) + random.below(2 << 20) as usize;
    let mut net = Net::new(Limits { window, backlog: window }, seed);
    for end in 0..2 {
        net.wanted[end] = if random.once_in(4) { random.below(20_000) } else { random.below(4_000_000) };
        if random.once_in(3) {
            net.appetite[end] = 2_000 + random.below(50_000);
        }
    }
    // Nothing ever happens to the first one.
    net.add(Kind { rate: 200_000 + random.below(4_000_000), ..kind(&mut random) });
    for _ in 0..random.below(6) {
        net.add(kind(&mut random));
    }
    net
}

fn kind(random: &mut Random) -> Kind {
    let rate = 20_000 << random.below(10);
    let loss = if random.once_in(2) { 20 + random.below(300) } else { 0 };
    Kind { rate, delay: random.below(150) * MS, jitter: random.below(40) * MS, loss }
}

/// Something happens to a stream; not to the first one.
fn trouble(net: &mut Net) {
    let now = net.now;
    if net.ends[0].lanes() < 8 && net.ends[1].lanes() < 8 && net.random.once_in(300) {
        let kind = kind(&mut net.random);
        net.add(kind);
    }
    for at in 1..net.wires.len() {
        let (fate, time) = (net.random.below(5000), net.random.below(3000 * MS));
        let sooner = net.random.below(400) * MS;
        let wire = &mut net.wires[at];
        let lane = wire.lane;
        match fate {
            // It breaks: one end is notified sooner, and what is on its way may be lost.
            0..4 if wire.ends == [u64::MAX; 2] => {
                wire.ends = if time % 2 == 0 { [now, now + sooner] } else { [now + sooner, now] };
                for pipe in &mut wire.pipes {
                    let left = net.random.below(1 + pipe.flight.len() as u64) as usize;
                    pipe.flight.truncate(left);
                    pipe.queue.clear();
                }
                wire.kind.rate = 0;
            }
            4..8 => wire.frozen = now + time,
            8..12 if wire.kind.rate > 0 => wire.kind = Kind { delay: wire.kind.delay, ..kind(&mut net.random) },
            12 if wire.has[0] => net.ends[0].retire(lane),
            13 if wire.has[1] => net.ends[1].retire(lane),
            _ => {}
        }
    }
}

/// Retired streams are closed when nothing is left on them, as the owner of their sockets would.
fn close(net: &mut Net) {
    for at in 0..net.wires.len() {
        for end in 0..2 {
            let wire = &mut net.wires[at];
            if wire.has[end] && net.ends[end].is_over(wire.lane) {
                wire.has[end] = false;
                net.ends[end].remove(wire.lane);
                // What it has sent still goes.
                wire.ends[1 - end] = wire.ends[1 - end].min(net.now + 30 * SECOND);
            }
        }
    }
}

fn one(seed: u64) {
    let mut net = world(seed);
    let calm = net.random.below(6000) * MS;
    // What the first stream alone would take, for its rate, the window and the readers, twice; and a while for those that freeze.
    let first = net.wires[0].kind;
    let trip = 2 * (first.delay + first.jitter) + 50 * MS + LOWAT as u64 * SECOND / first.rate;
    let trip = trip + if first.loss > 0 { 4 * first.delay + 40 * MS } else { 0 };
    let by_window = net.limits.window as u64 * SECOND / trip;
    let rate = first.rate.min(by_window).min(1000 * net.appetite.into_iter().min().unwrap().min(1 << 40));
    let most = 2 * calm + 2 * net.wanted.iter().max().unwrap() * SECOND / rate + 20 * SECOND;
    while !net.is_done() {
        net.step();
        if net.now < calm {
            trouble(&mut net);
        }
        close(&mut net);
        assert!(net.now <= most, "{:?} of {:?} after {} ms, {:?}", net.read, net.wanted, net.now / MS, net.ends);
    }
    assert_eq!([net.read[1], net.read[0]], net.wanted);
}

#[test]
fn all_bytes_come_once_and_in_order_whatever_breaks() {
    madrigal_seeds::run(60, one);
}

#[test]
fn a_retired_stream_ends_without_anything_sent_again() {
    let mut net = Net::new(Limits::default(), 1);
    let lanes = [0, 1, 2].map(|_| net.add(Kind::new(50, 30)));
    net.wanted = [30_000_000, 1000];
    net.run(1000);
    net.ends[1].retire(lanes[2]);
    net.run(500);
    assert!(net.ends.iter().all(|end| end.is_over(lanes[2])) && !net.ends[0].is_over(lanes[1]));
    net.ends.iter_mut().for_each(|end| end.remove(lanes[2]));
    net.wire(lanes[2]).has = [false; 2];
    net.finish(10 * SECOND);
    // Headers and acknowledgements, and nothing twice but what hung at the end.
    let extra = net.carried[0] - net.wanted[0];
    assert!(extra < 100_000, "{extra} bytes more than needed");
}
