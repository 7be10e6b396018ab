use std::time::Duration;

use proptest::prelude::*;

use super::super::quantity::Queue;
use super::*;

/// One packet.
impl Load for Vec<u8> {
    fn bytes(&self) -> u64 {
        self.len() as u64
    }

    fn segments(&self) -> u32 {
        1
    }

    fn longest(&self) -> u32 {
        self.len() as u32
    }

    fn split(self, _: u32) -> (Self, Option<Self>) {
        (self, None)
    }
}

/// Packets of 1000 bytes that came together, each with a number.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Several(std::ops::Range<u32>);

impl Load for Several {
    fn bytes(&self) -> u64 {
        1000 * self.0.len() as u64
    }

    fn segments(&self) -> u32 {
        self.0.len() as u32
    }

    fn longest(&self) -> u32 {
        1000
    }

    fn split(self, at: u32) -> (Self, Option<Self>) {
        let middle = self.0.start.saturating_add(at).min(self.0.end);
        (Self(self.0.start..middle), (middle < self.0.end).then_some(Self(middle..self.0.end)))
    }
}

const MS: u64 = 1_000_000;

fn settings(assignments: &[&str]) -> Settings {
    let mut settings = Settings::default();
    settings.apply(assignments.iter().copied()).unwrap();
    settings
}

/// Everything that arrives, each with its time: the clock jumps to the time of `next`.
fn arrivals(line: &mut Direction<Vec<u8>>) -> Vec<(u64, Vec<u8>)> {
    let mut out = Vec::new();
    let mut now = 0;
    while let Some(next) = line.next() {
        now = next.max(now);
        while let Some(packet) = line.pop(now) {
            out.push((now, packet));
        }
    }
    out
}

#[test]
fn a_packet_takes_its_line_time_and_the_delay() {
    let mut line = Direction::new(settings(&["rate=8M", "delay=20ms"]), 1);
    line.push(5 * MS, vec![0; 1000]).unwrap();
    line.push(5 * MS, vec![1; 500]).unwrap();
    assert_eq!(line.next(), Some(26 * MS));
    assert!(line.pop(26 * MS - 1).is_none());
    let times: Vec<_> = arrivals(&mut line).iter().map(|(at, packet)| (*at, packet.len())).collect();
    assert_eq!(times, [(26 * MS, 1000), (26 * MS + MS / 2, 500)]);
    assert_eq!((line.counts().packets, line.counts().bytes, line.backlog()), (2, 1500, 0));
}

#[test]
fn who_asks_late_loses_no_rate() {
    let mut line = Direction::new(settings(&["rate=8M"]), 1);
    for _ in 0..10 {
        line.push(0, vec![0; 1000]).unwrap();
    }
    let arrived = std::iter::from_fn(|| line.pop(7 * MS)).count();
    assert_eq!((arrived, line.next()), (7, Some(8 * MS)));
}

#[test]
fn the_queue_is_bounded_in_bytes_or_time() {
    for (queue, taken) in [("10kB", 10), ("5ms", 5)] {
        let mut line = Direction::new(settings(&["rate=8M", &format!("queue={queue}")]), 1);
        let pushed = (0..100).filter(|_| line.push(0, vec![0; 1000]).is_ok()).count();
        assert_eq!((pushed, line.counts().full), (taken, 100 - taken as u64), "{queue}");
    }
}

#[test]
fn a_change_holds_for_what_waits_and_keeps_the_order() {
    let mut line = Direction::new(settings(&["rate=8M", "delay=100ms"]), 1);
    for n in 0..3 {
        line.push(0, vec![n; 1000]).unwrap();
    }
    line.set(MS, settings(&["rate=80M", "delay=10ms"]));
    line.push(2 * MS, vec![3; 1000]).unwrap();
    let out = arrivals(&mut line);
    // The first was sent at the old rate and flies; the others may not overtake it.
    assert_eq!(
        out.iter().map(|(at, packet)| (*at, packet[0])).collect::<Vec<_>>(),
        [0, 1, 2, 3].map(|n| (101 * MS, n))
    );
}

#[test]
fn a_cut_takes_all_and_a_healed_line_carries_again() {
    let mut line = Direction::new(settings(&["rate=8M", "delay=10ms"]), 1);
    for _ in 0..5 {
        line.push(0, vec![0; 1000]).unwrap();
    }
    line.set_cut(3 * MS, true);
    assert_eq!(line.push(4 * MS, vec![0; 1000]), Err(Dropped::Cut));
    assert_eq!((line.next(), line.counts().cut), (None, 6));
    line.set_cut(5 * MS, false);
    line.push(6 * MS, vec![7; 1000]).unwrap();
    assert_eq!(arrivals(&mut line), [(17 * MS, vec![7; 1000])]);
}

#[test]
fn a_hole_swallows_long_packets_only() {
    let mut line = Direction::new(settings(&["mtu=1280", "hole=true"]), 1);
    assert_eq!(line.push(0, vec![0; 1281]), Err(Dropped::Long));
    assert_eq!(line.push(0, vec![0; 1280]), Ok(()));
    assert_eq!(line.counts().long, 1);
}

#[test]
fn losses_come_at_their_share_and_again_with_the_same_seed() {
    let survivors = |seed| {
        let mut line = Direction::new(settings(&["loss=5%"]), seed);
        for n in 0..100_000u32 {
            line.push(u64::from(n), n.to_le_bytes().to_vec()).unwrap();
        }
        arrivals(&mut line).into_iter().map(|(_, packet)| packet).collect::<Vec<_>>()
    };
    let first = survivors(7);
    assert_eq!(first, survivors(7));
    assert_ne!(first, survivors(8));
    // Five sigmas of a binomial distribution.
    let lost = 100_000 - first.len();
    assert!((5000 - 345..=5000 + 345).contains(&lost), "{lost}");
}

#[test]
fn jitter_strays_around_the_delay() {
    let mut line = Direction::new(settings(&["delay=20ms", "jitter=5ms"]), 3);
    let mut delays = Vec::new();
    for n in 0..5000 {
        let sent = n * 3 * MS;
        line.push(sent, vec![0; 100]).unwrap();
        delays.extend(arrivals(&mut line).iter().map(|(at, _)| (at - sent) as f64 / MS as f64));
    }
    let mean = delays.iter().sum::<f64>() / delays.len() as f64;
    assert!((19.5..20.5).contains(&mean), "{mean}");
    assert!(delays.iter().all(|d| (15.0..=25.0).contains(d)));
    assert!(delays.iter().any(|d| *d < 16.5) && delays.iter().any(|d| *d > 23.5));
}

/// What arrives in the end, piece by piece.
fn pieces(line: &mut Direction<Several>) -> Vec<(u64, std::ops::Range<u32>)> {
    let mut out = Vec::new();
    while let Some(now) = line.next() {
        out.extend(std::iter::from_fn(|| line.pop(now)).map(|piece| (now, piece.0)));
    }
    out
}

#[test]
fn what_comes_together_is_divided_as_the_rate_asks() {
    let mut slow = Direction::new(settings(&["rate=8M"]), 1);
    slow.push(0, Several(0..3)).unwrap();
    assert_eq!(pieces(&mut slow), [(MS, 0..1), (2 * MS, 1..2), (3 * MS, 2..3)]);
    let mut fast = Direction::new(settings(&["rate=80M"]), 1);
    fast.push(0, Several(0..3)).unwrap();
    assert_eq!(pieces(&mut fast), [(2 * MS / 10, 0..2), (3 * MS / 10, 2..3)]);
    let mut unlimited = Direction::new(Settings::default(), 1);
    unlimited.push(5, Several(0..44)).unwrap();
    assert_eq!(pieces(&mut unlimited), [(5, 0..44)]);
}

#[test]
fn of_what_comes_together_as_much_is_taken_as_there_is_room() {
    let mut line = Direction::new(settings(&["rate=800M", "queue=10kB"]), 1);
    assert_eq!(line.push(0, Several(0..44)), Err(Dropped::Full));
    assert_eq!((line.backlog(), line.counts().full), (10_000, 34));
    assert_eq!(pieces(&mut line).last(), Some(&(MS / 10, 0..10)));
}

#[test]
fn what_comes_together_is_lost_packet_by_packet() {
    let survivors = |together: u32| {
        let mut line = Direction::new(settings(&["loss=5%"]), 9);
        for n in (0..9000).step_by(together as usize) {
            line.push(u64::from(n), Several(n..n + together)).unwrap();
        }
        let out: Vec<u32> = pieces(&mut line).into_iter().flat_map(|(_, piece)| piece).collect();
        assert_eq!(out.len() as u64 + line.counts().lost, 9000);
        out
    };
    assert_eq!(survivors(1), survivors(45));
    assert!(survivors(1).len() < 8700);
}

proptest! {
    #[test]
    fn order_rate_delay_and_queue_hold(
        seed: u64,
        rate in 100_000u64..1_000_000_000,
        delay in 0u64..50,
        jitter in 0u64..50,
        queue in 3000u64..200_000,
        packets in prop::collection::vec((0u64..2_000_000, 40usize..1500), 1..300),
    ) {
        let settings = Settings {
            rate: Some(rate),
            delay: Duration::from_millis(delay),
            jitter: Duration::from_millis(jitter.min(delay)),
            queue: Queue::Bytes(queue),
            ..Settings::default()
        };
        let mut line = Direction::new(settings, seed);
        let (mut now, mut taken, mut out) = (0, Vec::new(), Vec::new());
        for (n, (gap, len)) in packets.iter().enumerate() {
            now += gap;
            while let Some(packet) = line.pop(now) {
                out.push((now, packet));
            }
            let mut packet = vec![0; *len];
            packet[..8].copy_from_slice(&(n as u64).to_le_bytes());
            if line.push(now, packet).is_ok() {
                taken.push((now, n as u64, *len));
            }
            prop_assert!(line.backlog() <= queue.max(3000));
        }
        let late = arrivals(&mut line);
        out.extend(late.into_iter().map(|(at, packet)| (at.max(now), packet)));
        // Nothing is lost, doubled or reordered.
        let number = |packet: &[u8]| u64::from_le_bytes(packet[..8].try_into().unwrap());
        prop_assert_eq!(out.iter().map(|(_, p)| number(p)).collect::<Vec<_>>(), taken.iter().map(|t| t.1).collect::<Vec<_>>());
        // None arrives before the line could have sent it and all before it, and the delay was over.
        let mut free = 0;
        for ((came, _, len), (at, _)) in taken.iter().zip(&out) {
            free = (*came).max(free) + (*len as u64 * 8_000_000_000) / rate;
            prop_assert!(*at >= free + (delay - jitter.min(delay)) * MS);
        }
        prop_assert_eq!(line.counts().packets + line.counts().full, packets.len() as u64);
        prop_assert_eq!(line.backlog(), 0);
    }
}
