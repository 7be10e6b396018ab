use super::*;

/// A way with streams on it: CUBIC's, of which each carries no more than losses allow, or windows, and all together what the link does.
struct Model {
    way: Way,
    /// What each stream carries at most for its window, if that is small.
    window: Option<f64>,
    /// Beyond so many streams all carry less.
    peak: usize,
    /// Nothing more is there to be sent than this, bytes a second.
    wanted: f64,
    /// How many times as much two streams carry as they should.
    lucky: f64,
    /// How far a stream's rate swings.
    swing: f64,
    swings: u64,
    /// How many times as much the second stream carries before it loses something, and for how many samples more.
    boost: (f64, u32),
    samples: u64,
    seed: u64,
}

fn scramble(seed: u64) -> u64 {
    seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407)
}

/// A number from 0 to 1.
fn part(seed: u64) -> f64 {
    (seed >> 33) as f64 / f64::from(1u32 << 31)
}

impl Model {
    fn new(mbit: f64, round_trip: f64, loss: f64) -> Self {
        let way = Way { rate: mbit * 125_000.0, round_trip, loss, segment: 1448.0 };
        Self {
            way,
            window: None,
            peak: 16,
            wanted: f64::INFINITY,
            lucky: 1.0,
            swing: 0.0,
            swings: 0,
            boost: (1.0, 0),
            samples: 0,
            seed: 5,
        }
    }

    /// What so many streams carry.
    fn carries(&self, count: usize) -> f64 {
        let over = count.saturating_sub(self.peak) as f64;
        self.would_carry(count).min(self.way.rate) / (1.0 + 0.05 * over)
    }

    /// The same if the link were not full.
    fn would_carry(&self, count: usize) -> f64 {
        (2.0 * self.way.one_stream()).min(self.window.unwrap_or(f64::INFINITY)) * count as f64
    }

    /// As much more or less: from sample to sample, and, by `swing`, for three seconds each.
    fn noise(&mut self, stream: usize) -> f64 {
        self.seed = scramble(self.seed);
        let slow = scramble(self.swings.wrapping_add((self.samples / 15) << 8).wrapping_add(stream as u64));
        (0.98 + 0.04 * part(self.seed)) * (1.0 - self.swing + 2.0 * self.swing * part(scramble(slow)))
    }

    fn samples(&mut self, count: usize) -> Vec<StreamSample> {
        let lucky = if count == 2 { self.lucky } else { 1.0 };
        let all = (lucky * self.carries(count)).min(self.wanted);
        self.samples += 1;
        self.boost.1 = self.boost.1.saturating_sub(u32::from(count > 1));
        let one = |model: &mut Self, stream| {
            let boost = if stream == 1 && model.boost.1 > 0 { model.boost.0 } else { 1.0 };
            let rate = boost * all / count as f64 * model.noise(stream);
            let sent = (rate / 5.0) as u64;
            let small = model.window.is_some_and(|window| all / count as f64 >= 0.99 * window);
            StreamSample {
                rate: rate as u64,
                app_limited: model.wanted < model.carries(count),
                unsent: 100_000,
                busy: 200,
                receiver_limited: if small { 150 } else { 0 },
                sent,
                resent: (sent as f64 * model.way.loss) as u64,
                round_trip: (model.way.round_trip * 1e9) as u64,
                queued: if model.would_carry(count) >= 0.97 * model.way.rate { 50 * MILLISECOND } else { MILLISECOND },
                ..StreamSample::default()
            }
        };
        (0..count).map(|stream| one(self, stream)).collect()
    }

    /// The least number of streams that carries as much as the next one but for a tenth.
    fn right(&self) -> usize {
        [1, 2, 4, 8].into_iter().find(|count| self.carries(2 * count) < 1.1 * self.carries(*count)).unwrap_or(16)
    }
}

const TICK: u64 = 200 * MILLISECOND;

/// So many seconds pass; streams take a while to come up. How long each number was wanted, in seconds.
fn run(model: &mut Model, count: &mut StreamCount, now: &mut u64, seconds: u64) -> [f64; 17] {
    let (mut times, mut up) = ([0.0; 17], VecDeque::from([count.count(); 3]));
    for _ in 0..seconds * 5 {
        *now += TICK;
        up.push_back(count.count());
        let there = up.pop_front().unwrap();
        times[count.sample(*now, &model.samples(there))] += 0.2;
    }
    times
}

fn found(model: &mut Model, start: usize, seconds: u64) -> usize {
    let (mut now, mut count) = (0, StreamCount::new(0, start, 16, Congestion::ByLoss));
    run(model, &mut count, &mut now, seconds);
    // What it is most of the time: now and then another number is tried.
    let times = run(model, &mut count, &mut now, 600);
    (1..=16).max_by(|a, b| times[*a].total_cmp(&times[*b])).unwrap()
}

#[test]
fn the_right_number_is_found_from_any_start() {
    for (mbit, round_trip, loss) in [
        (100.0, 0.1, 0.001),
        (100.0, 0.1, 0.01),
        (100.0, 0.02, 0.001),
        (30.0, 0.1, 0.001),
        (10.0, 0.15, 0.05),
        (1000.0, 0.05, 0.0005),
        (1000.0, 0.01, 0.000_001),
    ] {
        for start in [1, 3, 8, 16] {
            let mut model = Model::new(mbit, round_trip, loss);
            let (right, found) = (model.right(), found(&mut model, start, 300));
            let share = model.carries(found) / model.carries(right);
            assert!(share >= 0.94, "{mbit} Mbit/s {round_trip} s {loss}: {found} of {right} from {start}, {share:.2}");
            assert!(found <= 2 * right, "{mbit} Mbit/s {round_trip} s {loss}: {found} of {right} from {start}");
        }
    }
}

#[test]
fn from_one_stream_it_takes_seconds_to_sixteen() {
    let mut model = Model::new(100.0, 0.1, 0.001);
    let (mut now, mut count) = (0, StreamCount::new(0, 1, 16, Congestion::ByLoss));
    run(&mut model, &mut count, &mut now, 20);
    assert_eq!((count.count(), model.right()), (16, 16));
}

#[test]
fn where_more_does_not_help_it_is_tried_ever_more_rarely() {
    // One stream fills the link, and losses say it may not: what is lost there is lost for a full queue.
    let mut model = Model::new(10.0, 0.02, 0.0005);
    assert_eq!(model.right(), 1);
    let (mut now, mut count) = (0, StreamCount::new(0, 1, 16, Congestion::ByLoss));
    let (mut tries, mut before) = (Vec::new(), 1);
    for second in 0..3600 {
        run(&mut model, &mut count, &mut now, 1);
        if count.count() > before {
            tries.push(second);
        }
        before = count.count();
    }
    let pauses: Vec<u64> = tries.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!((5..=12).contains(&tries.len()), "tried at {tries:?}");
    assert!(pauses[0] >= 30 && pauses.windows(2).all(|pair| pair[1] + 5 >= pair[0].min(600)), "{pauses:?}");
    assert!(*pauses.last().unwrap() >= 590, "{pauses:?}");
    assert!(pauses.iter().all(|pause| *pause <= 640), "{pauses:?}");
}

#[test]
fn streams_beyond_the_peak_are_taken_back() {
    let mut model = Model { peak: 4, ..Model::new(20.0, 0.1, 0.001) };
    assert!(model.carries(16) < 0.7 * model.carries(4));
    assert!(found(&mut model, 16, 300) <= 4);
    // Twice as many as are needed are no better: half of them go after a minute.
    let mut model = Model::new(16.0, 0.1, 0.001);
    assert_eq!(found(&mut model, 16, 600), model.right());
}

#[test]
fn small_windows_are_a_reason_for_more_streams() {
    let mut model = Model { window: Some(1_000_000.0), ..Model::new(100.0, 0.1, 0.0) };
    assert_eq!((model.right(), found(&mut model, 1, 300)), (16, 16));
}

#[test]
fn what_is_not_sent_says_nothing() {
    let mut model = Model { wanted: 100_000.0, ..Model::new(100.0, 0.1, 0.001) };
    let (mut now, mut count) = (0, StreamCount::new(0, 2, 16, Congestion::ByLoss));
    let times = run(&mut model, &mut count, &mut now, 600);
    assert!(times[2] > 599.0, "{times:?}");
    // In the middle of a try the program stops: back, and soon again once there is more.
    model.wanted = f64::INFINITY;
    while count.count() == 2 {
        run(&mut model, &mut count, &mut now, 1);
    }
    model.wanted = 1000.0;
    run(&mut model, &mut count, &mut now, 2);
    assert_eq!(count.count(), 2);
    model.wanted = f64::INFINITY;
    run(&mut model, &mut count, &mut now, 20);
    assert_eq!(count.count(), 16);
}

/// Two carry less than the program sends, and four more: what they could is not seen, and they are better all the same.
#[test]
fn more_streams_stay_where_all_there_is_to_send_goes() {
    let mut model = Model { wanted: 1_000_000.0, ..Model::new(100.0, 0.1, 0.01) };
    let (mut now, mut count) = (0, StreamCount::new(0, 2, 16, Congestion::ByLoss));
    let times = run(&mut model, &mut count, &mut now, 60);
    assert_eq!(count.count(), 4, "{times:?}");
}

#[test]
fn a_program_that_stops_in_every_try_has_few_made() {
    let mut model = Model::new(100.0, 0.1, 0.01);
    let (mut tries, mut now, mut count) = (0, 0, StreamCount::new(0, 1, 16, Congestion::ByLoss));
    for _ in 0..600 {
        model.wanted = if count.count() > 1 { 1000.0 } else { f64::INFINITY };
        let before = count.count();
        run(&mut model, &mut count, &mut now, 1);
        tries += usize::from(count.count() > before);
    }
    assert!((5..=30).contains(&tries), "{tries} tries in ten minutes");
}

#[test]
fn a_link_that_changes_is_followed() {
    let mut model = Model::new(100.0, 0.1, 0.001);
    let (mut now, mut count) = (0, StreamCount::new(0, 1, 16, Congestion::ByLoss));
    run(&mut model, &mut count, &mut now, 60);
    assert_eq!(count.count(), 16);
    model.way = Model::new(20.0, 0.1, 0.001).way;
    let times = run(&mut model, &mut count, &mut now, 900);
    assert!(count.count() <= 4, "{times:?}");
    model.way = Model::new(100.0, 0.1, 0.001).way;
    run(&mut model, &mut count, &mut now, 1300);
    assert_eq!(count.count(), 16);
}

#[test]
fn by_rate_one_stream_is_enough_whatever_is_lost() {
    let mut model = Model::new(100.0, 0.1, 0.01);
    let (mut now, mut count) = (0, StreamCount::new(0, 1, 16, Congestion::of("bbr")));
    assert_eq!(run(&mut model, &mut count, &mut now, 100)[1].round(), 100.0);
}

/// A buffer holds 320 Mbit/s of a way of 50 ms.
#[test]
fn by_rate_more_streams_are_found_where_one_is_held_back_by_its_window() {
    let mut model = Model { window: Some(40e6), ..Model::new(1000.0, 0.05, 0.000_001) };
    let (mut now, mut count) = (0, StreamCount::new(0, 1, 16, Congestion::of("bbr")));
    run(&mut model, &mut count, &mut now, 30);
    assert_eq!(count.count(), 4);
}

#[test]
fn limits_hold() {
    let mut model = Model::new(100.0, 0.1, 0.01);
    let (mut now, mut count) = (0, StreamCount::new(0, 16, 6, Congestion::ByLoss));
    let times = run(&mut model, &mut count, &mut now, 600);
    assert!(times[7..].iter().all(|time| *time == 0.0) && times[6] > 300.0, "{times:?}");
}

#[test]
fn streams_that_do_not_come_are_not_waited_for() {
    let mut model = Model::new(100.0, 0.1, 0.001);
    let (mut now, mut count) = (0, StreamCount::new(0, 1, 16, Congestion::ByLoss));
    let mut tries = 0;
    for _ in 0..600 * 5 {
        let before = count.count();
        now += TICK;
        tries += usize::from(count.sample(now, &model.samples(1)) > before);
    }
    assert!((2..10).contains(&tries), "{tries}");
}

/// Few streams are lucky for a while, more are compared with that, and then it is over.
#[test]
fn more_streams_are_tried_again_at_once_where_fewer_were_only_lucky() {
    let mut model = Model { lucky: 1.9, ..Model::new(36.0, 0.1, 0.001) };
    let (mut now, mut count) = (0, StreamCount::new(0, 2, 16, Congestion::ByLoss));
    while count.count() == 2 {
        run(&mut model, &mut count, &mut now, 1);
    }
    while count.count() == 4 {
        run(&mut model, &mut count, &mut now, 1);
    }
    assert_eq!(count.count(), 2, "they are no better than two that are lucky");
    model.lucky = 1.0;
    let times = run(&mut model, &mut count, &mut now, 20);
    assert!(count.count() >= 4, "{times:?}");
}

/// What one stream by CUBIC carries swings by half within seconds, and is much more at first: that does not show whether more help.
#[test]
fn where_nothing_waits_on_the_way_streams_are_added_whatever_they_carry() {
    for seed in 0..50 {
        let mut model =
            Model { swing: 0.5, swings: seed << 32, boost: (5.0, 5 + seed as u32), ..Model::new(100.0, 0.1, 0.001) };
        let (mut now, mut count) = (0, StreamCount::new(0, 1, 16, Congestion::ByLoss));
        let times = run(&mut model, &mut count, &mut now, 60);
        assert!(times[8] + times[16] > 40.0, "{seed}: {times:?}");
    }
}
